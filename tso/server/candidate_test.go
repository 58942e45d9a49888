package server_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
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

// TestFailedTakeoverBacksOff, however many clients ask meanwhile.
func TestFailedTakeoverBacksOff(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Unavailable} {
		tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
			var writes atomic.Int32
			c.E.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
				if m == tsotest.CheckAndMutate || m == tsotest.MutateRow {
					writes.Add(1)
					return nil, status.Error(code, "no")
				}
				return call()
			})
			c.Start("a", server.Config{})
			tsotest.Advance(5 * time.Second)
			writes.Store(0)
			for range 1000 {
				_, _ = c.One("a", tso.FormatVersion, 1)
				tsotest.Advance(10 * time.Millisecond)
			}
			if n := writes.Load(); n < 3 || n > 40 {
				t.Errorf("%s: %d writes in 10 s", code, n)
			}
			c.E.On(nil)
			tsotest.Advance(4 * time.Second)
			if c.Leader() != "a" {
				t.Errorf("%s: does not lead when it may", code)
			}
		})
	}
}

// TestTroubleIsLoggedOnce: a candidate warns when trouble begins, not each time that it looks.
func TestTroubleIsLoggedOnce(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		var log bytes.Buffer
		for n, value := range []int64{int64(tsotest.Now()), -1} {
			e.PutInt(value)
			if n == 0 {
				c.Start("a", server.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			}
			tsotest.Advance(time.Minute)
			if got := strings.Count(log.String(), "cannot lead"); got != n+1 {
				t.Errorf("%d warnings, want %d:\n%s", got, n+1, &log)
			}
		}
	})
}

// TestStopDuringTakeover: a lease that was taken while the server was stopped is
// released.
func TestStopDuringTakeover(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		limit := c.E.State().Limit
		g := tsotest.NewGate(tsotest.CheckAndMutate, true)
		c.E.On(g.Hook)
		a := c.Start("a", server.Config{})
		<-g.Held // it took effect
		c.E.On(nil)
		a.Stop()
		<-a.Ended
		close(g.Open)
		if s := c.E.State(); !s.Released || s.Limit < limit || s.Epoch != 2 {
			t.Errorf("%+v, the limit was %d", s, limit)
		}
		c.Start("b", server.Config{})
		start := time.Now()
		if _, err := c.Client(tso.ClientConfig{}, "b").Timestamp(t.Context()); err != nil || time.Since(start) > tsotest.Lease/2 {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

// TestCandidateCountsFromReceiving: the lease that a slow read shows may have
// been renewed right before the read was answered, not when it was sent.
func TestCandidateCountsFromReceiving(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		a.CutOff()
		var mu sync.Mutex
		var received, took time.Time
		var first atomic.Bool
		c.E.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			slow := m == tsotest.ReadRows && !first.Swap(true)
			if slow {
				tsotest.Advance(tsotest.Lease / 2)
			}
			res, err := call()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case slow:
				received = time.Now()
			case m == tsotest.CheckAndMutate && took.IsZero():
				took = time.Now()
			}
			return res, err
		})
		c.Start("b", server.Config{RPCTimeout: time.Minute})
		tsotest.Advance(5 * tsotest.Lease)
		mu.Lock()
		defer mu.Unlock()
		if took.IsZero() || took.Sub(received) < tsotest.Lease {
			t.Errorf("took over at %s, %s after the first answer", took, took.Sub(received))
		}
		c.E.On(nil)
	})
}

func TestRacingCandidates(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		const candidates = 6
		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		c.E.On(g.Hook)
		var names []string
		for i := range candidates {
			names = append(names, fmt.Sprint("s", i))
			c.Start(names[i], server.Config{})
		}
		for range candidates {
			<-g.Held // all saw the released lease and try to take it
		}
		close(g.Open)
		c.E.On(nil)
		client := c.Client(tso.ClientConfig{}, names...)
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), client)
		if c.Leader() == "" {
			t.Error("nobody leads")
		}
		if s := c.E.State(); s.Epoch != 2 {
			t.Errorf("epoch %d", s.Epoch)
		}
	})
}

// TestCandidateNeedsTheWholeLease: what a candidate saw counts from when it
// received it, and the length is the leader's.
func TestCandidateNeedsTheWholeLease(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{Lease: 20 * time.Second})
		synctest.Wait()
		a.CutOff()
		last := time.Now()
		tsotest.Advance(7 * time.Second)
		start := time.Now()
		c.Start("b", server.Config{Lease: time.Second}) // shorter, and late
		for c.Leader() != "b" {
			if time.Since(last) > time.Minute {
				t.Fatal("no takeover")
			}
			tsotest.Advance(50 * time.Millisecond)
		}
		if d := time.Since(start); d < 20*time.Second || d > 21*time.Second {
			t.Errorf("took over %s after it came", d)
		}
	})
}
