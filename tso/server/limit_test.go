package server_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
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
		a.CutOff()
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

// TestLastTimestamp: near the largest timestamp a leader hands out what is left, and then
// says that nothing is. So does the next leader.
func TestLastTimestamp(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		e.PutInt(int64(tso.Max - 2))
		e.SetMode(tso.ModeServed)
		c := tsotest.NewCluster(e)
		a := c.Start("a", server.Config{})
		synctest.Wait()
		refused := func(name string, count uint32) {
			t.Helper()
			r, err := c.One(name, tso.FormatVersion, count)
			if err != nil || r.NotLeader == nil || r.NotLeader.Trouble != tsopb.Trouble_TROUBLE_EXHAUSTED {
				t.Errorf("%s, asked for %d: %v, %v", name, count, r, err)
			}
			if limit := e.State().Limit; limit != tso.Max {
				t.Errorf("%s: limit %d", name, limit)
			}
		}
		for left := tso.Timestamp(2); left > 0; left-- {
			refused("a", uint32(left)+1)
			r, err := c.One("a", tso.FormatVersion, 1)
			if err != nil || r.NotLeader != nil || tso.Timestamp(r.First) != tso.Max-left+1 {
				t.Fatalf("%v, %v; want %d", r, err, tso.Max-left+1)
			}
		}
		refused("a", 1)
		tsotest.Advance(2 * tsotest.Lease) // renewed
		refused("a", 1)
		a.Stop()
		<-a.Ended
		b := c.Start("b", server.Config{})
		synctest.Wait()
		refused("b", 1)
		if _, err := c.Client(tso.ClientConfig{}, b.Name).Timestamp(t.Context()); !errors.Is(err, tso.ErrExhausted) {
			t.Errorf("client: %v", err)
		}
	})
}

// TestReservesAheadUnderLoad: a leader under load reserves more than a lease of timestamps, so
// that callers do not wait for it.
func TestReservesAheadUnderLoad(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		high := c.Rush("a", 60) // at once
		if ahead := c.E.State().Limit - high; ahead < 6e6 {
			t.Errorf("reserved %d ahead", ahead)
		}
	})
}
