package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

type reportOptions struct {
	streams *cli.Streams
	docs    string
	only    []string
	rewrite bool
	short   bool
}

// The files below --docs. Each table goes into each page that has its marks.
const (
	pageFile    = "performance.md"
	tablesFile  = "reference/performance.md"
	resultsFile = "performance.json"
)

func newReportCmd(s *cli.Streams) *cobra.Command {
	o := &reportOptions{streams: s}
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	cmd := &cobra.Command{
		Use:   "report --docs DIR",
		Short: "Measure everything, and write the tables of docs/performance.md",
		Long: `Measure everything that docs/reference/performance.md shows, in less than ten minutes.
Run it on a machine that does nothing else. The command writes DIR/performance.json with
all results, and the tables in DIR/performance.md and DIR/reference/performance.md that
stand between the lines

  <!-- measured: NAME -->
  <!-- end -->

NAME is a part, or "PART, short" for a table with fewer columns. The command changes no
other text. With --only, the other parts keep their results from performance.json. With
--rewrite the command measures nothing, and writes the tables from performance.json.

The parts are ` + strings.Join(names, ", ") + `.`,
		Example: `  lab bench report --docs docs
  lab bench report --docs docs --only compare,trips
  lab bench report --docs docs --rewrite`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range o.only {
				if !slices.Contains(names, name) {
					return cli.Usagef("--only %s: the parts are %s", name, strings.Join(names, ", "))
				}
			}
			if o.rewrite && (len(o.only) > 0 || o.short) {
				return cli.Usagef("--rewrite measures nothing; leave --only and --short out")
			}
			if o.docs == "" {
				return cli.Usagef("--docs is missing: name the folder with %s", pageFile)
			}
			if _, err := os.Stat(filepath.Join(o.docs, pageFile)); err != nil {
				return cli.Usagef("--docs %s: it has no %s", o.docs, pageFile)
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.docs, "docs", "", "the folder with performance.md")
	f.StringSliceVar(&o.only, "only", nil, "measure these parts only, separated by commas")
	f.BoolVar(&o.rewrite, "rewrite", false, "measure nothing; write the tables from performance.json")
	f.BoolVar(&o.short, "short", false, "measure for a moment only, to try the command; the numbers mean nothing")
	return cmd
}

// results are all measurements of a report. docs/performance.json contains them.
type results struct {
	Compare    *compareReport    `json:"compare,omitempty"`        // lab bench compare
	Served     *compareReport    `json:"compare_served,omitempty"` // the same with a served oracle
	Rows       *rowsReport       `json:"rows,omitempty"`           // lab bench rows
	CPU        *cpuReport        `json:"cpu,omitempty"`            // lab bench cpu
	Profile    *profileReport    `json:"profile,omitempty"`        // lab bench profile
	Trips      *tripsReport      `json:"trips,omitempty"`          // lab bench trips
	Delay      *delayReport      `json:"delay,omitempty"`          // lab bench delay
	Contention *contentionReport `json:"contention,omitempty"`     // lab bench contention
	Brokerage  *brokerageReport  `json:"brokerage,omitempty"`      // lab bench brokerage
	Scale      *scaleReport      `json:"scale,omitempty"`          // lab bench scale
	Plan       *verification     `json:"plan,omitempty"`           // compared with counts
}

// A part is one measurement of a report.
type part struct {
	name string
	// measure measures, for a moment only if short is set.
	measure func(ctx context.Context, o *reportOptions, r *results) error
	// table shows the results. It is called only if there are results.
	there func(r *results) bool
	table func(r *results) string
}

// with returns flags with their defaults, or with very small values.
func (o *reportOptions) with(callers, rounds int, length time.Duration) shared {
	if o.short {
		rounds, length = 1, 10*time.Millisecond
	}
	return shared{streams: o.streams, callers: callers, rounds: rounds, length: length}
}

func (o *reportOptions) pick(short, long int) int {
	if o.short {
		return short
	}
	return long
}

func (o *reportOptions) duration(long time.Duration) time.Duration {
	if o.short {
		return 20 * time.Millisecond
	}
	return long
}

// keep stores a report at to.
func keep[T any](to **T, rep T, err error) error {
	if err == nil {
		*to = &rep
	}
	return err
}

var parts = []part{
	{"compare", func(ctx context.Context, o *reportOptions, r *results) error {
		c := &compareOptions{shared: o.with(32, 9, 400*time.Millisecond), rows: o.pick(1000, 10_000), size: 100}
		rep, err := c.report(ctx)
		if err := keep(&r.Compare, rep, err); err != nil {
			return err
		}
		c.served, c.rounds = true, max(1, c.rounds/2)
		rep, err = c.report(ctx)
		return keep(&r.Served, rep, err)
	}, func(r *results) bool { return r.Compare != nil && r.Served != nil }, compareMarkdown},
	{"rows", func(ctx context.Context, o *reportOptions, r *results) error {
		rep, err := (&rowsOptions{shared: o.with(32, 5, 250*time.Millisecond), quick: o.short}).report(ctx)
		return keep(&r.Rows, rep, err)
	}, func(r *results) bool { return r.Rows != nil }, rowsMarkdown},
	{"cpu", func(ctx context.Context, o *reportOptions, r *results) error {
		rep, err := (&cpuOptions{o.with(8, 7, 200*time.Millisecond)}).report(ctx)
		return keep(&r.CPU, rep, err)
	}, func(r *results) bool { return r.CPU != nil }, cpuMarkdown},
	{"profile", func(ctx context.Context, o *reportOptions, r *results) error {
		rep, err := (&profileOptions{streams: o.streams, callers: 32, duration: o.duration(2 * time.Second)}).report(ctx)
		return keep(&r.Profile, rep, err)
	}, func(r *results) bool { return r.Profile != nil }, profileMarkdown},
	{"trips", func(ctx context.Context, o *reportOptions, r *results) error {
		rep, err := (&tripsOptions{streams: o.streams}).report(ctx)
		return keep(&r.Trips, rep, err)
	}, func(r *results) bool { return r.Trips != nil }, tripsMarkdown},
	{"delay", func(ctx context.Context, o *reportOptions, r *results) error {
		delays := []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}
		rep, err := (&delayOptions{streams: o.streams, delays: delays[:o.pick(1, 3)], count: o.pick(1, 30)}).report(ctx)
		return keep(&r.Delay, rep, err)
	}, func(r *results) bool { return r.Delay != nil }, delayMarkdown},
	{"contention", func(ctx context.Context, o *reportOptions, r *results) error {
		accounts := []int{10, 100, 1000, 10_000, 100_000}
		rep, err := (&contentionOptions{streams: o.streams, accounts: accounts[:o.pick(2, 5)], callers: 16, clients: o.pick(1, 2), duration: o.duration(2 * time.Second), latches: "both"}).report(ctx)
		return keep(&r.Contention, rep, err)
	}, func(r *results) bool { return r.Contention != nil }, contentionMarkdown},
	{"brokerage", func(ctx context.Context, o *reportOptions, r *results) error {
		rep, err := (&brokerageOptions{streams: o.streams, customers: 1000, callers: []int{1, 2, 4, 8, 16, 32, 64}[:o.pick(2, 7)], duration: o.duration(2 * time.Second)}).report(ctx)
		return keep(&r.Brokerage, rep, err)
	}, func(r *results) bool { return r.Brokerage != nil }, brokerageMarkdown},
	{"scale", func(ctx context.Context, o *reportOptions, r *results) error {
		rep, err := (&scaleOptions{shared: o.with(16, 5, 250*time.Millisecond), processes: []int{1, 2, 4}[:o.pick(2, 3)], rows: o.pick(1000, 10_000)}).report(ctx)
		return keep(&r.Scale, rep, err)
	}, func(r *results) bool { return r.Scale != nil }, scaleMarkdown},
	{"plan", func(ctx context.Context, o *reportOptions, r *results) error {
		rep, err := (&verifyOptions{streams: o.streams, count: o.pick(1, 20)}).report(ctx)
		return keep(&r.Plan, rep, err)
	}, func(r *results) bool { return r.Plan != nil }, planMarkdown},
}

func (o *reportOptions) run(ctx context.Context) error {
	file := filepath.Join(o.docs, resultsFile)
	var all results
	text, err := os.ReadFile(file)
	switch {
	case err == nil:
		if err := json.Unmarshal(text, &all); err != nil {
			return fmt.Errorf("%s: %w; remove it, or write it again without --only", file, err)
		}
	case o.rewrite || !errors.Is(err, os.ErrNotExist):
		return err
	}
	began := time.Now()
	for _, p := range parts {
		if o.rewrite || len(o.only) > 0 && !slices.Contains(o.only, p.name) {
			continue
		}
		fmt.Fprintf(o.streams.Err, "part %s, %.0f s so far\n", p.name, time.Since(began).Seconds())
		if err := p.measure(ctx, o, &all); err != nil {
			return fmt.Errorf("part %s: %w", p.name, err)
		}
	}
	if text, err = json.MarshalIndent(all, "", " "); err != nil {
		return err
	}
	if !o.rewrite {
		if err := os.WriteFile(file, append(text, '\n'), 0o666); err != nil {
			return err
		}
	}
	return o.write(&all)
}

// shortTables are tables with fewer columns, marked "NAME, short".
var shortTables = map[string]func(r *results) string{"compare": compareShort, "trips": tripsShort, "contention": contentionShort}

// write writes the tables into the pages. Each part needs a place for its table in
// one of them. The reference page may be missing.
func (o *reportOptions) write(all *results) error {
	pages := map[string]string{} // by file
	for _, name := range []string{pageFile, tablesFile} {
		file := filepath.Join(o.docs, name)
		text, err := os.ReadFile(file)
		if name == tablesFile && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		pages[file] = string(text)
	}
	for _, p := range parts {
		if !p.there(all) {
			continue
		}
		placed, missing := false, error(nil)
		place := func(name, table string) {
			for file, page := range pages {
				changed, err := rig.ReplaceMeasured(page, name, table)
				if err != nil {
					missing = cmp.Or(missing, err)
					continue
				}
				pages[file], placed = changed, true
			}
		}
		place(p.name, p.table(all))
		if short := shortTables[p.name]; short != nil {
			place(p.name+", short", short(all))
		}
		if !placed {
			return fmt.Errorf("%s: %w; add them there or in %s", filepath.Join(o.docs, pageFile), missing, tablesFile)
		}
	}
	for file, page := range pages {
		if err := os.WriteFile(file, []byte(page), 0o666); err != nil {
			return err
		}
	}
	return nil
}
