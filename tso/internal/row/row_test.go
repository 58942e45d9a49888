package row

import (
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// TestNameThatCannotBeStored: a state that has no encoding is not sent; here nothing could be.
func TestNameThatCannotBeStored(t *testing.T) {
	r := Open(aRow{}, "", "", 0)
	state := &tsopb.ServedState{Limit: 1e15, Leader: "\xff"}
	for name, call := range map[string]func() (bool, error){
		"swap":      func() (bool, error) { return r.Swap(t.Context(), format.Lease{}, format.Lease{Epoch: 1}, state) },
		"to served": func() (bool, error) { return r.ToServed(t.Context(), 1, format.Lease{}, format.Lease{Epoch: 1}, state) },
		"to direct": func() (bool, error) {
			return r.ToDirect(t.Context(), format.Lease{}, format.Lease{Epoch: 1}, state, 1e15)
		},
	} {
		if ok, err := call(); ok || err == nil || !strings.Contains(err.Error(), "encoding the state") {
			t.Errorf("%s: %t, %v", name, ok, err)
		}
	}
}
