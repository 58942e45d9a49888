package admin_test

import (
	"errors"
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestCheckWrites: the error with which a commit would refuse the writes, which may be none.
func TestCheckWrites(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	for name, tt := range map[string]struct {
		write func(*txn.Txn)
		want  error
	}{
		"nothing":     {func(*txn.Txn) {}, nil},
		"a value":     {func(tx *txn.Txn) { tx.Table("a").Set("r", "f", "q", nil) }, nil},
		"no row":      {func(tx *txn.Txn) { tx.Table("a").Set("", "f", "q", nil) }, txn.ErrInvalid},
		"no family":   {func(tx *txn.Txn) { tx.Table("a").Set("r", "g", "q", nil) }, txn.ErrSchema},
		"no table":    {func(tx *txn.Txn) { tx.Table("b").Set("r", "f", "q", nil) }, txn.ErrNotInitialized},
		"then no row": {func(tx *txn.Txn) { tx.Table("a").Set("r", "f", "q", nil); tx.Table("a").Delete("", "f", "q") }, txn.ErrInvalid},
	} {
		tx, err := env.Client.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tt.write(tx)
		if err := admin.CheckWrites(t.Context(), tx); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if _, err := tx.Commit(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("%s: the commit returned %v, want %v", name, err, tt.want)
		}
	}
}
