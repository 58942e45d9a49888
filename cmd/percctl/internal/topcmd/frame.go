package topcmd

import (
	"bytes"
	"fmt"
	"io"
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
	for _, line := range f.lines() {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
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

func (f frame) lines() []string {
	p := f.picture
	all := []string{f.cut(fmt.Sprintf("project %s, instance %s, %s, taken in %s", p.Project, p.Instance, p.Time, cli.Seconds(p.Took)), f.style.Bold)}
	for _, fact := range p.Facts() {
		var style func(string) string
		if fact.Bad {
			style = f.style.Bad
		}
		all = append(all, f.cut(fmt.Sprintf("%-11s  %s", fact.Name, fact.Words), style))
	}
	for _, n := range p.Warnings {
		all = append(all, f.cut(n, f.style.Bad))
	}
	if len(p.Observers) > 0 {
		var rows [][]string
		for _, b := range p.Observers {
			rows = append(rows, b.TableRow())
		}
		all = append(all, f.table(observercmd.TableHeader, rows)...)
	}
	if len(p.Locks.Listed) > 0 {
		var rows [][]string
		for _, t := range p.Locks.Listed {
			rows = append(rows, []string{t.StartTS.String(), t.AgeText(), strconv.Itoa(len(t.Locks)), t.Primary, t.Verdict})
		}
		all = append(all, f.table([]string{"TRANSACTION", "AGE", "LOCKS", "PRIMARY", "VERDICT"}, rows)...)
		if n := p.Locks.Transactions - len(p.Locks.Listed); n > 0 {
			all = append(all, f.cut(fmt.Sprintf("… and %s more", cli.Count(n, "transaction")), nil))
		}
	}
	all = append(all, "")
	for _, n := range p.NotVisible {
		all = append(all, f.cut("not visible: "+n, nil))
	}
	return all
}

// table makes aligned lines with an empty one before them.
func (f frame) table(header []string, rows [][]string) []string {
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
	lines := []string{""}
	for i, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		var style func(string) string
		if i == 0 {
			style = f.style.Bold
		}
		lines = append(lines, f.cut(line, style))
	}
	return lines
}
