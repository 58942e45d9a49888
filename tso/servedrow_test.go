package tso_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// TestSuspendedMachine: the monotonic clock stood still while the machine was
// suspended; the wall clock tells.
func TestSuspendedMachine(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		var off atomic.Int64
		c.start("a", tso.ServerConfig{Clock: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }})
		synctest.Wait()
		if r, err := c.one("a", tso.FormatVersion, 1); err != nil || r.NotLeader != nil {
			t.Fatal(r, err)
		}
		off.Store(int64(lease))
		if r, err := c.one("a", tso.FormatVersion, 1); err != nil || r.NotLeader == nil {
			t.Errorf("right after waking up: %v, %v", r, err)
		}
		synctest.Wait() // it renews, and nobody had taken the lease
		if r, err := c.one("a", tso.FormatVersion, 1); err != nil || r.NotLeader != nil {
			t.Errorf("after renewing: %v, %v", r, err)
		}
	})
}

func TestServedClockBackAndForward(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		var off atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
		c.start("a", tso.ServerConfig{Clock: clock})
		client := c.client(tso.ClientConfig{}, "a")
		h := newHistory(t)
		h.ask(t.Context(), client)
		off.Store(int64(-time.Hour))
		for range 20 {
			h.ask(t.Context(), client)
			advance(time.Second)
		}
		off.Store(0)
		h.ask(t.Context(), client)
		off.Store(int64(time.Hour))
		for range 200 {
			h.ask(t.Context(), client)
			advance(300 * time.Millisecond)
		}
		if ahead := h.highest() - now(); ahead > tso.Timestamp(lease.Microseconds()) {
			t.Errorf("followed a wrong clock: %d µs ahead", ahead)
		}
		off.Store(0)
		advance(2 * lease)
		h.ask(t.Context(), client)
		if h.highest() > now() || h.highest() < now()-1000 {
			t.Errorf("clock right again: %d at %d", h.highest(), now())
		}
		if l := c.status("a"); l.Terms != 1 {
			t.Errorf("%d terms", l.Terms)
		}
	})
}

func TestModeSwitches(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		c := newCluster(e)
		h := newHistory(t)
		direct := e.direct(tso.DirectConfig{})
		a := c.start("a", tso.ServerConfig{}) // refuses for now
		client := c.client(tso.ClientConfig{}, "a")
		for range 4 {
			h.ask(t.Context(), direct)
			var mode *tso.ModeError
			if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrMode) {
				t.Errorf("served in direct mode: %v", err)
			}
			e.setMode(tso.ModeServed)
			if _, err := direct.Timestamp(t.Context()); !errors.As(err, &mode) || mode.Mode != "served" {
				t.Errorf("direct in served mode: %v", err)
			}
			advance(lease / 2)
			h.ask(t.Context(), client)
			var leads *tso.LeaderError
			if _, err := tso.SetMode(t.Context(), e.table("percolator"), tso.RowConfig{}, tso.ModeDirect); !errors.As(err, &leads) || leads.Leader != a.name {
				t.Fatalf("switched under a leader: %v", err)
			}
			h.ask(t.Context(), client)
			a.stop()
			<-a.ended
			if changed, err := tso.SetMode(t.Context(), e.table("percolator"), tso.RowConfig{}, tso.ModeDirect); err != nil || !changed {
				t.Fatal(changed, err)
			}
			if changed, err := tso.SetMode(t.Context(), e.table("percolator"), tso.RowConfig{}, tso.ModeDirect); err != nil || changed {
				t.Fatal(changed, err)
			}
			h.ask(t.Context(), direct)
			a = c.start("a", tso.ServerConfig{})
			client = c.client(tso.ClientConfig{}, "a")
		}
		if h.highest() > now()+10 {
			t.Errorf("overshot: %d at %d", h.highest(), now())
		}
	})
}

// TestModeSwitchFromDeadLeader takes one lease, and fences the one that was not
// dead but paused.
func TestModeSwitchFromDeadLeader(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		client := c.client(tso.ClientConfig{}, "a")
		h := newHistory(t)
		h.ask(t.Context(), client)
		a.cut.Store(true)
		start := time.Now()
		c.e.setMode(tso.ModeDirect)
		if d := time.Since(start); d < lease {
			t.Errorf("switched after %s", d)
		}
		direct := c.e.direct(tso.DirectConfig{})
		h.ask(t.Context(), direct)
		a.cut.Store(false)
		advance(2 * lease)
		if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrMode) {
			t.Errorf("the old leader: %v", err)
		}
		h.ask(t.Context(), direct)
	})
}

// TestModeSwitchUnderDirectLoad: the row changes all the time.
func TestModeSwitchUnderDirectLoad(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		h := newHistory(t)
		var wg sync.WaitGroup
		for range 3 {
			d := e.direct(tso.DirectConfig{})
			wg.Go(func() {
				for {
					before := h.highest()
					ts, err := d.Timestamp(t.Context())
					if errors.Is(err, tso.ErrMode) {
						return
					}
					if err != nil || ts <= before {
						t.Errorf("%d after %d, %v", ts, before, err)
						return
					}
					for {
						old := h.received.Load()
						if old >= int64(ts) || h.received.CompareAndSwap(old, int64(ts)) {
							break
						}
					}
					advance(100 * time.Microsecond)
				}
			})
		}
		// Every request of the switch takes longer than one of theirs.
		e.on(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			if m == cam {
				advance(2 * time.Millisecond)
			}
			return call()
		})
		advance(50 * time.Millisecond)
		e.setMode(tso.ModeServed)
		wg.Wait()
		e.on(nil)
		c := newCluster(e)
		c.start("a", tso.ServerConfig{})
		h.ask(t.Context(), c.client(tso.ClientConfig{}, "a"))
	})
}

func TestServedBadRows(t *testing.T) {
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
			served(t, func(t *testing.T, c *cluster) {
				m := bigtable.NewMutation()
				m.DeleteCellsInColumn("tso", test.column)
				if test.value != nil {
					at := bigtable.Timestamp(0)
					if test.column == "direct" {
						at = directCell
					}
					m.Set("tso", test.column, at, test.value)
				}
				c.e.apply(m)
				c.start("a", tso.ServerConfig{})
				advance(lease)
				_, err := c.client(tso.ClientConfig{}, "a").Timestamp(t.Context())
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("client: %v", err)
				}
				if test.want == tso.ErrExhausted {
					return
				}
				for _, mode := range []tso.Mode{tso.ModeDirect, tso.ModeServed} {
					if _, err := tso.SetMode(t.Context(), c.e.table("percolator"), tso.RowConfig{}, mode); !errors.Is(err, test.want) {
						t.Errorf("SetMode(%s): %v", mode, err)
					}
				}
				// The way out that the message names.
				c.e.putInt(int64(now()) + 5)
				c.e.setMode(tso.ModeServed)
				advance(lease)
				if ts, err := c.client(tso.ClientConfig{}, "a").Timestamp(t.Context()); err != nil || ts <= now()-tso.Timestamp(lease.Microseconds()) {
					t.Errorf("after the repair: %d, %v", ts, err)
				}
			})
		})
	}
}

func TestServedBadRequests(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		c.start("a", tso.ServerConfig{})
		synctest.Wait()
		for _, bad := range []struct {
			version, count uint32
			code           codes.Code
			says           string
		}{
			{1, 0, codes.InvalidArgument, "from 1 to 100000"},
			{1, tso.MaxCount + 1, codes.InvalidArgument, "from 1 to 100000"},
			{1, 1<<32 - 1, codes.InvalidArgument, "from 1 to 100000"},
			{0, 1, codes.FailedPrecondition, "version 0"},
			{2, 1, codes.FailedPrecondition, "version 2"},
		} {
			if _, err := c.one("a", bad.version, bad.count); status.Code(err) != bad.code || !strings.Contains(err.Error(), bad.says) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		if r, err := c.one("a", 1, tso.MaxCount); err != nil || r.Count != tso.MaxCount {
			t.Errorf("the largest count: %v, %v", r, err)
		}
		if _, err := tsopb.NewOracleClient(c.raw("a")).Status(t.Context(), &tsopb.StatusRequest{FormatVersion: 9}); status.Code(err) != codes.FailedPrecondition {
			t.Error(err)
		}
	})
}

func TestServerConfig(t *testing.T) {
	for _, cfg := range []tso.ServerConfig{{Lease: time.Millisecond}, {Lease: time.Hour}, {RPCTimeout: -1}, {MaxStep: -1}, {GraceTimeout: -1}} {
		if _, err := tso.NewServer(nil, cfg); err == nil {
			t.Errorf("accepted %+v", cfg)
		}
	}
	for _, cfg := range []tso.ClientConfig{{}, {Addresses: []string{"a"}, Timeout: -1}} {
		if _, err := tso.NewClient(cfg); err == nil {
			t.Errorf("accepted %+v", cfg)
		}
	}
}

// TestServedGolden keeps the stored format: a row that version 1 wrote.
func TestServedGolden(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		m := bigtable.NewMutation()
		m.Set("tso", "direct", directCell, []byte("served"))
		m.Set("tso", "lease", 0, []byte("\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x01\x02\x01\x02\x03\x04\x05\x06\x07\x08"))
		m.Set("tso", "state", 0, []byte("\b\x01\x10\x80\u0329\xc8\u8558\x03\x18\xc0\x8d\xb7\x01*\x05tso-02\ntso-0:70708\xc0\xbe\xf2\xc6\u8558\x03"))
		e.apply(m)
		want := tso.RowState{
			Mode: tso.ModeServed, Limit: 1795152600000000, Epoch: 7,
			Leader: "tso-0", Address: "tso-0:7070", Lease: 3 * time.Second,
		}
		got := e.state()
		if !got.Same(want) {
			t.Errorf("read %+v, want %+v", got, want)
		}
		// A candidate takes it over after its lease.
		c := newCluster(e)
		c.start("a", tso.ServerConfig{})
		if ts, err := c.client(tso.ClientConfig{}, "a").Timestamp(t.Context()); err != nil || ts <= want.Limit {
			t.Errorf("%d, %v", ts, err)
		}
		if s := e.state(); s.Epoch != 8 {
			t.Errorf("epoch %d", s.Epoch)
		}
	})
}
