package traces

import (
	"bytes"
	"fmt"
	"html"
	"strings"
	"time"
)

// A picture is a waterfall of one or more traces, with one time axis.
type picture struct {
	title, subtitle string
	parts           []part
}

type part struct {
	label string
	spans spans
	link  *span // the span with the link to the previous part
}

// A line is one row of the picture: a span, or several successive spans of one name
// below one parent.
type line struct {
	label  string
	depth  int
	spans  spans
	header bool
	link   bool
}

const (
	width, left, right = 1200, 360, 150
	lineHeight, top    = 26, 92
	// folded is the number of spans of one name below one parent that share a line.
	folded = 3
)

func (p picture) lines() []line {
	var all []line
	for _, part := range p.parts {
		if part.label != "" {
			all = append(all, line{label: part.label, header: true})
		}
		ids := map[string]bool{}
		for _, s := range part.spans {
			ids[s.id] = true
		}
		var add func(kids spans, depth int)
		add = func(kids spans, depth int) {
			counts := map[string]spans{}
			for _, s := range kids {
				counts[s.name] = append(counts[s.name], s)
			}
			for _, s := range kids {
				same := counts[s.name]
				switch {
				case len(same) > folded && same[0] == s:
					all = append(all, line{label: fmt.Sprintf("%s ×%d", s.name, len(same)), depth: depth, spans: same})
				case len(same) > folded:
				default:
					all = append(all, line{label: s.name, depth: depth, spans: spans{s}, link: s == part.link})
					add(part.spans.below(s), depth+1)
				}
			}
		}
		add(part.spans.where(func(s *span) bool { return !ids[s.parent] }), 0)
	}
	return all
}

func (p picture) svg() []byte {
	lines := p.lines()
	first, last := time.Time{}, time.Time{}
	for _, part := range p.parts {
		for _, s := range part.spans {
			if first.IsZero() || s.start.Before(first) {
				first = s.start
			}
			if s.end.After(last) {
				last = s.end
			}
		}
	}
	total := last.Sub(first)
	x := func(t time.Time) float64 {
		return left + float64(t.Sub(first))/float64(total)*(width-left-right)
	}
	height := top + lineHeight*len(lines) + 40
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="system-ui, 'DejaVu Sans', sans-serif" font-size="13">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	text(&b, 20, 30, `font-size="18" font-weight="bold" fill="#202124"`, p.title)
	text(&b, 20, 52, `fill="#5f6368"`, p.subtitle)
	step := tick(total)
	for d := time.Duration(0); d <= total; d += step {
		at := first.Add(d)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e3e6ea"/>`+"\n", x(at), top-12, x(at), height-30)
		text(&b, x(at), top-18, `fill="#5f6368" font-size="11" text-anchor="middle"`, short(d))
	}
	for i, l := range lines {
		y := top + lineHeight*i
		if l.header {
			fmt.Fprintf(&b, `<rect x="0" y="%d" width="%d" height="%d" fill="#f1f3f4"/>`+"\n", y, width, lineHeight-4)
			text(&b, 20, float64(y+15), `font-weight="bold" fill="#3c4043"`, l.label)
			continue
		}
		text(&b, float64(20+16*l.depth), float64(y+15), `fill="#202124"`, l.label)
		var spent time.Duration
		for _, s := range l.spans {
			from, to := x(s.start), x(s.end)
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="14" rx="2" fill="%s"><title>%s</title></rect>`+"\n", from, y+4, max(to-from, 2), colour(s.name), html.EscapeString(s.name+" "+short(s.end.Sub(s.start))))
			spent += s.end.Sub(s.start)
		}
		end := x(l.spans[len(l.spans)-1].end) + 8
		note := short(spent)
		for _, s := range l.spans {
			for _, e := range s.events {
				at := x(e.at)
				fmt.Fprintf(&b, `<path d="M %.1f %d l 6 7 l -6 7 l -6 -7 z" fill="#d93025"/>`+"\n", at, y+4)
				note += "  ◆ " + e.name
				end = max(end, at+14)
			}
			if a := s.attrs["percolator.lock.action"]; a != "" {
				note += "  " + a
			}
		}
		if l.link {
			note += ", linked to the trace above"
		}
		anchor := ""
		if end > width-right-10 && len(l.spans) == 1 && x(l.spans[0].end)-x(l.spans[0].start) > 200 && len(note) > 12 {
			// Inside a long bar.
			end, anchor = x(l.spans[0].end)-8, ` text-anchor="end"`
			text(&b, end, float64(y+15), `font-size="11" fill="#ffffff"`+anchor, note)
			continue
		}
		text(&b, end, float64(y+15), `font-size="11" fill="#5f6368"`, note)
	}
	text(&b, 20, float64(height-12), `font-size="11" fill="#5f6368"`, "From real spans, by go run ./emulator_test/lab traces --images docs/images; the emulator is in the same machine. Spans of the Bigtable client are left out.")
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// tick returns a round number that is about a fifth of a duration.
func tick(total time.Duration) time.Duration {
	for unit := time.Microsecond; ; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if total <= 6*n*unit {
				return n * unit
			}
		}
	}
}

func text(b *bytes.Buffer, x, y float64, style, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" %s>%s</text>`+"\n", x, y, style, html.EscapeString(s))
}

func colour(name string) string {
	for prefix, c := range map[string]string{
		"transaction": "#1a73e8", "commit": "#188038", "prewrite": "#b06000", "timestamp": "#9334e6", "reserve": "#c58af9",
		"read": "#12858f", "resolve": "#c5221f", "observe": "#1a73e8",
	} {
		if strings.HasPrefix(name, prefix) {
			return c
		}
	}
	return "#5f6368"
}

func short(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d >= 100*time.Millisecond || d >= time.Millisecond && d%time.Millisecond == 0:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%d µs", d.Microseconds())
}
