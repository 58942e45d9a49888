package server_test

import (
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
)

// TestNothingAboveTheLimit uses up the range that a leader has reserved while it
// is cut off from the row: it hands out nothing above the limit in the row, which
// is where the next leader begins.
func TestNothingAboveTheLimit(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a"))
		synctest.Wait()
		a.Cut.Store(true)
		limit := c.E.State().Limit
		answered, refused := 0, false
		for range 200 { // twenty million: more than a lease's length in microseconds
			r, err := c.One("a", tso.FormatVersion, tso.MaxCount)
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
		a.Cut.Store(false)
		if now := c.E.State().Limit; now < limit {
			t.Errorf("limit %d, was %d", now, limit)
		}
	})
}
