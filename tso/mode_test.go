package tso_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
)

func TestModeSwitches(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		h := tsotest.NewHistory(t)
		direct := e.Direct(tso.DirectConfig{})
		a := c.Start("a", server.Config{}) // refuses for now
		client := c.Client(tso.ClientConfig{}, "a")
		for range 4 {
			h.Ask(t.Context(), direct)
			var mode *tso.ModeError
			if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrMode) {
				t.Errorf("served in direct mode: %v", err)
			}
			e.SetMode(tso.ModeServed)
			if _, err := direct.Timestamp(t.Context()); !errors.As(err, &mode) || mode.Mode != "served" {
				t.Errorf("direct in served mode: %v", err)
			}
			tsotest.Advance(tsotest.Lease / 2)
			h.Ask(t.Context(), client)
			var leads *tso.LeaderError
			if _, err := tso.SetMode(t.Context(), e.Table("percolator"), tso.RowConfig{}, tso.ModeDirect); !errors.As(err, &leads) || leads.Leader != a.Name {
				t.Fatalf("switched under a leader: %v", err)
			}
			h.Ask(t.Context(), client)
			a.Stop()
			<-a.Ended
			if changed, err := tso.SetMode(t.Context(), e.Table("percolator"), tso.RowConfig{}, tso.ModeDirect); err != nil || !changed {
				t.Fatal(changed, err)
			}
			if changed, err := tso.SetMode(t.Context(), e.Table("percolator"), tso.RowConfig{}, tso.ModeDirect); err != nil || changed {
				t.Fatal(changed, err)
			}
			h.Ask(t.Context(), direct)
			a = c.Start("a", server.Config{})
			client = c.Client(tso.ClientConfig{}, "a")
		}
		if h.Highest() > tsotest.Now()+10 {
			t.Errorf("overshot: %d at %d", h.Highest(), tsotest.Now())
		}
	})
}

// TestModeSwitchFromDeadLeader takes one lease, and fences the one that was not
// dead but paused.
func TestModeSwitchFromDeadLeader(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		client := c.Client(tso.ClientConfig{}, "a")
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), client)
		a.CutOff()
		start := time.Now()
		c.E.SetMode(tso.ModeDirect)
		if d := time.Since(start); d < tsotest.Lease {
			t.Errorf("switched after %s", d)
		}
		direct := c.E.Direct(tso.DirectConfig{})
		h.Ask(t.Context(), direct)
		a.Cut.Store(false)
		tsotest.Advance(2 * tsotest.Lease)
		if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrMode) {
			t.Errorf("the old leader: %v", err)
		}
		h.Ask(t.Context(), direct)
	})
}

// TestModeSwitchMayNotRead: a process that may not read the lease any more does not take it,
// and reports the refusal.
func TestModeSwitchMayNotRead(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a"))
		a.CutOff()
		reads := 0
		c.E.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
			if method == tsotest.ReadRows {
				if reads++; reads == 2 {
					return nil, status.Error(codes.PermissionDenied, "injected: refused")
				}
			}
			return call()
		})
		changed, err := tso.SetMode(t.Context(), c.E.Table("percolator"), tso.RowConfig{}, tso.ModeDirect)
		if status.Code(err) != codes.PermissionDenied || changed || reads != 2 {
			t.Errorf("%t, %v, after %d reads; want the refusal", changed, err, reads)
		}
		c.E.On(nil)
		if s := c.E.State(); s.Mode != tso.ModeServed {
			t.Errorf("%+v", s)
		}
	})
}

// TestModeSwitchLosesAnswer: the switch took effect, its answer was lost, and a server leads
// before SetMode reads the row.
func TestModeSwitchLosesAnswer(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), e.Direct(tso.DirectConfig{}))
		g := tsotest.NewGate(tsotest.CheckAndMutate, true)
		e.On(g.Hook)
		type result struct {
			changed bool
			err     error
		}
		switched := make(chan result, 1)
		table := e.Table("percolator")
		go func() {
			changed, err := tso.SetMode(context.Background(), table, tso.RowConfig{RPCTimeout: time.Second}, tso.ModeServed)
			switched <- result{changed, err}
		}()
		<-g.Held
		e.On(nil)
		c := tsotest.NewCluster(e)
		c.Start("a", server.Config{})
		h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a"))
		if r := <-switched; r.err != nil || !r.changed {
			t.Errorf("%+v", r)
		}
		if s := e.State(); s.Mode != tso.ModeServed || s.Leader != "a" {
			t.Errorf("%+v", s)
		}
	})
}

// TestModeSwitchUnderDirectLoad: the row changes all the time.
func TestModeSwitchUnderDirectLoad(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		h := tsotest.NewHistory(t)
		var wg sync.WaitGroup
		for range 3 {
			d := e.Direct(tso.DirectConfig{})
			wg.Go(func() {
				for {
					before := h.Highest()
					ts, err := d.Timestamp(t.Context())
					if errors.Is(err, tso.ErrMode) {
						return
					}
					if err != nil || ts <= before {
						t.Errorf("%d after %d, %v", ts, before, err)
						return
					}
					for {
						old := h.Received.Load()
						if old >= int64(ts) || h.Received.CompareAndSwap(old, int64(ts)) {
							break
						}
					}
					tsotest.Advance(100 * time.Microsecond)
				}
			})
		}
		// Every request of the switch takes longer than one of theirs.
		e.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			if m == tsotest.CheckAndMutate {
				tsotest.Advance(2 * time.Millisecond)
			}
			return call()
		})
		tsotest.Advance(50 * time.Millisecond)
		e.SetMode(tso.ModeServed)
		wg.Wait()
		e.On(nil)
		c := tsotest.NewCluster(e)
		c.Start("a", server.Config{})
		h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a"))
	})
}

// TestSwitchToDirectNeedsServedMode: the request of a switch that was delayed
// past a repair by hand does not put the value back.
func TestSwitchToDirectNeedsServedMode(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		c.E.On(g.Hook)
		switched := make(chan error, 1)
		table := c.E.Table("percolator")
		go func() {
			_, err := tso.SetMode(context.Background(), table, tso.RowConfig{}, tso.ModeDirect)
			switched <- err
		}()
		<-g.Held
		c.E.On(nil)
		repaired := int64(tsotest.Now()) + 1e9
		c.E.PutInt(repaired)
		close(g.Open)
		<-switched
		if s := c.E.State(); s.Mode != tso.ModeDirect || int64(s.Limit) != repaired {
			t.Errorf("%+v, repaired to %d", s, repaired)
		}
	})
}

// TestDirectStartsAboveTheLimit: no value of direct mode is one of before.
func TestDirectStartsAboveTheLimit(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		limit := c.E.State().Limit
		c.E.SetMode(tso.ModeDirect)
		if s := c.E.State(); s.Limit != limit+1 {
			t.Errorf("direct mode starts at %d, the limit was %d", s.Limit, limit)
		}
	})
}

// TestServedGolden keeps the stored format: a row that version 1 wrote.
func TestServedGolden(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		m := bigtable.NewMutation()
		m.Set("tso", "direct", tsotest.DirectCell, []byte("served"))
		m.Set("tso", "lease", 0, []byte("\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x01\x02\x01\x02\x03\x04\x05\x06\x07\x08"))
		m.Set("tso", "state", 0, []byte("\b\x01\x10\x80\u0329\xc8\u8558\x03\x18\xc0\x8d\xb7\x01*\x05tso-02\ntso-0:70708\xc0\xbe\xf2\xc6\u8558\x03"))
		e.Apply(m)
		want := tso.RowState{
			Mode: tso.ModeServed, Limit: 1795152600000000, Epoch: 7,
			Leader: "tso-0", Address: "tso-0:7070", Lease: 3 * time.Second,
		}
		got := e.State()
		if !got.Same(want) {
			t.Errorf("read %+v, want %+v", got, want)
		}
		// A candidate takes it over after its lease.
		c := tsotest.NewCluster(e)
		c.Start("a", server.Config{})
		if ts, err := c.Client(tso.ClientConfig{}, "a").Timestamp(t.Context()); err != nil || ts <= want.Limit {
			t.Errorf("%d, %v", ts, err)
		}
		if s := e.State(); s.Epoch != 8 {
			t.Errorf("epoch %d", s.Epoch)
		}
	})
}

// lateTable keeps conditional mutations back while it is late, and answers
// Unavailable. A late request lands when it is called.
type lateTable struct {
	bigtable.TableAPI
	before func() // runs before each mutation
	late   bool
	kept   []func() error
}

func (l *lateTable) Apply(ctx context.Context, row string, m *bigtable.Mutation, opts ...bigtable.ApplyOption) error {
	l.before()
	if !l.late {
		return l.TableAPI.Apply(ctx, row, m, opts...)
	}
	l.kept = append(l.kept, func() error { return l.TableAPI.Apply(context.Background(), row, m) })
	return status.Error(codes.Unavailable, "lost")
}

// TestLateSwitch: a switch to served mode of a busy row, which matches a range of
// values, arrives after the row went to served and back to direct mode. It changes
// nothing, in a row that was served before and in one that was not.
func TestLateSwitch(t *testing.T) {
	for _, before := range []int{0, 1} {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			c := tsotest.NewCluster(e)
			h := tsotest.NewHistory(t)
			served := func() {
				e.SetMode(tso.ModeServed)
				a := c.Start("a", server.Config{Lease: 100 * time.Millisecond})
				synctest.Wait()
				h.Ask(t.Context(), c.Client(tso.ClientConfig{}, "a"))
				a.Stop()
				<-a.Ended
				a.Ended <- nil
				e.SetMode(tso.ModeDirect)
			}
			busy := e.Direct(tso.DirectConfig{})
			h.Ask(t.Context(), busy)
			for range before {
				served()
			}
			n := 0
			late := &lateTable{TableAPI: e.Table("percolator")}
			late.before = func() {
				// The row changes before each attempt with its value alone, and before
				// the first one with a range. The next one is late.
				if n++; n <= 5 {
					for range 3 {
						h.Ask(t.Context(), busy)
					}
				}
				late.late = n > 5-2*before // without a served mode before, two more go ahead
			}
			_, err := tso.SetMode(t.Context(), late, tso.RowConfig{}, tso.ModeServed)
			if !errors.Is(err, context.DeadlineExceeded) && status.Code(err) != codes.Unavailable || len(late.kept) == 0 {
				t.Fatalf("%v, with %d requests late", err, len(late.kept))
			}
			served()
			direct := e.Direct(tso.DirectConfig{})
			for range 5 {
				h.Ask(t.Context(), direct)
			}
			was := e.State()
			for _, land := range late.kept {
				if err := land(); err != nil {
					t.Error(err)
				}
			}
			if is := e.State(); is != was {
				t.Fatalf("a late switch changed the row from %+v to %+v", was, is)
			}
			h.Ask(t.Context(), direct)
			e.CheckRow(h.Highest())
		})
	}
}
