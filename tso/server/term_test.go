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

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
)

// TestLeaseOfAnotherMode: an operator put the row into direct mode and back. A candidate watches the lease
// from then on, for its whole length.
func TestLeaseOfAnotherMode(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		standsBy(e, 3*time.Second, false)
		c := tsotest.NewCluster(e)
		c.Start("a", server.Config{})
		tsotest.Advance(2 * time.Second)
		e.PutInt(int64(tsotest.Now()))
		tsotest.Advance(2 * time.Second)
		e.Put([]byte("served"))
		tsotest.Advance(3*time.Second - 1)
		if s := c.Status("a"); s.Leading {
			t.Errorf("took over within the lease: %v", s)
		}
		tsotest.Advance(tsotest.Lease / 10)
		synctest.Wait()
		if s := c.Status("a"); !s.Leading || s.Epoch != 3 {
			t.Errorf("%v", s)
		}
	})
}

// TestLeaseOfAnEarlierTerm: a leader gave up because it may not read the row, which has its lease. It is a
// candidate like others, and watches that lease for its length.
func TestLeaseOfAnEarlierTerm(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		var writes, reads atomic.Int32
		c.E.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
			if method == tsotest.CheckAndMutate && writes.Add(1) == 1 {
				_, _ = call()
				return nil, errLater
			}
			if method == tsotest.ReadRows && reads.Add(1) == 1 {
				return nil, status.Error(codes.PermissionDenied, "injected")
			}
			return call()
		})
		tsotest.Advance(tsotest.Lease / 3)
		synctest.Wait()
		if s := c.Status("a"); writes.Load() != 1 || s.Leading {
			t.Errorf("after %d writes: %v", writes.Load(), s)
		}
		tsotest.Advance(tsotest.Lease - 1)
		if s := c.Status("a"); s.Leading || s.Epoch != 2 {
			t.Errorf("within the lease: %v", s)
		}
		tsotest.Advance(tsotest.Lease / 10)
		c.E.On(nil)
		if s := c.Status("a"); !s.Leading || s.Epoch != 3 || s.Terms != 2 {
			t.Errorf("after the lease: %v", s)
		}
	})
}

// TestStopWhileReading: a candidate that is stopped sends nothing more, and warns of nothing.
func TestStopWhileReading(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		g := tsotest.NewGate(tsotest.ReadRows, false)
		c.E.On(g.Hook)
		var log bytes.Buffer
		a := c.Start("a", server.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		<-g.Held
		c.E.On(nil)
		c.E.Counted()
		a.Stop()
		<-a.Ended
		c.E.Expect("")
		if strings.Contains(log.String(), "level=WARN") {
			t.Error(&log)
		}
		close(g.Open)
	})
}

// TestStopDuringTakeoverWithoutEffect: the server was stopped before the answer to its takeover. The row does
// not have its lease, or is in another mode, or cannot be read: it leads nothing, and writes nothing more.
func TestStopDuringTakeoverWithoutEffect(t *testing.T) {
	for _, tt := range []struct {
		name      string
		applied   bool
		then      func(e *tsotest.Emulator)
		readFails bool
		mode      tso.Mode
		epoch     uint64
	}{
		{"lost", false, nil, false, tso.ModeServed, 1},
		{"put into direct mode", true, func(e *tsotest.Emulator) { e.PutInt(int64(tsotest.Now())) }, false, tso.ModeDirect, 2},
		{"not readable", true, nil, true, tso.ModeServed, 2},
	} {
		tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
			var log bytes.Buffer
			g := tsotest.NewGate(tsotest.CheckAndMutate, tt.applied)
			c.E.On(g.Hook)
			a := c.Start("a", server.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			<-g.Held
			if tt.then != nil {
				c.E.On(nil)
				tt.then(c.E)
			}
			c.E.Counted()
			c.E.On(func(_ context.Context, _ string, call func() (any, error)) (any, error) {
				if tt.readFails {
					return nil, status.Error(codes.PermissionDenied, "injected")
				}
				return call()
			})
			a.Stop()
			<-a.Ended
			c.E.Expect("ReadRows:1")
			c.E.On(nil)
			if s := c.E.State(); s.Mode != tt.mode || s.Epoch != tt.epoch || strings.Contains(log.String(), "leading") {
				t.Errorf("%s: %+v; log:\n%s", tt.name, s, &log)
			}
		})
	}
}

// TestLeaderWithoutBigtablesClock: a leader whose clock is far ahead does not renew until it has compared
// clocks, and then follows Bigtable's.
func TestLeaderWithoutBigtablesClock(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		var off atomic.Int64
		c.Start("a", server.Config{Clock: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }})
		synctest.Wait()
		limit := c.E.State().Limit
		off.Store(int64(time.Hour))
		tsotest.Advance(tsotest.Lease / 3) // a stamp that is old later
		synctest.Wait()
		var stamps, writes atomic.Int32
		c.E.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
			switch method {
			case tsotest.MutateRow:
				stamps.Add(1)
				return nil, errLater
			case tsotest.CheckAndMutate:
				writes.Add(1)
			}
			return call()
		})
		tsotest.Advance(2 * tsotest.Lease)
		c.E.On(nil)
		if s := c.Status("a"); stamps.Load() < 3 || writes.Load() != 0 || s.Leading {
			t.Errorf("%d stamps, %d writes: %v", stamps.Load(), writes.Load(), s)
		}
		tsotest.Advance(tsotest.Lease)
		if s := c.E.State(); s.Limit <= limit || s.Limit > tsotest.Now().Add(tsotest.Lease) {
			t.Errorf("the limit is %d, %d ahead", s.Limit, s.Limit-tsotest.Now())
		}
	})
}

// TestRateOfLeader: the rate is that of the last interval.
func TestRateOfLeader(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		tsotest.Advance(tsotest.Lease / 6)
		c.Rush("a", 2)
		for i, want := range []float64{2 * tso.MaxCount / (tsotest.Lease / 3).Seconds(), 0} {
			tsotest.Advance(tsotest.Lease / 3)
			if s := c.Status("a"); s.Rate != want {
				t.Errorf("after interval %d: %v a second, want %v", i, s.Rate, want)
			}
		}
	})
}

// TestReleaseAfterUnknownRenewal: the server was stopped while it did not know whether its renewal took
// effect, which it did. The lease in the row is released.
func TestReleaseAfterUnknownRenewal(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		var writes, reads atomic.Int32
		c.E.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
			switch {
			case method == tsotest.CheckAndMutate && writes.Add(1) == 1:
				_, _ = call()
				return nil, errLater
			case method == tsotest.ReadRows && reads.Add(1) == 1:
				return nil, errLater
			}
			return call()
		})
		tsotest.Advance(tsotest.Lease / 3)
		synctest.Wait()
		a.Stop()
		<-a.Ended
		c.E.On(nil)
		if s := c.E.State(); !s.Released || s.Epoch != 2 || writes.Load() != 3 || reads.Load() != 2 {
			t.Errorf("%d writes, %d reads: %+v", writes.Load(), reads.Load(), s)
		}
	})
}

// TestNothingToRelease: the row was put into direct mode by hand, and the server is stopped before it knows.
// It finds out, and does not try again.
func TestNothingToRelease(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		c.E.PutInt(int64(c.E.State().Limit))
		c.E.Counted()
		began := time.Now()
		a.Stop()
		<-a.Ended
		c.E.Expect("ReadRows:1 CheckAndMutateRow:1")
		if took := time.Since(began); took != 0 || c.E.State().Mode != tso.ModeDirect {
			t.Errorf("after %v: %+v", took, c.E.State())
		}
	})
}

// TestRestoredToAnEarlierWrite: the row was put back to an earlier write of this leader.
func TestRestoredToAnEarlierWrite(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		cells, err := c.E.Table("percolator").ReadRow(t.Context(), "oracle")
		if err != nil {
			t.Fatal(err)
		}
		tsotest.Advance(tsotest.Lease)
		m := bigtable.NewMutation()
		for _, cell := range cells["tso"] {
			m.Set("tso", strings.TrimPrefix(cell.Column, "tso:"), cell.Timestamp, cell.Value)
		}
		c.E.Apply(m)
		tsotest.Advance(tsotest.Lease / 2)
		if s := c.Status("a"); s.Leading || !strings.Contains(s.Reason, "is at epoch 2, write 0, but this server has seen it at epoch 2, write ") {
			t.Errorf("%v", s)
		}
	})
}

// TestCandidateWithoutBigtablesClock: a candidate that cannot compare clocks does not take over, and says why.
func TestCandidateWithoutBigtablesClock(t *testing.T) {
	for _, tt := range []struct {
		name    string
		stamp   bool // fails, or the read after it
		deletes bool
		says    string
	}{
		{"no stamp", true, false, "stamp oracle row"},
		{"no read", false, false, "read oracle row"},
		{"no row", false, true, "oracle row is missing"},
	} {
		tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
			tsotest.Advance(time.Hour) // the row lags by more than MaxStep
			stamped, inside := false, false
			c.E.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
				switch {
				case inside:
				case method == tsotest.MutateRow && tt.stamp:
					return nil, errLater
				case method == tsotest.MutateRow:
					stamped = true
				case method == tsotest.ReadRows && stamped && tt.deletes:
					inside = true
					c.E.DeleteRow()
				case method == tsotest.ReadRows && stamped:
					return nil, errLater
				case method == tsotest.CheckAndMutate:
					t.Errorf("%s: it takes over", tt.name)
				}
				return call()
			})
			c.Start("a", server.Config{})
			synctest.Wait()
			if s := c.Status("a"); s.Leading || !strings.Contains(s.Reason, tt.says) {
				t.Errorf("%s: %v", tt.name, s)
			}
			c.E.On(nil)
		})
	}
}

// TestDeposed: a leader finds the lease of another server in the row. It does not lead from then on, and is a
// candidate for that lease.
func TestDeposed(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		r := row.Open(c.E.Table("percolator"), "", "", 0)
		s, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.Served.Address, s.Served.LeaseUs = "x:1", time.Second.Microseconds()
		if ok, err := r.Swap(t.Context(), s.Lease, format.Lease{Epoch: 3, Nonce: 1}, s.Served); !ok || err != nil {
			t.Fatal(ok, err)
		}
		tsotest.Advance(tsotest.Lease / 3) // to the renewal
		synctest.Wait()
		if s := c.Status("a"); s.Leading || s.LeaderAddress != "x:1" {
			t.Errorf("%v", s)
		}
		tsotest.Advance(time.Second)
		synctest.Wait()
		if s := c.Status("a"); !s.Leading || s.Epoch != 4 {
			t.Errorf("%v", s)
		}
	})
}

// TestOnlyServerAfterOutage: requests hang for ten leases. The only server answers until its lease has
// ended, and again within a lease after the outage, in the same term.
func TestOnlyServerAfterOutage(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		c.E.On(func(ctx context.Context, _ string, _ func() (any, error)) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		tsotest.Advance(tsotest.Lease / 2)
		if s := c.Status("a"); !s.Leading {
			t.Errorf("after half a lease: %v", s)
		}
		tsotest.Advance(10 * tsotest.Lease)
		if s := c.Status("a"); s.Leading {
			t.Errorf("during the outage: %v", s)
		}
		c.E.On(nil)
		tsotest.Advance(tsotest.Lease)
		if s := c.Status("a"); !s.Leading || s.Terms != 1 {
			t.Errorf("after the outage: %v", s)
		}
	})
}
