package tso_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
)

// loseTakeover has the next CheckAndMutateRow land without an answer, and the
// read that would settle it fail. It returns how often each of these happened.
func loseTakeover(e *emulator) (writes, reads *atomic.Int32) {
	writes, reads = &atomic.Int32{}, &atomic.Int32{}
	e.on(func(_ context.Context, m string, call func() (any, error)) (any, error) {
		switch {
		case m == cam && writes.Load() == 0:
			writes.Add(1)
			_, _ = call()
			return nil, status.Error(codes.Unavailable, "the answer is lost")
		case m == read && writes.Load() == 1 && reads.Load() == 0:
			reads.Add(1)
			return nil, status.Error(codes.PermissionDenied, "no")
		}
		return call()
	})
	return writes, reads
}

// TestTakeoverFoundLater: a takeover landed, and neither its answer nor the
// read after it came back. The lease in the row is known as its own.
func TestTakeoverFoundLater(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		// The first leader's clock is ahead, so that the limit before counts.
		a := c.start("a", tso.ServerConfig{Clock: func() time.Time { return time.Now().Add(30 * time.Second) }})
		synctest.Wait()
		h := newHistory(t)
		for range 100 {
			h.ask(t.Context(), c.client(tso.ClientConfig{}, "a"))
		}
		a.stop()
		<-a.ended
		before := c.e.state()
		if before.Limit < h.highest() || !before.Released {
			t.Fatalf("%+v", before)
		}
		writes, reads := loseTakeover(c.e)
		start := time.Now()
		c.start("b", tso.ServerConfig{})
		client := c.client(tso.ClientConfig{}, "b")
		h.ask(t.Context(), client)
		if d := time.Since(start); d > lease/2 {
			t.Errorf("led after %s", d)
		}
		if writes.Load() != 1 || reads.Load() != 1 {
			t.Fatalf("the faults fired %d and %d times", writes.Load(), reads.Load())
		}
		if s := c.e.state(); s.Epoch != before.Epoch+1 || s.Leader != "b" {
			t.Errorf("%+v after %+v", s, before)
		}
		advance(2 * lease)
		h.ask(t.Context(), client)
		if r := c.status("b"); !r.Leading || r.Terms != 1 {
			t.Errorf("%v", r)
		}
	})
}

// TestTakeoverFoundTooLate: while the process could not read the row, another
// watched its lease for the full length, and leads.
func TestTakeoverFoundTooLate(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		writes, _ := loseTakeover(c.e)
		a := c.start("a", tso.ServerConfig{})
		for writes.Load() == 0 {
			advance(time.Millisecond)
		}
		a.cut.Store(true) // reads; writes cannot be without one before
		b := c.start("b", tso.ServerConfig{})
		h := newHistory(t)
		start := time.Now()
		h.ask(t.Context(), c.client(tso.ClientConfig{}, "b"))
		if d := time.Since(start); d < lease {
			t.Errorf("b led after %s, within the lease of a", d)
		}
		a.cut.Store(false)
		for range 20 {
			advance(lease / 10)
			h.ask(t.Context(), c.client(tso.ClientConfig{}, "a", "b"))
		}
		if c.status("a").Leading || !c.status("b").Leading {
			t.Error("a leads")
		}
		b.stop()
		<-b.ended
		h.ask(t.Context(), c.client(tso.ClientConfig{}, "a"))
	})
}

// TestTakeoverFoundLaterCountsFromSending: others count from when it landed.
func TestTakeoverFoundLaterCountsFromSending(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		writes, _ := loseTakeover(c.e)
		a := c.start("a", tso.ServerConfig{})
		for writes.Load() == 0 {
			advance(time.Millisecond)
		}
		a.cut.Store(true)
		advance(lease * 95 / 100)
		var refused atomic.Int32
		c.e.on(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			if m == cam {
				refused.Add(1)
				return nil, status.Error(codes.Unavailable, "cut off")
			}
			return call()
		})
		a.cut.Store(false)
		for range 30 {
			advance(lease / 30)
			if c.status("a").Leading {
				t.Fatal("it leads by a lease that others have seen unchanged for its length")
			}
		}
		if r := c.status("a"); r.Epoch != 2 || refused.Load() == 0 {
			t.Errorf("it did not find its lease, or did not renew it: %v, %d", r, refused.Load())
		}
		c.e.on(nil)
		advance(lease)
		if r := c.status("a"); !r.Leading || r.Epoch != 2 {
			t.Errorf("the term does not go on: %v", r)
		}
	})
}
