package store

import (
	"slices"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestReadFamilies: a read of a whole row names the user's families only in a table with observers,
// whose other families may hold much.
func TestReadFamilies(t *testing.T) {
	s := &Schema{Families: []string{"f", format.AckFamily, "g"}}
	if got := s.ReadFamilies(); got != nil {
		t.Errorf("without observers: %q", got)
	}
	s.Observed = map[format.Column]Registration{{Family: "f"}: {}}
	if got := s.ReadFamilies(); !slices.Equal(got, []string{"f", "g"}) {
		t.Errorf("with observers: %q", got)
	}
}
