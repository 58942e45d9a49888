package scale

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/charts"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

// stored is docs/scale.json.
type stored struct{ report }

// write adds a report to the stored one, and writes the table and the plots.
func (r report) write(docs string) error {
	file := filepath.Join(docs, "scale.json")
	all := stored{}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", file, err)
	}
	all.add(r)
	if text, err = json.MarshalIndent(all, "", " "); err != nil {
		return err
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o666); err != nil {
		return err
	}
	page := filepath.Join(docs, "performance.md")
	if text, err = os.ReadFile(page); err != nil {
		return err
	}
	changed, err := rig.ReplaceMeasured(string(text), "growth", all.table())
	if err != nil {
		return err
	}
	if err := os.WriteFile(page, []byte(changed), 0o666); err != nil {
		return err
	}
	for _, c := range plots {
		if err := all.draw(c, filepath.Join(docs, "images")); err != nil {
			return err
		}
	}
	return nil
}

// add replaces the measurements that a report has, and keeps the others of a deployment of the same
// size.
func (s *stored) add(r report) {
	old := s.Results
	if s.Size != r.Size {
		old = Results{}
	}
	s.report = r
	again := func(row string) bool {
		return slices.ContainsFunc(r.Ran, func(m Ran) bool { return strings.HasPrefix(row, m.Name+": ") })
	}
	for _, scenario := range scenarios {
		if i := slices.IndexFunc(old.Ran, func(m Ran) bool { return m.Name == scenario.name }); i >= 0 && !again(scenario.name+": ") {
			s.Ran = append(s.Ran, old.Ran[i])
		}
	}
	s.Rows = append(s.Rows, slices.DeleteFunc(old.Rows, func(row Row) bool { return again(row.Row) })...)
	s.Points = append(s.Points, slices.DeleteFunc(old.Points, func(p Point) bool {
		return slices.ContainsFunc(r.Points, func(n Point) bool { return n.Plot == p.Plot && n.Line == p.Line })
	})...)
	place := func(row string) int {
		return slices.IndexFunc(scenarios, func(c scenario) bool { return strings.HasPrefix(row, c.name+": ") })
	}
	slices.SortStableFunc(s.Rows, func(a, b Row) int { return cmp.Compare(place(a.Row), place(b.Row)) })
}

// table has all rows but those that compare the plan, as markdown.
func (s *stored) table() string {
	var b strings.Builder
	b.WriteString("| Measurement | Goal | Measured | Met |\n| --- | --- | --- | --- |\n")
	short := func(v float64) string {
		switch {
		case v == math.Trunc(v) || math.Abs(v) >= 100:
			return cli.Fixed(v, 0)
		case math.Abs(v) >= 10:
			return cli.Fixed(v, 1)
		}
		return cli.Fixed(v, 2)
	}
	planned, agree := 0, 0
	var misses []string
	for _, r := range s.Rows {
		if strings.HasPrefix(r.Row, "plan: ") {
			planned++
			if r.Met {
				agree++
			}
			continue
		}
		if !r.Met {
			misses = append(misses, "- *"+r.Row+"*: "+cmp.Or(missed[r.Row], "the reason is not known")+".\n")
		}
		sign, met, unit := "≤", "yes", " "+r.Unit
		if r.AtLeast {
			sign = "≥"
		}
		if !r.Met {
			met = "**no**"
		}
		if r.Unit == "1" {
			unit = ""
		}
		fmt.Fprintf(&b, "| %s | %s %s%s | %s | %s |\n", r.Row, sign, short(r.Goal), unit, short(r.Measured), met)
	}
	if misses != nil {
		fmt.Fprintf(&b, "\n%d goals are missed:\n\n%s", len(misses), strings.Join(misses, ""))
	}
	fmt.Fprintf(&b, "\n`percctl plan` agrees with the model within 25 %% in %d of %d comparisons.\n\n", agree, planned)
	virtual, cpu := 0.0, 0.0
	for _, m := range s.Ran {
		virtual, cpu = virtual+m.Virtual, cpu+m.CPU
	}
	fmt.Fprintf(&b, "The deployment has %.0f TB, %d tables, %d clients and %.0f commits a second. %.1f hours of virtual time took %.0f minutes of processor time. Last measured %s.\n", s.Size.Bytes/1e12, s.Size.Tables, s.Size.Clients, s.Size.Rate, virtual/3600, cpu/60, s.Machine)
	return b.String()
}

// plots are the plots of points, without the lines.
var plots = []charts.Chart{
	{File: "growth-oracle", Title: "Commits of busy processes, by kind of oracle", X: "processes with 4 goroutines each", Y: "p50 of a commit in ms", LogY: true, Goal: "goal, served"},
	{File: "growth-hot", Title: "Transactions that all write the same cells", X: "processes with 4 goroutines each", Y: "commits per second"},
}

// goal returns the goal of a row; NaN: there is no such row.
func (s *stored) goal(row string) float64 {
	for _, r := range s.Rows {
		if r.Row == row {
			return r.Goal
		}
	}
	return math.NaN()
}

// draw draws the lines of a plot.
func (s *stored) draw(c charts.Chart, dir string) error {
	var at []float64
	var lines []string
	value := map[string]map[float64]float64{}
	for _, p := range s.Points {
		if p.Plot != c.File {
			continue
		}
		if !slices.Contains(at, p.At) {
			at = append(at, p.At)
		}
		if value[p.Line] == nil {
			lines, value[p.Line] = append(lines, p.Line), map[float64]float64{}
		}
		value[p.Line][p.At] = p.Value
	}
	if len(lines) == 0 {
		return nil
	}
	slices.Sort(at)
	slices.Sort(lines)
	colours := []color.Color{charts.OursColour, charts.PaperColour, charts.OtherColour}
	for i, name := range lines {
		line := charts.Series{Name: name, Colour: colours[i%len(colours)]}
		for _, x := range at {
			v, ok := value[name][x]
			if !ok {
				v = math.NaN()
			}
			line.Values, line.Labels = append(line.Values, v), append(line.Labels, cli.Fixed(v, 0))
		}
		c.Series = append(c.Series, line)
	}
	for _, x := range at {
		c.Groups = append(c.Groups, cli.Fixed(x, 0))
		c.Goals = append(c.Goals, s.goal(fmt.Sprintf("busy processes: p50 of %.0f processes, served oracle", x)))
	}
	if c.File == "growth-hot" {
		c.Goals = slices.Repeat([]float64{math.NaN()}, len(at))
		c.Goals[len(at)-1] = s.goal("hot keys: commits of most processes")
	}
	p, err := c.Lines()
	if err != nil {
		return err
	}
	return c.Save(p, dir, ".svg")
}
