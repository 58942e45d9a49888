package tso_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
)

// answers are locks that answer each call the same.
type answers struct {
	name  string
	err   error
	by    tso.Holder
	calls *[]string
	ends  func() // called by each call
}

func (a answers) call(what string) error {
	*a.calls = append(*a.calls, a.name+" "+what)
	if a.ends != nil {
		a.ends()
	}
	return a.err
}

func (a answers) Acquire(_ context.Context, _, _ string, _ time.Duration) (bool, tso.Holder, error) {
	err := a.call("acquire")
	return err == nil && a.by.Owner == "", a.by, err
}
func (a answers) Release(context.Context, string, string) error { return a.call("release") }
func (a answers) Holder(context.Context, string) (tso.Holder, error) {
	return a.by, a.call("holder")
}

// TestFallbackLocksAnswer: which of two lock services answers a call, and which one is called at all,
// also by the next call.
func TestFallbackLocksAnswer(t *testing.T) {
	x, y := tso.Holder{Owner: "x", Left: 1}, tso.Holder{Owner: "y", Left: 2}
	broken, broken2 := errors.New("first is broken"), errors.New("second is broken")
	acquire := func(ctx context.Context, l tso.Locks) string {
		ok, by, err := l.Acquire(ctx, "l", "o", time.Minute)
		return fmt.Sprintf("%t %s %v", ok, by.Owner, err)
	}
	holder := func(ctx context.Context, l tso.Locks) string {
		by, err := l.Holder(ctx, "l")
		return fmt.Sprintf("%s %v", by.Owner, err)
	}
	release := func(ctx context.Context, l tso.Locks) string {
		return fmt.Sprint(l.Release(ctx, "l", "o"))
	}
	for _, tt := range []struct {
		name          string
		call          func(context.Context, tso.Locks) string
		first         error
		firstBy       tso.Holder
		second        error
		secondBy      tso.Holder
		ends          bool // the caller's context ends in the first
		want          string
		calls         string
		down          bool // the next call does not ask the first
		releasesFirst bool
	}{
		{name: "the first takes", call: acquire, want: "true  <nil>", calls: "[first acquire]"},
		{name: "the first refuses", call: acquire, firstBy: x, want: "false x <nil>", calls: "[first acquire]"},
		{name: "the first fails", call: acquire, first: broken, want: "true  <nil>", calls: "[first acquire second acquire]", down: true},
		{name: "the first fails, the second refuses", call: acquire, first: broken, secondBy: y, want: "false y <nil>", calls: "[first acquire second acquire]", down: true},
		{name: "both fail", call: acquire, first: broken, second: broken2, want: "false  second is broken", calls: "[first acquire second acquire]", down: true},
		{name: "the first is full", call: acquire, first: tso.ErrLimit, want: "true  <nil>", calls: "[first acquire second acquire]"},
		{name: "the first does not know yet", call: acquire, first: tso.ErrLockUnknown, want: "true  <nil>", calls: "[first acquire second acquire]"},
		{name: "the caller leaves", call: acquire, first: broken, ends: true, want: "false  first is broken", calls: "[first acquire]"},

		{name: "held in the first", call: holder, firstBy: x, secondBy: y, want: "x <nil>", calls: "[first holder]"},
		{name: "held in the second", call: holder, secondBy: y, want: "y <nil>", calls: "[first holder second holder]"},
		{name: "held in none", call: holder, want: " <nil>", calls: "[first holder second holder]"},
		{name: "the first fails, held in the second", call: holder, first: broken, firstBy: x, secondBy: y, want: "y <nil>", calls: "[first holder second holder]", down: true},
		{name: "the first fails, held in none", call: holder, first: broken, want: " <nil>", calls: "[first holder second holder]", down: true},
		{name: "the first does not know, held in the second", call: holder, first: tso.ErrLockUnknown, secondBy: y, want: "y <nil>", calls: "[first holder second holder]"},
		{name: "the first does not know, held in none", call: holder, first: tso.ErrLockUnknown, want: " " + tso.ErrLockUnknown.Error(), calls: "[first holder second holder]"},
		{name: "the first does not know, the second fails", call: holder, first: tso.ErrLockUnknown, second: broken2, want: " second is broken", calls: "[first holder second holder]"},
		{name: "the second fails", call: holder, second: broken2, want: " second is broken", calls: "[first holder second holder]"},
		{name: "the asking caller leaves", call: holder, first: broken, ends: true, want: " first is broken", calls: "[first holder]"},

		{name: "release in both", call: release, want: "<nil>", releasesFirst: true},
		{name: "release, the first fails", call: release, first: broken, want: "<nil>", down: true, releasesFirst: true},
		{name: "release, the second fails", call: release, second: broken2, want: "second is broken", releasesFirst: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var calls, more []string
			first := answers{name: "first", err: tt.first, by: tt.firstBy, calls: &calls}
			if tt.ends {
				first.ends = cancel
			}
			second := answers{name: "second", err: tt.second, by: tt.secondBy, calls: &calls}
			if tt.releasesFirst {
				second.calls = &more // at the same time
			}
			l := tso.FallbackLocks(first, second)
			if got := tt.call(ctx, l); got != tt.want {
				t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			}
			want := tt.calls
			if tt.releasesFirst {
				want = "[first release second release]"
			}
			if got := fmt.Sprint(append(calls, more...)); got != want {
				t.Errorf("%s: called %s, want %s", tt.name, got, want)
			}
			for _, after := range []time.Duration{0, 5*time.Second - 1, 1} {
				down := tt.down && after != 1
				tsotest.Advance(after)
				calls = nil
				_, _ = l.Holder(t.Context(), "l")
				if asked := len(calls) > 0 && calls[0] == "first holder"; asked == down {
					t.Errorf("%s: %v later the first was asked: %t", tt.name, after, asked)
				}
				if down {
					continue
				}
				break
			}
		})
	}
}

// TestFollowerHints: hints go to the servers in served mode, and nowhere in direct mode.
func TestFollowerHints(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		client := c.Client(tso.ClientConfig{}, "a")
		f := tso.Follow(e.Direct(tso.DirectConfig{}), client)
		if _, err := f.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.PublishHints(tso.Hint{Topic: "x"})
		tsotest.Advance(time.Minute)
		if s := client.Stats(); s != (tso.ClientStats{}) {
			t.Errorf("in direct mode: %+v", s)
		}
		e.SetMode(tso.ModeServed)
		f.PublishHints(tso.Hint{Topic: "x"}) // it has not noticed
		c.Start("a", server.Config{})
		tsotest.Advance(time.Second)
		if _, err := f.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.PublishHints(tso.Hint{Topic: "x"})
		tsotest.Advance(time.Second)
		if s := client.Stats(); s.HintsSent != 1 || s.HintsDropped != 0 || s.Timestamps != 1 {
			t.Errorf("in served mode: %+v", s)
		}
		if err := f.SubscribeHints(t.Context(), nil, func(tso.Hint) {}); err == nil {
			t.Error("subscribed without a topic")
		}
	})
}
