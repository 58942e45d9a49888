package server_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestRepairFencesLeader: a row that was put into direct mode by hand ends the
// term of a leader that was overlooked, whose lease is still there.
func TestRepairFencesLeader(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		client := c.Client(tso.ClientConfig{}, "a")
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), client)
		a.CutOff() // "everything is stopped"
		tsotest.Advance(time.Minute)
		c.E.PutInt(int64(h.Highest()))
		direct := c.E.Direct(tso.DirectConfig{})
		h.Ask(t.Context(), direct)
		a.Cut.Store(false)
		tsotest.Advance(tsotest.Lease)
		if c.Leader() != "" {
			t.Error("leads while the row is in direct mode")
		}
		if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrMode) {
			t.Errorf("served in direct mode: %v", err)
		}
		h.Ask(t.Context(), direct)
	})
}

// TestRepairBehindRenewal: a row is put into direct mode by hand, just after a renewal whose
// answer is lost. The lease in it is the leader's, and it does not lead.
func TestRepairBehindRenewal(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{RPCTimeout: tsotest.Lease / 10})
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a"))
		g := tsotest.NewGate(tsotest.CheckAndMutate, true)
		c.E.On(g.Hook)
		<-g.Held // the next renewal took effect
		c.E.On(nil)
		c.E.PutInt(int64(c.E.State().Limit))
		tsotest.Advance(tsotest.Lease / 5) // for the timeout, well within the lease
		if c.Status("a").Leading {
			t.Error("leads while the row is in direct mode")
		}
		if _, err := c.Client(tso.ClientConfig{}, a.Name).Timestamp(t.Context()); !errors.Is(err, tso.ErrMode) {
			t.Errorf("served in direct mode: %v", err)
		}
		h.Ask(t.Context(), c.E.Direct(tso.DirectConfig{}))
	})
}

// TestRestoredRow: the row was put back behind the back of servers, which
// remember more than it says.
func TestRestoredRow(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		row, err := c.E.Table("percolator").ReadRow(t.Context(), "oracle")
		if err != nil {
			t.Fatal(err)
		}
		c.Start("a", server.Config{})
		synctest.Wait()
		c.Start("b", server.Config{})
		c.Rush("a", 300)
		m := bigtable.NewMutation()
		for _, item := range row["tso"] {
			m.DeleteCellsInColumn("tso", item.Column[len("tso:"):])
			m.Set("tso", item.Column[len("tso:"):], item.Timestamp, item.Value)
		}
		c.E.Apply(m)
		for range 3 {
			tsotest.Advance(tsotest.Lease)
			for _, name := range []string{"a", "b"} {
				if _, err := c.Client(tso.ClientConfig{}, name).Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	})
}

// TestVanishedRow: neither who led nor who stood by takes a row that was deleted
// for one that was never used, nor for a new one.
func TestVanishedRow(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		b := c.Start("b", server.Config{})
		high := c.Rush("a", 20)
		refuse := func() {
			t.Helper()
			tsotest.Advance(tsotest.Lease)
			for _, name := range []string{"a", "b"} {
				if _, err := c.Client(tso.ClientConfig{}, name).Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		c.E.DeleteRow()
		refuse()
		c.E.SetMode(tso.ModeServed)
		refuse()
		// The repair that the error names.
		a.Stop()
		b.Stop()
		<-a.Ended
		<-b.Ended
		c.E.PutInt(int64(high))
		m := bigtable.NewMutation()
		m.DeleteCellsInColumn("tso", "lease")
		c.E.Apply(m)
		c.E.SetMode(tso.ModeServed)
		c.Start("c", server.Config{})
		if ts, err := c.Client(tso.ClientConfig{}, "c").Timestamp(t.Context()); err != nil || ts <= high {
			t.Errorf("%d after %d, %v", ts, high, err)
		}
	})
}

// TestReleaseMayLowerTheLimit: who has seen a large range reserved takes over
// from one that gave back what it did not use.
func TestReleaseMayLowerTheLimit(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		c.Start("b", server.Config{})
		high := c.Rush("a", 300)
		tsotest.Advance(tsotest.Lease / 6)
		limit := c.E.State().Limit
		a.Stop()
		<-a.Ended
		if s := c.E.State(); s.Limit >= limit || s.Limit < high {
			t.Errorf("released at %d, was %d, highest %d", s.Limit, limit, high)
		}
		tsotest.Advance(tsotest.Lease / 6)
		if ts, err := c.Client(tso.ClientConfig{}, "b").Timestamp(t.Context()); err != nil || ts <= high {
			t.Errorf("%d after %d, %v", ts, high, err)
		}
	})
}

func TestServedBadRows(t *testing.T) {
	long.RacedAtNight(t)
	record := func(s *tsopb.ServedState) []byte {
		b, err := proto.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := func() *tsopb.ServedState {
		return &tsopb.ServedState{FormatVersion: 1, Limit: 1795152600000000, Released: true}
	}
	with := func(change func(*tsopb.ServedState)) []byte {
		s := good()
		change(s)
		return record(s)
	}
	for _, test := range []struct {
		name, column string
		value        []byte // nil: delete
		want         error
		says         string
	}{
		{"no lease", "lease", nil, tso.ErrCorrupt, `column "lease"`},
		{"short lease", "lease", []byte("x"), tso.ErrCorrupt, `column "lease"`},
		{"no state", "state", nil, tso.ErrCorrupt, "missing"},
		{"no record", "state", []byte{0xff}, tso.ErrCorrupt, "not a record"},
		{"newer format", "state", with(func(s *tsopb.ServedState) { s.FormatVersion = 2 }), tso.ErrFormat, "version 2"},
		{"low limit", "state", with(func(s *tsopb.ServedState) { s.Limit = 7 }), tso.ErrCorrupt, "below the smallest"},
		{"high limit", "state", with(func(s *tsopb.ServedState) { s.Limit = 1 << 62 }), tso.ErrCorrupt, "above the largest"},
		{"no length", "state", with(func(s *tsopb.ServedState) { s.Released = false }), tso.ErrCorrupt, "lease of 0"},
		{"unknown mode", "direct", []byte("sundial"), tso.ErrMode, `"sundial"`},
		{"corrupt value", "direct", []byte{0xff, 0, 0, 0, 0, 0, 0, 0}, tso.ErrCorrupt, "negative"},
		{"exhausted", "state", with(func(s *tsopb.ServedState) { s.Limit = int64(tso.Max) }), tso.ErrExhausted, "no timestamp is left"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
				m := bigtable.NewMutation()
				m.DeleteCellsInColumn("tso", test.column)
				if test.value != nil {
					at := bigtable.Timestamp(0)
					if test.column == "direct" {
						at = tsotest.DirectCell
					}
					m.Set("tso", test.column, at, test.value)
				}
				c.E.Apply(m)
				c.Start("a", server.Config{})
				tsotest.Advance(tsotest.Lease)
				_, err := c.Client(tso.ClientConfig{}, "a").Timestamp(t.Context())
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("client: %v", err)
				}
				if test.want == tso.ErrExhausted {
					return
				}
				for _, mode := range []tso.Mode{tso.ModeDirect, tso.ModeServed} {
					if _, err := tso.SetMode(t.Context(), c.E.Table("percolator"), tso.RowConfig{}, mode); !errors.Is(err, test.want) {
						t.Errorf("SetMode(%s): %v", mode, err)
					}
				}
				// The way out that the message names.
				c.E.PutInt(int64(tsotest.Now()) + 5)
				c.E.SetMode(tso.ModeServed)
				tsotest.Advance(tsotest.Lease)
				if ts, err := c.Client(tso.ClientConfig{}, "a").Timestamp(t.Context()); err != nil || ts <= tsotest.Now().Add(-tsotest.Lease) {
					t.Errorf("after the repair: %d, %v", ts, err)
				}
			})
		})
	}
}
