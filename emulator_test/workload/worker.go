// Package workload has what clients do over and over while everything around
// them fails, and what has to be true of it all the same. Tests and lab soak
// run the same workloads.
package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/emulator_test/history"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// A Workload is what workers do, and what has to be true at any time.
type Workload struct {
	Name string
	// Tables to create.
	Tables []admin.TableSpec
	// Level is what the history is held against.
	Level history.Level
	// Options of every transaction.
	Options []txn.TxnOption
	// Setup is called once, before the first transaction.
	Setup func(context.Context, *Worker) error
	// Step is one transaction.
	Step func(context.Context, *Worker) error
	// ReadAll is a transaction that reads every key of the worker's space.
	ReadAll func(context.Context, *Worker) error
	// Cell is where a key of the history is stored.
	Cell func(key string) txn.Cell
	// Handle adds the workload's observers to a worker of its own; nil without
	// observers.
	Handle func(*notify.Worker) error
	// Verify looks at the state in the end, when every lock is settled and every
	// observer has run, and returns what is wrong with it; may be nil.
	Verify func(context.Context, *txn.Client) ([]string, error)
}

// All returns the workloads.
func All() []*Workload {
	return []*Workload{
		Bank(), Append("append", history.SnapshotIsolation),
		Append("append-serializable", history.Serializable, txn.Serializable()),
		Register(), Skew(), Sets(), Index(), Observers(),
	}
}

// Named returns a workload, or nil.
func Named(name string) *Workload {
	for _, w := range All() {
		if w.Name == name {
			return w
		}
	}
	return nil
}

// A Worker runs random transactions of one workload, one at a time, and
// records each: every attempt is a transaction of the history, conflicts and
// all.
type Worker struct {
	Client *txn.Client
	Rand   *rand.Rand
	Record func(history.Record)
	// Process is the worker's process number in the history. After an unknown
	// outcome the worker goes on as the next one, Stride further.
	Process, Stride int
	// Options of every transaction.
	Options []txn.TxnOption
	// Space begins every row key, so that workers of two spaces never meet. Long
	// runs go from one space to the next, because the emulator copies whole rows
	// and keeps every version. Nothing needs to be set up in a new one.
	// Defaults to none.
	Space string
	// element is the last value that was written under this process number;
	// values are never written twice.
	element int64
}

// elements of one process number; no worker gets that far.
const elementsOfProcess = 100_000

// row is a row key in the worker's space.
func (w *Worker) row(name string) string { return w.Space + name }

// cellOf returns the cell of keys of the form table/row; tables have no / in their
// names.
func cellOf(family, qualifier string) func(string) txn.Cell {
	return func(key string) txn.Cell {
		table, row, _ := strings.Cut(key, "/")
		return txn.Cell{Table: table, Row: row, Family: family, Qualifier: qualifier}
	}
}

// rows are all of the worker's space.
func (w *Worker) rows() bigtable.RowSet { return bigtable.PrefixRange(w.Space) }

func (w *Worker) nextElement() int64 {
	w.element++
	return int64(w.Process)*elementsOfProcess + w.element
}

// An InvariantError says that a transaction saw a state that cannot be.
type InvariantError struct{ Text string }

func (e *InvariantError) Error() string { return e.Text }

func broken(format string, args ...any) error {
	return &InvariantError{fmt.Sprintf(format, args...)}
}

// attempt runs and records one transaction; body returns what it did. The
// error is one that should not happen: conflicts, unknown outcomes, the end of
// ctx and lost requests are part of a workload.
func (w *Worker) attempt(ctx context.Context, body func(context.Context, *txn.Txn) ([]history.Op, error)) error {
	r := history.Record{Type: history.Invoke, Process: w.Process, Time: time.Now().UnixNano()}
	tx, err := w.Client.Begin(ctx, w.Options...)
	if err != nil {
		return expected(err)
	}
	defer tx.Rollback()
	ops, err := body(ctx, tx)
	// Nothing was sent before Commit, so this is early enough, and a killed
	// client leaves its start_ts and what it was about to write.
	r.StartTS, r.Value = int64(tx.StartTS()), unread(ops)
	w.Record(r)
	var commitTS int64
	if err == nil {
		ts, e := tx.Commit(ctx)
		commitTS, err = int64(ts), e
	}
	r.Type, r.Time, r.CommitTS, r.Value = history.OK, time.Now().UnixNano(), commitTS, ops
	var unknown *txn.UndeterminedError
	switch {
	case errors.As(err, &unknown):
		r.Type, r.CommitTS = history.Info, int64(unknown.CommitTS)
	case err != nil:
		r.Type, r.CommitTS = history.Fail, 0
	}
	w.Record(r)
	if r.Type == history.Info {
		w.Process += w.Stride
		w.element = 0
	}
	return expected(err)
}

func unread(ops []history.Op) []history.Op {
	out := slices.Clone(ops)
	for i := range out {
		out[i].State = history.State{}
	}
	return out
}

// expected drops the errors that faults may cause.
func expected(err error) error {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return nil // a prewrite that injected faults kept from landing within the ttl
	}
	for _, e := range []error{txn.ErrConflict, txn.ErrUndetermined, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// ResolveAll settles every lock of a table once their owners are gone, and
// returns how many there were. A lock whose ttl is not over yet is waited for by
// a transaction that locks its cell.
func ResolveAll(ctx context.Context, c *txn.Client, table string) (resolved int, err error) {
	for {
		var locks []txn.Lock
		for l, err := range admin.Locks(ctx, c, table, nil) {
			if err != nil {
				return resolved, err
			}
			locks = append(locks, l)
		}
		if len(locks) == 0 {
			return resolved, nil
		}
		for _, l := range locks {
			s, err := admin.Resolve(ctx, c, l)
			if err != nil {
				return resolved, err
			}
			resolved++
			if s.State == txn.StateCommitted || s.State == txn.StateRolledBack {
				continue
			}
			_, err = c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				tx.Table(table).Lock(l.Cell.Row, l.Cell.Family, l.Cell.Qualifier)
				return nil
			})
			if err != nil {
				return resolved, err
			}
		}
	}
}
