package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/emulator_test/internal/history"
	"github.com/percolator-bigtable/percolator/txn"
)

// A worker runs random transactions of one workload, one at a time, and
// records each: every attempt is a transaction of the history, conflicts and
// all.
type worker struct {
	client *txn.Client
	rnd    *rand.Rand
	record func(history.Record)
	// process is the worker's process number in the history. After an unknown
	// outcome the worker goes on as the next one, stride further.
	process, stride int
	// element is the last value that was written under this process number;
	// values are never written twice.
	element int64
	options []txn.TxnOption
}

// elements of one process number; no worker gets that far.
const elementsOfProcess = 100_000

func (w *worker) nextElement() int64 {
	w.element++
	return int64(w.process)*elementsOfProcess + w.element
}

// attempt runs and records one transaction; body returns what it did. The
// error is one that should not happen: conflicts, unknown outcomes, the end of
// ctx and lost requests are part of a workload.
func (w *worker) attempt(ctx context.Context, body func(context.Context, *txn.Txn) ([]history.Op, error)) error {
	r := history.Record{Type: history.Invoke, Process: w.process, Time: time.Now().UnixNano()}
	tx, err := w.client.Begin(ctx, w.options...)
	if err != nil {
		return expected(err)
	}
	defer tx.Rollback()
	ops, err := body(ctx, tx)
	// Nothing was sent before Commit, so this is early enough, and a killed
	// client leaves its start_ts and what it was about to write.
	r.StartTS, r.Value = int64(tx.StartTS()), unread(ops)
	w.record(r)
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
	w.record(r)
	if r.Type == history.Info {
		w.process += w.stride
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

func expected(err error) error {
	if status.Code(err) == codes.Unavailable {
		return nil // a prewrite that injected faults kept from landing within the ttl
	}
	for _, e := range []error{txn.ErrConflict, txn.ErrUndetermined, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// A workload is what workers do over and over, and what has to be true at any
// time.
type workload struct {
	name   string
	tables []string
	level  history.Level
	// options of every transaction.
	options []txn.TxnOption
	// setup writes the first state.
	setup func(context.Context, *worker) error
	// step is one transaction.
	step func(context.Context, *worker) error
	// readAll is a transaction that reads every key.
	readAll func(context.Context, *worker) error
}

var workloads = []*workload{bank(), appends("append", history.SnapshotIsolation), appends("append-serializable", history.Serializable, txn.Serializable())}

func workloadNamed(name string) *workload {
	for _, w := range workloads {
		if w.name == name {
			return w
		}
	}
	return nil
}

const (
	bankAccounts = 8 // half of them in each table
	bankInitial  = 100
	// A stored value is unique and carries its balance.
	bankScale = 10_000
)

var bankTables = []string{"checking", "savings"}

func bankKey(i int) string { return bankTables[i%2] + "/" + strconv.Itoa(i) }

// bank moves money between few accounts in two tables, so that transfers
// conflict; the sum is the same in every snapshot. The history sees accounts
// as registers.
func bank() *workload {
	get := func(ctx context.Context, tx *txn.Txn, key string) (int64, history.Op, error) {
		table, row, _ := strings.Cut(key, "/")
		v, ok, err := tx.Table(table).Get(ctx, row, "bal", "usd")
		if err != nil || !ok {
			return 0, history.Op{F: history.Read, Key: key}, err
		}
		n, err := strconv.ParseInt(string(v), 10, 64)
		return n, history.Op{F: history.Read, Key: key, State: history.Number(n)}, err
	}
	set := func(w *worker, tx *txn.Txn, key string, balance int64) history.Op {
		table, row, _ := strings.Cut(key, "/")
		n := w.nextElement()*bankScale + balance
		tx.Table(table).Set(row, "bal", "usd", strconv.AppendInt(nil, n, 10))
		return history.Op{F: history.Write, Key: key, N: n}
	}
	transfer := func(ctx context.Context, w *worker) error {
		from := w.rnd.IntN(bankAccounts)
		to := (from + 1 + w.rnd.IntN(bankAccounts-1)) % bankAccounts
		amount := 1 + w.rnd.Int64N(20)
		return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) ([]history.Op, error) {
			a, readA, err := get(ctx, tx, bankKey(from))
			if err != nil {
				return nil, err
			}
			b, readB, err := get(ctx, tx, bankKey(to))
			if err != nil {
				return []history.Op{readA}, err
			}
			moved := min(amount, a%bankScale)
			return []history.Op{
				readA, readB,
				set(w, tx, bankKey(from), a%bankScale-moved),
				set(w, tx, bankKey(to), b%bankScale+moved),
			}, nil
		})
	}
	readAll := func(ctx context.Context, w *worker) error {
		return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) ([]history.Op, error) {
			var ops []history.Op
			sum := int64(0)
			for i, table := range bankTables {
				seen := map[string]int64{}
				for row, err := range tx.Table(table).ReadRows(ctx, nil) {
					if err != nil {
						return nil, err
					}
					n, err := strconv.ParseInt(string(row["bal"][0].Value), 10, 64)
					if err != nil {
						return nil, err
					}
					seen[row.Key()] = n
				}
				for a := i; a < bankAccounts; a += 2 {
					op := history.Op{F: history.Read, Key: bankKey(a)}
					if n, ok := seen[strconv.Itoa(a)]; ok {
						op.State = history.Number(n)
						sum += n % bankScale
					}
					ops = append(ops, op)
				}
			}
			if sum != bankAccounts*bankInitial {
				return ops, fmt.Errorf("the sum of all accounts is %d at %d, not %d: %v", sum, tx.StartTS(), bankAccounts*bankInitial, ops)
			}
			return ops, nil
		})
	}
	return &workload{
		name:   "bank",
		tables: bankTables,
		level:  history.Serializable, // transfers write all they read
		setup: func(ctx context.Context, w *worker) error {
			return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) ([]history.Op, error) {
				var ops []history.Op
				for i := range bankAccounts {
					ops = append(ops, set(w, tx, bankKey(i), bankInitial))
				}
				return ops, nil
			})
		},
		step: func(ctx context.Context, w *worker) error {
			if w.rnd.IntN(4) == 0 {
				return readAll(ctx, w)
			}
			return transfer(ctx, w)
		},
		readAll: readAll,
	}
}

const appendKeys = 5

// appends reads and appends to a few hot lists, several a transaction, in one
// table.
func appends(name string, level history.Level, options ...txn.TxnOption) *workload {
	const table = "lists"
	get := func(ctx context.Context, tx *txn.Txn, key string) ([]int64, error) {
		v, ok, err := tx.Table(table).Get(ctx, key, "f", "list")
		if err != nil || !ok {
			return nil, err
		}
		var list []int64
		for s := range strings.SplitSeq(string(v), ",") {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return nil, err
			}
			list = append(list, n)
		}
		return list, nil
	}
	run := func(ctx context.Context, w *worker, plan []history.Op) error {
		return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) ([]history.Op, error) {
			var done []history.Op
			for _, o := range plan {
				list, err := get(ctx, tx, o.Key)
				if err != nil {
					return done, err
				}
				if o.F == history.Read {
					o.State = history.List(list...)
				} else {
					var b strings.Builder
					for _, n := range list {
						fmt.Fprintf(&b, "%d,", n)
					}
					tx.Table(table).Set(o.Key, "f", "list", fmt.Appendf(nil, "%s%d", b.String(), o.N))
				}
				done = append(done, o)
			}
			return done, nil
		})
	}
	key := func(i int) string { return "k" + strconv.Itoa(i) }
	return &workload{
		name:    name,
		tables:  []string{table},
		level:   level,
		options: options,
		setup:   func(context.Context, *worker) error { return nil },
		step: func(ctx context.Context, w *worker) error {
			var plan []history.Op
			for range 1 + w.rnd.IntN(4) {
				o := history.Op{F: history.Read, Key: key(w.rnd.IntN(appendKeys))}
				if w.rnd.IntN(2) == 0 {
					o.F, o.N = history.Append, w.nextElement()
				}
				plan = append(plan, o)
			}
			return run(ctx, w, plan)
		},
		readAll: func(ctx context.Context, w *worker) error {
			var plan []history.Op
			for i := range appendKeys {
				plan = append(plan, history.Op{F: history.Read, Key: key(i)})
			}
			return run(ctx, w, plan)
		},
	}
}

// resolveAll settles every lock of a table once their owners are gone. A lock
// whose ttl is not over yet is waited for by a transaction that locks its cell.
func resolveAll(ctx context.Context, c *txn.Client, table string) (resolved int, err error) {
	for {
		var locks []txn.Lock
		for l, err := range c.Locks(ctx, table, nil) {
			if err != nil {
				return resolved, err
			}
			locks = append(locks, l)
		}
		if len(locks) == 0 {
			return resolved, nil
		}
		for _, l := range locks {
			s, err := c.Resolve(ctx, l)
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
