package index_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestVerify finds damage that was planted by hand.
func TestVerify(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		plain := env.NewClient(txn.Config{})
		access.Keep(plain, "indexes/e") // and does nothing
		create(t, x, c, "email", "place", "words")
		entry := func(tx *txn.Txn, key, row string) { tx.Table("indexes").Set(key, "e", "row", []byte(row)) }
		for i, tt := range []struct {
			name, index string
			damage      func(tx *txn.Txn)
			want        []string // of the problems
		}{
			{"entry removed", "email", func(tx *txn.Txn) { tx.Table("indexes").Delete("email/bob@x\x00\x01", "e", "row") }, []string{"missing"}},
			{"entry about another row", "email", func(tx *txn.Txn) { entry(tx, "email/bob@x\x00\x01", "2") }, []string{"orphan", "wrong"}},
			{"entry about no row", "email", func(tx *txn.Txn) { entry(tx, "email/no@x\x00\x01", "9") }, []string{"orphan"}},
			{"entry with another key", "email", func(tx *txn.Txn) { entry(tx, "email/no@x\x00\x01", "1") }, []string{"orphan"}},
			{"entry without an end", "email", func(tx *txn.Txn) { entry(tx, "email/no@x", "1") }, []string{"damaged"}},
			{"entry with an empty row", "email", func(tx *txn.Txn) { entry(tx, "email/no@x\x00\x01", "") }, []string{"damaged"}},
			{"entry of a secondary index with another row", "place", func(tx *txn.Txn) { entry(tx, "place/Bern\x00\x01Bob\x00\x011\x00\x01", "2") }, []string{"damaged", "wrong"}},
			{"entry of a secondary index removed", "place", func(tx *txn.Txn) { tx.Table("indexes").Delete("place/Bern\x00\x01Bob\x00\x011\x00\x01", "e", "row") }, []string{"missing"}},
			{"entry of a secondary index that nobody has", "words", func(tx *txn.Txn) { entry(tx, "words/z\x00\x011\x00\x01", "1") }, []string{"orphan"}},
			{"row changed without the index", "words", func(tx *txn.Txn) { tx.Table("users").Set("1", "f", "words", []byte("a")) }, []string{"orphan"}},
			{"row added without the index", "words", func(tx *txn.Txn) { tx.Table("users").Set("9", "f", "words", []byte("a")) }, []string{"missing"}},
			{"row deleted without the index", "place", func(tx *txn.Txn) { tx.Table("users").Delete("1", "f", "name") }, []string{"orphan"}},
			{"duplicate without the index", "email", func(tx *txn.Txn) { tx.Table("users").Set("2", "f", "email", []byte("bob@x")) }, []string{"orphan", "wrong"}},
		} {
			// Repair what the last one damaged.
			if i > 0 {
				for _, name := range []string{"email", "place", "words"} {
					if err := x.Drop(t.Context(), c, name); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, row := range []string{"1", "2", "9"} {
				if _, err := plain.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return tx.Table("users").DeleteRow(ctx, row) }); err != nil {
					t.Fatal(err)
				}
			}
			mustSet(t, plain, "1", map[txn.Column]string{email: "bob@x", city: "Bern", name: "Bob", words: "a b"})
			mustSet(t, plain, "2", map[txn.Column]string{email: "ann@x"})
			if i == 0 {
				for _, name := range []string{"email", "place", "words"} {
					if err := x.Drop(t.Context(), c, name); err != nil {
						t.Fatal(err)
					}
				}
			}
			create(t, x, c, "email", "place", "words")
			wantCorrect(t, x, c, tt.index)
			if _, err := plain.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error { tt.damage(tx); return nil }); err != nil {
				t.Fatal(err)
			}
			found := map[string]bool{}
			if err := x.Verify(t.Context(), c, tt.index, func(p index.Problem) {
				found[p.What] = true
				if p.Index != tt.index || p.String() == "" {
					t.Errorf("%s: %v", tt.name, p)
				}
			}); err != nil {
				t.Error(err)
			}
			if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, tt.want) {
				t.Errorf("%s: found %q, want %q", tt.name, got, tt.want)
			}
		}
	})
}
