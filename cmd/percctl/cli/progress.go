package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progressAfter is how long a command works silently, and progressEvery how
// often it reports its progress: a log should not fill.
const (
	progressAfter = time.Second
	progressEvery = 5 * time.Second
	progressStep  = 100 * time.Millisecond
)

// A Progress reports on standard error how far a command is, once it takes
// longer than a second: on a terminal in one line that is written again and
// again, elsewhere in a line every five seconds. It is safe for concurrent use.
type Progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	next     time.Time
	shown    bool // a line is on the terminal

	// What Set, Of and Part were told last, and when the first call of Of was.
	format string
	args   []any
	part   float64
	n      int
	thing  string
	began  time.Time
	first  int
}

// NewProgress starts a progress.
func NewProgress(s *Streams) *Progress {
	return &Progress{w: s.Err, terminal: IsTerminal(s.Err), next: time.Now().Add(progressAfter)}
}

// Set says how far the command is.
func (p *Progress) Set(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.format, p.args = format, args
	p.show(time.Now())
}

func (p *Progress) show(now time.Time) {
	if now.Before(p.next) {
		return
	}
	line := Line(fmt.Sprintf(p.format, p.args...) + p.pace(now))
	if !p.terminal {
		p.next = now.Add(progressEvery)
		fmt.Fprintln(p.w, line)
		return
	}
	p.next = now.Add(progressStep)
	p.shown = true
	fmt.Fprintf(p.w, "%s%s", Control("\r\x1b[K"), Shorten(line, Width(p.w)-1))
}

// Of says which part of the work is done, between 0 and 1, and how many things that were.
// Set then adds the percentage, the rate and the time left. The part is 0 if it is not
// known, and n if nothing is counted.
func (p *Progress) Of(part float64, n int, thing string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(part, n, thing)
}

// Part is Of where only the part has changed.
func (p *Progress) Part(part float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(part, p.n, p.thing)
}

func (p *Progress) of(part float64, n int, thing string) {
	if p.began.IsZero() || part < p.part || n < p.n || thing != p.thing {
		p.began, p.first = time.Now(), n
	}
	p.part, p.n, p.thing = part, n, thing
}

// During counts kilobytes, and shows again what Set said last, until end is called: for work
// that says nothing for long.
func (p *Progress) During(kB func() int) (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case now := <-time.After(progressStep):
				p.mu.Lock()
				p.of(p.part, kB(), "kB")
				p.show(now)
				p.mu.Unlock()
			case <-stop:
				return
			}
		}
	}()
	return func() { close(stop); <-ended }
}

// leastElapsed is how long a rate is measured before it is said.
const leastElapsed = 2 * time.Second

// pace is what Set adds.
func (p *Progress) pace(now time.Time) string {
	var text string
	elapsed := now.Sub(p.began)
	if p.part > 0 {
		text = fmt.Sprintf(", %.0f %%", 100*min(p.part, 1))
	}
	if p.began.IsZero() || elapsed < leastElapsed {
		return text
	}
	if per := float64(p.n-p.first) / elapsed.Seconds(); per >= 1 {
		text += strings.Replace(fmt.Sprintf(", %.0f %ss/s", per, p.thing), "kBs/", "kB/", 1)
	}
	if p.part > 0.01 && p.part < 1 {
		left := time.Duration(float64(elapsed) * (1 - p.part) / p.part).Round(time.Second)
		text += fmt.Sprintf(", about %s left", Duration(max(left, time.Second)))
	}
	return text
}

// Event prints a line of its own; the line of Set comes back with the next Set.
func (p *Progress) Event(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, Control("\r\x1b[K"))
		p.shown, p.next = false, time.Time{}
	}
	fmt.Fprintln(p.w, Line(fmt.Sprintf(format, args...)))
}

// End removes the line.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, Control("\r\x1b[K"))
	}
	p.shown = false
	if next := time.Now().Add(progressStep); p.next.Before(next) { // what is printed now comes first
		p.next = next
	}
}
