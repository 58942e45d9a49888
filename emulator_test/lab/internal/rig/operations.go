package rig

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// The operations. Those that begin with raw are the best use of Bigtable without
// transactions, with which the other ones are compared.
var operations = map[string]operation{
	"raw-get":       rawGet,
	"raw-row":       rawRow,
	"raw-rows":      rawRows,
	"raw-scan":      rawScan,
	"raw-write":     rawWrite,
	"raw-condition": rawCondition,
	"raw-writes":    rawWrites,
	"raw-pair":      rawPair,
	"raw-commit":    rawCommit,
	"raw-change":    rawChange,
	"raw-changes":   rawChanges,
	"stored-get":    storedGet,
	"stored-row":    rawRow,
	"stored-rows":   rawRows,
	"stored-scan":   rawScan,
	"get":           get,
	"get-shared":    getShared,
	"get-stale":     getStale,
	"get-latest":    getLatest,
	"row":           readRow,
	"row-shared":    readRowShared,
	"rows":          readRows,
	"scan":          scan,
	"write":         write,
	"writes":        writes,
	"read-write":    readWrite,
	"change":        change,
	"change-get":    changeGet,
	"transfer":      transfer,
	"brokerage":     brokerageStep,
}

// newest returns the filter of a raw read of whole rows.
func newest() bigtable.ReadOption { return bigtable.RowFilter(bigtable.LatestNFilter(1)) }

func rawGet(ctx context.Context, w *worker, t *Task, _ int) error {
	key := t.anyRow()
	row, err := w.bt.Open(t.Table).ReadRow(ctx, key, bigtable.RowFilter(bigtable.ChainFilters(
		bigtable.ColumnRangeFilter(Family, ColumnOf(0), ColumnOf(0)+"\x00"), bigtable.LatestNFilter(1))))
	if err == nil && len(row[Family]) != 1 {
		return fmt.Errorf("row %s of %s has %d cells, want 1", key, t.Table, len(row[Family]))
	}
	return err
}

// storedGet reads everything that a transaction needs of a cell: its lock, record and data.
func storedGet(ctx context.Context, w *worker, t *Task, _ int) error {
	key, column := t.anyRow(), Family+":"+ColumnOf(0)
	row, err := w.bt.Open(t.Table).ReadRow(ctx, key, bigtable.RowFilter(bigtable.ChainFilters(bigtable.LatestNFilter(1), bigtable.InterleaveFilters(
		bigtable.ColumnRangeFilter(format.LockFamily, column, column+"\x00"),
		bigtable.ColumnRangeFilter(format.WriteFamily, column, column+"\x00"),
		bigtable.ColumnRangeFilter(Family, ColumnOf(0), ColumnOf(0)+"\x00")))))
	if err == nil && len(row[Family]) != 1 {
		return fmt.Errorf("row %s of %s has %d cells, want 1", key, t.Table, len(row[Family]))
	}
	return err
}

func rawRow(ctx context.Context, w *worker, t *Task, _ int) error {
	row, err := w.bt.Open(t.Table).ReadRow(ctx, t.anyRow(), newest())
	return t.hasColumns(row, err)
}

func rawRows(ctx context.Context, w *worker, t *Task, _ int) error {
	return t.countRaw(ctx, w, t.anyRows())
}

func rawScan(ctx context.Context, w *worker, t *Task, _ int) error {
	return t.countRaw(ctx, w, t.anyRange())
}

func rawWrite(ctx context.Context, w *worker, t *Task, i int) error {
	return w.bt.Open(t.Table).Apply(ctx, t.turnRow(i), t.mutation())
}

// rawCondition writes a cell unless another caller has written it since. This is
// Bigtable's own check against lost updates.
func rawCondition(ctx context.Context, w *worker, t *Task, i int) error {
	since := bigtable.Now().TruncateToMilliseconds() + 1000
	m := bigtable.NewCondMutation(bigtable.ChainFilters(bigtable.ColumnRangeFilter(Family, ColumnOf(0), ColumnOf(0)+"\x00"),
		bigtable.TimestampRangeFilterMicros(since, 0)), nil, t.mutation())
	return w.bt.Open(t.Table).Apply(ctx, t.turnRow(i), m)
}

func rawWrites(ctx context.Context, w *worker, t *Task, i int) error {
	rows, mutations := make([]string, t.Batch), make([]*bigtable.Mutation, t.Batch)
	for k := range rows {
		rows[k], mutations[k] = t.turnRow(i*t.Batch+k), t.mutation()
	}
	errs, err := w.bt.Open(t.Table).ApplyBulk(ctx, rows, mutations)
	if err == nil && len(errs) > 0 {
		return errs[0]
	}
	return err
}

// get reads a cell in its own snapshot, as each transaction of the paper does.
// Concurrent callers share requests to the oracle.
func get(ctx context.Context, w *worker, t *Task, _ int) error {
	s, err := w.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	return t.getFrom(ctx, s)
}

func getShared(ctx context.Context, w *worker, t *Task, _ int) error {
	s, err := w.shared(ctx)
	if err != nil {
		return err
	}
	return t.getFrom(ctx, s)
}

// staleness is how old the snapshots of getStale may be.
const staleness = 100 * time.Millisecond

func getStale(ctx context.Context, w *worker, t *Task, _ int) error {
	s, err := w.client.Snapshot(ctx, txn.MaxStaleness(staleness))
	if err != nil {
		return err
	}
	return t.getFrom(ctx, s)
}

func getLatest(ctx context.Context, w *worker, t *Task, _ int) error {
	return t.getCell(ctx, w.client.Latest(t.Table))
}

func readRow(ctx context.Context, w *worker, t *Task, _ int) error {
	s, err := w.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	row, err := s.Table(t.Table).ReadRow(ctx, t.anyRow())
	return t.hasColumns(row, err)
}

func readRowShared(ctx context.Context, w *worker, t *Task, _ int) error {
	s, err := w.shared(ctx)
	if err != nil {
		return err
	}
	row, err := s.Table(t.Table).ReadRow(ctx, t.anyRow())
	return t.hasColumns(row, err)
}

func readRows(ctx context.Context, w *worker, t *Task, _ int) error {
	return t.countRows(ctx, w, t.anyRows())
}

func scan(ctx context.Context, w *worker, t *Task, _ int) error {
	return t.countRows(ctx, w, t.anyRange())
}

func write(ctx context.Context, w *worker, t *Task, i int) error {
	return t.update(ctx, w, i, 1)
}

func writes(ctx context.Context, w *worker, t *Task, i int) error {
	return t.update(ctx, w, i*t.Batch, t.Batch)
}

// readWrite reads a cell and writes it.
func readWrite(ctx context.Context, w *worker, t *Task, i int) error {
	value := t.value()
	_, err := w.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		table, row := tx.Table(t.Table), t.turnRow(i)
		if _, _, err := table.Get(ctx, row, Family, ColumnOf(0)); err != nil {
			return err
		}
		table.Set(row, Family, ColumnOf(0), value)
		return nil
	})
	return err
}

// rawPair sends the least requests for a conditional write in two phases.
func rawPair(ctx context.Context, w *worker, t *Task, i int) error {
	row := t.turnRow(i)
	for range 2 {
		if err := t.conditional(ctx, w, row); err != nil {
			return err
		}
	}
	return nil
}

// rawCommit sends the requests of a two-phase commit of Batch rows: a conditional mutation of each,
// side by side, another one of the first, and a bulk mutation of the others.
func rawCommit(ctx context.Context, w *worker, t *Task, i int) error {
	rows := t.turnRows(i)
	var g errgroup.Group
	g.SetLimit(parallelism)
	for _, row := range rows {
		g.Go(func() error { return t.conditional(ctx, w, row) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := t.conditional(ctx, w, rows[0]); err != nil {
		return err
	}
	return t.bulk(ctx, w, i)
}

// parallelism is the default of txn.Config.Parallelism.
const parallelism = 64

// rawChange reads Batch rows, or one, and writes each by a conditional mutation. The rows do
// not change together.
func rawChange(ctx context.Context, w *worker, t *Task, i int) error {
	rows := t.turnRows(i)
	if err := w.bt.Open(t.Table).ReadRows(ctx, rows, func(bigtable.Row) bool { return true }, newest()); err != nil {
		return err
	}
	for _, row := range rows {
		if err := t.conditional(ctx, w, row); err != nil {
			return err
		}
	}
	return nil
}

// rawChanges sends the requests of change.
func rawChanges(ctx context.Context, w *worker, t *Task, i int) error {
	if err := rawChange(ctx, w, t, i); err != nil {
		return err
	}
	if err := t.conditional(ctx, w, t.turnRow(i*max(t.Batch, 1))); err != nil || t.Batch < 2 {
		return err
	}
	return t.bulk(ctx, w, i)
}

// change reads Batch rows, or one for update, and writes them in one transaction.
func change(ctx context.Context, w *worker, t *Task, i int) error {
	return changeRows(ctx, w, t, i, (*txn.Table).GetForUpdate)
}

// changeGet is change of a row without locking it when it is read.
func changeGet(ctx context.Context, w *worker, t *Task, i int) error {
	return changeRows(ctx, w, t, i, (*txn.Table).Get)
}

func changeRows(ctx context.Context, w *worker, t *Task, i int, get func(table *txn.Table, ctx context.Context, row, family, qualifier string) ([]byte, bool, error)) error {
	rows, value := t.turnRows(i), t.value()
	_, err := w.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		table := tx.Table(t.Table)
		if len(rows) == 1 {
			if _, _, err := get(table, ctx, rows[0], Family, ColumnOf(0)); err != nil {
				return err
			}
		} else {
			for _, err := range table.ReadRows(ctx, rows) {
				if err != nil {
					return err
				}
			}
		}
		for _, row := range rows {
			table.Set(row, Family, ColumnOf(0), value)
		}
		return nil
	})
	return err
}
