package server_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// loseTakeover has the next CheckAndMutateRow land without an answer, and the
// read that would settle it fail. It returns how often each of these happened.
func loseTakeover(e *tsotest.Emulator) (writes, reads *atomic.Int32) {
	writes, reads = &atomic.Int32{}, &atomic.Int32{}
	e.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
		switch {
		case m == tsotest.CheckAndMutate && writes.Load() == 0:
			writes.Add(1)
			_, _ = call()
			return nil, status.Error(codes.Unavailable, "the answer is lost")
		case m == tsotest.ReadRows && writes.Load() == 1 && reads.Load() == 0:
			reads.Add(1)
			return nil, status.Error(codes.PermissionDenied, "no")
		}
		return call()
	})
	return writes, reads
}

// TestTakeoverFoundLater: a takeover took effect, and neither its answer nor the
// read after it came back. The server finds later that the lease is its own.
func TestTakeoverFoundLater(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		// The first leader's clock is ahead, so that the limit before counts.
		a := c.Start("a", server.Config{Clock: func() time.Time { return time.Now().Add(30 * time.Second) }})
		synctest.Wait()
		h := tsotest.NewHistory(t)
		for range 100 {
			h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a"))
		}
		a.Stop()
		<-a.Ended
		before := c.E.State()
		if before.Limit < h.Highest() || !before.Released {
			t.Fatalf("%+v", before)
		}
		writes, reads := loseTakeover(c.E)
		start := time.Now()
		c.Start("b", server.Config{})
		client := c.Client(tso.ClientConfig{}, "b")
		h.Ask(t.Context(), client)
		if d := time.Since(start); d > tsotest.Lease/2 {
			t.Errorf("led after %s", d)
		}
		if writes.Load() != 1 || reads.Load() != 1 {
			t.Fatalf("the faults fired %d and %d times", writes.Load(), reads.Load())
		}
		if s := c.E.State(); s.Epoch != before.Epoch+1 || s.Leader != "b" {
			t.Errorf("%+v after %+v", s, before)
		}
		tsotest.Advance(2 * tsotest.Lease)
		h.Ask(t.Context(), client)
		if r := c.Status("b"); !r.Leading || r.Terms != 1 {
			t.Errorf("%v", r)
		}
	})
}

// TestTakeoverFoundTooLate: while the process could not read the row, another
// watched its lease for the full length, and leads.
func TestTakeoverFoundTooLate(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		writes, _ := loseTakeover(c.E)
		a := c.Start("a", server.Config{})
		for writes.Load() == 0 {
			tsotest.Advance(time.Millisecond)
		}
		a.CutOff() // reads; writes cannot be without one before
		b := c.Start("b", server.Config{})
		h := tsotest.NewHistory(t)
		start := time.Now()
		h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "b"))
		if d := time.Since(start); d < tsotest.Lease {
			t.Errorf("b led after %s, within the lease of a", d)
		}
		a.Cut.Store(false)
		for range 20 {
			tsotest.Advance(tsotest.Lease / 10)
			h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a", "b"))
		}
		if c.Status("a").Leading || !c.Status("b").Leading {
			t.Error("a leads")
		}
		b.Stop()
		<-b.Ended
		h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a"))
	})
}

// TestTakeoverFoundLaterCountsFromSending: another candidate counts from when the
// takeover took effect.
func TestTakeoverFoundLaterCountsFromSending(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		writes, _ := loseTakeover(c.E)
		a := c.Start("a", server.Config{})
		for writes.Load() == 0 {
			tsotest.Advance(time.Millisecond)
		}
		a.CutOff()
		tsotest.Advance(tsotest.Lease * 95 / 100)
		var refused atomic.Int32
		c.E.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			if m == tsotest.CheckAndMutate {
				refused.Add(1)
				return nil, status.Error(codes.Unavailable, "cut off")
			}
			return call()
		})
		a.Cut.Store(false)
		for range 30 {
			tsotest.Advance(tsotest.Lease / 30)
			if c.Status("a").Leading {
				t.Fatal("it leads by a lease that another server has seen unchanged for its length")
			}
		}
		if r := c.Status("a"); r.Epoch != 2 || refused.Load() == 0 {
			t.Errorf("it did not find its lease, or did not renew it: %v, %d", r, refused.Load())
		}
		c.E.On(nil)
		tsotest.Advance(tsotest.Lease)
		if r := c.Status("a"); !r.Leading || r.Epoch != 2 {
			t.Errorf("the term does not continue: %v", r)
		}
	})
}
