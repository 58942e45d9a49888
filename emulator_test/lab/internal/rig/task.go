package rig

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
)

// A Task is one round of one kind of operation in a worker process. Callers repeat the
// operation for a time, or for a number of operations.
type Task struct {
	Op      string // a name in operations
	Table   string
	Callers int
	// Duration is how long the round takes; 0: it ends after Count operations.
	Duration time.Duration
	Count    int

	Rows    int    // of the table
	Columns int    // that an operation reads or writes
	Batch   int    // rows that an operation reads or writes
	Bytes   int    // of a value
	First   int    // number of the first row to write; the next round continues from there
	Profile string // file for a CPU profile; empty for none
}

// An operation is carried out by one of a task's callers; i is its number in the round.
type operation func(ctx context.Context, w *worker, t *Task, i int) error

// anyRow returns a random row.
func (t *Task) anyRow() string { return KeyOf(rand.IntN(t.Rows)) }

// stride is coprime to any table size that is not a multiple of it. Writes with this
// distance visit each row once, and neighbours not one after the other.
const stride = 7919

// turnRow returns the row of the i-th write. Writes visit all rows in turn, so that all
// get the same number of versions.
func (t *Task) turnRow(i int) string {
	return KeyOf(int((int64(t.First) + int64(i)) * stride % int64(t.Rows)))
}

func (t *Task) hasColumns(row bigtable.Row, err error) error {
	if err == nil && len(row[Family]) != max(t.Columns, 1) {
		return fmt.Errorf("row %q of %s has %d cells, want %d", row.Key(), t.Table, len(row[Family]), max(t.Columns, 1))
	}
	return err
}

// anyRows returns Batch different rows, spread over the table.
func (t *Task) anyRows() bigtable.RowList {
	list, first := make(bigtable.RowList, t.Batch), rand.IntN(t.Rows)
	for i := range list {
		list[i] = KeyOf((first + i*(t.Rows/t.Batch)) % t.Rows)
	}
	slices.Sort(list) // the order of Bigtable's answers
	return list
}

// anyRange returns a range of Batch rows.
func (t *Task) anyRange() bigtable.RowRange {
	first := rand.IntN(t.Rows - t.Batch + 1)
	return bigtable.NewRange(KeyOf(first), KeyOf(first+t.Batch))
}

func (t *Task) countRaw(ctx context.Context, w *worker, rs bigtable.RowSet) error {
	n := 0
	err := w.bt.Open(t.Table).ReadRows(ctx, rs, func(bigtable.Row) bool { n++; return true }, newest())
	return t.hasRows(n, err)
}

func (t *Task) hasRows(n int, err error) error {
	if err == nil && n != t.Batch {
		return fmt.Errorf("%d rows of %s were read, want %d", n, t.Table, t.Batch)
	}
	return err
}

func (t *Task) mutation() *bigtable.Mutation {
	m, value := bigtable.NewMutation(), t.value()
	for q := range max(t.Columns, 1) {
		m.Set(Family, ColumnOf(q), bigtable.Now(), value)
	}
	return m
}

func (t *Task) value() []byte { return make([]byte, t.Bytes) }

func (t *Task) getFrom(ctx context.Context, s *txn.Snapshot) error {
	return t.getCell(ctx, s.Table(t.Table))
}

func (t *Task) getCell(ctx context.Context, from interface {
	Get(ctx context.Context, row, family, qualifier string) ([]byte, bool, error)
}) error {
	row := t.anyRow()
	_, ok, err := from.Get(ctx, row, Family, ColumnOf(0))
	if err == nil && !ok {
		return fmt.Errorf("row %s of %s has no value", row, t.Table)
	}
	return err
}

func (t *Task) countRows(ctx context.Context, w *worker, rs bigtable.RowSet) error {
	s, err := w.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	n := 0
	for _, err := range s.Table(t.Table).ReadRows(ctx, rs) {
		if err != nil {
			return err
		}
		n++
	}
	return t.hasRows(n, nil)
}

// turnRows returns the rows of the i-th write.
func (t *Task) turnRows(i int) bigtable.RowList {
	n := max(t.Batch, 1)
	rows := make(bigtable.RowList, n)
	for k := range rows {
		rows[k] = t.turnRow(i*n + k)
	}
	return rows
}

// bulk writes the rows of the i-th write by one bulk mutation, all but the first.
func (t *Task) bulk(ctx context.Context, w *worker, i int) error {
	rows := t.turnRows(i)[1:]
	mutations := make([]*bigtable.Mutation, len(rows))
	for k := range rows {
		mutations[k] = t.mutation()
	}
	_, err := w.bt.Open(t.Table).ApplyBulk(ctx, rows, mutations)
	return err
}

// update writes rows in one transaction.
func (t *Task) update(ctx context.Context, w *worker, first, rows int) error {
	value := t.value()
	_, err := w.client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		table := tx.Table(t.Table)
		for k := range rows {
			for q := range max(t.Columns, 1) {
				table.Set(t.turnRow(first+k), Family, ColumnOf(q), value)
			}
		}
		return nil
	})
	return err
}

func (t *Task) conditional(ctx context.Context, w *worker, row string) error {
	column := bigtable.ColumnRangeFilter(Family, ColumnOf(0), ColumnOf(0)+"\x00")
	var matched bool
	return w.bt.Open(t.Table).Apply(ctx, row, bigtable.NewCondMutation(column, nil, t.mutation()), bigtable.GetCondMutationResult(&matched))
}
