package scale

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

// stored is docs/scale.json.
type stored struct{ report }

// write adds a report to the stored one, and writes the table.
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
	return os.WriteFile(page, []byte(changed), 0o666)
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
