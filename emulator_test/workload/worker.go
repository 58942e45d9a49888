// Package workload contains transactions that clients repeat under faults, and the
// invariants that must hold all the time. Tests and lab soak run the same workloads.
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
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Workload is what workers do, and what has to be true at any time.
type Workload struct {
	Name string
	// Tables to create.
	Tables []admin.TableSpec
	// Level is the isolation level that the history must keep.
	Level history.Level
	// Options of every transaction.
	Options []txn.TxnOption
	// Setup is called once, before the first transaction.
	Setup func(context.Context, *Worker) error
	// Step runs one transaction.
	Step func(context.Context, *Worker) error
	// ReadAll runs a transaction that reads every key of the worker's space.
	ReadAll func(context.Context, *Worker) error
	// Cell returns the cell of a key of the history.
	Cell func(key string) txn.Cell
	// Handle adds the workload's observers to a notify.Worker. It is nil if there
	// are none.
	Handle func(*notify.Worker) error
	// Verify checks the state at the end, when every lock is resolved and every
	// observer has run, and returns what is wrong with it. It may be nil.
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

// A Worker runs random transactions of one workload, one at a time, and records them.
// Each attempt is a transaction of the history, including those that conflict.
type Worker struct {
	Client *txn.Client
	Rand   *rand.Rand
	Record func(history.Record)
	// Process is the worker's process number in the history. After an unknown
	// outcome the worker continues with a number that is larger by Stride.
	Process, Stride int
	// Options of every transaction.
	Options []txn.TxnOption
	// Space is a prefix of every row key, so that workers of two spaces never use the
	// same rows. Long runs change the space, because the emulator copies whole rows
	// and keeps every version. A new space needs no setup.
	// Defaults to none.
	Space string
	// element is the last value that was written under this process number;
	// values are never written twice.
	element int64
}

// elements is how many values a process number has; no worker uses that many.
const elementsOfProcess = 100_000

// row returns a row key in the worker's space.
func (w *Worker) row(name string) string { return w.Space + name }

// cellOf returns the cell of keys of the form table/row; tables have no / in their
// names.
func cellOf(family, qualifier string) func(string) txn.Cell {
	return func(key string) txn.Cell {
		table, row, _ := strings.Cut(key, "/")
		return txn.Cell{Table: table, Row: row, Family: family, Qualifier: qualifier}
	}
}

// rows are all rows of the worker's space.
func (w *Worker) rows() bigtable.RowSet { return bigtable.PrefixRange(w.Space) }

func (w *Worker) nextElement() int64 {
	w.element++
	return int64(w.Process)*elementsOfProcess + w.element
}

// An InvariantError says that a transaction saw an impossible state.
type InvariantError struct{ Text string }

func (e *InvariantError) Error() string { return e.Text }

func broken(format string, args ...any) error {
	return &InvariantError{fmt.Sprintf(format, args...)}
}

// attempt runs and records one transaction; body returns what it did. It returns only
// unexpected errors: conflicts, unknown outcomes, the end of ctx and lost requests are
// part of a workload.
func (w *Worker) attempt(ctx context.Context, body func(context.Context, *txn.Txn) ([]history.Op, error)) error {
	r := history.Record{Type: history.Invoke, Process: w.Process, Time: time.Now().UnixNano()}
	tx, err := w.Client.Begin(ctx, w.Options...)
	if err != nil {
		return expected(err)
	}
	defer tx.Rollback()
	ops, err := body(ctx, tx)
	// No write is sent before Commit, so this is early enough. The record of a
	// killed client contains its start_ts and its planned writes.
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

// expected returns nil for errors that faults may cause.
func expected(err error) error {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return nil // because of faults, a prewrite was not applied within the ttl
	}
	for _, e := range []error{txn.ErrConflict, txn.ErrUndetermined, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// ResolveAll resolves every lock of a table after all owners have stopped, and returns
// how many there were. To wait for a ttl that has not ended, it runs a transaction that
// locks the cell.
func ResolveAll(ctx context.Context, c *txn.Client, table string) (resolved int, err error) {
	for {
		var locks []format.Lock
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
