package tso_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
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
		a.CutOff()
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
	long.RacedAtNight(t)
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

// TestAdvanceFaults: what Advance says of the row is true, whichever of its writes fails, in each mode.
func TestAdvanceFaults(t *testing.T) {
	long.RacedAtNight(t)
	refuse := func(code codes.Code) func(func() (any, error)) (any, error) {
		return func(func() (any, error)) (any, error) { return nil, status.Error(code, "injected") }
	}
	applied := func(call func() (any, error)) (any, error) {
		_, _ = call()
		return nil, status.Error(codes.Unavailable, "injected")
	}
	modes := map[string]func(e *tsotest.Emulator){
		"no value": func(e *tsotest.Emulator) { e.DeleteRow() },
		"direct":   func(e *tsotest.Emulator) { e.PutInt(int64(tsotest.Now())) },
		"served":   func(e *tsotest.Emulator) { e.SetMode(tso.ModeServed) },
	}
	for _, tt := range []struct {
		name    string
		method  string
		times   int // how many requests fail
		fault   func(func() (any, error)) (any, error)
		cancel  bool // the caller leaves when the request fails
		changed bool
		code    codes.Code // of the error; OK: there is none
		rpcs    string
		stays   bool // the row
	}{
		{name: "none", changed: true, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "a write is lost", method: tsotest.CheckAndMutate, times: 1, fault: refuse(codes.Unavailable), changed: true, rpcs: "ReadRows:2 CheckAndMutateRow:2"},
		{name: "an answer is lost", method: tsotest.CheckAndMutate, times: 1, fault: applied, changed: true, rpcs: "ReadRows:2 CheckAndMutateRow:1"},
		{name: "a write is refused", method: tsotest.CheckAndMutate, times: 1, fault: refuse(codes.PermissionDenied), code: codes.PermissionDenied, rpcs: "ReadRows:1 CheckAndMutateRow:1", stays: true},
		{name: "the caller leaves", method: tsotest.CheckAndMutate, times: 1, fault: refuse(codes.Unavailable), cancel: true, code: codes.Canceled, rpcs: "ReadRows:1 CheckAndMutateRow:1", stays: true},
		{name: "all writes are lost", method: tsotest.CheckAndMutate, times: 100, fault: refuse(codes.Unavailable), code: codes.Unavailable, rpcs: "ReadRows:10 CheckAndMutateRow:10", stays: true},
		{name: "the read is refused", method: tsotest.ReadRows, times: 1, fault: refuse(codes.PermissionDenied), code: codes.PermissionDenied, rpcs: "ReadRows:1", stays: true},
	} {
		for mode, begin := range modes {
			t.Run(tt.name+"/"+mode, func(t *testing.T) {
				tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
					begin(e)
					before, to := e.State(), tsotest.Now()+1_000_000
					table := e.Table("percolator")
					e.Counted()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					var fired atomic.Int64
					e.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
						if method != tt.method || fired.Add(1) > int64(tt.times) {
							return call()
						}
						if tt.cancel {
							cancel()
						}
						return tt.fault(call)
					})
					changed, err := tso.Advance(ctx, table, tso.RowConfig{}, to)
					e.On(nil)
					e.Expect(tt.rpcs)
					if tt.method != "" && fired.Load() == 0 {
						t.Error("nothing failed")
					}
					code := status.Code(err)
					if tt.cancel && errors.Is(err, context.Canceled) {
						code = codes.Canceled
					}
					if changed != tt.changed || code != tt.code {
						t.Errorf("%t, %v; want %t and %v", changed, err, tt.changed, tt.code)
					}
					if tt.times > 10 && !strings.Contains(err.Error(), "10 attempts") {
						t.Error(err)
					}
					want := to
					if tt.stays {
						want = before.Limit
					}
					if s := e.State(); s.Limit != want {
						t.Errorf("the row is at %d, want %d", s.Limit, want)
					}
				})
			})
		}
	}
}
