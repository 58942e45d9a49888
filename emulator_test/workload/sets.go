package workload

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

const setSlots = 60

// Sets adds elements to a set, each in its own row, and reads the whole set by a scan.
// No element may be missing, appear twice, or appear before its commit (phantoms).
func Sets() *Workload {
	const table = "sets"
	key := func(w *Worker, i int) register { return register{table, w.row(fmt.Sprintf("e%03d", i)), "f", "n"} }
	scan := func(ctx context.Context, w *Worker, v view) (ops []history.Op, err error) {
		seen := map[string]int64{}
		last := ""
		for row, err := range v.table(table).ReadRows(ctx, w.rows()) {
			if err != nil {
				return nil, err
			}
			if row.Key() <= last {
				return ops, broken("a scan at %d returned row %q after %q", v.ts, row.Key(), last)
			}
			last = row.Key()
			if seen[last], err = strconv.ParseInt(string(row["f"][0].Value), 10, 64); err != nil {
				return nil, err
			}
		}
		for i := range setSlots {
			op := history.Op{F: history.Read, Key: key(w, i).key()}
			if n, ok := seen[key(w, i).row]; ok {
				op.State = history.Number(n)
			}
			ops = append(ops, op)
		}
		return ops, nil
	}
	readAll := func(ctx context.Context, w *Worker) error {
		return w.look(ctx, func(ctx context.Context, v view) ([]history.Op, error) { return scan(ctx, w, v) })
	}
	return &Workload{
		Name:   "sets",
		Tables: []admin.TableSpec{{Name: table, Families: []string{"f"}}},
		Level:  history.SnapshotIsolation,
		Cell:   cellOf("f", "n"),
		Setup:  func(context.Context, *Worker) error { return nil },
		Step: func(ctx context.Context, w *Worker) error {
			if w.Rand.IntN(5) == 0 {
				return readAll(ctx, w)
			}
			add := map[int]int64{}
			for range 1 + w.Rand.IntN(4) {
				add[w.Rand.IntN(setSlots)] = w.nextElement()
			}
			return w.write(ctx, func(tx *txn.Txn) (ops []history.Op) {
				for i, n := range add {
					ops = append(ops, key(w, i).set(tx, n))
				}
				return ops
			})
		},
		ReadAll: readAll,
	}
}

const indexItems = 10

// Index keeps a table of items and an index of it by value. In every snapshot the index
// has to match the table, row for row.
func Index() *Workload {
	const items, index = "items", "index"
	item := func(w *Worker, i int) register { return register{items, w.row("item" + strconv.Itoa(i)), "f", "n"} }
	entry := func(w *Worker, n int64, r register) string { return w.row(fmt.Sprintf("%020d %s", n, r.row)) }
	compare := func(ctx context.Context, w *Worker, v view) (ops []history.Op, err error) {
		want := map[string]bool{}
		for i := range indexItems {
			n, ok, op, err := item(w, i).get(ctx, v)
			if err != nil {
				return ops, err
			}
			ops = append(ops, op)
			if ok {
				want[entry(w, n, item(w, i))] = true
			}
		}
		for row, err := range v.table(index).ReadRows(ctx, w.rows()) {
			if err != nil {
				return ops, err
			}
			if !want[row.Key()] {
				return ops, broken("the index has %q at %d, the items do not", row.Key(), v.ts)
			}
			delete(want, row.Key())
		}
		if len(want) > 0 {
			return ops, broken("the index lacks %q at %d", slices.Sorted(maps.Keys(want)), v.ts)
		}
		return ops, nil
	}
	readAll := func(ctx context.Context, w *Worker) error {
		return w.look(ctx, func(ctx context.Context, v view) ([]history.Op, error) { return compare(ctx, w, v) })
	}
	return &Workload{
		Name:   "index",
		Tables: []admin.TableSpec{{Name: items, Families: []string{"f"}}, {Name: index, Families: []string{"f"}}},
		Level:  history.SnapshotIsolation,
		Cell:   cellOf("f", "n"),
		Setup:  func(context.Context, *Worker) error { return nil },
		Step: func(ctx context.Context, w *Worker) error {
			if w.Rand.IntN(4) == 0 {
				return readAll(ctx, w)
			}
			chosen := w.Rand.Perm(indexItems)[:1+w.Rand.IntN(2)]
			values := make([]int64, len(chosen))
			for i := range values {
				values[i] = w.nextElement()
			}
			return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) (ops []history.Op, err error) {
				for i, c := range chosen {
					r := item(w, c)
					was, ok, op, err := r.get(ctx, viewOf(tx))
					if err != nil {
						return ops, err
					}
					ops = append(ops, op)
					if ok {
						tx.Table(index).Delete(entry(w, was, r), "f", "q")
					}
					tx.Table(index).Set(entry(w, values[i], r), "f", "q", nil)
					ops = append(ops, r.set(tx, values[i]))
				}
				return ops, nil
			})
		},
		ReadAll: readAll,
	}
}
