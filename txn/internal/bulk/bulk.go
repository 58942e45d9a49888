// Package bulk locks rows without a condition, many in one request, and reads them afterwards
// (docs/design/2026-11-21-bulk-prewrite.md). The primary's row is never among them. The rules:
//
//   - The rows are verified after all prewrites are acknowledged. The transaction aborts, or waits,
//     if one of its columns has another lock, and aborts if it has a record or mark above start_ts.
//   - commit_ts is asked for after all prewrites are acknowledged, too.
//   - Readers resolve all locks of a column, and a rollback spares the data of a record.
package bulk

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// rowTime is how much longer a request of many rows may take for each of them before it counts as stalled.
const rowTime = 100 * time.Microsecond

// Split returns the rows to prewrite one by one, the primary's first, and those to prewrite in bulk: the
// rows of a table without any of the contended cells, if there are at least so many of them. The row of
// txn.ForUpdate, which needs a condition, is the primary's.
func Split(all []*store.RowWrites, least int, contended []format.Cell) (rows, bulk []*store.RowWrites) {
	if len(all) <= least {
		return all, nil
	}
	busy := make(map[row]bool, len(contended))
	for _, c := range contended {
		busy[row{c.Table, c.Row}] = true
	}
	isBusy := func(r *store.RowWrites) bool { return busy[row{r.Table.Name, r.Row}] }
	rows = all[:1:1]
	for _, some := range ByTable(all[1:]) {
		var one []*store.RowWrites
		if len(busy) > 0 {
			one = slices.DeleteFunc(slices.Clone(some), func(r *store.RowWrites) bool { return !isBusy(r) })
			some = slices.DeleteFunc(slices.Clone(some), isBusy)
		}
		if len(some) < least {
			one, some = append(one, some...), nil
		}
		rows, bulk = append(rows, one...), append(bulk, some...)
	}
	return rows, bulk
}

type row struct{ table, key string }

// A Prewrite is the bulk prewrite of one transaction.
type Prewrite struct {
	Resolver *recovery.Resolver
	Rows     []*store.RowWrites
	Primary  format.Cell
	StartTS  tso.Timestamp
	LockTTL  time.Duration
	// Mutation returns what locks a row.
	Mutation func(*store.RowWrites) *bigtable.Mutation
	// Failed says that a prewrite of the transaction has failed, whose error ends the commit.
	Failed *atomic.Bool
	// Unlatch is called before a wait for a lock.
	Unlatch func()
}

// Lock locks the rows without a condition. It returns nil only if all of them are acknowledged, or if
// Failed is set. It sets Failed if it returns an error.
// Unlike the prewrite of one row, a request can be sent again whatever became of it: the owner has
// sent no commit yet.
func (p *Prewrite) Lock(ctx context.Context) error {
	return p.eachTable(ctx, func(_ context.Context, rows []*store.RowWrites) error {
		err := p.lockTable(ctx, rows) // what is under way has to be answered, whatever becomes of the others
		if err != nil {
			p.Failed.Store(true)
		}
		return err
	})
}

// eachTable calls f with the rows of each table. The context of f ends when another call fails.
func (p *Prewrite) eachTable(ctx context.Context, f func(context.Context, []*store.RowWrites) error) error {
	tables := ByTable(p.Rows)
	if len(tables) == 1 {
		return f(ctx, tables[0])
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(p.Resolver.Store.Config.Parallelism)
	for _, rows := range tables {
		g.Go(func() error { return f(gctx, rows) })
	}
	return g.Wait()
}

// ByTable divides rows by their tables.
func ByTable(rows []*store.RowWrites) (parts [][]*store.RowWrites) {
	if !slices.ContainsFunc(rows, func(r *store.RowWrites) bool { return r.Table != rows[0].Table }) {
		return [][]*store.RowWrites{rows}
	}
	for _, row := range rows {
		i := slices.IndexFunc(parts, func(p []*store.RowWrites) bool { return p[0].Table == row.Table })
		if i < 0 {
			i, parts = len(parts), append(parts, nil)
		}
		parts[i] = append(parts[i], row)
	}
	return parts
}

func (p *Prewrite) lockTable(ctx context.Context, rows []*store.RowWrites) (err error) {
	t := rows[0].Table
	ctx, span := p.Resolver.Trace.Begin(ctx, "prewrite", t.Name)
	span.Set(telemetry.AttrRows.Int(len(rows)))
	defer func() { span.EndWith(err) }()
	muts := make([]store.RowMutation, 0, len(rows))
	for _, row := range rows {
		row.Touched = true
		muts = append(muts, store.RowMutation{Row: row.Row, Mut: p.Mutation(row), Ops: 2 * len(row.Writes), NameBytes: row.NameBytes(p.Primary) + row.ValueBytes(), StartTS: p.StartTS})
	}
	var failing time.Time // since when
	began := time.Now()
	patience := p.Resolver.Store.StallAfter() + time.Duration(len(rows))*rowTime
	for pause := p.Resolver.Store.Config.Backoff.Start(); ; {
		if muts, err = t.ApplyParts(ctx, patience, muts, p.Failed); err == nil || p.Failed.Load() {
			return err
		}
		if i := slices.IndexFunc(muts, func(m store.RowMutation) bool { return store.Permanent(m.Err) }); i >= 0 {
			return muts[i].Err
		}
		if failing.IsZero() {
			failing = time.Now()
		}
		if waited := time.Since(began); waited >= patience && ctx.Err() == nil {
			// Which rows do not answer is not known after a timeout. The next commit of this one prewrites
			// its rows one by one, and finds out.
			t.NoteStall(muts[0].Row)
			return &store.StallError{Table: t, Row: muts[0].Row, After: waited, Err: err}
		}
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, fmt.Sprintf("percolator: prewriting %d rows of table %q", len(muts), t.Name), err)
		}
		if time.Since(failing) > p.LockTTL {
			// Other clients may have begun to roll this transaction back.
			return fmt.Errorf("percolator: prewriting %d rows of table %q failed for longer than the time to live of its locks (%v): %w", len(muts), t.Name, p.LockTTL, err)
		}
	}
}

// Verify returns nil if nothing prevents the commit of the rows. They must be locked.
func (p *Prewrite) Verify(ctx context.Context) (err error) {
	ctx, span := p.Resolver.Trace.Begin(ctx, "verify", "")
	defer func() { span.EndWith(err) }()
	return p.eachTable(ctx, p.verifyTable)
}

// verifyTable verifies rows of a table. It reads them once, when they are locked, and resolves the
// locks of other transactions as the prewrite of one row does. Then it reads the rows that had such
// locks once more, for records: a lock that is gone may have become one.
//
// Locks that arrive after the first read do not matter. The owner of such a lock finds ours when it
// verifies its rows. It waits for our outcome if it is older, and aborts if it is younger. So the
// oldest of several transactions waits for those that it has found, and not for their next attempts.
func (p *Prewrite) verifyTable(ctx context.Context, rows []*store.RowWrites) error {
	var locked []*store.RowWrites
	var others []*format.Lock
	var crowded *format.ConflictError
	err := p.read(ctx, rows, store.Others(p.StartTS), func(row *store.RowWrites, raw bigtable.Row) error {
		if len(raw[format.LockFamily]) > 0 {
			locked = append(locked, row)
		}
		before := len(others)
		_, err := recovery.LocksIn(row, raw, p.StartTS, &others)
		if len(others)-before >= store.MaxOthers {
			l := others[before]
			crowded = &format.ConflictError{Cell: l.Cell, StartTS: p.StartTS, ConflictTS: l.StartTS, Reason: format.ConflictLock}
		}
		return err
	})
	if err != nil || len(others) == 0 {
		return err
	}
	if err := recovery.ResolveOthers(ctx, p.Resolver, others, p.StartTS, p.Unlatch); err != nil {
		return err
	}
	if crowded != nil {
		return crowded // there may be more locks than the answer shows
	}
	return p.read(ctx, locked, store.WrittenSince(p.StartTS+1), func(*store.RowWrites, bigtable.Row) error { return nil })
}

// read reads rows of a table with f. It returns a conflict if one has a record or mark above start_ts,
// and the first error of each.
func (p *Prewrite) read(ctx context.Context, rows []*store.RowWrites, f bigtable.Filter, each func(*store.RowWrites, bigtable.Row) error) error {
	set := store.RowSet{Keys: make([]string, 0, len(rows))}
	for _, row := range rows { // sorted by key
		set.Keys = append(set.Keys, row.Row)
	}
	var failed error
	err := rows[0].Table.ReadListed(ctx, set, f, func(raw bigtable.Row) bool {
		i, _ := slices.BinarySearchFunc(rows, raw.Key(), func(r *store.RowWrites, key string) int { return strings.Compare(r.Row, key) })
		onlyColumnsOf(rows[i], raw)
		if failed = recovery.FindConflict(rows[i], raw, p.StartTS); failed == nil {
			failed = each(rows[i], raw)
		}
		return failed == nil
	})
	return cmp.Or(failed, err)
}

// onlyColumnsOf removes the metadata of other columns than those that the transaction writes.
func onlyColumnsOf(row *store.RowWrites, raw bigtable.Row) {
	written := make(map[string]bool, len(row.Writes))
	for _, w := range row.Writes {
		written[w.Cell.Column().Key()] = true
	}
	for family, items := range raw {
		raw[family] = slices.DeleteFunc(items, func(i bigtable.ReadItem) bool { return !written[i.Column[len(family)+1:]] })
	}
}
