package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/pace"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// ErrNotIdle means that a bulk load found cells in its range that are not its own.
var ErrNotIdle = errors.New("range is not idle")

// A NotIdleError names a cell that blocks a bulk load, or that was written during
// it. errors.Is(err, ErrNotIdle) holds.
type NotIdleError struct {
	Cell format.Cell
	// What is stored there: data, a lock, a write record or a mark.
	What VersionKind
	// TS is the timestamp of the stored cell.
	TS tso.Timestamp
}

// Error names the cell.
func (e *NotIdleError) Error() string {
	return fmt.Sprintf("admin: %v: %s has %s at %d", ErrNotIdle, e.Cell, e.What, e.TS)
}

// Is makes errors.Is(err, ErrNotIdle) true.
func (e *NotIdleError) Is(target error) bool { return target == ErrNotIdle }

// A BulkRow is one row for [BulkLoad].
type BulkRow struct {
	Row   string
	Cells []BulkCell
}

// A BulkCell is one value of a row.
type BulkCell struct {
	Family, Qualifier string
	Value             []byte
}

// A BulkConfig says how [BulkLoad] writes rows.
type BulkConfig struct {
	// StartTS and CommitTS are those of an earlier call that was interrupted. The
	// load then continues: it writes the same cells again, which changes nothing.
	// Default to 0: new timestamps from the oracle.
	StartTS, CommitTS tso.Timestamp

	// Rows are the rows that the load may write (nil: the whole table). Each row of
	// the input must be among them.
	Rows bigtable.RowSet

	// Idle is the caller's promise that no transaction reads or writes Rows until
	// the load ends. Then Rows may contain older data, and each request writes many
	// rows.
	// Defaults to false: Rows must be empty, and one conditional mutation writes
	// each row. It fails if a transaction was faster.
	Idle bool

	// Started, when set, is called with the load's timestamps before anything is
	// written. A later call needs them to continue the load.
	// Defaults to nil.
	Started func(startTS, commitTS tso.Timestamp)

	// Progress, when set, is called with the number of rows written so far. It may be
	// called concurrently.
	// Defaults to nil.
	Progress func(rows int)
}

// A BulkReport says what a load wrote, and at which timestamps.
type BulkReport struct {
	StartTS, CommitTS tso.Timestamp
	Rows, Cells       int
}

// BulkLoad writes committed cells without a transaction: data at StartTS and write
// records at CommitTS, notify cells in observed columns, and no locks. It is for
// filling a table.
//
//   - It is atomic by row only. A snapshot above CommitTS shows the rows that are
//     written when it reads, so a second read may show more. A snapshot below
//     CommitTS shows none of them.
//   - Each row is its own primary. So the stored state is consistent (see [Check])
//     at any moment, and after any error.
//
// First it searches Rows. Without Idle they must be empty. With Idle they must have
// no locks, and no records at StartTS or later. Cells of this load do not count. It
// fails with a [NotIdleError] at another cell.
//
// Without Idle, transactions in Rows are safe. The mutation of a row has the condition of a
// prewrite: its columns have no lock, and nothing at StartTS or later. So the load overwrites no
// transaction, a transaction that began before CommitTS conflicts with the load, and versions
// never interleave. With Idle only the caller's promise protects transactions. BulkLoad searches
// Rows once more at the end, and fails with a [NotIdleError] if it finds a lock or record of
// another transaction.
//
// rows must be in ascending order of their keys, each once. After an error, what
// was written stays committed. To continue, call BulkLoad again with the timestamps
// of the report and the same rows.
func BulkLoad(ctx context.Context, client *txn.Client, table string, rows iter.Seq2[BulkRow, error], load BulkConfig) (BulkReport, error) {
	c := access.ResolverOf(client)
	r := BulkReport{StartTS: load.StartTS, CommitTS: load.CommitTS}
	again := load.StartTS != 0 || load.CommitTS != 0
	if again && (load.StartTS.Cell() < format.PlainBefore || load.CommitTS <= load.StartTS) {
		return r, invalidf("bulk load with start_ts %d and commit_ts %d; set BulkConfig.StartTS and CommitTS to those of the interrupted load, or neither", load.StartTS, load.CommitTS)
	}
	if err := c.Enter(); err != nil {
		return r, err
	}
	defer c.Leave()
	t, err := c.Table(ctx, table)
	if err != nil {
		return r, err
	}
	set, err := store.NewRowSet(load.Rows)
	if err != nil {
		return r, err
	}
	b := &bulkLoad{client: c, table: t, load: load, set: set, pacer: pace.New(c.Store.Config.Parallelism)}
	if err := b.timestamps(ctx, &r); err != nil {
		return r, err
	}
	if err := b.checkIdle(ctx); err != nil {
		return r, err
	}
	if load.Started != nil {
		load.Started(r.StartTS, r.CommitTS)
	}
	err = b.write(ctx, rows)
	r.Rows, r.Cells = int(b.rows.Load()), int(b.cells.Load())
	if err == nil && load.Idle {
		err = b.checkIdle(ctx)
	}
	if err == nil {
		c.Clock.NoteCommit(r.CommitTS, time.Time{})
	}
	return r, err
}

type bulkLoad struct {
	client *recovery.Resolver
	table  *store.Table
	load   BulkConfig
	set    store.RowSet
	pacer  *pace.Pacer

	startTS, commitTS tso.Timestamp
	rows, cells       atomic.Int64
}

func (b *bulkLoad) timestamps(ctx context.Context, r *BulkReport) (err error) {
	if r.StartTS == 0 {
		if r.StartTS, err = b.client.Clock.Timestamp(ctx); err != nil {
			return err
		}
		if r.CommitTS, _, err = b.client.Clock.CommitTimestamp(ctx); err != nil {
			return err
		}
	} else {
		now, err := b.client.Clock.Timestamp(ctx)
		if err != nil {
			return err
		}
		if now <= r.CommitTS {
			return invalidf("bulk load with commit_ts %d, but the oracle is at %d; set BulkConfig.CommitTS to that of the interrupted load", r.CommitTS, now)
		}
	}
	b.startTS, b.commitTS = r.StartTS, r.CommitTS
	return nil
}

// checkIdle searches the range for cells that block the load.
func (b *bulkLoad) checkIdle(ctx context.Context) error {
	filter := func(t *store.Table) bigtable.Filter {
		strip := bigtable.StripValueFilter()
		records := []bigtable.Filter{store.WholeFamily(format.WriteFamily), store.WholeFamily(format.MarkFamily)}
		if b.load.Idle {
			return store.Interleave(store.Chain(store.WholeFamily(format.LockFamily), strip), store.Chain(store.AnyOf(records), store.From(b.startTS), strip))
		}
		filters := []bigtable.Filter{store.Chain(store.WholeFamily(format.LockFamily), strip), store.Chain(store.AnyOf(records), strip)}
		for _, f := range t.Schema.Current().Families {
			filters = append(filters, store.Chain(store.WholeFamily(f), strip))
		}
		return store.Interleave(filters...)
	}
	return b.client.Pages(ctx, b.table.Name, b.load.Rows, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
		for _, raw := range page {
			if e := b.foreign(t, raw); e != nil {
				return false, e
			}
		}
		return true, nil
	})
}

// foreign returns the first cell of a row, in order of columns, that is not the
// load's own.
func (b *bulkLoad) foreign(t *store.Table, raw bigtable.Row) *NotIdleError {
	var found *NotIdleError
	for family, items := range raw {
		for _, item := range items {
			e := &NotIdleError{What: VersionData, TS: tso.FromCell(item.Timestamp)}
			own := b.startTS
			switch family {
			case format.LockFamily:
				e.What, own = VersionLock, 0
			case format.WriteFamily:
				e.What, own = VersionWrite, b.commitTS
			case format.MarkFamily:
				e.What, own = "a mark", 0
			}
			if e.TS == own && item.Timestamp == own.Cell() {
				continue
			}
			if item.Timestamp < format.PlainBefore {
				e.What, e.TS = VersionPlain, tso.Timestamp(item.Timestamp)
			}
			if _, cell, err := format.MetadataCell(t.Name, raw.Key(), item); err == nil && format.IsMetadataFamily(family) {
				e.Cell = cell
			} else {
				c, _ := format.SplitColumn(item.Column)
				e.Cell = format.Cell{Table: t.Name, Row: raw.Key(), Family: c.Family, Qualifier: c.Qualifier}
			}
			if found == nil || e.Cell.Column().Key() < found.Cell.Column().Key() {
				found = e
			}
		}
	}
	return found
}

// A request of an idle load has as many bytes and rows at most: a service that works on larger ones
// lets the requests of other clients wait.
const bulkBatchBytes, bulkBatchRows = 1 << 20, 100

// write sends the rows. After the first failure it reads no further row.
func (b *bulkLoad) write(ctx context.Context, rows iter.Seq2[BulkRow, error]) error {
	g, gctx := errgroup.WithContext(ctx)
	parallel := b.client.Store.Config.Parallelism
	if b.load.Idle {
		parallel = min(parallel, 16) // each holds a batch in memory
	}
	g.SetLimit(parallel)
	var batch []store.RowMutation
	var observed []format.Cell // of the batch
	cells, bytes := 0, 0
	send := func() {
		muts, entries, n, size := batch, observed, cells, bytes
		batch, observed, cells, bytes = nil, nil, 0, 0
		if len(muts) > 0 {
			g.Go(func() error {
				return b.entered(gctx, entries, size, func() error { return b.sendBatch(gctx, muts, n) })
			})
		}
	}
	var failed error
	last := ""
	for row, err := range rows {
		if err == nil {
			err = gctx.Err()
		}
		var r *bulkRow
		if err == nil {
			r, err = b.prepare(gctx, row, last)
			last = row.Row
		}
		if err != nil {
			failed = err
			break
		}
		if !b.load.Idle {
			g.Go(func() error {
				return b.entered(gctx, r.observed, r.bytes, func() error { return b.sendRow(gctx, r) })
			})
			continue
		}
		batch = append(batch, store.RowMutation{Row: r.row, Mut: r.mutation, Ops: r.ops})
		observed = append(observed, r.observed...)
		cells += len(r.columns)
		if bytes += r.bytes; bytes >= bulkBatchBytes || len(batch) >= bulkBatchRows {
			send()
		}
	}
	if failed == nil {
		send()
	}
	if err := g.Wait(); err != nil && (failed == nil || errors.Is(failed, context.Canceled)) {
		failed = err
	}
	if failed != nil && ctx.Err() != nil {
		return store.Ended(ctx, "admin: loading in bulk", failed)
	}
	return failed
}

// entered writes journal entries of cells, and then the cells. A load may be continued long after
// its start timestamp, and even below the safe point. Then a scan of the journal may remove an
// entry whose cell is not written yet, so entered writes the entries once more.
func (b *bulkLoad) entered(ctx context.Context, cells []format.Cell, size int, write func() error) error {
	entry := journal.Entry{StartTS: b.startTS}
	if err := b.client.Journal.Enter(ctx, entry, cells...); err != nil {
		return err
	}
	if err := b.pacer.Do(ctx, size, write); err != nil || len(cells) == 0 {
		return err
	}
	if ts, err := b.client.SafePoint.Current(ctx); err != nil || ts < b.startTS && !b.client.Journal.Late(b.startTS) {
		return err
	}
	return b.client.Journal.Enter(ctx, entry, cells...)
}

// A bulkRow is a row that is ready to send.
type bulkRow struct {
	row      string
	columns  []format.Column
	observed []format.Cell
	mutation *bigtable.Mutation
	ops      int
	bytes    int
}

// prepare checks a row, which must come after row last, and makes its mutation.
func (b *bulkLoad) prepare(ctx context.Context, row BulkRow, last string) (*bulkRow, error) {
	s, err := b.table.Schema.Fresh(ctx)
	if err != nil {
		return nil, err
	}
	if err := format.CheckRowKey(row.Row); err != nil {
		return nil, err
	}
	switch {
	case !b.set.Contains(row.Row):
		return nil, invalidf("row %q is not in BulkConfig.Rows", row.Row)
	case len(row.Cells) == 0:
		return nil, invalidf("row %q has no cells", row.Row)
	case row.Row <= last:
		// A repeated row would find its own records and count as written.
		return nil, invalidf("row %q comes after row %q; rows have to be in ascending order, each once", row.Row, last)
	}
	writes := &store.RowWrites{Table: b.table, Row: row.Row}
	for _, cell := range row.Cells {
		w := &store.Write{Cell: format.Cell{Table: b.table.Name, Row: row.Row, Family: cell.Family, Qualifier: cell.Qualifier}, Kind: format.KindPut, Value: cell.Value}
		if err := format.CheckCell(w.Cell); err != nil {
			return nil, err
		}
		if err := format.CheckValue(w.Cell, w.Value); err != nil {
			return nil, err
		}
		if err := s.CheckWrite(b.table.Name, w, nil); err != nil {
			return nil, err
		}
		w.Observed = s.IsObserved(w.Cell.Column())
		writes.Writes = append(writes.Writes, w)
	}
	if err := writes.Check(); err != nil {
		return nil, err
	}
	slices.SortFunc(writes.Writes, func(a, b *store.Write) int { return cmp.Compare(a.Cell.Column().Key(), b.Cell.Column().Key()) })
	r := &bulkRow{row: row.Row, columns: writes.Columns(), observed: writes.Observed(), mutation: bigtable.NewMutation()}
	primary := writes.Writes[0].Cell
	for i, w := range writes.Writes {
		if i > 0 && w.Cell == writes.Writes[i-1].Cell {
			return nil, invalidf("%s comes twice in its row", w.Cell)
		}
		r.mutation.Set(w.Cell.Family, w.Cell.Qualifier, b.startTS.Cell(), w.Value)
		family, record := format.EncodeCommit(w.Cell, primary, format.KindPut, b.startTS)
		r.mutation.Set(family, w.Cell.Column().Key(), b.commitTS.Cell(), record)
		r.ops += 2
		if w.Observed {
			r.mutation.Set(format.NotifyFamily, w.Cell.Column().Key(), b.commitTS.Cell(), nil)
			r.ops++
		}
		r.bytes += len(w.Value) + 3*len(w.Cell.Qualifier) + 64
	}
	return r, nil
}

// sendRow writes a row on the condition of a prewrite. The row's own records, from
// an earlier attempt, fail the condition, too.
func (b *bulkLoad) sendRow(ctx context.Context, r *bulkRow) error {
	cost := 0
	for _, c := range r.columns {
		cost += store.PrewriteCost(c)
	}
	if cost > store.FilterBudget {
		return format.Limitf("row %q has %d columns, whose names do not fit into the condition of one mutation: load it with BulkConfig.Idle, or in a transaction", r.row, len(r.columns))
	}
	predicate := store.AnyConflict(r.columns, b.startTS)
	var last error
	for pause := b.client.Store.Config.Backoff.Start(); ; {
		matched, err := b.table.CheckAndMutate(ctx, r.row, predicate, nil, r.mutation)
		switch {
		case err == nil && !matched:
			b.count(1, len(r.columns))
			return nil
		case store.Permanent(err):
			return err
		case err != nil:
			last = err // the next attempt's condition shows whether it was applied
		default:
			raw, err := b.table.ReadRow(ctx, r.row, predicate)
			if err == nil {
				if e := b.foreign(b.table, raw); e != nil {
					return e
				}
				if len(raw[format.WriteFamily]) == len(r.columns) {
					b.count(1, len(r.columns))
					return nil
				}
				if len(raw[format.WriteFamily]) > 0 {
					return format.Corruptf(format.Cell{Table: b.table.Name, Row: r.row}, "an earlier call of the bulk load at %d wrote other columns", b.startTS)
				}
			} else if !store.Transient(err) {
				return err
			} else {
				last = err
			}
		}
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, fmt.Sprintf("admin: loading row %q", r.row), last)
		}
	}
}

// sendBatch writes rows of an idle range until all are written.
func (b *bulkLoad) sendBatch(ctx context.Context, muts []store.RowMutation, cells int) error {
	for pause := b.client.Store.Config.Backoff.Start(); ; {
		failed, err := b.table.Apply(ctx, muts)
		switch {
		case err == nil:
			b.count(len(muts), cells)
			return nil
		case store.Permanent(err):
			return err
		}
		b.count(len(muts)-len(failed), 0)
		muts = failed
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, "admin: loading rows", err)
		}
	}
}

func (b *bulkLoad) count(rows, cells int) {
	n := b.rows.Add(int64(rows))
	b.cells.Add(int64(cells))
	if b.load.Progress != nil {
		b.load.Progress(int(n))
	}
}
