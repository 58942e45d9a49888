package emulator_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Read ahead together were a value from before the adoption, a committed one, and
// one that has to be read elsewhere. The first two were not in order then, the
// binary search missed the first, and the cache said that it is absent; closed by
// putting them in order (reads.keep).
func TestPrefetchOfDataFromBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		plain := bigtable.NewMutation()
		plain.Set("f", "b", bigtable.Now(), []byte("plain"))
		if err := s.env.Bigtable.Open("a").Apply(t.Context(), "adopted", plain); err != nil {
			t.Fatal(err)
		}
		putColumns(t, s.env.Client, "adopted", "1", "a", "c", "d")
		for range 8 {
			s.read(begin(t, s.c, txn.Named(page)), "row0", "a", "b", "c", "d")
		}
		// Its data is newer than the reader's timestamp allows to be seen.
		late := begin(t, s.env.Client)
		late.Table("a").Set("adopted", "f", "d", []byte("2"))
		reader := begin(t, s.c, txn.Named(page))
		if _, err := late.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.faults.Reset()
		s.want(s.read(reader, "adopted", "a", "b", "c", "d"), "[1 plain 1 1]")
		s.reads(3) // b and c are read along, d elsewhere
	})
}

// putColumns commits a value in columns of f of a row of table a.
func putColumns(t *testing.T, c *txn.Client, row, value string, columns ...string) {
	t.Helper()
	tx := begin(t, c)
	for _, q := range columns {
		tx.Table("a").Set(row, "f", q, []byte(value))
	}
	if _, err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Where the name of the column that was asked for is long, reading others along made
// the filter too large, and all of the row's families were read in place of two
// columns; closed by reading nothing along then (View.readCell).
func TestPrefetchNeverReadsWholeFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		long, next := strings.Repeat("l", 2200), strings.Repeat("n", 900)
		for i := range 6 {
			s.faults.Reset()
			s.read(begin(t, s.c, txn.Named("long")), fmt.Sprintf("row%d", i), long, next)
			for _, call := range s.faults.Calls() {
				r, ok := call.Request.(*btpb.ReadRowsRequest)
				if !ok || call.Step != txntest.StepRead {
					continue
				}
				if f := r.GetFilter().String(); !strings.Contains(f, long) && !strings.Contains(f, next) {
					t.Errorf("row %d: a read that names no column: %s", i, f)
				}
			}
		}
	})
}
