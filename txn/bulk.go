package txn

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
)

// ErrNotIdle: a bulk load found that it is not alone in its range.
var ErrNotIdle = errors.New("range is not idle")

// A NotIdleError names a cell that is in the way of a bulk load, or was written
// beside it. errors.Is(err, ErrNotIdle) holds.
type NotIdleError struct {
	Cell Cell
	// What is there: data, a lock, a write record or a mark.
	What VersionKind
	TS   tso.Timestamp
}

func (e *NotIdleError) Error() string {
	return fmt.Sprintf("txn: %v: %s has %s at %d", ErrNotIdle, e.Cell, e.What, e.TS)
}

// Is makes errors.Is(err, ErrNotIdle) true.
func (e *NotIdleError) Is(target error) bool { return target == ErrNotIdle }

// A BulkRow is one row for [Client.BulkLoad].
type BulkRow struct {
	Row   string
	Cells []BulkCell
}

// A BulkCell is one value of a row.
type BulkCell struct {
	Family, Qualifier string
	Value             []byte
}

// A BulkLoad says how rows are loaded.
type BulkLoad struct {
	// StartTS and CommitTS are those of an earlier call that did not come to its
	// end: the load then goes on, and writes again what was written, which
	// changes nothing.
	// Default to 0: new ones from the oracle.
	StartTS, CommitTS tso.Timestamp

	// Rows are the rows that the load may touch (nil: the whole table). Each row
	// of the input has to be in it.
	Rows bigtable.RowSet

	// Idle is the caller's word that no transaction reads or writes Rows until
	// the load is over. Rows may then hold older data, and each request writes
	// many rows.
	// Defaults to false: Rows has to be empty, and each row is written by a
	// conditional mutation of its own, which fails where a transaction was
	// faster.
	Idle bool

	// Started, when set, is called with the load's timestamps before anything is
	// written: what a later call needs to go on.
	// Defaults to nil.
	Started func(startTS, commitTS tso.Timestamp)

	// Progress, when set, is called as rows are written. It may be called
	// concurrently.
	// Defaults to nil.
	Progress func(rows int)
}

// A BulkReport counts what a load wrote.
type BulkReport struct {
	StartTS, CommitTS tso.Timestamp
	Rows, Cells       int
}

// BulkLoad writes committed cells straight: data at StartTS and write records
// at CommitTS, with notify cells where columns are observed, and no locks. It is
// for filling a table, and is no transaction:
//
//   - It is atomic by row only. A reader whose snapshot is later than CommitTS
//     sees the rows that are there when it reads, and may miss one that it
//     sees when it reads again; one that is older sees none of them.
//   - Each row is its own primary, so what is stored is consistent at any
//     moment (Check), however the load ends.
//
// Before it writes, it looks through Rows: without Idle they have to be empty,
// with it free of locks and of records at StartTS or later, those of this load
// apart (NotIdleError). Without Idle, transactions that run into the load all the
// same are safe: a row's mutation is conditional on there being no lock and
// nothing at StartTS or later in its columns, as a prewrite is, so that no
// transaction is overwritten, none that began before CommitTS overwrites the
// load unseen, and versions never interleave. With Idle nothing stands between
// the load and a transaction but the caller's word; Rows are looked through once
// more at the end, and NotIdleError then says that the word was broken, by a
// lock or record that is not the load's.
//
// rows come in ascending order of their keys, each once. On an error, what was
// written stays, committed. Calling it again with the timestamps of the report
// and the same rows goes on.
func LoadBulk(ctx context.Context, client *Client, table string, rows iter.Seq2[BulkRow, error], load BulkLoad) (BulkReport, error) {
	c := resolverOf(client)
	r := BulkReport{StartTS: load.StartTS, CommitTS: load.CommitTS}
	if (load.StartTS == 0) != (load.CommitTS == 0) || load.StartTS < 0 || load.CommitTS < load.StartTS {
		return r, invalid("bulk load with start_ts %d and commit_ts %d; give those of the load that goes on, or none", load.StartTS, load.CommitTS)
	}
	if err := c.enter(); err != nil {
		return r, err
	}
	defer c.leave()
	t, err := c.table(ctx, table)
	if err != nil {
		return r, err
	}
	set, err := newRowSet(load.Rows)
	if err != nil {
		return r, err
	}
	b := &bulkLoad{client: c, table: t, load: load, set: set}
	if err := b.timestamps(ctx, &r); err != nil {
		return r, err
	}
	if err := b.prove(ctx); err != nil {
		return r, err
	}
	if load.Started != nil {
		load.Started(r.StartTS, r.CommitTS)
	}
	err = b.write(ctx, rows)
	r.Rows, r.Cells = int(b.rows.Load()), int(b.cells.Load())
	if err == nil && load.Idle {
		err = b.prove(ctx)
	}
	if err == nil {
		c.clock.madeCommit(r.CommitTS, time.Time{})
	}
	return r, err
}

type bulkLoad struct {
	client *resolver
	table  *table
	load   BulkLoad
	set    rowSet

	startTS, commitTS tso.Timestamp
	rows, cells       atomic.Int64
}

func (b *bulkLoad) timestamps(ctx context.Context, r *BulkReport) (err error) {
	if r.StartTS == 0 {
		if r.StartTS, err = b.client.clock.timestamp(ctx); err != nil {
			return err
		}
		if r.CommitTS, err = b.client.clock.timestamp(ctx); err != nil {
			return err
		}
	} else {
		now, err := b.client.clock.timestamp(ctx)
		if err != nil {
			return err
		}
		if now <= r.CommitTS {
			return invalid("bulk load with commit_ts %d, which is after the oracle's present, %d", r.CommitTS, now)
		}
	}
	b.startTS, b.commitTS = r.StartTS, r.CommitTS
	return nil
}

// prove looks through the range for what is in the load's way.
func (b *bulkLoad) prove(ctx context.Context) error {
	filter := func(t *table) bigtable.Filter {
		strip := bigtable.StripValueFilter()
		records := []bigtable.Filter{wholeFamily(WriteFamily), wholeFamily(MarkFamily)}
		if b.load.Idle {
			return interleave(chain(wholeFamily(LockFamily), strip), chain(anyOf(records), from(b.startTS), strip))
		}
		filters := []bigtable.Filter{chain(wholeFamily(LockFamily), strip), chain(anyOf(records), strip)}
		for _, f := range t.schema.current().families {
			filters = append(filters, chain(wholeFamily(f), strip))
		}
		return interleave(filters...)
	}
	return b.client.pages(ctx, b.table.name, b.load.Rows, filter, func(t *table, page []bigtable.Row) (bool, error) {
		for _, raw := range page {
			if e := b.foreign(t, raw); e != nil {
				return false, e
			}
		}
		return true, nil
	})
}

// foreign returns what is not the load's own.
func (b *bulkLoad) foreign(t *table, raw bigtable.Row) *NotIdleError {
	var found *NotIdleError
	for family, items := range raw {
		for _, item := range items {
			e := &NotIdleError{What: VersionData, TS: tso.FromCell(item.Timestamp)}
			own := b.startTS
			switch family {
			case LockFamily:
				e.What, own = VersionLock, 0
			case WriteFamily:
				e.What, own = VersionWrite, b.commitTS
			case MarkFamily:
				e.What, own = "a mark", 0
			}
			if e.TS == own && item.Timestamp == own.Cell() {
				continue
			}
			if item.Timestamp < prePercolator {
				e.What, e.TS = VersionPlain, tso.Timestamp(item.Timestamp)
			}
			if _, cell, err := metadataCell(t.name, raw.Key(), item); err == nil && isMetadataFamily(family) {
				e.Cell = cell
			} else {
				c, _ := splitColumn(item.Column)
				e.Cell = Cell{t.name, raw.Key(), c.Family, c.Qualifier}
			}
			if found == nil || e.Cell.Column().key() < found.Cell.Column().key() {
				found = e
			}
		}
	}
	return found
}

// bulkBatchBytes and maxBatchRows bound a request of an idle load.
const bulkBatchBytes = 4 << 20

// write sends the rows. After the first failure no further one is read.
func (b *bulkLoad) write(ctx context.Context, rows iter.Seq2[BulkRow, error]) error {
	g, gctx := errgroup.WithContext(ctx)
	parallel := b.client.store.cfg.Parallelism
	if b.load.Idle {
		parallel = min(parallel, 4) // each holds a batch in memory
	}
	g.SetLimit(parallel)
	var batch []rowMutation
	cells, bytes := 0, 0
	send := func() {
		muts, n := batch, cells
		batch, cells, bytes = nil, 0, 0
		if len(muts) > 0 {
			g.Go(func() error { return b.sendBatch(gctx, muts, n) })
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
			g.Go(func() error { return b.sendRow(gctx, r) })
			continue
		}
		batch = append(batch, rowMutation{row: r.row, mut: r.mutation, ops: r.ops})
		cells += len(r.columns)
		if bytes += r.bytes; bytes >= bulkBatchBytes || len(batch) >= maxBatchRows {
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
		return ended(ctx, "loading in bulk", failed)
	}
	return failed
}

// A bulkRow is a row that is ready to be sent.
type bulkRow struct {
	row      string
	columns  []Column
	mutation *bigtable.Mutation
	ops      int
	bytes    int
}

func (b *bulkLoad) prepare(ctx context.Context, row BulkRow, last string) (*bulkRow, error) {
	s, err := b.table.schema.fresh(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkRowKey(row.Row); err != nil {
		return nil, err
	}
	switch {
	case !b.set.contains(row.Row):
		return nil, invalid("row %q is outside the range of the bulk load", row.Row)
	case len(row.Cells) == 0:
		return nil, invalid("row %q has no cells", row.Row)
	case row.Row <= last:
		// A row that came again would meet its own records and count as written.
		return nil, invalid("row %q comes after row %q; rows have to be in ascending order, each once", row.Row, last)
	}
	writes := &rowWrites{table: b.table, row: row.Row}
	for _, cell := range row.Cells {
		w := &write{cell: Cell{b.table.name, row.Row, cell.Family, cell.Qualifier}, kind: KindPut, value: cell.Value}
		if err := checkCell(w.cell); err != nil {
			return nil, err
		}
		if err := checkValue(w.cell, w.value); err != nil {
			return nil, err
		}
		if err := s.checkWrite(b.table.name, w); err != nil {
			return nil, err
		}
		w.observed = s.isObserved(w.cell.Column())
		writes.writes = append(writes.writes, w)
	}
	if err := writes.check(); err != nil {
		return nil, err
	}
	slices.SortFunc(writes.writes, func(a, b *write) int { return cmp.Compare(a.cell.Column().key(), b.cell.Column().key()) })
	r := &bulkRow{row: row.Row, columns: writes.columns(), mutation: bigtable.NewMutation()}
	primary := writes.writes[0].cell
	for i, w := range writes.writes {
		if i > 0 && w.cell == writes.writes[i-1].cell {
			return nil, invalid("%s comes twice in its row", w.cell)
		}
		r.mutation.Set(w.cell.Family, w.cell.Qualifier, b.startTS.Cell(), w.value)
		family, record := encodeCommit(w.cell, primary, KindPut, b.startTS)
		r.mutation.Set(family, w.cell.Column().key(), b.commitTS.Cell(), record)
		r.ops += 2
		if w.observed {
			r.mutation.Set(NotifyFamily, w.cell.Column().key(), b.commitTS.Cell(), nil)
			r.ops++
		}
		r.bytes += len(w.value) + 3*len(w.cell.Qualifier) + 64
	}
	return r, nil
}

// sendRow writes a row if nothing is in its way: the condition is that of a
// prewrite. Its own record, which an earlier send has left, is in the way too.
func (b *bulkLoad) sendRow(ctx context.Context, r *bulkRow) error {
	cost := 0
	for _, c := range r.columns {
		cost += prewriteCost(c)
	}
	if cost > filterBudget {
		return limit("row %q has %d columns, whose names do not fit into the condition of one mutation: load it with BulkLoad.Idle, or by a transaction", r.row, len(r.columns))
	}
	predicate := inTheWay(r.columns, b.startTS)
	var last error
	for pause := b.client.store.cfg.Backoff.start(); ; {
		matched, err := b.table.checkAndMutate(ctx, r.row, predicate, nil, r.mutation)
		switch {
		case err == nil && !matched:
			b.done(1, len(r.columns))
			return nil
		case permanent(err):
			return err
		case err != nil:
			last = err // whether it was applied or not, the condition tells next time
		default:
			raw, err := b.table.readRow(ctx, r.row, predicate)
			if err == nil {
				if e := b.foreign(b.table, raw); e != nil {
					return e
				}
				if len(raw[WriteFamily]) == len(r.columns) {
					b.done(1, len(r.columns))
					return nil
				}
				if len(raw[WriteFamily]) > 0 {
					return corrupt(Cell{Table: b.table.name, Row: r.row}, "an earlier run of the bulk load at %d wrote other columns", b.startTS)
				}
			} else if !transient(err) {
				return err
			} else {
				last = err
			}
		}
		if pause.wait(ctx, 0) != nil {
			return ended(ctx, fmt.Sprintf("loading row %q", r.row), last)
		}
	}
}

// sendBatch writes rows of an idle range until all are acknowledged.
func (b *bulkLoad) sendBatch(ctx context.Context, muts []rowMutation, cells int) error {
	for pause := b.client.store.cfg.Backoff.start(); ; {
		failed, err := b.table.apply(ctx, muts)
		switch {
		case err == nil:
			b.done(len(muts), cells)
			return nil
		case permanent(err):
			return err
		}
		b.done(len(muts)-len(failed), 0)
		muts = failed
		if pause.wait(ctx, 0) != nil {
			return ended(ctx, "loading rows", err)
		}
	}
}

func (b *bulkLoad) done(rows, cells int) {
	n := b.rows.Add(int64(rows))
	b.cells.Add(int64(cells))
	if b.load.Progress != nil {
		b.load.Progress(int(n))
	}
}
