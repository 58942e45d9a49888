package workload

import (
	"context"
	"strconv"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// A register is a cell that holds a unique number.
type register struct{ table, row, family, qualifier string }

func (r register) key() string { return r.table + "/" + r.row + "#" + r.qualifier }

func (r register) get(ctx context.Context, v view) (n int64, ok bool, op history.Op, err error) {
	op = history.Op{F: history.Read, Key: r.key()}
	value, ok, err := v.table(r.table).Get(ctx, r.row, r.family, r.qualifier)
	if err != nil || !ok {
		return 0, false, op, err
	}
	if n, err = strconv.ParseInt(string(value), 10, 64); err == nil {
		op.State = history.Number(n)
	}
	return n, true, op, err
}

func (r register) set(tx *txn.Txn, n int64) history.Op {
	tx.Table(r.table).Set(r.row, r.family, r.qualifier, strconv.AppendInt(nil, n, 10))
	return history.Op{F: history.Write, Key: r.key(), N: n}
}

func (r register) lock(tx *txn.Txn) history.Op {
	tx.Table(r.table).Lock(r.row, r.family, r.qualifier)
	return history.Op{F: history.Lock, Key: r.key()}
}

const registers = 12

// Register reads and overwrites a few registers in two tables, two in each row, several in
// each transaction. It writes some without reading them, and locks some. It also reads the
// latest state of a row.
func Register() *Workload {
	tables := []string{"left", "right"}
	at := func(w *Worker, i int) register {
		return register{tables[i%2], w.row("r" + strconv.Itoa(i/4)), "f", []string{"n", "m"}[i/2%2]}
	}
	readAll := func(ctx context.Context, w *Worker) error {
		return w.look(ctx, func(ctx context.Context, v view) ([]history.Op, error) {
			var all []register
			for i := range registers {
				all = append(all, at(w, i))
			}
			return w.getAll(ctx, v, all)
		})
	}
	return &Workload{
		Name:   "register",
		Tables: []admin.TableSpec{{Name: tables[0], Families: []string{"f"}}, {Name: tables[1], Families: []string{"f"}}},
		Level:  history.SnapshotIsolation,
		Cell:   cellOf("f", "n"),
		Setup:  func(context.Context, *Worker) error { return nil },
		Step: func(ctx context.Context, w *Worker) error {
			switch w.Rand.IntN(8) {
			case 0:
				return readAll(ctx, w)
			case 1:
				return w.latest(ctx, at(w, w.Rand.IntN(registers)))
			case 2:
				i := w.Rand.IntN(registers)
				return w.latest(ctx, at(w, i&^2), at(w, i|2))
			}
			type action struct {
				r    register
				kind int
				n    int64
			}
			var plan []action
			used := map[int]bool{}
			for range 1 + w.Rand.IntN(5) {
				i := w.Rand.IntN(registers)
				a := action{r: at(w, i), kind: w.Rand.IntN(5)}
				if used[i] && a.kind != 0 {
					continue
				}
				if a.kind != 0 {
					used[i] = true
				}
				if a.kind == 1 || a.kind == 2 {
					a.n = w.nextElement()
				}
				plan = append(plan, a)
			}
			return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) ([]history.Op, error) {
				var done []history.Op
				for _, a := range plan {
					if a.kind != 1 { // 1 is a blind write
						_, _, op, err := a.r.get(ctx, viewOf(tx))
						if err != nil {
							return done, err
						}
						done = append(done, op)
					}
					switch a.kind {
					case 1, 2:
						done = append(done, a.r.set(tx, a.n))
					case 3:
						done = append(done, a.r.lock(tx))
					}
				}
				return done, nil
			})
		},
		ReadAll: readAll,
	}
}

const (
	skewPairs = 4
	// A stored value is unique, and even if the doctor is off duty. A doctor without
	// a stored value is on duty.
	onDuty = 1
)

// Skew takes one of two doctors off duty if the other one is on duty, and locks the
// other's cell. Without the lock this is write skew. In every snapshot one of each pair
// is on duty.
func Skew() *Workload {
	at := func(w *Worker, pair, which int) register {
		return register{"duty", w.row(strconv.Itoa(pair) + string(rune('a'+which))), "f", "on"}
	}
	get := func(ctx context.Context, v view, r register) (int64, history.Op, error) {
		n, ok, op, err := r.get(ctx, v)
		if !ok {
			n = onDuty
		}
		return n, op, err
	}
	value := func(w *Worker, on int64) int64 { return 2*w.nextElement() + on }
	readPairs := func(ctx context.Context, w *Worker, v view) (ops []history.Op, err error) {
		for pair := range skewPairs {
			sum := int64(0)
			for which := range 2 {
				n, op, err := get(ctx, v, at(w, pair, which))
				if err != nil {
					return ops, err
				}
				ops = append(ops, op)
				sum += n % 2
			}
			if sum == 0 {
				return ops, broken("nobody of pair %d is on duty at %d: write skew", pair, v.ts)
			}
		}
		return ops, nil
	}
	readAll := func(ctx context.Context, w *Worker) error {
		return w.look(ctx, func(ctx context.Context, v view) ([]history.Op, error) { return readPairs(ctx, w, v) })
	}
	return &Workload{
		Name:   "skew",
		Tables: []admin.TableSpec{{Name: "duty", Families: []string{"f"}}},
		Level:  history.Serializable,
		Cell:   cellOf("f", "on"),
		Setup:  func(context.Context, *Worker) error { return nil },
		Step: func(ctx context.Context, w *Worker) error {
			if w.Rand.IntN(4) == 0 {
				return readAll(ctx, w)
			}
			pair, which := w.Rand.IntN(skewPairs), w.Rand.IntN(2)
			mine, other := at(w, pair, which), at(w, pair, 1-which)
			return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) (ops []history.Op, err error) {
				n, op, err := get(ctx, viewOf(tx), mine)
				if err != nil {
					return ops, err
				}
				ops = append(ops, op)
				if n%2 != onDuty {
					return append(ops, mine.set(tx, value(w, onDuty))), nil
				}
				o, op, err := get(ctx, viewOf(tx), other)
				if err != nil {
					return ops, err
				}
				ops = append(ops, op)
				if o%2 != onDuty {
					return ops, nil
				}
				return append(ops, mine.set(tx, value(w, 0)), other.lock(tx)), nil
			})
		},
		ReadAll: readAll,
	}
}
