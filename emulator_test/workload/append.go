package workload

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

const appendKeys = 5

// Append reads and appends to a few hot lists in one table, several in each
// transaction.
func Append(name string, level history.Level, options ...txn.TxnOption) *Workload {
	const table = "lists"
	cell := func(key string) txn.Cell { return txn.Cell{Table: table, Row: key, Family: "f", Qualifier: "list"} }
	get := func(ctx context.Context, tx *txn.Txn, key string, forUpdate bool) ([]int64, error) {
		read := tx.Table(table).Get
		if forUpdate {
			read = tx.Table(table).GetForUpdate
		}
		v, ok, err := read(ctx, key, "f", "list")
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
	run := func(ctx context.Context, w *Worker, plan []history.Op) error {
		forUpdate := plan[0].F == history.Append && w.Rand.IntN(2) == 0
		return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) ([]history.Op, error) {
			var done []history.Op
			for i, o := range plan {
				list, err := get(ctx, tx, o.Key, forUpdate && i == 0)
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
	key := func(w *Worker, i int) string { return w.row("k" + strconv.Itoa(i)) }
	return &Workload{
		Name:    name,
		Tables:  []admin.TableSpec{{Name: table, Families: []string{"f"}}},
		Level:   level,
		Options: options,
		Cell:    cell,
		Setup:   func(context.Context, *Worker) error { return nil },
		Step: func(ctx context.Context, w *Worker) error {
			var plan []history.Op
			for range 1 + w.Rand.IntN(4) {
				o := history.Op{F: history.Read, Key: key(w, w.Rand.IntN(appendKeys))}
				if w.Rand.IntN(2) == 0 {
					o.F, o.N = history.Append, w.nextElement()
				}
				plan = append(plan, o)
			}
			return run(ctx, w, plan)
		},
		ReadAll: func(ctx context.Context, w *Worker) error {
			var plan []history.Op
			for i := range appendKeys {
				plan = append(plan, history.Op{F: history.Read, Key: key(w, i)})
			}
			return run(ctx, w, plan)
		},
	}
}
