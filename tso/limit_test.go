package tso_test

import (
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/tso"
)

// TestNothingAboveTheLimit uses up the range that a leader has reserved while it
// is cut off from the row: it hands out nothing above the limit in the row, which
// is where the next leader begins.
func TestNothingAboveTheLimit(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		h := newHistory(t)
		h.ask(t.Context(), c.client(tso.ClientConfig{}, "a"))
		synctest.Wait()
		a.cut.Store(true)
		limit := c.e.state().Limit
		answered, refused := 0, false
		for range 200 { // twenty million: more than a lease's length in microseconds
			r, err := c.one("a", tso.FormatVersion, tso.MaxCount)
			if err != nil || r.NotLeader != nil {
				refused = true
				break
			}
			answered++
			if last := tso.Timestamp(r.First) + tso.Timestamp(r.Count) - 1; last > limit {
				t.Fatalf("handed out %d, above the limit in the row, %d", last, limit)
			}
		}
		if answered == 0 || !refused {
			t.Errorf("%d answers, refused in the end: %v", answered, refused)
		}
		a.cut.Store(false)
		if now := c.e.state().Limit; now < limit {
			t.Errorf("limit %d, was %d", now, limit)
		}
	})
}
