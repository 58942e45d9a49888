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
	p := pairing{name: figure, members: []member{{rawWhat, o.on(t, raw, batch)}, {what, o.on(t, op, batch)}}, comparisons: []comparison{{figure: figure, ours: 1}}}
	if t.Bytes >= 100<<10 { // with fewer callers, so that only a few megabytes are under way
		for i := range p.members {
			p.members[i].task.Callers = min(o.callers, 4)
		}
	}
	return p
}

type compareOptions struct {
	shared
	only []string
	rows int
	size int
}

func newCompareCmd(s *cli.Streams) *cobra.Command {
	o := &compareOptions{shared: shared{streams: s}}
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Measure what transactions cost, compared with raw Bigtable (Figure 8 of the paper)",
		Long: `Measure what transactions cost, compared with raw Bigtable, in about four minutes: the
paper's Figure 8 (reads and writes of one cell), reads of rows, batches and scans,
transactions of up to 1,000 rows, and transactions that read before they write. For each
group of operations, the command starts an emulator and a client process. Raw operations
and transactions take turns, in a random order, and both processes collect garbage before
each turn. A ratio is the median of the ratios of single rounds; its spread is their
middle half.

A raw operation is the best use of the same emulator: one ColumnRange filter with
LatestN(1) for a cell, LatestN(1) alone for rows, a one-cell Apply for a write,
ApplyBulk for many rows, and one CheckAndMutateRow for a conditional write. Raw
tables contain the same data. A round includes the work that it leaves to the
background.

Each read takes a snapshot, and so a timestamp, as the paper's transactions do.
Concurrent callers share requests to the oracle. Figures with _shared in their names
read from one snapshot, those with _stale from snapshots that may be 100 ms old.

A floor is the ratio of the raw requests that our operation needs at least, with the
simplest filters and the same data: for reads the request that returns locks, records and
values, without a timestamp; for writes, the conditional mutations of two phases, and a bulk
mutation of the secondaries.`,
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
	o.flags(cmd, 32, 9, 400*time.Millisecond)
	cmd.Flags().StringSliceVar(&o.only, "only", nil, "measure only groups with these figures, like write10 (default: all)")
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
	Write3        float64     `json:"write3_ratio"`          // transactions that write three rows, over raw ApplyBulk
	Write10       float64     `json:"write10_ratio"`         // of ten rows
	Write100      float64     `json:"write100_ratio"`        // of 100 rows
	Write1000     float64     `json:"write1000_ratio"`       // of 1,000 rows
	Change        float64     `json:"change_ratio"`          // transactions that read a cell and write it, over a raw read and a conditional mutation
	Change2       float64     `json:"change2_ratio"`         // of two rows
	ForUpdate     float64     `json:"for_update_ratio"`      // transactions that read a cell for update and write it, over those that read it with Get
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
	for _, p := range append(o.reads(cells, wide), o.writes(cells)...) {
		if !p.has(o.only) {
			continue
		}
		rig.Progress(o.streams, "%s", p.name)
		table := cells
		if p.wide {
			table = wide
		}
		figures, err := o.separately(ctx, p, table)
		if err != nil {
			return rep, fmt.Errorf("%s: %w", p.name, err)
		}
		rep.Figures = append(rep.Figures, figures...)
	}
	rep.summarize()
	rep.Seconds = time.Since(began).Seconds()
	return rep, nil
}

// separately measures a pairing with processes and a table of its own.
func (o *shared) separately(ctx context.Context, p pairing, tables ...rig.TableSpec) (figures []figure, err error) {
	r, err := o.open(ctx, tables...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if figures, err = comparePairs(ctx, r, p, o.rounds, o.length); err != nil {
		return nil, err
	}
	for _, t := range tables {
		err = errors.Join(err, r.Check(ctx, t.Name))
	}
	return figures, err
}

func (o *shared) oracleMode() string {
	if o.served {
		return "served"
	}
	return "direct"
}

// The goals for the ratios, and the paper's results.
var (
	goals  = map[string]float64{"read": .65, "latest": .72, "batch100_read": .5, "scan": .48, "write": .33, "write_cam": .7, "write10": .15, "write100": .13}
	papers = map[string]float64{"read": .94, "write": .23}
)

// reads are pairings that leave the tables as they are.
func (o *compareOptions) reads(cells, wide rig.TableSpec) []pairing {
	const stored = "raw read of locks, records and values"
	return []pairing{
		{name: "reads of one cell", members: []member{
			{"ReadRow of one column", o.on(cells, "raw-get", 0)},
			{"Get, each in a snapshot of its own", o.on(cells, "get", 0)},
			{"Get, each in a snapshot at most 100 ms old (MaxStaleness)", o.on(cells, "get-stale", 0)},
			{"Get, all in one snapshot", o.on(cells, "get-shared", 0)},
			{"Get of the latest state (Latest)", o.on(cells, "get-latest", 0)},
			{stored, o.on(cells, "stored-get", 0)},
		}, comparisons: []comparison{{figure: "read", ours: 1, floor: 5}, {figure: "latest", ours: 4, floor: 5}, {figure: "read_stale", ours: 2, floor: 5}, {figure: "read_shared", ours: 3, floor: 5}}},
		{name: "reads of one row", members: []member{
			{"ReadRow with LatestN(1)", o.on(cells, "raw-row", 0)},
			{"ReadRow, each in a snapshot of its own", o.on(cells, "row", 0)},
			{"ReadRow, all in one snapshot", o.on(cells, "row-shared", 0)},
			{stored, o.on(cells, "stored-row", 0)},
		}, comparisons: []comparison{{figure: "row_read", ours: 1, floor: 3}, {figure: "row_read_shared", ours: 2, floor: 3}}},
		{name: "reads of one row of ten columns", wide: true, members: []member{
			{"ReadRow with LatestN(1)", o.on(wide, "raw-row", 0)},
			{"ReadRow of ten columns, each in a snapshot of its own", o.on(wide, "row", 0)},
			{stored, o.on(wide, "stored-row", 0)},
		}, comparisons: []comparison{{figure: "row10_read", ours: 1, floor: 2}}},
		{name: "reads of 100 rows", members: []member{
			{"ReadRows of a RowList with LatestN(1)", o.on(cells, "raw-rows", 100)},
			{"ReadRows of 100 rows, each in a snapshot of its own", o.on(cells, "rows", 100)},
			{stored, o.on(cells, "stored-rows", 100)},
		}, comparisons: []comparison{{figure: "batch100_read", ours: 1, floor: 2}}},
		{name: "scans of 1000 rows", members: []member{
			{"ReadRows of a range with LatestN(1)", o.on(cells, "raw-scan", 1000)},
			{"ReadRows of 1000 rows, each in a snapshot of its own", o.on(cells, "scan", 1000)},
			{stored, o.on(cells, "stored-scan", 1000)},
		}, comparisons: []comparison{{figure: "scan", ours: 1, floor: 2}}},
	}
}

// writes are pairings that write the table.
func (o *compareOptions) writes(t rig.TableSpec) []pairing {
	all := []pairing{{name: "writes of one cell", members: []member{
		{"Apply", o.on(t, "raw-write", 0)},
		{"CheckAndMutateRow", o.on(t, "raw-condition", 0)},
		{"transaction that writes one cell", o.on(t, "write", 0)},
		{"two CheckAndMutateRow, one after the other", o.on(t, "raw-pair", 0)},
	}, comparisons: []comparison{{figure: "write", ours: 2, floor: 3}, {figure: "write_cam", ours: 2, raw: 1, halved: true}}}}
	for _, n := range []int{3, 10, 100, 1000} {
		name := fmt.Sprint("write", n)
		all = append(all, pairing{name: fmt.Sprintf("writes of %d rows", n), members: []member{
			{fmt.Sprintf("ApplyBulk of %d rows", n), o.on(t, "raw-writes", n)},
			{fmt.Sprintf("transaction that writes %d rows", n), o.on(t, "writes", n)},
			{"a CheckAndMutateRow for each row and another one, and ApplyBulk", o.on(t, "raw-commit", n)},
		}, comparisons: []comparison{{figure: name, ours: 1, floor: 2}}})
	}
	return append(all, o.changes(t, "change", "a row", 1), o.changes(t, "change2", "two rows", 2), o.pair(t, "for_update", 1,
		"change-get", "Get, Set and Commit", "change", "GetForUpdate, Set and Commit"))
}

// changes is a pairing that reads rows and writes them.
func (o *compareOptions) changes(t rig.TableSpec, figure, what string, n int) pairing {
	return pairing{name: "reads, then writes, of " + what, members: []member{
		{"ReadRows, then a CheckAndMutateRow for each row", o.on(t, "raw-change", n)},
		{"transaction that reads " + what + ", and writes", o.on(t, "change", n)},
		{"the raw requests that the transaction sends", o.on(t, "raw-changes", n)},
	}, comparisons: []comparison{{figure: figure, ours: 1, floor: 2}}}
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
		made.Callers = o.callers / 8
	}
	if batch >= 100 { // so that writes of the same rows do not meet
		made.Callers = max(min(made.Callers, t.Rows/batch/2), 1)
	}
	return made
}

// summarize copies the ratios to the top.
func (r *compareReport) summarize() {
	top := map[string]*float64{
		"read": &r.Read, "latest": &r.Latest, "read_stale": &r.ReadStale, "read_shared": &r.ReadShared, "row_read": &r.RowRead, "row_read_shared": &r.RowReadShared, "row10_read": &r.WideRowRead,
		"batch100_read": &r.Batch100, "scan": &r.Scan, "write": &r.Write, "write_cam": &r.WriteCAM,
		"write3": &r.Write3, "write10": &r.Write10, "write100": &r.Write100, "write1000": &r.Write1000, "change": &r.Change, "change2": &r.Change2, "for_update": &r.ForUpdate,
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
are raw, ours. Floor is the ratio of the raw requests that ours needs at least. %d callers in one process (fewer for scans), %s oracle, %.0f s in all.
%s
`, r.Callers, r.Oracle, r.Seconds, r.Machine)
	return err
}
