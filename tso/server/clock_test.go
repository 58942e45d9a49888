package server_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
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

// TestSuspendedMachine: the monotonic clock stood still while the machine was
// suspended; the wall clock shows that.
func TestSuspendedMachine(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		var off atomic.Int64
		c.Start("a", server.Config{Clock: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }})
		synctest.Wait()
		if r, err := c.One("a", tso.FormatVersion, 1); err != nil || r.NotLeader != nil {
			t.Fatal(r, err)
		}
		off.Store(int64(tsotest.Lease))
		if r, err := c.One("a", tso.FormatVersion, 1); err != nil || r.NotLeader == nil {
			t.Errorf("right after waking up: %v, %v", r, err)
		}
		synctest.Wait() // it renews; no other server took the lease
		if r, err := c.One("a", tso.FormatVersion, 1); err != nil || r.NotLeader != nil {
			t.Errorf("after renewing: %v, %v", r, err)
		}
	})
}

// TestSuspendedWhileRenewalUnknown: a renewal took effect, its answer was lost, and
// the machine was suspended before the repetition. The lease that the renewal
// wrote has expired by then.
func TestSuspendedWhileRenewalUnknown(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		var off atomic.Int64
		a := c.Start("a", server.Config{Clock: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }})
		synctest.Wait()
		for range 400 { // a load that brings oracle time ahead of the clock, so that waking up needs no stamp
			if r, err := c.One("a", tso.FormatVersion, tso.MaxCount); err != nil || r.NotLeader != nil {
				t.Fatal(r, err)
			}
			synctest.Wait()
		}
		var writes atomic.Int32
		c.E.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			if m != tsotest.CheckAndMutate {
				return call()
			}
			switch writes.Add(1) {
			case 1:
				_, _ = call()
				a.Cut.Store(true) // nor can the outcome be read
				return nil, status.Error(codes.Unavailable, "answer lost")
			case 2:
				return call() // does not match
			}
			return nil, status.Error(codes.Unavailable, "down")
		})
		for writes.Load() == 0 {
			tsotest.Advance(time.Millisecond)
		}
		synctest.Wait()                      // its outcome is unknown by now
		off.Store(int64(10 * tsotest.Lease)) // the monotonic clock stood still
		a.Cut.Store(false)
		for writes.Load() < 2 {
			tsotest.Advance(time.Millisecond)
		}
		for range 100 {
			if r, err := c.One("a", tso.FormatVersion, 1); err == nil && r.NotLeader == nil {
				t.Fatalf("answered %d ten leases after the last write that took effect", r.First)
			}
			tsotest.Advance(tsotest.Lease / 100)
		}
		c.E.On(nil)
	})
}

func TestServedClockBackAndForward(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		var off atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
		c.Start("a", server.Config{Clock: clock})
		client := c.Client(tso.ClientConfig{}, "a")
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), client)
		off.Store(int64(-time.Hour))
		for range 20 {
			h.Ask(t.Context(), client)
			tsotest.Advance(time.Second)
		}
		off.Store(0)
		h.Ask(t.Context(), client)
		off.Store(int64(time.Hour))
		for range 200 {
			h.Ask(t.Context(), client)
			tsotest.Advance(300 * time.Millisecond)
		}
		if ahead := h.Highest() - tsotest.Now(); ahead > tso.Timestamp(tsotest.Lease.Microseconds()) {
			t.Errorf("followed a wrong clock: %d µs ahead", ahead)
		}
		off.Store(0)
		tsotest.Advance(2 * tsotest.Lease)
		h.Ask(t.Context(), client)
		if h.Highest() > tsotest.Now() || h.Highest() < tsotest.Now()-1000 {
			t.Errorf("clock right again: %d at %d", h.Highest(), tsotest.Now())
		}
		if l := c.Status("a"); l.Terms != 1 {
			t.Errorf("%d terms", l.Terms)
		}
	})
}

// TestClockOfBigtableUnreadable: a server that cannot read Bigtable's clock does not lead, and says
// nothing about its own clock.
func TestClockOfBigtableUnreadable(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		tsotest.Advance(time.Hour) // the row lags by more than MaxStep
		var stamped, refused atomic.Int32
		c.E.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			switch {
			case m == tsotest.MutateRow:
				stamped.Add(1)
			case m == tsotest.ReadRows && stamped.Load() == refused.Load()+1 && refused.Load() < 3:
				refused.Add(1)
				return nil, status.Error(codes.PermissionDenied, "injected")
			}
			return call()
		})
		var log bytes.Buffer
		c.Start("a", server.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a"))
		c.E.On(nil)
		if refused.Load() != 3 || stamped.Load() != 4 || h.Highest() < tsotest.Now().Add(-time.Second) {
			t.Errorf("%d stamps, %d refused reads, then %d at %d", stamped.Load(), refused.Load(), h.Highest(), tsotest.Now())
		}
		if l := c.Status("a"); l.Terms != 1 || strings.Contains(log.String(), "differs") {
			t.Errorf("%d terms; log:\n%s", l.Terms, &log)
		}
	})
}
