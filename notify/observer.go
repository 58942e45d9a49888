package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A Column is what an observer watches: a column of a table, in every row.
type Column struct {
	Table     string
	Family    string
	Qualifier string
}

// String returns table/family:qualifier.
func (c Column) String() string { return c.Table + "/" + c.column().String() }

func (c Column) column() txn.Column { return txn.Column{Family: c.Family, Qualifier: c.Qualifier} }

func columnOf(cell txn.Cell) Column { return Column{cell.Table, cell.Family, cell.Qualifier} }

// An Observer reacts to changes of a column.
//
// Observe runs in a transaction whose snapshot has at least the newest change
// that triggered it; it reads and writes through tx, with the context it is
// given, and must not call Commit or Rollback. Its writes and the acknowledgment
// of the change are committed together. It may run more than once for a change,
// in several processes even, until one run is committed, and may run once for
// many changes; so it must not have side effects that are wrong to repeat, and
// it looks at the state, not at the change. What triggered it is in
// [TriggerOf](ctx).
//
// A nil result commits. [Snooze] and [Drop] put the change off or away. Any
// other error rolls back: after a conflict the observer is run again at once,
// after another error later (Config.Backoff), and in the end the change becomes
// a dead letter.
type Observer interface {
	Observe(ctx context.Context, tx *txn.Txn, cell txn.Cell) error
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	return f(ctx, tx, cell)
}

// Snooze, returned by an observer, rolls the run back and has it run again after
// d at the earliest. It is no failure and counts as no attempt.
func Snooze(d time.Duration) error { return &snooze{d} }

type snooze struct{ d time.Duration }

func (s *snooze) Error() string { return fmt.Sprintf("snoozed for %v", s.d) }

// Drop, returned by an observer, rolls the run back and acknowledges the change
// all the same: it is done with, without effect.
func Drop() error { return errDrop }

var errDrop = errors.New("change dropped by its observer")

// A PanicError is an observer's panic, as the error of that run.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("observer panicked: %v", e.Value) }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *PanicError) ErrorType() string { return "panic" }

type triggerKey struct{}

// TriggerOf returns what triggered the run that ctx belongs to: the changes that
// it handles, and what became of earlier runs. nil outside of an observer.
func TriggerOf(ctx context.Context) *changes.Observation {
	o, _ := ctx.Value(triggerKey{}).(*changes.Observation)
	return o
}

// A HandleOption configures one observer of a worker.
type HandleOption func(*handler)

// Weak says that the column is for weak notifications: transactions notify it
// (txn.Table.Notify), without conflicts, and cannot write it.
func Weak() HandleOption { return func(h *handler) { h.weak = true } }

// Concurrency bounds how many runs of the observer this worker has under way.
// Defaults to Config.Concurrency.
func Concurrency(n int) HandleOption { return func(h *handler) { h.concurrency = n } }

// RateLimit bounds how many runs of the observer this worker begins in a second;
// burst are allowed at once. Defaults to no limit.
func RateLimit(perSecond float64, burst int) HandleOption {
	return func(h *handler) { h.rate, h.burst = perSecond, burst }
}

// MaxAttempts is after how many failed runs for one change it becomes a dead
// letter. Defaults to Config.MaxAttempts.
func MaxAttempts(n int) HandleOption { return func(h *handler) { h.maxAttempts = n } }

// Timeout bounds one run of the observer, its commit included. Defaults to
// Config.Timeout.
func Timeout(d time.Duration) HandleOption { return func(h *handler) { h.timeout = d } }

// TxnOptions are for the transactions that the observer runs in, for example
// txn.Serializable().
func TxnOptions(opts ...txn.TxnOption) HandleOption {
	return func(h *handler) { h.txnOptions = append(h.txnOptions, opts...) }
}
