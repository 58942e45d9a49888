package rig

import (
	"context"
	"fmt"
	"iter"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// A TableSpec is a pair of tables with the same data: NAME is transactional, NAME-raw
// is not.
type TableSpec struct {
	Name     string
	Rows     int
	Columns  int
	Bytes    int // of a value
	Versions int // of each cell; 0 is 1
}

// Raw returns the name of the table without transactions.
func (t TableSpec) Raw() string { return t.Name + "-raw" }

// Init makes both tables without rows.
func (t TableSpec) Init(ctx context.Context, bt *bigtable.Client, adminClient *bigtable.AdminClient) error {
	if err := admin.InitTable(ctx, adminClient, bt, "", admin.TableSpec{Name: t.Name, Families: []string{Family}}); err != nil {
		return err
	}
	if err := adminClient.CreateTable(ctx, t.Raw()); err != nil {
		return err
	}
	return adminClient.CreateColumnFamily(ctx, t.Raw(), Family)
}

// fill writes committed rows to one table, and the same cells to the other one.
func (t TableSpec) fill(ctx context.Context, bt *bigtable.Client, client *txn.Client) error {
	for v := range max(t.Versions, 1) {
		if _, err := admin.BulkLoad(ctx, client, t.Name, t.bulkRows(), admin.BulkConfig{Idle: true}); err != nil {
			return err
		}
		out := &bulk{table: bt.Open(t.Raw())}
		for i := range t.Rows {
			m := bigtable.NewMutation()
			for q := range t.Columns {
				m.Set(Family, ColumnOf(q), plainTime+bigtable.Timestamp(v)*1000, make([]byte, t.Bytes))
			}
			if err := out.add(ctx, KeyOf(i), m); err != nil {
				return err
			}
		}
		if err := out.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t TableSpec) bulkRows() iter.Seq2[admin.BulkRow, error] {
	return func(yield func(admin.BulkRow, error) bool) {
		for i := range t.Rows {
			row := admin.BulkRow{Row: KeyOf(i)}
			for q := range t.Columns {
				row.Cells = append(row.Cells, admin.BulkCell{Family: Family, Qualifier: ColumnOf(q), Value: make([]byte, t.Bytes)})
			}
			if !yield(row, nil) {
				return
			}
		}
	}
}

func checkTables(ctx context.Context, client *txn.Client, tables []string) error {
	for _, name := range tables {
		for v, err := range admin.Check(ctx, client, name, nil) {
			if err != nil {
				return err
			}
			return fmt.Errorf("consistency check of table %s: %s", name, v)
		}
	}
	return nil
}
