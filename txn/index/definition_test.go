package index_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/index"
)

// TestOtherDefinition: a process that knows an index differently, or does not have its function,
// does not write its columns, and does not read it.
func TestOtherDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		create(t, x, c, "place", "words")
		changed := declared()
		changed[1].Columns = []txn.Column{name, city}
		other := newIndexes(t, changed...)
		if err := set(t.Context(), keeping(env, other, txn.Config{}), "1", map[txn.Column]string{name: "x"}); !errors.Is(err, index.ErrDefinition) || !strings.Contains(err.Error(), "place") {
			t.Errorf("other columns: %v, want ErrDefinition", err)
		}
		unaware := keeping(env, newIndexes(t), txn.Config{})
		if err := set(t.Context(), unaware, "1", map[txn.Column]string{words: "x"}); !errors.Is(err, index.ErrDefinition) || !strings.Contains(err.Error(), "words") {
			t.Errorf("without the function: %v, want ErrDefinition", err)
		}
		mustSet(t, unaware, "1", map[txn.Column]string{email: "x"}) // not a column of an index
		if err := other.Create(t.Context(), c, "place", nil); !errors.Is(err, index.ErrDefinition) {
			t.Errorf("Create: %v", err)
		}
		for _, err := range other.At(snapshot(t, c)).Scan(t.Context(), "place", index.Query{}) {
			if !errors.Is(err, index.ErrDefinition) {
				t.Errorf("Scan: %v", err)
			}
		}
		if err := newIndexes(t).Drop(t.Context(), c, "place"); err != nil {
			t.Errorf("Drop of an index that New does not know: %v", err)
		}
	})
}

// TestUndeclared: a process maintains indexes of columns that only others declare.
func TestUndeclared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		create(t, x, c, "place", "email")
		undeclared := keeping(env, newIndexes(t), txn.Config{})
		mustSet(t, undeclared, "1", map[txn.Column]string{city: "Bern", name: "Bob", email: "bob@x"})
		mustSet(t, undeclared, "1", map[txn.Column]string{city: "Basel"})
		wantScan(t, x.At(snapshot(t, c)), "place", index.Query{}, "Basel,Bob=1")
		if err := set(t.Context(), undeclared, "2", map[txn.Column]string{email: "bob@x"}); !errors.Is(err, index.ErrUnique) {
			t.Errorf("a second row with the key: %v", err)
		}
		wantCorrect(t, x, c, "place")
		wantCorrect(t, x, c, "email")
	})
}

// TestWithoutKeep: a client that does not keep indexes cannot write their columns while they
// exist, in transactions and bulk loads.
func TestWithoutKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		for i, keeps := range []*txn.Client{env.NewClient(txn.Config{}), keeping(env, mustNew(t, "indexes", "other"), txn.Config{})} {
			try := func() error {
				return set(t.Context(), keeps, fmt.Sprint(i), map[txn.Column]string{city: "Bern", name: "Bob"})
			}
			load := func() error {
				_, err := admin.BulkLoad(t.Context(), keeps, "users", func(yield func(admin.BulkRow, error) bool) {
					yield(admin.BulkRow{Row: "z", Cells: []admin.BulkCell{{Family: "f", Qualifier: "name", Value: []byte("x")}}}, nil)
				}, admin.BulkConfig{Rows: bigtable.NewRange("z", "zz")})
				return err
			}
			if err := try(); err != nil {
				t.Errorf("client %d, before: %v", i, err)
			}
			create(t, x, c, "place")
			pause(t.Context(), time.Minute) // Config.SchemaMaxAge
			for what, f := range map[string]func() error{"transaction": try, "bulk load": load} {
				if err := f(); !errors.Is(err, txn.ErrSchema) || !strings.Contains(err.Error(), "index place") || !strings.Contains(err.Error(), "indexes/e") {
					t.Errorf("client %d, %s: %v, want ErrSchema", i, what, err)
				}
			}
			mustSet(t, keeps, "1", map[txn.Column]string{email: "x"}) // not a column of an index
			wantCorrect(t, x, c, "place")
			if err := x.Drop(t.Context(), c, "place"); err != nil {
				t.Fatal(err)
			}
			pause(t.Context(), time.Minute)
			if err := try(); err != nil {
				t.Errorf("client %d, afterwards: %v", i, err)
			}
			if left, err := changes.Indexes(t.Context(), c, "users"); len(left) > 0 || err != nil {
				t.Errorf("Drop leaves %v, error %v", left, err)
			}
		}
	})
}

func TestBadArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		good := declared()[0]
		for want, change := range map[string]func(*index.Index){
			"letters":             func(i *index.Index) { i.Name = "a/b" },
			"Table has":           func(i *index.Index) { i.Table = "indexes" },
			"Columns":             func(i *index.Index) { i.Columns = nil },
			"named twice":         func(i *index.Index) { i.Columns = []txn.Column{email, email} },
			"empty column family": func(i *index.Index) { i.Columns = []txn.Column{{}} },
		} {
			bad := good
			change(&bad)
			if _, err := index.New("indexes", "e", bad); !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
		}
		if _, err := index.New("indexes", "e", good, good); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("two indexes of a name: %v", err)
		}
		for _, f := range []func() error{
			func() error { _, err := index.New("", "e"); return err },
			func() error { _, err := index.New("indexes", ""); return err },
			func() error { return x.Create(t.Context(), c, "no", nil) },
			func() error { return x.Drop(t.Context(), c, "a/b") },
			func() error { return x.Verify(t.Context(), c, "no", nil) },
			func() error { _, _, err := x.At(snapshot(t, c)).Get(t.Context(), "place", "x"); return err },
			func() error { _, _, err := x.At(snapshot(t, c)).Get(t.Context(), "no", "x"); return err },
			func() error {
				for _, err := range x.At(snapshot(t, c)).Scan(t.Context(), "place", index.Query{Limit: -1}) {
					return err
				}
				return nil
			},
		} {
			if err := f(); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("error %v, want ErrInvalid", err)
			}
		}
		for _, f := range []func() error{
			func() error { return x.Verify(t.Context(), c, "email", nil) },
			func() error { _, _, err := x.At(snapshot(t, c)).Get(t.Context(), "email", "x"); return err },
			func() error {
				for _, err := range x.At(snapshot(t, c)).Scan(t.Context(), "place", index.Query{Reverse: true}) {
					return err
				}
				return nil
			},
		} {
			if err := f(); !errors.Is(err, index.ErrState) {
				t.Errorf("an index that does not exist: %v", err)
			}
		}
		if err := x.Drop(t.Context(), c, "email"); err != nil {
			t.Errorf("Drop of an index that does not exist: %v", err)
		}
		create(t, x, c, "email", "words")
		if err := set(t.Context(), c, "1", map[txn.Column]string{email: strings.Repeat("x", 5000)}); !errors.Is(err, txn.ErrLimit) || !strings.Contains(err.Error(), "email") {
			t.Errorf("a key that is too long: %v", err)
		}
		if err := set(t.Context(), c, "1", map[txn.Column]string{words: strings.Repeat("x ", 1001)}); !errors.Is(err, txn.ErrLimit) {
			t.Errorf("too many keys: %v", err)
		}
		if err := set(t.Context(), c, "1", map[txn.Column]string{email: "x"}); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := set(ctx, c, "1", map[txn.Column]string{email: "y"}); !errors.Is(err, context.Canceled) {
			t.Errorf("an ended context: %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := x.Create(ctx, c, "place", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Create with a deadline: %v", err)
		}
		wantCorrect(t, x, c, "email")
		_ = env
	})
}
