package txn

import (
	"errors"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
)

// TestReadOptions: an option that names nothing is refused, also beside one that does. No limit is one.
func TestReadOptions(t *testing.T) {
	some := Columns(Column{Family: "f", Qualifier: "q"})
	for name, tt := range map[string]struct {
		opts []ReadOption
		want error
	}{
		"none":                      {nil, nil},
		"a column":                  {[]ReadOption{some}, nil},
		"no column, then one":       {[]ReadOption{Columns(), some}, format.ErrInvalid},
		"a column, then none":       {[]ReadOption{some, Columns()}, format.ErrInvalid},
		"no family, then one":       {[]ReadOption{Families(), Families("f")}, format.ErrInvalid},
		"no family, then a column":  {[]ReadOption{Families(), some}, format.ErrInvalid},
		"no column, then a family":  {[]ReadOption{Columns(), Families("f")}, format.ErrInvalid},
		"all cells, all rows":       {[]ReadOption{CellsPerRow(0), Limit(0)}, nil},
		"less than no cell":         {[]ReadOption{CellsPerRow(-1)}, format.ErrInvalid},
		"less than no row":          {[]ReadOption{Limit(-1)}, format.ErrInvalid},
		"qualifiers":                {[]ReadOption{Qualifiers("f", "a", "b")}, nil},
		"qualifiers without an end": {[]ReadOption{Qualifiers("f", "a", "")}, nil},
		"no qualifiers":             {[]ReadOption{Qualifiers("f", "a", "a")}, format.ErrInvalid},
		"qualifiers of no family":   {[]ReadOption{Qualifiers("", "a", "b")}, format.ErrInvalid},
	} {
		if _, err := newReadOptions(tt.opts); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// TestCausedBy: a transaction that several runs caused is as far from the first one as the farthest.
func TestCausedBy(t *testing.T) {
	tx := &Txn{}
	for _, hops := range []int{2, 5, 3} {
		access.TransactionOf(tx).CausedBy(hops)
	}
	if tx.hops != 5 {
		t.Errorf("%d hops, want 5", tx.hops)
	}
}
