package topcmd

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/observercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
)

// A frame is a picture as text.
type frame struct {
	picture *picture.Picture
	width   int // 0: lines are as long as they are
	style   cli.Style
}

func (f frame) text(w io.Writer) error {
	_, err := io.WriteString(w, strings.Join(f.lines(), "\n")+"\n")
	return err
}

// cut makes a line fit, before it gets colours.
func (f frame) cut(s string, style func(string) string) string {
	s = cli.Line(s)
	if f.width > 0 {
		s = cli.Shorten(s, f.width)
	}
	if style == nil {
		return s
	}
	return style(s)
}

// shownObservers is how many observers a frame has: those whose changes wait longest.
const shownObservers = 20

func (f frame) lines() []string {
	p := f.picture
	all := []string{f.cut(fmt.Sprintf("project %s, instance %s, %s, taken in %s", p.Project, p.Instance, p.Time, cli.Seconds(p.Took)), f.style.Bold)}
	for _, fact := range p.Facts() {
		style := map[bool]func(string) string{true: f.style.Bad}
		all = append(all, f.cut(fmt.Sprintf("%-11s  %s", fact.Name, fact.Words), style[fact.Bad]))
	}
	for _, n := range p.Warnings {
		all = append(all, f.cut(n, f.style.Bad))
	}
	if len(p.Observers) > 0 {
		rows, urgent := [][]string{}, slices.Clone(p.Observers)
		slices.SortStableFunc(urgent, func(a, b observercmd.Observer) int {
			return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(b.Dead, a.Dead), cmp.Compare(a.Workers, b.Workers))
		})
		for _, b := range urgent[:min(len(urgent), shownObservers)] {
			rows = append(rows, b.TableRow())
		}
		all = append(all, f.table(observercmd.TableHeader, rows, len(urgent), "observer")...)
	}
	if len(p.Locks.Listed) > 0 {
		var rows [][]string
		for _, t := range p.Locks.Listed {
			rows = append(rows, []string{t.StartTS.String(), t.AgeText(), strconv.Itoa(len(t.Locks)), t.Primary, t.Verdict})
		}
		all = append(all, f.table([]string{"TRANSACTION", "AGE", "LOCKS", "PRIMARY", "VERDICT"}, rows, p.Locks.Transactions, "transaction")...)
	}
	all = append(all, "")
	for _, n := range p.NotVisible {
		all = append(all, f.cut("not visible: "+n, nil))
	}
	return all
}

// table makes aligned lines with an empty one before them. all is how many rows there are of what.
func (f frame) table(header []string, rows [][]string, all int, what string) []string {
	var b bytes.Buffer
	t := cli.NewTable(&b)
	cli.WriteRow(t, header...)
	for _, r := range rows {
		cells := make([]string, len(r))
		for i, c := range r {
			cells[i] = cli.Line(c) // a tab would be another column
		}
		cli.WriteRow(t, cells...)
	}
	_ = t.Flush() // a buffer takes everything
	text := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	lines := []string{"", f.cut(text[0], f.style.Bold)}
	if all > len(rows) {
		text = append(text, fmt.Sprintf("… and %s more", cli.Count(all-len(rows), what)))
	}
	for _, line := range text[1:] {
		lines = append(lines, f.cut(line, nil))
	}
	return lines
}
