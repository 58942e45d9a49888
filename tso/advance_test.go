package tso_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

func (e *emulator) advance(to tso.Timestamp) (bool, error) {
	return tso.Advance(e.t.Context(), e.table("percolator"), tso.RowConfig{}, to)
}

// TestAdvanceDirect: a row in direct mode is raised and never lowered, also while
// somebody takes timestamps from it, and one that was lost begins there.
func TestAdvanceDirect(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		h := newHistory(t)
		direct := e.direct(tso.DirectConfig{})
		h.ask(t.Context(), direct)
		to := h.highest() + 1_000_000
		if changed, err := e.advance(to); err != nil || !changed {
			t.Fatal(changed, err)
		}
		if s := e.state(); s.Mode != tso.ModeDirect || s.Limit != to {
			t.Errorf("%+v, advanced to %d", s, to)
		}
		if changed, err := e.advance(to - 10); err != nil || changed {
			t.Errorf("backwards: %v, %v", changed, err)
		}
		h.ask(t.Context(), direct)
		if h.highest() <= to {
			t.Errorf("%d after the row was advanced to %d", h.highest(), to)
		}
		e.deleteRow()
		to = h.highest() + 5_000_000
		if changed, err := e.advance(to); err != nil || !changed {
			t.Fatal(changed, err)
		}
		h.ask(t.Context(), e.direct(tso.DirectConfig{}))
		if h.highest() <= to {
			t.Errorf("%d after a lost row was advanced to %d", h.highest(), to)
		}
		for _, bad := range []tso.Timestamp{0, -1, 1000, tso.Max} {
			if changed, err := e.advance(bad); err == nil || changed {
				t.Errorf("advanced to %d", bad)
			}
		}
	})
}

// TestAdvanceIsConditional: between reading the row and writing it, somebody
// takes it higher; a delayed or repeated request does not put that back.
func TestAdvanceIsConditional(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		newHistory(t).ask(t.Context(), e.direct(tso.DirectConfig{}))
		g := newGate(cam, false)
		e.on(g.hook)
		to := now() + 1_000_000
		ended := make(chan error, 1)
		changed := true
		table := e.table("percolator")
		go func() {
			var err error
			changed, err = tso.Advance(t.Context(), table, tso.RowConfig{}, to)
			ended <- err
		}()
		<-g.held
		e.on(nil)
		higher := int64(to) + 1e9
		e.putInt(higher)
		close(g.open)
		if err := <-ended; err != nil || changed {
			t.Errorf("changed %v, %v", changed, err)
		}
		if s := e.state(); int64(s.Limit) != higher {
			t.Errorf("the row is at %d, and was at %d", s.Limit, higher)
		}
	})
}

// TestAdvanceServed: not under a leader; then the next leader begins above, and
// one that was only paused never answers again.
func TestAdvanceServed(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		client := c.client(tso.ClientConfig{}, "a")
		h := newHistory(t)
		h.ask(t.Context(), client)
		to := h.highest() + 60_000_000
		var leads *tso.LeaderError
		if changed, err := c.e.advance(to); !errors.As(err, &leads) || changed {
			t.Fatalf("under a leader: %v, %v", changed, err)
		}
		h.ask(t.Context(), client)
		a.cut.Store(true)
		start := time.Now()
		if changed, err := c.e.advance(to); err != nil || !changed {
			t.Fatal(changed, err)
		}
		if d := time.Since(start); d < lease {
			t.Errorf("advanced after %s, under a lease", d)
		}
		a.cut.Store(false)
		advance(2 * lease)
		h.ask(t.Context(), client)
		if h.highest() <= to {
			t.Errorf("%d after the row was advanced to %d", h.highest(), to)
		}
		if s := c.e.state(); s.Mode != tso.ModeServed || s.Limit <= to {
			t.Errorf("%+v, advanced to %d", s, to)
		}
	})
}

// TestAdvanceRestored: a row from an old backup, advanced while everything is
// stopped, serves again above what is out.
func TestAdvanceRestored(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		old, err := c.e.table("percolator").ReadRow(t.Context(), "oracle")
		if err != nil {
			t.Fatal(err)
		}
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		high := c.rush("a", 300)
		a.stop()
		<-a.ended
		m := bigtable.NewMutation()
		for _, item := range old["tso"] {
			m.DeleteCellsInColumn("tso", item.Column[len("tso:"):])
			m.Set("tso", item.Column[len("tso:"):], item.Timestamp, item.Value)
		}
		c.e.apply(m)
		if changed, err := c.e.advance(high); err != nil || !changed {
			t.Fatal(changed, err)
		}
		c.start("b", tso.ServerConfig{})
		h := newHistory(t)
		h.ask(t.Context(), c.client(tso.ClientConfig{}, "b"))
		if h.highest() <= high {
			t.Errorf("%d, and %d is out", h.highest(), high)
		}
	})
}
