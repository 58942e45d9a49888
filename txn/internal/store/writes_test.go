package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestRowWritesLimits: a row commits as many columns and bytes as Bigtable allows, and no more.
func TestRowWritesLimits(t *testing.T) {
	row := func(columns, size int) *RowWrites {
		r := &RowWrites{Table: &Table{Name: "t"}, Row: "r"}
		for range columns {
			r.Writes = append(r.Writes, &Write{Cell: format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "qq"}, Value: make([]byte, size)})
		}
		return r
	}
	for name, tt := range map[string]struct {
		r    *RowWrites
		want error
	}{
		"most columns": {row(format.MaxMutations/3, 0), nil},
		"more columns": {row(format.MaxMutations/3+1, 0), format.ErrLimit},
		"most bytes":   {row(256, 1<<20-4), nil},
		"more bytes":   {row(256, 1<<20-3), format.ErrLimit},
	} {
		if err := tt.r.Check(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	r := row(2, 9)
	if got := r.NameBytes(format.Cell{Row: "primary", Qualifier: "p"}); got != 2*8+2*3*3 {
		t.Errorf("the names have %d bytes", got)
	}
	for cell, want := range map[format.Cell]bool{{Table: "t", Row: "r", Qualifier: "x"}: true, {Table: "u", Row: "r"}: false, {Table: "t", Row: "s"}: false} {
		if r.IsRowOf(cell) != want {
			t.Errorf("%+v is in the row: %t", cell, !want)
		}
	}
}

// TestRowWritesSplit: each part of a row's writes fits into one filter, the next column would not,
// and no column is lost.
func TestRowWritesSplit(t *testing.T) {
	for _, n := range []int{1, 2, 10, 100, 500} {
		for _, length := range []int{1, 100, format.MaxColumnKey - 2} {
			r := &RowWrites{Table: &Table{Name: "t"}, Row: "r"}
			for i := range n {
				r.Writes = append(r.Writes, &Write{Cell: format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: fmt.Sprintf("%0*d", length, i)}})
			}
			i, previous := 0, FilterBudget
			for _, part := range r.Split() {
				cost := 0
				for k, w := range part.Writes {
					if i >= n || w != r.Writes[i] || part.Table != r.Table || part.Row != r.Row {
						t.Fatalf("%d columns of %d bytes: column %d is another", n, length, i)
					}
					c := PrewriteCost(w.Cell.Column())
					if cost += c; k == 0 && previous+c <= FilterBudget {
						t.Errorf("%d columns of %d bytes: column %d had room before", n, length, i)
					}
					i++
				}
				if cost > FilterBudget {
					t.Errorf("%d columns of %d bytes: a part costs %d", n, length, cost)
				}
				previous = cost
			}
			if i != n {
				t.Errorf("%d columns of %d bytes: %d are in parts", n, length, i)
			}
		}
	}
	if cost := PrewriteCost(format.Column{Family: "f", Qualifier: strings.Repeat("q", format.MaxColumnKey-2)}); cost > FilterBudget {
		t.Errorf("the longest column costs %d", cost)
	}
}
