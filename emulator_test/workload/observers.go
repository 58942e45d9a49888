package workload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

const observedRows = 12

// Observers writes documents. An observer keeps, for each document, a list of the
// changes that it ran for; two more observers form a chain, and one watches a pattern that
// the documents' column is in. At the end every list is strictly increasing (no change had
// two effects), its last entry is the last change (none was lost), and the end of the chain
// and the pattern's observer have the last value.
func Observers() *Workload {
	const table = "docs"
	at := func(w *Worker, i int) register { return register{table, w.row("doc" + strconv.Itoa(i)), "d", "in"} }
	in := txn.Column{Family: "d", Qualifier: "in"}
	middle, pattern := txn.Column{Family: "d", Qualifier: "mid"}, txn.Pattern("d", "i")
	// Both observers of the chain read their own column and write the next one.
	load := &Workload{}
	first := notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		if load.Fail != nil && load.Fail() {
			return errors.New("this run fails on purpose")
		}
		tbl := tx.Table(table)
		v, _, err := tbl.Get(ctx, cell.Row, "d", "in")
		if err != nil {
			return err
		}
		seen, _, err := tbl.Get(ctx, cell.Row, "d", "seen")
		if err != nil {
			return err
		}
		tbl.Set(cell.Row, "d", "seen", fmt.Appendf(seen, "%d,", notify.TriggerOf(ctx).ChangeTS))
		tbl.Set(cell.Row, "d", "mid", v)
		return nil
	})
	second := notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		v, _, err := tx.Table(table).Get(ctx, cell.Row, "d", "mid")
		if err == nil {
			tx.Table(table).Set(cell.Row, "d", "out", v)
		}
		return err
	})
	third := notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		v, _, err := tx.Table(table).Get(ctx, cell.Row, "d", cell.Qualifier)
		if err == nil {
			tx.Table(table).Set(cell.Row, "d", "copy of "+cell.Qualifier, v)
		}
		return err
	})
	*load = Workload{
		Name: "observers",
		Tables: []admin.TableSpec{{Name: table, Families: []string{"d"}, Observed: []txn.Column{
			{Family: "d", Qualifier: "in"}, {Family: "d", Qualifier: "mid"}}}},
		Level: history.SnapshotIsolation,
		Cell:  cellOf("d", "in"),
		Setup: func(ctx context.Context, w *Worker) error {
			// Observers register before the first change. A writer needs to know the
			// observed columns, and the registry says which acknowledgments count.
			for id, col := range map[string]txn.Column{"first": in, "second": middle, "third": pattern} {
				if err := changes.RegisterObserver(ctx, w.Client, table, col, id, false); err != nil {
					return err
				}
			}
			return nil
		},
		Handle: func(w *notify.Worker) error {
			if err := w.Handle("first", table, in, first); err != nil {
				return err
			}
			if err := w.Handle("second", table, middle, second); err != nil {
				return err
			}
			return w.Handle("third", table, pattern, third)
		},
		Step: func(ctx context.Context, w *Worker) error {
			rows := w.Rand.Perm(observedRows)[:1+w.Rand.IntN(3)]
			values := make([]int64, len(rows))
			for i := range values {
				values[i] = w.nextElement()
			}
			return w.write(ctx, func(tx *txn.Txn) (ops []history.Op) {
				for i, row := range rows {
					ops = append(ops, at(w, row).set(tx, values[i]))
				}
				return ops
			})
		},
		ReadAll: func(ctx context.Context, w *Worker) error {
			return w.look(ctx, func(ctx context.Context, v view) ([]history.Op, error) {
				var all []register
				for i := range observedRows {
					all = append(all, at(w, i))
				}
				return w.getAll(ctx, v, all)
			})
		},
		Verify: verifyObserved,
	}
	return load
}

func verifyObserved(ctx context.Context, c *txn.Client) (wrong []string, err error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	for row, err := range s.Table("docs").ReadRows(ctx, nil) {
		if err != nil {
			return nil, err
		}
		cells := map[string]bigtable.ReadItem{}
		for _, item := range row["d"] {
			cells[strings.TrimPrefix(item.Column, "d:")] = item
		}
		if in, out := string(cells["in"].Value), string(cells["out"].Value); in != out {
			wrong = append(wrong, fmt.Sprintf("row %s: the chain ends in %q, the document is %q", row.Key(), out, in))
		}
		if in, copied := string(cells["in"].Value), string(cells["copy of in"].Value); in != copied {
			wrong = append(wrong, fmt.Sprintf("row %s: the observer of a pattern saw %q, the document is %q", row.Key(), copied, in))
		}
		last := int64(0)
		for s := range strings.SplitSeq(strings.TrimSuffix(string(cells["seen"].Value), ","), ",") {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				wrong = append(wrong, fmt.Sprintf("row %s: the list of changes is %q", row.Key(), cells["seen"].Value))
				break
			}
			if n <= last {
				wrong = append(wrong, fmt.Sprintf("row %s: the change at %d had two effects", row.Key(), n))
			}
			last = n
		}
		if change := int64(cells["in"].Timestamp); last != change {
			wrong = append(wrong, fmt.Sprintf("row %s: the last change is at %d, the last one observed at %d", row.Key(), change, last))
		}
	}
	return wrong, nil
}
