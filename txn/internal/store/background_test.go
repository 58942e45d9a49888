package store

import (
	"slices"
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
)

// TestBatches: a background request has as many rows and bytes as its limits allow, and
// no more. A row that exceeds them goes alone. Rows that failed go with their own transaction.
func TestBatches(t *testing.T) {
	rows := func(n, ops, nameBytes int) (muts []RowMutation) {
		for range n {
			muts = append(muts, RowMutation{Row: "r", Ops: ops, NameBytes: nameBytes})
		}
		return muts
	}
	of := func(starts ...tso.Timestamp) (muts []RowMutation) {
		for _, ts := range starts {
			muts = append(muts, RowMutation{Row: "r", Ops: 1, StartTS: ts})
		}
		return muts
	}
	one := rows(1, 1, 0)[0]
	fill := maxBatchBytes/4 - one.size() // four rows with so long names fill a batch
	for name, tt := range map[string]struct {
		pending []RowMutation
		retries bool
		want    []int
	}{
		"nothing":            {nil, false, nil},
		"most rows":          {rows(MaxBatchRows, 1, 0), false, []int{MaxBatchRows}},
		"more rows":          {rows(2*MaxBatchRows+1, 1, 0), false, []int{MaxBatchRows, MaxBatchRows, 1}},
		"most bytes":         {rows(4, 1, fill), false, []int{4}},
		"more bytes":         {rows(9, 1, fill+1), false, []int{3, 3, 3}},
		"too many bytes":     {rows(2, 1, maxBatchBytes), false, []int{1, 1}},
		"transactions":       {of(1, 2, 2, 3), false, []int{4}},
		"transactions again": {of(1, 2, 2, 3), true, []int{1, 2, 1}},
	} {
		l := &lane{pending: slices.Clone(tt.pending), retries: tt.retries}
		var got []int
		sent := 0
		for len(l.pending) > 0 {
			batch := l.nextBatch()
			for i := range batch {
				if batch[i].StartTS != tt.pending[sent+i].StartTS {
					t.Errorf("%s: row %d comes at another place", name, sent+i)
				}
			}
			sent += len(batch)
			if got = append(got, len(batch)); len(batch) == 0 {
				break
			}
		}
		if !slices.Equal(got, tt.want) || l.pending != nil || len(l.nextBatch()) != 0 {
			t.Errorf("%s: batches of %v rows, want %v", name, got, tt.want)
		}
	}
	if cells, bytes := sizeOf(rows(3, 2, 10)); cells != 6 || bytes != 3*rows(1, 2, 10)[0].size() {
		t.Errorf("three rows have %d changes and %d bytes", cells, bytes)
	}
}
