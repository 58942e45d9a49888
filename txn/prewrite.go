package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// prewriteAll locks every cell, all rows in parallel, the primary's row included
// (docs/protocol.md). It returns nil only if every prewrite is acknowledged. After the first
// failure it sends no further row and waits for no lock, but it waits for the requests that
// are under way: a cancelled prewrite may still take effect after the abort, and would block
// other transactions until its ttl expires.
func prewriteAll(ctx context.Context, c *commit) error {
	if len(c.rows) == 1 {
		return prewriteTraced(ctx, c, c.rows[0])
	}
	return prewriteIllFirst(ctx, c)
}

func prewriteRows(ctx context.Context, c *commit, rows []*store.RowWrites) (err error) {
	traced := len(rows) <= maxPrewriteSpans
	if !traced {
		var all telemetry.Span
		ctx, all = c.client.resolver.Trace.Begin(ctx, "prewrite", "")
		all.Set(telemetry.AttrRows.Int(len(rows)))
		defer func() { all.EndWith(err) }()
	}
	// The watch ends the requests if a row stalls. A failure ends only waits for locks.
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.watch.begin(cancel)
	defer c.watch.end()
	defer func() { err = c.watch.result(caller, err) }()
	one := func(row *store.RowWrites) error {
		if c.failed.Load() {
			return nil // the row that failed returns the error
		}
		var err error
		if traced {
			err = prewriteTraced(ctx, c, row)
		} else {
			err = prewriteRow(ctx, c, row)
		}
		if err != nil {
			c.fail()
		}
		return err
	}
	var g errgroup.Group
	parallel := c.client.resolver.Store.Config.Parallelism
	g.SetLimit(parallel)
	if len(rows) == 1 && parallel > 1 {
		return cmp.Or(one(rows[0]), g.Wait()) // without a goroutine: another stack would have to grow
	}
	for _, row := range rows {
		g.Go(func() error { return one(row) })
	}
	return g.Wait()
}

// maxPrewriteSpans is how many rows a commit may have for each to get a span. The prewrites
// of a larger commit share one span.
const maxPrewriteSpans = 16

func prewriteTraced(ctx context.Context, c *commit, row *store.RowWrites) error {
	ctx, span := c.client.resolver.Trace.Begin(ctx, "prewrite", row.Table.Name)
	if span.Recording() {
		span.Set(telemetry.AttrCells.Int(len(row.Writes)))
	}
	err := prewriteRow(ctx, c, row)
	span.EndWith(err)
	return err
}

// prewriteRow locks the cells of one row. A predicate that names many columns costs Bigtable much and may
// exceed its limit, so the first attempt at a wide row uses a predicate that names none.
func prewriteRow(ctx context.Context, c *commit, row *store.RowWrites) error {
	if !row.Wide() {
		return prewriteCells(ctx, c, row)
	}
	row.Touched = true
	if locked, err := prewriteWholeRow(ctx, c, row); locked || err != nil {
		return err
	}
	c.client.crowded.Note(row)
	for _, part := range row.Split() {
		err := prewriteCells(ctx, c, part)
		row.Unanswered = row.Unanswered || part.Unanswered
		if err != nil || c.failed.Load() {
			return err
		}
	}
	return nil
}

// prewriteWholeRow locks the cells of one row unless any column of the row has a lock, or a
// write record or mark at or above start_ts. If locked is false, the caller has to try the
// cells by name: another cell of the row may have prevented it, or the outcome is unknown.
func prewriteWholeRow(ctx context.Context, c *commit, row *store.RowWrites) (locked bool, err error) {
	if err := c.client.resolver.SafePoint.CheckWrite(ctx, c.startTS); err != nil {
		return false, err
	}
	row.Sent(time.Now())
	matched, err := row.Table.CheckAndMutate(ctx, row.Row, store.AnyConflictInRow(c.startTS), nil, lockMutation(c, row))
	row.Answered()
	row.Unanswered = err != nil
	if store.Permanent(err) {
		return false, err
	}
	return err == nil && !matched, nil
}

// prewriteCells locks cells of one row by one CheckAndMutateRow: data and locks at
// start_ts, unless any of the cells has a lock, or a write record or mark at or above
// start_ts. The first attempt asks for less than that: no record or mark of the row may be at or
// above start_ts. If this fails because of another column, the next attempt names the cells.
func prewriteCells(ctx context.Context, c *commit, row *store.RowWrites) error {
	cols := row.Columns()
	exact := c.client.crowded.Has(row)
	var s streak
	for pause := c.client.resolver.Store.Config.Backoff.Start(); ; {
		if err := c.client.resolver.SafePoint.CheckWrite(ctx, c.startTS); err != nil {
			return err
		}
		row.Touched = true
		s.begin(row)
		matched, err := c.lockCells(ctx, row, store.PrewriteConflict(cols, c.startTS, exact))
		if err == nil {
			row.Answered()
		}
		if err == nil && !matched {
			return nil
		}
		row.Unanswered = row.Unanswered || err != nil
		switch {
		case store.Permanent(err):
			return err
		case err != nil:
			s.failed(err)
		}
		answered := err == nil
		// Something prevented the prewrite, or its outcome is unknown: read the row.
		if ctx.Err() == nil && !s.stalled(c.patience(row)) {
			var locked bool
			locked, err = inspect(ctx, c, row)
			if c.failed.Load() {
				return nil // as in prewriteRows
			}
			var stall *store.StallError
			switch {
			case errors.As(err, &stall): // of another transaction's primary
				if err := c.await(ctx, stall); err != nil {
					return err
				}
				continue
			case locked || (err != nil && !store.Transient(err)):
				return err
			case err != nil:
				s.failed(err)
			case answered:
				s = streak{}
			}
			if answered && err == nil && !exact {
				c.client.crowded.Note(row)
				exact = true
				continue
			}
		}
		exact = true
		if ctx.Err() == nil && s.stalled(c.patience(row)) {
			if c.failed.Load() {
				return nil
			}
			stall := &store.StallError{Table: row.Table, Row: row.Row, After: s.last.Sub(s.from), Err: s.err}
			row.Table.NoteStall(row.Row)
			began := time.Now()
			if err := c.await(ctx, stall); err != nil {
				return err
			}
			s.awaited(time.Since(began))
			row.Answered()
		}
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, fmt.Sprintf("txn: prewriting row %q of table %q", row.Row, row.Table.Name), s.err)
		}
		if s.err != nil && s.last.Sub(s.first) > c.lockTTL() {
			// Other clients may have begun to roll this transaction back.
			return fmt.Errorf("txn: prewriting row %q of table %q failed for longer than the time to live of its locks (%v): %w", row.Row, row.Table.Name, c.lockTTL(), s.err)
		}
	}
}

// A streak is the failures of a prewrite since its row last answered.
type streak struct {
	sent        time.Time // when the last attempt began
	first, last time.Time // failures
	from        time.Time // when the first attempt began since the row was awaited
	err         error     // nil: no failure
}

func (s *streak) begin(row *store.RowWrites) {
	s.sent = time.Now()
	row.Sent(s.sent)
}

func (s *streak) failed(err error) {
	if s.last = time.Now(); s.err == nil {
		s.first = s.last
	}
	if s.from.IsZero() {
		s.from = s.sent
	}
	s.err = err
}

// stalled reports whether the row has not answered for so long.
func (s *streak) stalled(patience time.Duration) bool {
	return s.err != nil && !s.from.IsZero() && s.last.Sub(s.from) >= patience
}

// awaited notes that the row has answered a probe.
func (s *streak) awaited(waited time.Duration) {
	s.first, s.last, s.from = s.first.Add(waited), s.last.Add(waited), time.Time{}
}

// lockMutation returns the mutation that writes the value and the lock of each cell, at
// start_ts.
func lockMutation(c *commit, row *store.RowWrites) *bigtable.Mutation {
	m := bigtable.NewMutation()
	for _, w := range row.Writes {
		if w.Kind == format.KindPut {
			m.Set(w.Cell.Family, w.Cell.Qualifier, c.startTS.Cell(), w.Value)
		}
		lock := lockOf(c, w)
		m.Set(format.LockFamily, w.Cell.Column().Key(), c.startTS.Cell(), format.EncodeLock(&lock))
	}
	return m
}

// maxTTLWithoutToken bounds how long the locks of an owner without a worker token live after its last sign of
// life: nothing else shows that it is dead.
const maxTTLWithoutToken = time.Minute

// lockTTL returns how long a lock is valid after the commit has written it.
func (c *commit) lockTTL() time.Duration {
	if c.owner == "" {
		return min(c.client.cfg.LockTTL, maxTTLWithoutToken)
	}
	return c.client.cfg.LockTTL
}

// lockOf returns the lock of one cell. A ttl counts from start_ts, so it is lockTTL plus the
// time that the transaction has taken so far.
func lockOf(c *commit, w *store.Write) format.Lock {
	return format.Lock{
		Cell:        w.Cell,
		StartTS:     c.startTS,
		Primary:     c.primary,
		Kind:        w.Kind,
		TTL:         time.Since(c.txn.began) + c.txn.startAge + c.lockTTL(),
		Owner:       c.owner,
		Observed:    w.Observed,
		TraceParent: c.traceParent,
		Hops:        c.txn.hops,
		Passable:    c.client.cfg.PassLocks && w.Cell == c.primary,
	}
}

// inspect reads the row once, finds out what prevented the prewrite, and resolves locks:
//   - all of the transaction's own locks: an earlier attempt took effect. inspect returns
//     locked.
//   - the transaction's own rollback marker, or only some of its locks: another client
//     rolled it back, which is a conflict.
//   - another transaction's write at or above start_ts: a conflict.
//   - another transaction's lock: inspect resolves it if its owner is dead, waits if that
//     transaction is younger, and returns a conflict if it is older.
//
// If inspect returns neither locked nor an error, nothing prevents the prewrite any more, and
// the caller sends it again.
func inspect(ctx context.Context, c *commit, row *store.RowWrites) (locked bool, err error) {
	raw, err := row.Table.TryReadRow(ctx, row.Row, store.NewestConflicts(row.Columns(), c.startTS))
	if err != nil {
		return false, err
	}
	row.Answered()
	var others []*format.Lock
	own, err := recovery.LocksIn(row, raw, c.startTS, &others)
	if err != nil {
		return false, err
	}
	if own == 0 && !row.Unanswered {
		row.Touched = false // every prewrite was refused
	}
	if err := recovery.FindConflict(row, raw, c.startTS); err != nil {
		return false, err
	}
	switch {
	case own == len(row.Writes):
		return true, nil
	case own > 0:
		return false, &ConflictError{Cell: c.primary, StartTS: c.startTS, Reason: format.ConflictRolledBack}
	}
	if len(others) > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer c.watch.onFailure(cancel)()
	}
	return false, recovery.ResolveOthers(ctx, c.client.resolver, others, c.startTS, c.releaseLatch)
}
