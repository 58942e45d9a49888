package index_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var (
	email = txn.Column{Family: "f", Qualifier: "email"}
	city  = txn.Column{Family: "f", Qualifier: "city"}
	name  = txn.Column{Family: "f", Qualifier: "name"}
	words = txn.Column{Family: "f", Qualifier: "words"}
)

// declared are the indexes of the tests.
func declared() []index.Index {
	return []index.Index{
		{Name: "email", Table: "users", Columns: []txn.Column{email}, Unique: true},
		{Name: "place", Table: "users", Columns: []txn.Column{city, name}},
		{Name: "words", Table: "users", Columns: []txn.Column{words}, Keys: func(_ string, v index.Values) (keys []index.Key) {
			for _, w := range strings.Fields(string(v[words])) {
				keys = append(keys, index.Key{w})
			}
			return keys
		}},
	}
}

func newIndexes(t *testing.T, indexes ...index.Index) *index.Indexes {
	t.Helper()
	return mustNew(t, "indexes", "e", indexes...)
}

func mustNew(t *testing.T, table, family string, indexes ...index.Index) *index.Indexes {
	t.Helper()
	x, err := index.New(table, family, indexes...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// keeping returns a client that maintains indexes.
func keeping(env *txntest.Env, x *index.Indexes, cfg txn.Config, dial ...grpc.DialOption) *txn.Client {
	c := env.NewClient(cfg, dial...)
	x.Keep(c)
	return c
}

// newEnv makes the tables, and a client with the indexes that are declared.
func newEnv(t *testing.T) (*txntest.Env, *index.Indexes, *txn.Client) {
	t.Helper()
	env := txntest.New(t, txntest.WithoutTransport())
	env.CreateTable("users", "f")
	env.CreateTable("indexes", "e", "other")
	x := newIndexes(t, declared()...)
	return env, x, keeping(env, x, txn.Config{})
}

func create(t *testing.T, x *index.Indexes, c *txn.Client, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := x.Create(t.Context(), c, name, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// set writes cells of a row; "-" deletes.
func set(ctx context.Context, c *txn.Client, row string, cells map[txn.Column]string, opts ...txn.TxnOption) error {
	_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for col, v := range cells {
			if v == "-" {
				tx.Table("users").Delete(row, col.Family, col.Qualifier)
			} else {
				tx.Table("users").Set(row, col.Family, col.Qualifier, []byte(v))
			}
		}
		return nil
	}, opts...)
	return err
}

func mustSet(t *testing.T, c *txn.Client, row string, cells map[txn.Column]string) {
	t.Helper()
	if err := set(t.Context(), c, row, cells); err != nil {
		t.Fatal(err)
	}
}

func snapshot(t *testing.T, c *txn.Client) *txn.Snapshot {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// scan returns entries as KEY,KEY=ROW.
func scan(t *testing.T, r index.Reader, name string, q index.Query) (all []string) {
	t.Helper()
	for e, err := range r.Scan(t.Context(), name, q) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.Join(e.Key, ",")+"="+e.Row)
	}
	return all
}

func wantScan(t *testing.T, r index.Reader, name string, q index.Query, want ...string) {
	t.Helper()
	if got := scan(t, r, name, q); !slices.Equal(got, want) {
		t.Errorf("index %s, %+v: %q, want %q", name, q, got, want)
	}
}

// wantCorrect verifies an index.
func wantCorrect(t *testing.T, x *index.Indexes, c *txn.Client, name string) {
	t.Helper()
	if err := x.Verify(t.Context(), c, name, func(p index.Problem) { t.Error(p) }); err != nil {
		t.Error(err)
	}
}

// pause lets virtual time pass.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// wantRows checks which rows the table of entries has.
func wantRows(t *testing.T, c *txn.Client, want ...string) {
	t.Helper()
	for row, err := range snapshot(t, c).Table("indexes").ReadRows(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if len(want) == 0 || row.Key() != want[0] {
			t.Errorf("row %q is left, want %q", row.Key(), want)
			continue
		}
		want = want[1:]
	}
	if len(want) > 0 {
		t.Errorf("rows %q are missing", want)
	}
}
