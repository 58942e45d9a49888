package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// A tableSpec is a pair of tables with the same data: NAME, which is
// transactional, and NAME-raw, which is not.
type tableSpec struct {
	name     string
	rows     int
	columns  int
	bytes    int // of a value
	versions int // of each cell; 0 is 1
}

func (t tableSpec) raw() string { return t.name + "-raw" }

// withAdmin calls f with clients of this process.
func (r *run) withAdmin(ctx context.Context, f func(context.Context, *bigtable.Client, *bigtable.AdminClient) error) error {
	bt, admin, closeAll, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	return f(ctx, bt, admin)
}

// makeTables makes pairs of tables and fills them.
func (r *run) makeTables(ctx context.Context, specs ...tableSpec) (err error) {
	bt, admin, closeAll, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	for _, t := range specs {
		if err := t.init(ctx, bt, admin); err != nil {
			return err
		}
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{TokenTTL: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close(ctx)) }()
	for _, t := range specs {
		if err := t.fill(ctx, bt, client); err != nil {
			return fmt.Errorf("filling table %s: %w", t.name, err)
		}
	}
	return nil
}

func (t tableSpec) init(ctx context.Context, bt *bigtable.Client, admin *bigtable.AdminClient) error {
	if err := txn.InitTable(ctx, admin, bt, "", txn.TableSpec{Name: t.name, Families: []string{family}}); err != nil {
		return err
	}
	if err := admin.CreateTable(ctx, t.raw()); err != nil {
		return err
	}
	return admin.CreateColumnFamily(ctx, t.raw(), family)
}

// fill writes committed rows to one table, and the same cells to the other.
func (t tableSpec) fill(ctx context.Context, bt *bigtable.Client, client *txn.Client) error {
	for v := range max(t.versions, 1) {
		if _, err := client.BulkLoad(ctx, t.name, t.bulkRows(), txn.BulkLoad{Idle: true}); err != nil {
			return err
		}
		out := &bulk{table: bt.Open(t.raw())}
		for i := range t.rows {
			m := bigtable.NewMutation()
			for q := range t.columns {
				m.Set(family, columnOf(q), plainTime+bigtable.Timestamp(v)*1000, make([]byte, t.bytes))
			}
			if err := out.add(ctx, keyOf(i), m); err != nil {
				return err
			}
		}
		if err := out.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t tableSpec) bulkRows() iter.Seq2[txn.BulkRow, error] {
	return func(yield func(txn.BulkRow, error) bool) {
		for i := range t.rows {
			row := txn.BulkRow{Row: keyOf(i)}
			for q := range t.columns {
				row.Cells = append(row.Cells, txn.BulkCell{Family: family, Qualifier: columnOf(q), Value: make([]byte, t.bytes)})
			}
			if !yield(row, nil) {
				return
			}
		}
	}
}

// check runs the consistency check over a table, and fails at a violation.
func (r *run) check(ctx context.Context, tables ...string) error {
	return r.withClient(ctx, func(client *txn.Client) error { return checkTables(ctx, client, tables) })
}

// withClient calls f with a client of this process.
func (r *run) withClient(ctx context.Context, f func(*txn.Client) error) (err error) {
	bt, _, closeAll, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	cfg := txn.Config{TokenTTL: -1}
	if r.served != "" {
		oracle, err := tso.NewClient(tso.ClientConfig{Addresses: []string{r.served}})
		if err != nil {
			return err
		}
		defer func() { _ = oracle.Close() }()
		cfg.Oracle = oracle
	}
	client, err := txn.NewClient(ctx, bt, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close(ctx)) }()
	return f(client)
}

func checkTables(ctx context.Context, client *txn.Client, tables []string) error {
	for _, name := range tables {
		for v, err := range client.Check(ctx, name, nil) {
			if err != nil {
				return err
			}
			return fmt.Errorf("the consistency check of table %s: %s", name, v)
		}
	}
	return nil
}
