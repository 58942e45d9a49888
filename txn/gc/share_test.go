package gc

import (
	"testing"

	"golang.org/x/time/rate"

	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// The collectors of a run share its rate, and each keeps to its own as well.
func TestRateIsShared(t *testing.T) {
	for _, tt := range []struct {
		all, own   float64
		collectors int
		want       rate.Limit
	}{
		{0, 0, 3, rate.Inf},
		{8000, 0, 1, 8000},
		{8000, 8000, 4, 2000},
		{8000, 1000, 4, 1000},
		{0, 6000, 2, 6000},
	} {
		r := &run{cfg: Config{Rate: tt.own}, state: &recordpb.GarbageRun{Rate: tt.all}}
		r.setStreams(tt.all)
		r.setRate(tt.collectors)
		if got := r.limiter.Limit(); got != tt.want {
			t.Errorf("%+v: %v rows a second", tt, got)
		}
	}
}

// Parts leave out no row of any table, and share none.
func TestPartsCoverEverything(t *testing.T) {
	parts := partsFrom([]position{{"", ""}, {"b", ""}, {"b", "m"}, {"d", "k"}}, position{})
	for _, table := range []string{"a", "b", "c", "d", "e"} {
		for _, row := range []string{"", "a", "k", "l", "m", "z"} {
			n := 0
			for _, p := range parts {
				w := &work{part: p, at: position{p.Table, string(p.Row)}}
				if rows := w.rows(table); !rows.Empty() && (rows.Contains(row) || row == "" && rows.Ranges[0] == store.KeyRange{}) {
					n++
				}
			}
			if n != 1 {
				t.Errorf("row %q of table %s is in %d parts", row, table, n)
			}
		}
	}
}
