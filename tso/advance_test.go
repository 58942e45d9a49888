package tso_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
)

func raise(e *tsotest.Emulator, to tso.Timestamp) (bool, error) {
	return tso.Advance(e.T.Context(), e.Table("percolator"), tso.RowConfig{}, to)
}

// TestAdvanceDirect: Advance raises a row in direct mode and never lowers it, also
// while a process takes timestamps. A row that was lost begins there.
func TestAdvanceDirect(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		h := tsotest.NewHistory(t)
		direct := e.Direct(tso.DirectConfig{})
		h.Ask(t.Context(), direct)
		to := h.Highest() + 1_000_000
		if changed, err := raise(e, to); err != nil || !changed {
			t.Fatal(changed, err)
		}
		if s := e.State(); s.Mode != tso.ModeDirect || s.Limit != to {
			t.Errorf("%+v, advanced to %d", s, to)
		}
		if changed, err := raise(e, to-10); err != nil || changed {
			t.Errorf("backwards: %v, %v", changed, err)
		}
		h.Ask(t.Context(), direct)
		if h.Highest() <= to {
			t.Errorf("%d after the row was advanced to %d", h.Highest(), to)
		}
		e.DeleteRow()
		to = h.Highest() + 5_000_000
		if changed, err := raise(e, to); err != nil || !changed {
			t.Fatal(changed, err)
		}
		h.Ask(t.Context(), e.Direct(tso.DirectConfig{}))
		if h.Highest() <= to {
			t.Errorf("%d after a lost row was advanced to %d", h.Highest(), to)
		}
		for _, bad := range []tso.Timestamp{0, -1, 1000, tso.Max} {
			if changed, err := raise(e, bad); err == nil || changed {
				t.Errorf("advanced to %d", bad)
			}
		}
	})
}

// TestAdvanceIsConditional: another client raises the row between Advance's read
// and write. The late write does not lower the row again.
func TestAdvanceIsConditional(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		tsotest.NewHistory(t).Ask(t.Context(), e.Direct(tso.DirectConfig{}))
		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		e.On(g.Hook)
		to := tsotest.Now() + 1_000_000
		ended := make(chan error, 1)
		changed := true
		table := e.Table("percolator")
		go func() {
			var err error
			changed, err = tso.Advance(t.Context(), table, tso.RowConfig{}, to)
			ended <- err
		}()
		<-g.Held
		e.On(nil)
		higher := int64(to) + 1e9
		e.PutInt(higher)
		close(g.Open)
		if err := <-ended; err != nil || changed {
			t.Errorf("changed %v, %v", changed, err)
		}
		if s := e.State(); int64(s.Limit) != higher {
			t.Errorf("the row is at %d, and was at %d", s.Limit, higher)
		}
	})
}

// TestAdvanceServed: not under a leader; then the next leader begins above, and
// one that was only paused never answers again.
func TestAdvanceServed(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		client := c.Client(tso.ClientConfig{}, "a")
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), client)
		to := h.Highest() + 60_000_000
		var leads *tso.LeaderError
		if changed, err := raise(c.E, to); !errors.As(err, &leads) || changed {
			t.Fatalf("under a leader: %v, %v", changed, err)
		}
		h.Ask(t.Context(), client)
		a.Cut.Store(true)
		start := time.Now()
		if changed, err := raise(c.E, to); err != nil || !changed {
			t.Fatal(changed, err)
		}
		if d := time.Since(start); d < tsotest.Lease {
			t.Errorf("advanced after %s, under a lease", d)
		}
		a.Cut.Store(false)
		tsotest.Advance(2 * tsotest.Lease)
		h.Ask(t.Context(), client)
		if h.Highest() <= to {
			t.Errorf("%d after the row was advanced to %d", h.Highest(), to)
		}
		if s := c.E.State(); s.Mode != tso.ModeServed || s.Limit <= to {
			t.Errorf("%+v, advanced to %d", s, to)
		}
	})
}

// TestAdvanceRestored: a row from an old backup, advanced while everything is
// stopped, serves again above what is out.
func TestAdvanceRestored(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		old, err := c.E.Table("percolator").ReadRow(t.Context(), "oracle")
		if err != nil {
			t.Fatal(err)
		}
		a := c.Start("a", server.Config{})
		synctest.Wait()
		high := c.Rush("a", 300)
		a.Stop()
		<-a.Ended
		m := bigtable.NewMutation()
		for _, item := range old["tso"] {
			m.DeleteCellsInColumn("tso", item.Column[len("tso:"):])
			m.Set("tso", item.Column[len("tso:"):], item.Timestamp, item.Value)
		}
		c.E.Apply(m)
		if changed, err := raise(c.E, high); err != nil || !changed {
			t.Fatal(changed, err)
		}
		c.Start("b", server.Config{})
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "b"))
		if h.Highest() <= high {
			t.Errorf("%d, and %d is out", h.Highest(), high)
		}
	})
}
