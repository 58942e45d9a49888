package tso_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// Processes that follow the mode get timestamps in order while an operator changes it to served,
// back, and to served again. No caller fails.
func TestFollowTheMode(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		h := tsotest.NewHistory(t)
		e.On(busyRow(1, time.Millisecond))
		var followers []*tso.Follower
		for range 2 {
			followers = append(followers, tso.Follow(e.Direct(tso.DirectConfig{}), c.Client(tso.ClientConfig{Timeout: 3 * time.Second}, "a", "b")))
		}
		var done atomic.Bool
		var worst atomic.Int64
		var all sync.WaitGroup
		for _, f := range followers {
			for range 2 {
				all.Go(func() {
					for !done.Load() {
						began := time.Now()
						h.Ask(t.Context(), f)
						if took := int64(time.Since(began)); took > worst.Load() {
							worst.Store(took)
						}
						tsotest.Advance(10 * time.Millisecond)
					}
				})
			}
		}
		change := func(mode tso.Mode, within time.Duration) {
			t.Helper()
			worst.Store(0)
			if changed, err := tso.SetMode(t.Context(), e.Table("percolator"), tso.RowConfig{}, mode); err != nil || !changed {
				t.Fatalf("to %s: %t, %v", mode, changed, err)
			}
			tsotest.Advance(within + time.Second)
			if took := time.Duration(worst.Load()); took > within {
				t.Errorf("to %s: a caller waited %v", mode, took)
			}
		}
		tsotest.Advance(time.Second)
		a, b := c.Start("a", server.Config{}), c.Start("b", server.Config{})
		tsotest.Advance(time.Second)
		change(tso.ModeServed, 2*time.Second)
		if c.Leader() == "" {
			t.Error("no server leads")
		}
		// The leader last: a server that is stopped while it takes over cannot release a lease that its
		// late request takes, and until it expires the mode cannot change.
		nodes := []*tsotest.Node{a, b}
		if c.Leader() == "a" {
			slices.Reverse(nodes)
		}
		for _, n := range nodes {
			n.Stop()
			<-n.Ended
		}
		change(tso.ModeDirect, 7*time.Second) // twice the client's timeout, and a little more
		c.Start("a", server.Config{})
		change(tso.ModeServed, 2*time.Second)
		done.Store(true)
		all.Wait()
		e.On(nil)
	})
}

// A mode that does not come is an error, not a wait without end.
func TestFollowNoMode(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		c.Start("a", server.Config{})
		direct := e.Direct(tso.DirectConfig{})
		f := tso.Follow(direct, c.Client(tso.ClientConfig{Timeout: 3 * time.Second}, "a"))
		e.Put([]byte("closed"))
		began := time.Now()
		if _, err := f.Timestamp(t.Context()); !errors.Is(err, tso.ErrMode) {
			t.Error(err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("it took %v", took)
		}
		if n := direct.Stats().RPCs; n < 5 || n > 35 { // pauses grow to a quarter of a second
			t.Errorf("it asked the row %d times", n)
		}
	})
}

// The servers say at once that the mode has changed. If none answers, and the mode has not changed, that is
// the error.
func TestFollowTheServers(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		f := tso.Follow(c.E.Direct(tso.DirectConfig{}), c.Client(tso.ClientConfig{Timeout: 3 * time.Second}, "a"))
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), f)
		high := c.E.State().Limit
		c.E.PutInt(int64(high))
		tsotest.Advance(tsotest.Lease) // the server finds that
		began := time.Now()
		h.Ask(t.Context(), f)
		if took := time.Since(began); h.Highest() <= high || took != 0 {
			t.Errorf("%d in direct mode, above %d, after %v", h.Highest(), high, took)
		}
		c.E.SetMode(tso.ModeServed)
		tsotest.Advance(tsotest.Lease)
		h.Ask(t.Context(), f)
		a.Stop()
		<-a.Ended
		if ts, err := f.Timestamp(t.Context()); ts != 0 || !errors.Is(err, tso.ErrUnavailable) {
			t.Errorf("%d, %v", ts, err)
		}
	})
}
