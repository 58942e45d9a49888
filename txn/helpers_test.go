package txn_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
)

func set(table, row string) func(context.Context, *txn.Txn) error {
	return func(_ context.Context, tx *txn.Txn) error {
		tx.Table(table).Set(row, "f", "q", []byte("v"))
		return nil
	}
}

// wantError checks an error's kind and that its text helps: it names what was
// wrong and how to repair it.
func wantError(t *testing.T, err, is error, says ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("error is %v; want %v", err, is)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
}
