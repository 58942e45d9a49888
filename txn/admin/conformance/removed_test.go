package conformance_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestRemovedCells: where a request takes 5 ms and each removed cell of its row 0.45 µs more, the
// report says so, and what it means for a hot cell. The fastest service has no cost, and no limit.
func TestRemovedCells(t *testing.T) {
	long.RacedAtNight(t)
	near := func(got, want float64) bool { return math.Abs(got-want) <= want/100 }
	for _, c := range []struct {
		removed         time.Duration
		perCell         float64
		readNow, commit float64
		verdict         conformance.Verdict
	}{
		{450 * time.Nanosecond, 0.45, 50, 1000. / 150, conformance.SafeWithLimits},
		{0, 0, 5, 1000. / 15, conformance.Safe},
	} {
		t.Run(c.removed.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, front.Options(removedCost(5*time.Millisecond, c.removed), strict.Front(strict.Config{}))...)
				r, err := conformance.Run(t.Context(), s.bt, s.admin, conformance.Config{Only: []string{"removed-cells"}})
				if err != nil {
					t.Fatal(err)
				}
				m := r.RemovedCells
				if m == nil || m.Pairs != 100_000 || !near(m.PerCell, c.perCell) || !near(m.Read, 5) || !near(m.ReadNow, c.readNow) || !near(m.Commits, 1000./15) || !near(m.CommitsWith, c.commit) {
					t.Errorf("measured %+v", m)
				}
				if r.Verdict != c.verdict {
					t.Errorf("the verdict is %s: %s", r.Verdict, r.Results[1].Detail)
				}
			})
		})
	}
}
