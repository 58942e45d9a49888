package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

// A shared has the flags of measurements that compare with raw operations.
type shared struct {
	streams  *cli.Streams
	callers  int
	rounds   int
	length   time.Duration
	served   bool
	profiles string
	format   cli.Format
}

func (o *shared) flags(cmd *cobra.Command, callers, rounds int, length time.Duration) {
	f := cmd.Flags()
	f.IntVar(&o.callers, "callers", callers, "concurrent callers, in one client process")
	f.IntVar(&o.rounds, "rounds", rounds, "number of rounds; each measures everything once")
	f.DurationVar(&o.length, "round", length, "how long to measure each operation in a round")
	f.BoolVar(&o.served, "served", false, "take timestamps from a served oracle in another process, instead of direct mode")
	f.StringVar(&o.profiles, "profiles", "", "write CPU profiles of all processes into this directory")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
}

func (o *shared) check() error {
	return errors.Join(rig.Between("callers", o.callers, 1, 4096), rig.Between("rounds", o.rounds, 1, 1000), rig.CheckDuration("round", o.length))
}

// open starts an emulator with tables, the oracle and one client process.
func (o *shared) open(ctx context.Context, specs ...rig.TableSpec) (*rig.Run, error) {
	return o.openAll(ctx, 1, specs...)
}

func (o *shared) openAll(ctx context.Context, workers int, specs ...rig.TableSpec) (_ *rig.Run, err error) {
	r, err := rig.Start(ctx, o.profiles)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(ctx.Err(), err, r.Close())
		}
	}()
	if err := r.MakeTables(ctx, specs...); err != nil {
		return nil, err
	}
	if o.served {
		if err := r.Serve(ctx); err != nil {
			return nil, err
		}
	}
	return r, r.Add(ctx, workers)
}

// pair compares an operation with a raw one on the same table.
func (o *shared) pair(t rig.TableSpec, figure string, batch int, raw, rawWhat, op, what string) pairing {
	p := pairing{figure, []member{{rawWhat, o.on(t, raw, batch)}, {what, o.on(t, op, batch)}}, []comparison{{figure: figure, ours: 1}}}
	if t.Bytes >= 100<<10 { // with fewer callers, so that only a few megabytes are under way
		for i := range p.members {
			p.members[i].task.Callers = min(o.callers, 4)
		}
	}
	return p
}

type compareOptions struct {
	shared
	rows int
	size int
}

func newCompareCmd(s *cli.Streams) *cobra.Command {
	o := &compareOptions{shared: shared{streams: s}}
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Measure what transactions cost, compared with raw Bigtable (Figure 8 of the paper)",
		Long: `Measure what transactions cost, compared with raw Bigtable, within a minute: the
paper's Figure 8 (reads and writes of one cell), reads of rows, batches and scans, and
transactions of ten rows. The command starts an emulator and a client process. Short
rounds of raw operations and of transactions take turns. A ratio is the median of the
ratios of single rounds; its spread is their middle half.

A raw operation is the best use of the same emulator: one ColumnRange filter with
LatestN(1) for a cell, LatestN(1) alone for rows, a one-cell Apply for a write,
ApplyBulk for many rows, and one CheckAndMutateRow for a conditional write. Raw
tables contain the same data. A round includes the work that it leaves to the
background.

Each read takes a snapshot, and so a timestamp, as the paper's transactions do.
Concurrent callers share requests to the oracle. Figures with _shared in their names
read from one snapshot, those with _stale from snapshots that may be 100 ms old. Figures
with _floor send the least raw requests that a transaction in two phases needs, with
the simplest filters: their ratio is the best that is possible on this emulator.`,
		Example: `  lab bench compare
  lab bench compare --served -o json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(o.check(), rig.Between("rows", o.rows, 1000, 1_000_000), rig.Between("value-bytes", o.size, 0, 1<<20)); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	o.flags(cmd, 32, 15, 115*time.Millisecond)
	cmd.Flags().IntVar(&o.rows, "rows", 10_000, "rows of each table")
	cmd.Flags().IntVar(&o.size, "value-bytes", 100, "bytes of a value")
	return cmd
}

// A compareReport is what lab bench compare prints. The ratios at the top are those of
// the figures.
type compareReport struct {
	Read          float64     `json:"read_ratio"`            // reads of one cell, each in a snapshot of its own, a second, over raw ones
	Latest        float64     `json:"latest_ratio"`          // reads of the latest state of one cell, which need no timestamp
	ReadStale     float64     `json:"read_stale_ratio"`      // the same if a snapshot may be 100 ms old, and so needs no timestamp of its own
	ReadShared    float64     `json:"read_shared_ratio"`     // the same from one snapshot
	RowRead       float64     `json:"row_read_ratio"`        // reads of one row
	RowReadShared float64     `json:"row_read_shared_ratio"` // the same from one snapshot
	WideRowRead   float64     `json:"row10_read_ratio"`      // reads of one row of ten columns
	Batch100      float64     `json:"batch100_read_ratio"`   // rows in reads of 100 rows
	Scan          float64     `json:"scan_ratio"`            // rows in scans of 1000 rows
	Write         float64     `json:"write_ratio"`           // transactions that write one cell, over raw Apply
	WriteCAM      float64     `json:"write_cam_ratio"`       // the same over half the rate of raw CheckAndMutateRow: a commit needs at least two of them
	Write10       float64     `json:"write10_ratio"`         // rows in transactions that write ten rows, over raw ApplyBulk
	WriteFloor    float64     `json:"write_floor_ratio"`     // two raw CheckAndMutateRow over raw Apply: the best possible write_ratio here
	Write10Floor  float64     `json:"write10_floor_ratio"`   // the raw requests of a transaction of ten rows over raw ApplyBulk: the best possible write10_ratio here
	Machine       rig.Machine `json:"machine"`               // where and when
	Seconds       float64     `json:"seconds"`               // of the whole measurement
	Callers       int         `json:"callers"`               // concurrent
	Oracle        string      `json:"oracle"`                // direct or served
	Figures       []figure    `json:"figures"`               // all figures, with the numbers behind them
}

func (o *compareOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *compareOptions) report(ctx context.Context) (rep compareReport, err error) {
	began := time.Now()
	rep = compareReport{Machine: rig.ThisMachine(), Callers: o.callers, Oracle: o.oracleMode(), Figures: []figure{}}
	cells := rig.TableSpec{Name: "cells", Rows: o.rows, Columns: 1, Bytes: o.size}
	wide := rig.TableSpec{Name: "wide", Rows: o.rows / 10, Columns: 10, Bytes: o.size}
	written := rig.TableSpec{Name: "written", Rows: o.rows, Columns: 1, Bytes: o.size}
	written10 := rig.TableSpec{Name: "written10", Rows: o.rows, Columns: 1, Bytes: o.size}
	rig.Progress(o.streams, "tables of %d rows", o.rows)
	r, err := o.open(ctx, cells, wide, written, written10)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, p := range o.pairings(cells, wide, written, written10) {
		rig.Progress(o.streams, "%s", p.name)
		figures, err := comparePairs(ctx, r, p, o.rounds, o.length)
		if err != nil {
			return rep, err
		}
		rep.Figures = append(rep.Figures, figures...)
	}
	if err := r.Check(ctx, cells.Name, wide.Name, written.Name, written10.Name); err != nil {
		return rep, err
	}
	rep.summarize()
	rep.Seconds = time.Since(began).Seconds()
	return rep, nil
}

func (o *shared) oracleMode() string {
	if o.served {
		return "served"
	}
	return "direct"
}

// The goals for the ratios, and the paper's results.
var (
	goals  = map[string]float64{"read": .94, "latest": .72, "row_read": .94, "batch100_read": .9, "scan": .85, "write": .4, "write_cam": .7, "write10": .45}
	papers = map[string]float64{"read": .94, "write": .23}
)

func (o *compareOptions) pairings(cells, wide, written, written10 rig.TableSpec) []pairing {
	named := func(figure string) []comparison { return []comparison{{figure: figure, ours: 1}} }
	return []pairing{
		{"reads of one cell", []member{
			{"ReadRow of one column", o.on(cells, "raw-get", 0)},
			{"Get, each in a snapshot of its own", o.on(cells, "get", 0)},
			{"Get, each in a snapshot at most 100 ms old (MaxStaleness)", o.on(cells, "get-stale", 0)},
			{"Get, all in one snapshot", o.on(cells, "get-shared", 0)},
			{"Get of the latest state (Latest)", o.on(cells, "get-latest", 0)},
		}, []comparison{{figure: "read", ours: 1}, {figure: "latest", ours: 4}, {figure: "read_stale", ours: 2}, {figure: "read_shared", ours: 3}}},
		{"reads of one row", []member{
			{"ReadRow with LatestN(1)", o.on(cells, "raw-row", 0)},
			{"ReadRow, each in a snapshot of its own", o.on(cells, "row", 0)},
			{"ReadRow, all in one snapshot", o.on(cells, "row-shared", 0)},
		}, []comparison{{figure: "row_read", ours: 1}, {figure: "row_read_shared", ours: 2}}},
		{"reads of one row of ten columns", []member{
			{"ReadRow with LatestN(1)", o.on(wide, "raw-row", 0)},
			{"ReadRow of ten columns, each in a snapshot of its own", o.on(wide, "row", 0)},
		}, named("row10_read")},
		{"reads of 100 rows", []member{
			{"ReadRows of a RowList with LatestN(1)", o.on(cells, "raw-rows", 100)},
			{"ReadRows of 100 rows, each in a snapshot of its own", o.on(cells, "rows", 100)},
		}, named("batch100_read")},
		{"scans of 1000 rows", []member{
			{"ReadRows of a range with LatestN(1)", o.on(cells, "raw-scan", 1000)},
			{"ReadRows of 1000 rows, each in a snapshot of its own", o.on(cells, "scan", 1000)},
		}, named("scan")},
		{"writes of one cell", []member{
			{"Apply", o.on(written, "raw-write", 0)},
			{"CheckAndMutateRow", o.on(written, "raw-condition", 0)},
			{"transaction that writes one cell", o.on(written, "write", 0)},
			{"two CheckAndMutateRow, one after the other: the least in two phases", o.on(written, "raw-pair", 0)},
		}, []comparison{{figure: "write", ours: 2}, {figure: "write_cam", ours: 2, raw: 1, halved: true}, {figure: "write_floor", ours: 3}}},
		{"writes of ten rows", []member{
			{"ApplyBulk of ten rows", o.on(written10, "raw-writes", 10)},
			{"transaction that writes ten rows", o.on(written10, "writes", 10)},
			{"eleven CheckAndMutateRow and an ApplyBulk of nine rows: the least in two phases", o.on(written10, "raw-ten", 10)},
		}, []comparison{{figure: "write10", ours: 1}, {figure: "write10_floor", ours: 2}}},
	}
}

// on returns a task on a table. Raw operations use its raw table.
func (o *shared) on(t rig.TableSpec, op string, batch int) rig.Task {
	made := rig.Task{Op: op, Table: t.Name, Callers: o.callers, Rows: t.Rows, Columns: t.Columns, Batch: batch, Bytes: t.Bytes}
	if strings.HasPrefix(op, "raw-") {
		made.Table = t.Raw()
	}
	switch { // so that large operations have about as many rows under way as batches
	case batch >= 10_000:
		made.Callers = 1
	case batch >= 1000:
		made.Callers = max(o.callers/8, 1)
	}
	return made
}

// summarize copies the ratios to the top.
func (r *compareReport) summarize() {
	top := map[string]*float64{
		"read": &r.Read, "latest": &r.Latest, "read_stale": &r.ReadStale, "read_shared": &r.ReadShared, "row_read": &r.RowRead, "row_read_shared": &r.RowReadShared, "row10_read": &r.WideRowRead,
		"batch100_read": &r.Batch100, "scan": &r.Scan, "write": &r.Write, "write_cam": &r.WriteCAM, "write10": &r.Write10,
		"write_floor": &r.WriteFloor, "write10_floor": &r.Write10Floor,
	}
	for i := range r.Figures {
		f := &r.Figures[i]
		*top[f.Name] = f.Ratio
		f.Goal, f.Paper = goals[f.Name], papers[f.Name]
	}
}

func (r compareReport) text(w io.Writer) error {
	if err := figureTable(w, r.Figures); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, `
Ratios are medians over rounds in which both took turns, and the spread is their middle
half; CPU is the same ratio of the CPU time that client and emulator took. Pairs
are raw, ours. %d callers in one process (fewer for scans), %s oracle, %.0f s in all.
%s
`, r.Callers, r.Oracle, r.Seconds, r.Machine)
	return err
}
