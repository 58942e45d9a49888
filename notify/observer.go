package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// An Observer reacts to changes of a column.
//
// Observe runs in a transaction. Its snapshot contains the newest change that triggered
// the run. Observe reads and writes through tx, with the context that it is given, and
// must not call Commit or Rollback. The worker commits its writes together with the
// acknowledgment of the change.
//
// Observe may run more than once for a change, also in several processes, until one of
// the runs commits. It may run once for many changes. It must therefore not have side
// effects that are wrong to repeat, and it decides by the state that it reads, not by
// what has changed. [TriggerOf](ctx) returns the changes that triggered the run.
//
// If Observe returns nil, the worker commits. [Snooze] delays the change, and [Drop]
// acknowledges it without the writes. After any other error the worker rolls back and
// retries: after a conflict at once, after another error later (Config.Backoff). After
// Config.MaxAttempts failures the change becomes a dead letter.
type Observer interface {
	Observe(ctx context.Context, tx *txn.Txn, cell txn.Cell) error
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	return f(ctx, tx, cell)
}

// Snooze returns an error with which an observer delays the change: the worker rolls the
// run back and starts the next one after d at the earliest. It does not count as a
// failure.
func Snooze(d time.Duration) error { return &snooze{d} }

type snooze struct{ d time.Duration }

func (s *snooze) Error() string { return fmt.Sprintf("snoozed for %v", s.d) }

// Drop returns an error with which an observer ignores the change: the worker rolls the
// run back and acknowledges the change all the same.
func Drop() error { return errDrop }

var errDrop = errors.New("change dropped by its observer")

// A PanicError is the error of a run whose observer panicked.
type PanicError struct {
	Value any
	Stack []byte
}

// Error returns the value of the panic, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("observer panicked: %v", e.Value) }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *PanicError) ErrorType() string { return "panic" }

type triggerKey struct{}

// TriggerOf returns what triggered the run to which ctx belongs: the changes that the run
// handles, and the failures of earlier runs. It returns nil outside of an observer.
func TriggerOf(ctx context.Context) *changes.Observation {
	if r, ok := ctx.Value(triggerKey{}).(*run); ok {
		return r.seen
	}
	return nil
}

// Previous returns the value that the cell had when the observer's last acknowledged run began:
// what that run saw. ok is false if the cell was absent, or if there was no such run. tx and ctx
// are those of the run. [changes.Previous] says what it costs, and when it fails.
//
// So an observer can replace what its last run has added elsewhere: each run undoes the previous
// value, and applies the one that it reads. Runs that fail, and changes that one run handles
// together, make no difference.
func Previous(ctx context.Context, tx *txn.Txn) (value []byte, ok bool, err error) {
	r, inRun := ctx.Value(triggerKey{}).(*run)
	if !inRun {
		return nil, false, fmt.Errorf("notify: %w: Previous outside of an observer's run", txn.ErrInvalid)
	}
	return changes.Previous(ctx, tx, r.seen, r.handler.id)
}
