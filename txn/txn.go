package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A Txn is a read-write transaction with snapshot isolation: it reads the
// state as of its start timestamp and its own writes, and commits all of its
// writes at one later timestamp, or none. Its methods and those of its Tables
// may be called concurrently, but not after Commit or Rollback.
//
// Nothing is written to Bigtable before Commit.
type Txn struct {
	client  *Client
	opts    txnOptions
	startTS tso.Timestamp
	begun   time.Time     // for the part of the locks' ttl that is over at commit
	early   time.Duration // how long before begun startTS was asked for
	buffer  buffer
	run     *attempt
	hold    *recovery.Hold // keeps garbage collection below startTS
	reads   reads

	span       store.Span // not on where nothing records
	carried    trace.Span // the span, also one that does not record; nil without an SDK
	parentSpan trace.SpanID
	later      *later       // until the trace begins; nil where it began with the transaction
	requests   atomic.Int64 // to Bigtable

	mu   sync.Mutex
	done bool
	// hops counts the observers' runs that led here; see [Txn.Observe].
	hops int
}

// Begin starts a transaction, which has to be ended by Commit or Rollback.
// Rollback may be deferred. Most callers want [Client.Update], which runs a
// transaction again after a conflict.
func (c *Client) Begin(ctx context.Context, opts ...TxnOption) (*Txn, error) {
	return c.begin(ctx, &attempt{number: 1}, opts)
}

func (c *Client) begin(ctx context.Context, a *attempt, opts []TxnOption) (*Txn, error) {
	if err := c.Enter(); err != nil {
		return nil, err
	}
	// Before the timestamp: overstates the age, never the rest of the ttl.
	t := &Txn{client: c, run: a, begun: time.Now()}
	for _, o := range opts {
		o(&t.opts)
	}
	t.trace(ctx, a)
	if err := t.begins(t.within(ctx)); err != nil {
		t.over(ctx, OutcomeFailed, 0, err)
		c.Leave()
		return nil, err
	}
	t.started(t.startTS)
	t.hold = c.Holds.Add(t.startTS)
	t.reads.init(c, t.opts.name, !t.opts.noPrefetch)
	c.Counters.Begun.Add(1)
	return t, nil
}

// StartTS is the timestamp the transaction reads at.
func (t *Txn) StartTS() tso.Timestamp { return t.startTS }

// Table returns the transaction's view of a table. The table is opened and
// verified by the first read, or by Commit.
func (t *Txn) Table(name string) *Table {
	return &Table{View: View{client: t.client, name: name, ts: t.startTS, txn: t, reads: &t.reads}}
}

// finish moves the transaction to its end; only the first call does.
func (t *Txn) finish() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return fmt.Errorf("txn: %w", ErrDone)
	}
	t.done = true
	t.buffer.mu.Lock()
	t.buffer.sealed = true
	t.buffer.mu.Unlock()
	return nil
}

// alive fails when the transaction may not read any more, or not at all.
func (t *Txn) alive() error {
	if t.opts.writeOnly {
		return format.Invalidf("a read in a transaction that is declared WriteOnly; leave the option out")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return fmt.Errorf("txn: %w", ErrDone)
	}
	return nil
}

// Rollback drops the transaction's writes. Nothing of them was sent, so it
// cannot fail; after Commit or Rollback it does nothing.
func (t *Txn) Rollback() {
	if t.finish() == nil {
		t.over(context.Background(), outcomeRolledBack, 0, nil)
		t.end()
	}
}

// end is the last thing of a transaction.
func (t *Txn) end() {
	t.client.Holds.Remove(t.hold)
	t.client.Leave()
}

// Commit makes the transaction's writes visible, all at the timestamp it
// returns, or none:
//
//   - nil: committed. Secondaries may still be committed in the background;
//     every later transaction sees them all the same.
//   - ErrConflict ([ConflictError]): rolled back, nothing is or will be visible.
//   - ErrUndetermined ([UndeterminedError]): the commit of the primary was sent,
//     and its outcome could not be found out, mostly because ctx ended.
//     [Client.Settle] finds it out.
//   - ErrTooOld ([TooOldError]): rolled back, because garbage collection has
//     passed the transaction's start timestamp.
//   - ErrCorrupt: the transaction's records contradict it, it is committed at
//     another timestamp.
//   - any other error: rolled back. Locks that could not be removed any more
//     are removed by whoever meets them, after Config.LockTTL.
//
// A transaction without writes commits without a request and returns its start
// timestamp. (Paper §2.2, Figure 6; design §4.)
func (t *Txn) Commit(ctx context.Context) (tso.Timestamp, error) {
	if err := t.finish(); err != nil {
		return 0, err
	}
	defer t.end()
	ctx = t.within(ctx)
	ts, rows, err := t.commit(ctx)
	outcome := OutcomeFailed
	switch {
	case err == nil && rows == 0:
		outcome = outcomeReadOnly
	case err == nil:
		outcome = outcomeCommitted
		if t.span.Recording() {
			t.span.Set(store.AttrCommitTS.Int64(int64(ts)))
		}
	case Retryable(err):
		outcome = outcomeConflict
		t.client.Counters.Conflicts.Add(1)
		t.client.conflicted(ctx, t.opts.name, err)
	case errors.Is(err, ErrUndetermined):
		outcome = outcomeUndetermined
		t.client.Counters.Undetermined.Add(1)
	}
	t.over(ctx, outcome, rows, err)
	if err != nil && t.opts.name != "" {
		err = fmt.Errorf("transaction %s: %w", t.opts.name, err)
	}
	return ts, err
}

// over ends the transaction's span and measures it.
func (t *Txn) over(ctx context.Context, outcome string, rows int, err error) {
	if t.span.Recording() {
		t.span.Set(store.AttrOutcome.String(outcome), store.AttrRows.Int(rows))
		t.reads.describe(t.span)
		t.span.EndWith(err)
	}
	t.client.measure.transaction(ctx, t, outcome, rows)
}

// commit returns how many rows are written as well.
func (t *Txn) commit(ctx context.Context) (ts tso.Timestamp, written int, err error) {
	if t.buffer.err != nil {
		return 0, 0, t.buffer.err
	}
	notified, err := t.notifications(ctx)
	if err != nil {
		return 0, 0, err
	}
	if t.onlyReads() {
		ts, err = t.onlyNotify(ctx, notified)
		return ts, 0, err
	}
	rows, err := t.collect(ctx)
	if err != nil {
		return 0, 0, err
	}
	c := &commit{txn: t, client: t.client, startTS: t.startTS, primary: t.buffer.first.Cell, rows: rows, notified: notified}
	ts, err = c.run(ctx)
	return ts, len(rows), err
}

// onlyReads reports whether nothing is buffered but the locks that a
// serializable transaction took for its reads. They protect nothing when
// nothing is written.
func (t *Txn) onlyReads() bool {
	for _, rows := range t.buffer.rows {
		for _, cols := range rows {
			for _, w := range cols {
				if !w.Promoted {
					return false
				}
			}
		}
	}
	return true
}

// collect groups the buffered writes by row, the primary's row first, and
// checks everything that can be checked before anything is sent: what Bigtable
// would refuse half-way is not undone by itself (hazard 18).
func (t *Txn) collect(ctx context.Context) ([]*store.RowWrites, error) {
	var all []*store.RowWrites
	primary := t.buffer.first.Cell
	for name, rows := range t.buffer.rows {
		tbl, err := t.client.Table(ctx, name)
		if err != nil {
			return nil, err
		}
		s, err := tbl.Schema.Fresh(ctx)
		if err != nil {
			return nil, err
		}
		for key, cols := range rows {
			r := &store.RowWrites{Table: tbl, Row: key}
			for _, w := range cols {
				if !s.HasFamily(w.Cell.Family) {
					// It may have been added since the schema was read.
					if s, err = tbl.Schema.Newer(ctx, s); err != nil {
						return nil, err
					}
				}
				if err := s.CheckWrite(tbl.Name, w); err != nil {
					return nil, err
				}
				w.Observed = w.Kind != KindLock && s.IsObserved(w.Cell.Column())
				r.Writes = append(r.Writes, w)
			}
			slices.SortFunc(r.Writes, func(a, b *store.Write) int {
				return strings.Compare(a.Cell.Column().Key(), b.Cell.Column().Key())
			})
			if err := r.Check(); err != nil {
				return nil, err
			}
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *store.RowWrites) int {
		if ap, bp := a.Holds(primary), b.Holds(primary); ap != bp {
			if ap {
				return -1
			}
			return 1
		}
		if c := strings.Compare(a.Table.Name, b.Table.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Row, b.Row)
	})
	return all, nil
}

// A Table is a transaction's view of one table, for reading and writing.
type Table struct {
	View
}

// Set buffers a value for a cell; nil and empty are the same, and differ from
// absent. The value is copied. A wrong argument (empty row key, value over
// Bigtable's limit, …) is reported by Commit, which then sends nothing.
func (t *Table) Set(row, family, qualifier string, value []byte) {
	if value == nil {
		value = []byte{}
	}
	t.txn.buffer.set(Cell{Table: t.name, Row: row, Family: family, Qualifier: qualifier}, KindPut, value)
}

// Delete buffers the deletion of a cell, whether it exists or not.
func (t *Table) Delete(row, family, qualifier string) {
	t.txn.buffer.set(Cell{Table: t.name, Row: row, Family: family, Qualifier: qualifier}, KindDelete, nil)
}

// Lock buffers a lock-only write of a cell: nothing of it changes, but the
// transaction commits only if no other wrote or locked the cell since this
// one's start. It guards against write skew: lock what a decision was based
// on. A cell that does not exist can be locked too.
func (t *Table) Lock(row, family, qualifier string) {
	t.txn.buffer.set(Cell{Table: t.name, Row: row, Family: family, Qualifier: qualifier}, KindLock, nil)
}

// Notify buffers a weak notification of a cell: the observers of its column run
// once the transaction is committed, and may run although it is not. The column
// has to be registered for weak notifications and cannot be written, and
// notifying it never makes transactions conflict (paper §2.4). It costs one
// round trip more, between commit_ts and the commit.
func (t *Table) Notify(row, family, qualifier string) {
	t.txn.buffer.addNotification(Cell{Table: t.name, Row: row, Family: family, Qualifier: qualifier})
}

// GetForUpdate is Get and Lock.
func (t *Table) GetForUpdate(ctx context.Context, row, family, qualifier string) (value []byte, ok bool, err error) {
	value, ok, err = t.Get(ctx, row, family, qualifier)
	if err == nil {
		t.Lock(row, family, qualifier)
	}
	return value, ok, err
}

// DeleteRow reads a row and buffers the deletion of every cell in it that the
// transaction sees. Cells that others add meanwhile are not deleted, and a
// serializable transaction, which would have to notice them, refuses it with
// ErrSerializableScan.
func (t *Table) DeleteRow(ctx context.Context, row string) error {
	r, err := t.ReadRow(ctx, row)
	if err != nil {
		return err
	}
	for _, items := range r {
		for _, item := range items {
			if c, ok := format.SplitColumn(item.Column); ok {
				t.Delete(row, c.Family, c.Qualifier)
			}
		}
	}
	return nil
}

// overlayRow is the overlay of a single row.
func (t *Txn) overlayRow(table, row string, sel store.Selection, read bigtable.Row) bigtable.Row {
	return t.buffer.overlay(table, func(r string) bool { return r == row }, sel).apply(row, read)
}

// within returns ctx with the transaction's span in it, unless the caller has
// begun spans below it, and with the count of its requests.
func (t *Txn) within(ctx context.Context) context.Context {
	if t.client.measure.requests.Enabled(ctx) {
		ctx = store.CountRequests(ctx, &t.requests)
	}
	if t.carried == nil {
		return ctx
	}
	here, own := trace.SpanContextFromContext(ctx), t.carried.SpanContext()
	if here.TraceID() == own.TraceID() && here.SpanID() != t.parentSpan {
		return ctx
	}
	return trace.ContextWithSpan(ctx, t.carried)
}
