package txn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

func TestPrefixEnd(t *testing.T) {
	for prefix, want := range map[string]string{"": "", "a": "b", "a\xff": "b", "\xff\xff": "", "ab": "ac", "a\x00": "a\x01", "\xfe": "\xff"} {
		if got := txn.PrefixEnd(prefix); got != want {
			t.Errorf("PrefixEnd(%q) = %q, want %q", prefix, got, want)
		}
	}
}

func TestInvalidWritesSendNothing(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{}, faults.DialOptions()...)
		for name, tt := range map[string]struct {
			write func(*txn.Table)
			want  error
		}{
			"empty row":       {func(a *txn.Table) { a.Set("", "f", "q", nil) }, txn.ErrInvalid},
			"long row":        {func(a *txn.Table) { a.Delete(strings.Repeat("x", 4097), "f", "q") }, txn.ErrLimit},
			"empty family":    {func(a *txn.Table) { a.Lock("r", "", "q") }, txn.ErrInvalid},
			"metadata family": {func(a *txn.Table) { a.Set("r", format.WriteFamily, "q", nil) }, txn.ErrInvalid},
			// An observer whose acknowledgment was overwritten skipped changes, or never ran.
			"put of an acknowledgment":          {func(a *txn.Table) { a.Set("r", format.AckFamily, "f:q/o", make([]byte, 8)) }, txn.ErrInvalid},
			"deletion of an acknowledgment":     {func(a *txn.Table) { a.Delete("r", format.AckFamily, "f:q/o") }, txn.ErrInvalid},
			"lock of an acknowledgment":         {func(a *txn.Table) { a.Lock("r", format.AckFamily, "f:q/o") }, txn.ErrInvalid},
			"notification of an acknowledgment": {func(a *txn.Table) { a.Notify("r", format.AckFamily, "f:q/o") }, txn.ErrInvalid},
			"long qualifier":                    {func(a *txn.Table) { a.Set("r", "f", strings.Repeat("q", 3000), nil) }, txn.ErrLimit},
			"large value":                       {func(a *txn.Table) { a.Set("r", "f", "q", make([]byte, 100<<20+1)) }, txn.ErrLimit},
			"unknown family":                    {func(a *txn.Table) { a.Set("r", "g", "q", nil) }, txn.ErrSchema},
			"too many columns": {func(a *txn.Table) {
				for i := range 34_000 {
					a.Delete("r", "f", fmt.Sprint(i))
				}
			}, txn.ErrLimit},
		} {
			_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("a").Set("fine", "f", "q", nil)
				tt.write(tx.Table("a"))
				return nil
			})
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: error is %v; want %v", name, err, tt.want)
			}
		}
		if n := faults.Count(); n[txntest.StepPrewrite] != 0 {
			t.Errorf("invalid writes sent prewrites: %v", n)
		}
	})
}

// TestWideRow writes a row whose columns do not fit into the predicate of one prewrite. It
// reads the row back with more columns than the filter of one read may name.
func TestWideRow(t *testing.T) {
	long.RacedAtNight(t)
	env := txntest.New(t)
	env.CreateTable("a", "f")
	ctx := t.Context()
	const columns = 500
	var cols []txn.Column
	for i := range columns {
		cols = append(cols, txn.Column{Family: "f", Qualifier: fmt.Sprintf("%0100d", i)})
	}
	_, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for _, c := range cols {
			tx.Table("a").Set("r", "f", c.Qualifier, []byte(c.Qualifier))
		}
		tx.Table("a").Set("r2", "f", "", nil)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := env.Client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range [][]txn.ReadOption{nil, {txn.Columns(cols...)}, {txn.Families("f")}} {
		r, err := s.Table("a").ReadRow(ctx, "r", opts...)
		if err != nil || len(r["f"]) != columns {
			t.Errorf("read %d columns, error %v; want %d columns", len(r["f"]), err, columns)
		}
	}
	_, err = env.Client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		return tx.Table("a").DeleteRow(ctx, "r")
	})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = env.Client.Snapshot(ctx); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Table("a").ReadRow(ctx, "r"); err != nil || r != nil {
		t.Errorf("after DeleteRow the row is %v, error %v; want no row", r, err)
	}
}
