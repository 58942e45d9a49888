package txn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/buffer"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// A Txn is a read-write transaction with snapshot isolation. It reads the state as of its
// start timestamp and its own writes, and commits all of its writes at one later
// timestamp, or none. Its methods and those of its Tables may be called concurrently, but
// not after Commit or Rollback.
//
// Nothing is written to Bigtable before Commit.
type Txn struct {
	client   *Client
	opts     txnOptions
	startTS  tso.Timestamp
	began    time.Time     // before the transaction asked for startTS
	startAge time.Duration // how long before began startTS was asked for; negative: after it
	turn     turn
	buffer   buffer.Buffer
	attempt  *attempt
	hold     *recovery.Hold // keeps garbage collection below startTS
	reads    reads

	span        telemetry.Span // records only if the transaction is sampled
	contextSpan trace.Span     // the same span for contexts, sampled or not; nil without an SDK
	parentSpan  trace.SpanID
	work        telemetry.Work
	report      *Attempt // nil without OnAttempt

	mu           sync.Mutex
	ended        bool
	commitCalled bool
	commitBound  tso.Timestamp // 0 if there is none
	// hops is how many observer runs, one causing the next, led to this transaction.
	hops int
}

// begin starts a transaction, which markEnded and release end.
func begin(ctx context.Context, c *Client, a *attempt, opts []TxnOption) (*Txn, error) {
	// began is taken before the timestamp. So the ttl of the locks, which counts from
	// start_ts, is never too short.
	t := &Txn{client: c, attempt: a, began: time.Now()}
	for _, o := range opts {
		o.applyTxn(&t.opts)
	}
	if err := t.opts.check(); err != nil {
		return nil, err
	}
	if err := c.resolver.Enter(); err != nil {
		return nil, err
	}
	if a.onAttempt = t.opts.onAttempt; a.onAttempt != nil {
		t.report = &Attempt{Name: t.opts.name, Number: a.number}
	}
	t.beginTrace(ctx, a)
	ts, err := c.Timestamp(t.withTrace(ctx))
	if err != nil {
		t.measureEnd(ctx, telemetry.OutcomeFailed, 0, err)
		c.resolver.Leave()
		return nil, err
	}
	t.noteStart(ts)
	t.hold = c.resolver.Holds.Add(ts, true)
	t.reads.init(&c.reads, t.opts.name, !t.opts.noPrefetch)
	c.resolver.Counters.Begun.Add(1)
	return t, nil
}

// StartTS returns the timestamp at which the transaction reads. It also names the transaction.
func (t *Txn) StartTS() tso.Timestamp {
	_ = t.pin(context.Background()) // waits for the first read, which has a context of its own
	return t.startTS
}

// Table returns the transaction's view of a table. The first read, or Commit, opens the table
// and checks its schema.
func (t *Txn) Table(name string) *Table {
	return &Table{View: View{client: t.client, name: name, txn: t, reads: &t.reads}}
}

// errDone is made once, because Update calls Rollback after each commit.
var errDone = fmt.Errorf("txn: %w", ErrDone)

// markEnded marks the transaction as ended, by Commit or Rollback. From the second call on it
// fails with ErrDone.
func (t *Txn) markEnded(commit bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return errDone
	}
	t.ended, t.commitCalled = true, commit
	t.buffer.Seal()
	return nil
}

// checkReadable fails if the transaction has ended.
func (t *Txn) checkReadable() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return errDone
	}
	return t.client.resolver.CheckOpen()
}

// noteExpiry makes a serializable transaction commit before a value expires that it has read.
func (t *Txn) noteExpiry(table *store.Table, row bigtable.Row) {
	if expiries := table.Schema.Expiries(); expiries != nil && t.opts.serializable {
		if until := expiries.EarliestUntil(row, t.startTS); until != 0 {
			t.CommitBefore(until)
		}
	}
}

// Rollback drops the transaction's writes. None of them was sent, so it cannot fail. After
// Commit or Rollback it does nothing.
func (t *Txn) Rollback() {
	if t.markEnded(false) == nil {
		t.measureEnd(context.Background(), telemetry.OutcomeRolledBack, 0, nil)
		t.release()
	}
}

// release lets garbage collection pass the transaction, and Close return.
func (t *Txn) release() {
	t.client.resolver.Holds.Remove(t.hold)
	t.client.resolver.Leave()
}

// Commit makes the transaction's writes visible, all at the timestamp that it returns, or
// none. Its error says which:
//
//   - nil: committed. Secondaries may still be committed in the background; every later
//     transaction sees them all the same.
//   - ErrConflict ([ConflictError]): rolled back. Nothing is or will be visible.
//   - ErrUndetermined ([UndeterminedError]): the commit of the primary was sent and its
//     outcome is unknown, mostly because ctx ended. [Client.Settle] finds it out.
//   - ErrTooOld ([TooOldError]): rolled back, because garbage collection has passed the
//     transaction's start timestamp.
//   - ErrCorrupt: the stored records contradict this commit: they say that the
//     transaction committed at another timestamp.
//   - ErrDone: Commit or Rollback was called before. What that call returned counts.
//   - any other error: rolled back. If locks could not be removed, the next reader
//     resolves them after Config.LockTTL.
//
// A transaction without writes commits without a request and returns its start timestamp.
// (Paper §2.2, Figure 6.)
func (t *Txn) Commit(ctx context.Context) (tso.Timestamp, error) {
	if err := t.beforeCommit(ctx); err != nil {
		t.Rollback()
		return 0, err
	}
	if err := t.markEnded(true); err != nil {
		return 0, err
	}
	defer t.release()
	if err := t.client.resolver.CheckOpen(); err != nil {
		return 0, err
	}
	ctx = t.withTrace(ctx)
	ts, rows, err := t.commit(ctx)
	outcome := telemetry.OutcomeFailed
	switch {
	case err == nil && rows == 0:
		outcome = telemetry.OutcomeReadOnly
	case err == nil:
		outcome = telemetry.OutcomeCommitted
		if t.span.Recording() {
			t.span.Set(telemetry.AttrCommitTS.Int64(int64(ts)))
		}
	case Retryable(err):
		outcome = telemetry.OutcomeConflict
		t.client.resolver.Counters.Conflicts.Add(1)
		t.client.metrics.Conflict(ctx, err)
		logConflict(ctx, t.client.resolver.Log, t.opts.name, err)
	case errors.Is(err, ErrUndetermined):
		outcome = telemetry.OutcomeUndetermined
		t.client.resolver.Counters.Undetermined.Add(1)
	}
	if err == nil && t.report != nil {
		t.report.CommitTS = ts
	}
	t.measureEnd(ctx, outcome, rows, err)
	if err != nil && t.opts.name != "" {
		err = fmt.Errorf("transaction %s: %w", t.opts.name, err)
	}
	return ts, err
}

// beforeCommit runs the functions of Client.BeforeCommit.
func (t *Txn) beforeCommit(ctx context.Context) error {
	all := t.client.hooks.Load().beforeCommit
	if len(all) == 0 || !t.buffer.IsOpen() {
		return nil
	}
	for _, f := range all {
		if err := f(t.withTrace(ctx), t); err != nil {
			return err
		}
	}
	return nil
}

// Writes returns what the transaction has written so far, for Client.BeforeCommit. The value
// of a delete is nil, and no value must be changed. Locks and notifications are left out.
func (t *Txn) Writes() iter.Seq2[Cell, []byte] { return t.buffer.Writes }

// Serializable reports whether the transaction has the option [Serializable].
func (t *Txn) Serializable() bool { return t.opts.serializable }

// Client returns the transaction's client.
func (t *Txn) Client() *Client { return t.client }

// CommitBefore makes Commit fail with a conflict if its commit_ts is not below ts. Of several
// calls the smallest ts counts. So the transaction can rely on what holds until ts.
func (t *Txn) CommitBefore(ts tso.Timestamp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.commitBound == 0 || ts < t.commitBound {
		t.commitBound = ts
	}
}

// measureEnd ends the transaction's span and records its metrics.
func (t *Txn) measureEnd(ctx context.Context, outcome string, rows int, err error) {
	if t.span.Recording() {
		t.span.Set(telemetry.AttrOutcome.String(outcome), telemetry.AttrRows.Int(rows))
		t.reads.annotate(t.span)
		t.span.EndWith(err)
	}
	t.client.metrics.Ended(ctx, t.opts.name, t.began, t.work.Requests.Load(), outcome, rows)
	if r := t.report; r != nil {
		r.StartTS, r.Err, r.Duration = t.startTS, err, time.Since(t.began)
		r.Requests, r.LockWait = int(t.work.Requests.Load()), time.Duration(t.work.LockWait.Load())
		t.attempt.report(ctx, r)
	}
}

// commit does the work of Commit. written is how many rows it wrote.
func (t *Txn) commit(ctx context.Context) (ts tso.Timestamp, written int, err error) {
	if err := t.buffer.Err(); err != nil {
		return 0, 0, err
	}
	notified, err := t.buffer.Notifications(ctx, t.client.resolver.Store)
	if err != nil {
		return 0, 0, err
	}
	if t.buffer.WritesNothing() {
		ts, err = t.notifyWithoutCommit(ctx, notified)
		return ts, 0, err
	}
	rows, err := t.buffer.Group(ctx, t.client.resolver.Store, t.client.hooks.Load().keeps)
	if err != nil {
		return 0, 0, err
	}
	if err := t.pin(ctx); err != nil {
		return 0, 0, err
	}
	t.noteWritten(rows)
	if t.report != nil {
		t.report.add(rows)
	}
	c := &commit{txn: t, client: t.client, startTS: t.startTS, primary: t.buffer.Primary(), rows: rows, notified: notified}
	ts, err = c.run(ctx)
	return ts, len(rows), err
}

// notifyWithoutCommit ends a transaction that writes nothing: its weak notifications are
// set at a timestamp of their own, so that the observers see everything that was
// committed before.
func (t *Txn) notifyWithoutCommit(ctx context.Context, cells []Cell) (tso.Timestamp, error) {
	if len(cells) == 0 {
		return t.startTS, nil
	}
	ts, err := t.client.Timestamp(ctx)
	if err != nil {
		return 0, err
	}
	if err := t.client.resolver.Journal.Notify(ctx, cells, ts, format.EncodeNotifyCell(format.TraceParent(ctx), t.hops)); err != nil {
		return 0, err
	}
	t.client.resolver.Hints.Publish(cells...)
	return ts, nil
}

// overlayRow returns a row as read from Bigtable with the transaction's own writes applied.
func (t *Txn) overlayRow(table, row string, sel store.Selection, read bigtable.Row) bigtable.Row {
	return t.buffer.OverlayRow(table, row, sel).Apply(row, read)
}

// withTrace returns ctx with the transaction's span, unless the caller has begun a span below
// it. The returned context also counts the transaction's requests.
func (t *Txn) withTrace(ctx context.Context) context.Context {
	if t.report != nil || t.client.metrics.CountsRequests(ctx) {
		ctx = telemetry.CountWork(ctx, &t.work)
	}
	if t.contextSpan == nil {
		return ctx
	}
	here, own := trace.SpanContextFromContext(ctx), t.contextSpan.SpanContext()
	if here.TraceID() == own.TraceID() && here.SpanID() != t.parentSpan {
		return ctx
	}
	return trace.ContextWithSpan(ctx, t.contextSpan)
}

// beginTrace begins the transaction's span.
func (t *Txn) beginTrace(ctx context.Context, a *attempt) {
	t.parentSpan = trace.SpanContextFromContext(ctx).SpanID()
	t.span, t.contextSpan = t.client.resolver.Trace.Transaction(ctx, t.opts.name, a.number, &a.previousSpan)
}

// noteStart records the start timestamp in the transaction's span.
func (t *Txn) noteStart(ts tso.Timestamp) {
	if t.startTS = ts; t.span.Recording() {
		t.span.Set(telemetry.AttrStartTS.Int64(int64(ts)))
	}
}
