package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

type rowsOptions struct {
	shared
	quick bool
}

func newRowsCmd(s *cli.Streams) *cobra.Command {
	o := &rowsOptions{shared: shared{streams: s}}
	cmd := &cobra.Command{
		Use:   "rows",
		Short: "Measure how cost grows with rows, value sizes, columns and versions",
		Long: `Measure how the cost of transactions, compared with raw Bigtable, grows: transactions
of 2, 10 and 100 rows, reads of batches of 10 and 100 rows, scans of 1,000 and 100,000
rows, values of 1 KB to 1 MB, rows of 100 columns, and cells with 1, 10 and 100
versions, without garbage collection. It measures as bench compare does.

With --small, the largest are scans of 2,000 rows, values of 1 KB and cells with 2
versions.`,
		Example: `  lab bench rows --small`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	o.flags(cmd, 32, 5, 250*time.Millisecond)
	cmd.Flags().BoolVar(&o.quick, "small", false, "measure only what small tables allow")
	return cmd
}

// A rowsReport is what lab bench rows prints.
type rowsReport struct {
	Machine rig.Machine `json:"machine"` // where and when
	Seconds float64     `json:"seconds"` // of the whole measurement
	Oracle  string      `json:"oracle"`  // direct or served
	// Cells with many versions, compared with cells with one.
	DeepClient   float64  `json:"deep_client_ratio"`   // CPU time of the client for a read of a cell with most versions, over one with 1
	DeepEmulator float64  `json:"deep_emulator_ratio"` // the same for the emulator
	Figures      []figure `json:"figures"`             // all figures; only those of cells with many versions have versions
}

// A rowsPart has an emulator of its own, so that tables of other parts do not slow it
// down.
type rowsPart struct {
	name     string
	tables   []rig.TableSpec
	pairings []pairing
}

func (o *rowsOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *rowsOptions) report(ctx context.Context) (rep rowsReport, err error) {
	began := time.Now()
	rep = rowsReport{Machine: rig.ThisMachine(), Oracle: o.oracleMode(), Figures: []figure{}}
	for _, part := range o.parts() {
		rig.Progress(o.streams, "%s", part.name)
		figures, err := o.part(ctx, part)
		if err != nil {
			return rep, err
		}
		rep.Figures = append(rep.Figures, figures...)
	}
	if n := len(rep.Figures); n > 2 {
		one, many := rep.Figures[n-1], rep.Figures[n-1]
		for _, f := range rep.Figures {
			if f.Versions == 1 {
				one = f
			}
		}
		rep.DeepClient, rep.DeepEmulator = many.OursCPU/max(one.OursCPU, 1e-3), many.OursEmu/max(one.OursEmu, 1e-3)
	}
	rep.Seconds = time.Since(began).Seconds()
	return rep, nil
}

func (o *rowsOptions) part(ctx context.Context, part rowsPart) (figures []figure, err error) {
	r, err := o.open(ctx, part.tables...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, p := range part.pairings {
		f, err := comparePairs(ctx, r, p, o.rounds, o.length)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		figures = append(figures, f...)
	}
	var names []string
	for _, t := range part.tables {
		names = append(names, t.Name)
	}
	return figures, r.Check(ctx, names...)
}

func (o *rowsOptions) parts() []rowsPart {
	scans, values, deep := []int{1000, 100_000}, []int{1 << 10, 10 << 10, 100 << 10, 1 << 20}, []int{1, 10, 100}
	if o.quick {
		scans, values, deep = []int{1000, 2000}, []int{1 << 10}, []int{1, 2}
	}
	cells := rig.TableSpec{Name: "cells", Rows: min(10_000, scans[1]), Columns: 1, Bytes: 100}
	long := rig.TableSpec{Name: "long", Rows: scans[len(scans)-1], Columns: 1, Bytes: 100}
	wide := rig.TableSpec{Name: "wide", Rows: 200, Columns: 100, Bytes: 100}
	parts := []rowsPart{{name: "transactions and reads of many rows", tables: []rig.TableSpec{cells}}, {name: "scans", tables: []rig.TableSpec{long}},
		{name: "rows of 100 columns", tables: []rig.TableSpec{wide}}}
	for _, n := range []int{2, 10, 100} {
		parts[0].pairings = append(parts[0].pairings, o.pair(cells, fmt.Sprintf("write_%d_rows", n), n, "raw-writes", fmt.Sprintf("ApplyBulk of %d rows", n), "writes", fmt.Sprintf("transaction that writes %d rows", n)))
	}
	for _, n := range []int{10, 100} {
		parts[0].pairings = append(parts[0].pairings, o.pair(cells, fmt.Sprintf("read_%d_rows", n), n, "raw-rows", "ReadRows of a RowList with LatestN(1)", "rows", fmt.Sprintf("ReadRows of %d rows", n)))
	}
	for _, n := range scans {
		parts[1].pairings = append(parts[1].pairings, o.pair(long, fmt.Sprintf("scan_%d_rows", n), n, "raw-scan", "ReadRows of a range with LatestN(1)", "scan", fmt.Sprintf("ReadRows of %d rows", n)))
	}
	parts[2].pairings = []pairing{
		o.pair(wide, "read_100_columns", 0, "raw-row", "ReadRow with LatestN(1)", "row", "ReadRow of 100 columns"),
		o.pair(wide, "write_100_columns", 0, "raw-write", "Apply of 100 columns", "write", "transaction that writes 100 columns of a row"),
	}
	for _, n := range values {
		t := rig.TableSpec{Name: fmt.Sprint("values", n), Rows: max(20, min(2000, 20<<20/n)), Columns: 1, Bytes: n}
		parts = append(parts, rowsPart{fmt.Sprintf("values of %d KB", n>>10), []rig.TableSpec{t}, []pairing{
			o.pair(t, fmt.Sprintf("read_%d_kb", n>>10), 0, "raw-get", "ReadRow of one column", "get", fmt.Sprintf("Get of %d KB", n>>10)),
			o.pair(t, fmt.Sprintf("write_%d_kb", n>>10), 0, "raw-write", "Apply", "write", fmt.Sprintf("transaction that writes %d KB", n>>10)),
		}})
	}
	return append(parts, o.deepPart(deep))
}

// deepPart reads cells with few and with many versions in one pairing, so that they can
// be compared with each other.
func (o *rowsOptions) deepPart(versions []int) rowsPart {
	part := rowsPart{name: "cells with many versions"}
	var p pairing
	for _, n := range versions {
		t := rig.TableSpec{Name: fmt.Sprint("deep", n), Rows: 500, Columns: 1, Bytes: 100, Versions: n}
		part.tables = append(part.tables, t)
		p.comparisons = append(p.comparisons, comparison{figure: fmt.Sprintf("read_%d_versions", n), raw: len(p.members), ours: len(p.members) + 1, versions: n})
		p.members = append(p.members, member{"ReadRow of one column", o.on(t, "raw-get", 0)}, member{fmt.Sprintf("Get of a cell with %d versions", n), o.on(t, "get", 0)})
	}
	part.pairings = []pairing{p}
	return part
}

func (r rowsReport) text(w io.Writer) error {
	if err := figureTable(w, r.Figures); err != nil {
		return err
	}
	last := r.Figures[len(r.Figures)-1].Versions
	fmt.Fprintf(w, "\nA read of a cell with %d versions takes %.2f times the client's CPU time of one with 1, and %.2f times the emulator's.", last, r.DeepClient, r.DeepEmulator)
	_, err := fmt.Fprintf(w, "\nRatios are medians over rounds, of rates; CPU is the same ratio of CPU time. Pairs are raw, ours.\n%s oracle, %.0f s in all.\n%s\n", r.Oracle, r.Seconds, r.Machine)
	return err
}
