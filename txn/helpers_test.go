package txn_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
)

// set returns a function for Update that writes one cell of a row.
func set(table, row string) func(context.Context, *txn.Txn) error {
	return func(_ context.Context, tx *txn.Txn) error {
		tx.Table(table).Set(row, "f", "q", []byte("v"))
		return nil
	}
}

// wantError checks the kind of an error, and that its text contains what says describes: the
// cause and the repair.
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
