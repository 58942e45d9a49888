// Package workload contains transactions that clients repeat under faults, and the
// invariants that must hold all the time. Tests and lab soak run the same workloads.
package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
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
	// Keep, if not nil, prepares each client that runs transactions of the workload.
	Keep func(*txn.Client)
	// Handle adds the workload's observers to a notify.Worker. It is nil if there
	// are none.
	Handle func(*notify.Worker) error
	// Fail, if set, says whether an observer's run fails. Set it before Handle.
	Fail func() bool
	// Least is how long a history has to be so that everything in it can happen.
	Least time.Duration
	// Stop, if not nil, ends what the workload does besides its steps.
	Stop func()
	// Used, if not nil, counts what the workload did since the last call, besides transactions.
	Used func() map[string]int
	// Verify checks the state at the end, when every lock is resolved and every
	// observer has run, and returns what is wrong with it. It may be nil.
	Verify func(context.Context, *txn.Client) ([]string, error)
}

// All returns the workloads.
func All() []*Workload {
	return []*Workload{
		Bank(), Append("append", history.SnapshotIsolation),
		Append("append-serializable", history.Serializable, txn.Serializable()),
		Register(), Skew(), Sets(), Columns(), Index(), Indexes(), Observers(),
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
	// Pause, if set, is called before each transaction and before its commit.
	Pause func()
	// Vary draws how transactions are made: those that only read may be snapshots, which
	// may be stale, and read several cells at once.
	Vary bool
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

// cellOf returns the cell of keys of the form table/row or table/row#qualifier; tables have no
// / in their names, and rows no #.
func cellOf(family, qualifier string) func(string) txn.Cell {
	return func(key string) txn.Cell {
		table, row, _ := strings.Cut(key, "/")
		qualifier := qualifier
		if r, q, ok := strings.Cut(row, "#"); ok {
			row, qualifier = r, q
		}
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

// A view is what reads need: a transaction or a snapshot.
type view struct {
	table func(string) txn.Reader
	ts    tso.Timestamp
}

func viewOf(tx *txn.Txn) view {
	return view{func(name string) txn.Reader { return tx.Table(name) }, tx.StartTS()}
}

// beginEarlier gives the worker a new process number, for a transaction that counts as begun
// before the worker's last one ended: it may miss what other clients did since then. So the
// history needs no field for it, and any checker of real-time order understands it.
func (w *Worker) beginEarlier(by time.Duration) history.Record {
	w.Process += w.Stride
	w.element = 0
	return history.Record{Type: history.Invoke, Process: w.Process, Time: time.Now().Add(-by).UnixNano()}
}

// look runs and records a transaction that only reads.
func (w *Worker) look(ctx context.Context, body func(context.Context, view) ([]history.Op, error)) error {
	if !w.Vary || w.Rand.IntN(2) == 0 {
		return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) ([]history.Op, error) { return body(ctx, viewOf(tx)) })
	}
	stale := []time.Duration{0, 50 * time.Millisecond, time.Second}[w.Rand.IntN(3)]
	r := w.beginEarlier(stale)
	s, err := w.Client.Snapshot(ctx, txn.MaxStaleness(stale), txn.Named(""))
	if err != nil {
		return expected(err)
	}
	ops, err := body(ctx, view{func(name string) txn.Reader { return s.Table(name) }, s.ReadTS()})
	r.StartTS, r.Value = int64(s.ReadTS()), unread(ops)
	w.Record(r)
	r.Type, r.Time, r.Value = history.OK, time.Now().UnixNano(), ops
	if err != nil {
		r.Type = history.Fail
	}
	w.Record(r)
	return expected(err)
}

// latest reads registers of one row at its present, and records that as a transaction.
func (w *Worker) latest(ctx context.Context, registers ...register) error {
	r := history.Record{Type: history.Invoke, Process: w.Process, Time: time.Now().UnixNano(), Latest: true}
	var columns []txn.Column
	ops := make([]history.Op, len(registers))
	for i, at := range registers {
		columns = append(columns, txn.Column{Family: at.family, Qualifier: at.qualifier})
		ops[i] = history.Op{F: history.Read, Key: at.key()}
	}
	w.Record(r)
	row, err := w.Client.Latest(registers[0].table).ReadRow(ctx, registers[0].row, txn.Columns(columns...))
	r.StartTS = 1 // nothing was committed before
	for i, c := range columns {
		for _, item := range row[c.Family] {
			if item.Column != c.Family+":"+c.Qualifier {
				continue
			}
			n, e := strconv.ParseInt(string(item.Value), 10, 64)
			err = errors.Join(err, e)
			ops[i].State = history.Number(n)
			r.StartTS = max(r.StartTS, int64(item.Timestamp))
		}
	}
	r.Type, r.Time, r.Value = history.OK, time.Now().UnixNano(), ops
	if err != nil {
		r.Type, r.StartTS, r.Value = history.Fail, 0, nil
	}
	w.Record(r)
	return expected(err)
}

// write runs and records a transaction that reads nothing.
func (w *Worker) write(ctx context.Context, body func(*txn.Txn) []history.Op) error {
	return w.attempt(ctx, func(_ context.Context, tx *txn.Txn) ([]history.Op, error) { return body(tx), nil })
}

// getAll reads registers, at the same time if the worker varies.
func (w *Worker) getAll(ctx context.Context, v view, registers []register) ([]history.Op, error) {
	ops := make([]history.Op, len(registers))
	g, gctx := errgroup.WithContext(ctx)
	if !w.Vary {
		g.SetLimit(1)
	}
	for i, r := range registers {
		g.Go(func() (err error) {
			_, _, ops[i], err = r.get(gctx, v)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return ops, nil
}

// attempt runs and records one transaction; body returns what it did. It returns only
// unexpected errors: conflicts, unknown outcomes, the end of ctx and lost requests are
// part of a workload.
func (w *Worker) attempt(ctx context.Context, body func(context.Context, *txn.Txn) ([]history.Op, error)) error {
	if w.Pause != nil {
		w.Pause()
	}
	return w.attemptAs(ctx, history.Record{Type: history.Invoke, Process: w.Process, Time: time.Now().UnixNano()}, w.Options, body, asRead)
}

// attemptAs is attempt with options. r is the beginning of the transaction's record, and failed
// returns what to record if it does not commit.
func (w *Worker) attemptAs(ctx context.Context, r history.Record, options []txn.TxnOption, body func(context.Context, *txn.Txn) ([]history.Op, error), failed func([]history.Op) []history.Op) error {
	tx, err := w.Client.Begin(ctx, options...)
	if err != nil {
		return expected(err)
	}
	defer tx.Rollback()
	ops, err := body(ctx, tx)
	// No write is sent before Commit, so this is early enough. The record of a
	// killed client contains its start_ts and its planned writes.
	r.StartTS, r.Value = int64(tx.StartTS()), unread(ops)
	w.Record(r)
	if w.Pause != nil {
		w.Pause()
	}
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
	if err != nil {
		r.Value = failed(ops)
	}
	w.Record(r)
	if r.Type == history.Info {
		w.Process += w.Stride
		w.element = 0
	}
	return expected(err)
}

func asRead(ops []history.Op) []history.Op { return ops }

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
	for _, e := range []error{txn.ErrConflict, txn.ErrUndetermined, txn.ErrTooOld, context.DeadlineExceeded, context.Canceled} {
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
