package emulator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// qualifiers returns the qualifiers of a row, joined.
func qualifiers(row bigtable.Row) string {
	var all []string
	for _, items := range row {
		for _, item := range items {
			all = append(all, strings.TrimPrefix(item.Column, "f:"))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// manyQualifiers writes f:000 to f:199 of row r in table a, and deletes the first n of them.
func manyQualifiers(t *testing.T, env *txntest.Env, n int) {
	t.Helper()
	update(t, env, "a", func(tbl *txn.Table) {
		for i := range 200 {
			tbl.Set("r", "f", fmt.Sprintf("%03d", i), []byte("v"))
		}
	})
	update(t, env, "a", func(tbl *txn.Table) {
		for i := range n {
			tbl.Delete("r", "f", fmt.Sprintf("%03d", i))
		}
	})
}

// TestFirstCellsRoundTrips counts the requests for the first cells of a wide row: one, unless more
// than 16 columns before them are deleted. Each further request returns four times as many
// columns more.
func TestFirstCellsRoundTrips(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for _, tt := range []struct {
		cells, deleted, requests int
		want                     string
	}{
		{1, 16, 1, "016"},
		{1, 17, 2, "017"},
		{3, 0, 1, "000 001 002"},
		{3, 16, 1, "016 017 018"},
		{3, 17, 2, "017 018 019"},
		{3, 83, 2, "083 084 085"}, // 3+16 columns, then 3+64 more
		{3, 84, 3, "084 085 086"},
		{3, 150, 3, "150 151 152"},
		{3, 199, 3, "199"},
		{3, 200, 3, ""},
	} {
		t.Run(fmt.Sprintf("%d cells, %d deleted", tt.cells, tt.deleted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
				manyQualifiers(t, env, tt.deleted)
				v := takeSnapshot(t, c).Table("a")
				for name, read := range map[string]func(...txn.ReadOption) (bigtable.Row, error){
					"row": func(opts ...txn.ReadOption) (bigtable.Row, error) { return v.ReadRow(t.Context(), "r", opts...) },
					"scan": func(opts ...txn.ReadOption) (first bigtable.Row, err error) {
						for row, err := range v.ReadRows(t.Context(), bigtable.RowList{"r"}, opts...) {
							if err != nil {
								return nil, err
							}
							first = row
						}
						return first, nil
					},
				} {
					faults.Reset()
					row, err := read(txn.Families("f"), txn.CellsPerRow(tt.cells))
					if got := qualifiers(row); err != nil || got != tt.want {
						t.Errorf("%s: %q, %v; want %q", name, got, err, tt.want)
					}
					if n := faults.Count(); n[txntest.StepRead] != tt.requests || len(n) > 1 {
						t.Errorf("%s: %v; want %d reads", name, n, tt.requests)
					}
				}
			})
		})
	}
}

// A read of the first cells waits for no lock far beyond them, and for each one before them. An
// expired lock is resolved, and what its transaction had deleted stays.
func TestFirstCellsBesideLocks(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	for _, tt := range []struct {
		locked, start, want string
		waits               bool
	}{
		{"001", "", "000 001", true},
		{"001", "001", "001 002", true}, // the first column of the range
		{"001", "002", "002 003", false},
		{"150", "", "000 001", false},
	} {
		t.Run(tt.locked+" from "+tt.start, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
				manyQualifiers(t, env, 0)
				dying := txntest.NewFaults(t)
				rule := dying.OnStep(txntest.StepCommit, txntest.Crash)
				victim := env.NewClient(txn.Config{TokenTTL: -1}, dying.DialOptions()...)
				ctx, cancel := context.WithCancel(t.Context())
				tx := begin(t, victim)
				tx.Table("a").Delete("r", "f", tt.locked)
				ended := commitInBackground(ctx, tx)
				<-rule.Fired()
				cancel()
				<-ended
				began := time.Now()
				row, err := takeSnapshot(t, c).Table("a").ReadRow(t.Context(), "r", txn.Qualifiers("f", tt.start, ""), txn.CellsPerRow(2))
				if got := qualifiers(row); err != nil || got != tt.want {
					t.Errorf("%q, %v", got, err)
				}
				if waited := time.Since(began) > time.Second; waited != tt.waits {
					t.Errorf("the read took %v; waited for the lock: %v, want %v", time.Since(began), waited, tt.waits)
				}
			})
		})
	}
}

// In a transaction, the first cells are those of the row with the transaction's own writes: its
// deletes bring in further cells, its new columns push others out.
func TestFirstCellsOfOwnWrites(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	manyQualifiers(t, env, 10)
	tx := begin(t, env.Client)
	defer tx.Rollback()
	tbl := tx.Table("a")
	for i := 10; i < 40; i++ {
		if i != 20 {
			tbl.Delete("r", "f", fmt.Sprintf("%03d", i))
		}
	}
	tbl.Set("r", "f", "041b", []byte("own"))
	tbl.Set("r", "f", "199b", []byte("own"))
	tbl.Set("new", "f", "b", []byte("own"))
	tbl.Set("new", "f", "a", []byte("own"))
	for _, tt := range []struct {
		opts      []txn.ReadOption
		r, wasNew string
	}{
		{[]txn.ReadOption{txn.Families("f"), txn.CellsPerRow(1)}, "020", "a"},
		{[]txn.ReadOption{txn.Families("f"), txn.CellsPerRow(4)}, "020 040 041 041b", "a b"},
		{[]txn.ReadOption{txn.CellsPerRow(4)}, "020 040 041 041b", "a b"},
		{[]txn.ReadOption{txn.Qualifiers("f", "041", ""), txn.CellsPerRow(2), txn.KeysOnly()}, "041 041b", "a b"},
		{[]txn.ReadOption{txn.Qualifiers("f", "199", txn.PrefixEnd("199"))}, "199 199b", ""},
	} {
		row, err := tbl.ReadRow(t.Context(), "r", tt.opts...)
		if got := qualifiers(row); err != nil || got != tt.r {
			t.Errorf("row r: %q, %v; want %q", got, err, tt.r)
		}
		got := map[string]string{}
		for row, err := range tbl.ReadRows(t.Context(), nil, tt.opts...) {
			if err != nil {
				t.Fatal(err)
			}
			got[row.Key()] = qualifiers(row)
		}
		if got["r"] != tt.r || got["new"] != tt.wasNew {
			t.Errorf("scan: %v; want %q and %q", got, tt.r, tt.wasNew)
		}
	}
}
