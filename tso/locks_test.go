package tso_test

import (
	"context"
	"errors"
	"fmt"
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
)

// eachLocks runs f with every implementation.
func eachLocks(t *testing.T, f func(t *testing.T, l tso.Locks)) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, tso.NewMemoryLocks()) })
	})
	t.Run("rows", func(t *testing.T) {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) { f(t, rowLocks(t, e)) })
	})
	t.Run("served", func(t *testing.T) {
		tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
			c.Start("a", server.Config{})
			tsotest.Advance(time.Minute) // long after it came to lead
			f(t, c.Client(tso.ClientConfig{}, "a").Locks())
		})
	})
	t.Run("fallback", func(t *testing.T) {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			dead := tsotest.NewCluster(e).Client(tso.ClientConfig{Timeout: time.Millisecond}, "nowhere").Locks()
			f(t, tso.FallbackLocks(dead, rowLocks(t, e)))
		})
	})
}

func rowLocks(t *testing.T, e *tsotest.Emulator) *tso.RowLocks {
	t.Helper()
	return tso.NewRowLocks(e.Table("percolator"), e.Direct(tso.DirectConfig{}), tso.RowLocksConfig{})
}

func TestLocks(t *testing.T) {
	eachLocks(t, func(t *testing.T, l tso.Locks) {
		ctx := t.Context()
		acquire := func(name, owner string, want bool, holder string) {
			t.Helper()
			ok, by, err := l.Acquire(ctx, name, owner, 10*time.Second)
			if err != nil || ok != want || by.Owner != holder || by.Left <= 0 || by.Left > 10*time.Second {
				t.Errorf("Acquire(%q, %q): %t, %v, %v", name, owner, ok, by, err)
			}
		}
		holder := func(name, want string) {
			t.Helper()
			by, err := l.Holder(ctx, name)
			if err != nil || by.Owner != want || (want == "") != (by.Left == 0) || by.Left < 0 || by.Left > 10*time.Second {
				t.Errorf("Holder(%q): %v, %v", name, by, err)
			}
		}
		holder("row/1", "")
		acquire("row/1", "x", true, "x")
		acquire("row/1", "y", false, "x")
		acquire("row/2", "y", true, "y")
		holder("row/1", "x")
		tsotest.Advance(8 * time.Second)
		acquire("row/1", "x", true, "x") // renewed
		tsotest.Advance(8 * time.Second)
		acquire("row/1", "y", false, "x")
		holder("row/2", "") // ran out
		tsotest.Advance(3 * time.Second)
		acquire("row/1", "y", true, "y")
		if err := l.Release(ctx, "row/1", "x"); err != nil { // not its own any more
			t.Error(err)
		}
		holder("row/1", "y")
		if err := l.Release(ctx, "row/1", "y"); err != nil {
			t.Error(err)
		}
		holder("row/1", "")
		acquire("any bytes \x00\xff/", "\x01", true, "\x01")
		for _, bad := range []struct {
			name, owner string
			ttl         time.Duration
		}{{"", "x", 1}, {"x", "", 1}, {"x", "x", 0}, {"x", "x", -1}, {"x", "x", time.Hour}, {strings.Repeat("x", 3000), "x", 1}} {
			if _, _, err := l.Acquire(ctx, bad.name, bad.owner, bad.ttl); err == nil {
				t.Errorf("accepted %+v", bad)
			}
		}
		if err := l.Release(ctx, "", "x"); err == nil {
			t.Error("released a lock without a name")
		}
		if _, err := l.Holder(ctx, ""); err == nil {
			t.Error("a lock without a name has a holder")
		}
	})
}

// TestLocksAfterTheirContext: a call whose context has ended changes nothing, and says so.
func TestLocksAfterTheirContext(t *testing.T) {
	eachLocks(t, func(t *testing.T, l tso.Locks) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		isEnded := func(err error) bool { return errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled }
		if ok, by, err := l.Acquire(ended, "l", "x", time.Minute); ok || by != (tso.Holder{}) || !isEnded(err) {
			t.Errorf("acquire: %t, %v, %v", ok, by, err)
		}
		if by, err := l.Holder(t.Context(), "l"); by.Owner != "" || err != nil {
			t.Errorf("the lock is held by %v, %v", by, err)
		}
		if _, err := l.Holder(ended, "l"); !isEnded(err) {
			t.Errorf("holder: %v", err)
		}
		if err := l.Release(ended, "l", "x"); !isEnded(err) {
			t.Errorf("release: %v", err)
		}
	})
}

func TestLocksOneWinner(t *testing.T) {
	eachLocks(t, func(t *testing.T, l tso.Locks) {
		for round := range 5 {
			var won atomic.Int32
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					ok, _, err := l.Acquire(t.Context(), fmt.Sprint("r", round), fmt.Sprint("o", i), time.Minute)
					if err != nil {
						t.Error(err)
					}
					if ok {
						won.Add(1)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Errorf("%d winners", won.Load())
			}
		}
	})
}

func TestTokens(t *testing.T) {
	eachLocks(t, func(t *testing.T, l tso.Locks) {
		alive := func(want bool) {
			t.Helper()
			if got, err := tso.TokenAlive(t.Context(), l, "w1"); err != nil || got != want {
				t.Errorf("alive: %t, %v", got, err)
			}
		}
		alive(false)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- tso.HoldToken(ctx, l, "w1", 5*time.Second) }()
		for range 5 {
			tsotest.Advance(4 * time.Second)
			alive(true)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		alive(false)
	})
}

func TestRowLocksFaults(t *testing.T) {
	for _, fault := range tsotest.Faults {
		t.Run(fault.Name, func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				l := rowLocks(t, e)
				if _, _, err := l.Acquire(t.Context(), "warm", "x", time.Second); err != nil {
					t.Fatal(err)
				}
				fired := 0
				e.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
					// The oracle compares and sets too: leave its request alone.
					if m == tsotest.CheckAndMutate {
						fired++
						if fired == 2 {
							return fault.Do(call)
						}
					}
					return call()
				})
				ok, by, err := l.Acquire(t.Context(), "l", "x", time.Minute)
				if err != nil || !ok || by.Owner != "x" || fired < 2 {
					t.Errorf("%t, %v, %v, fired %d", ok, by, err, fired)
				}
				if ok, by, err := l.Acquire(t.Context(), "l", "y", time.Minute); err != nil || ok || by.Owner != "x" {
					t.Errorf("another: %t, %v, %v", ok, by, err)
				}
			})
		})
	}
}

func TestRowLocksSweep(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		l := rowLocks(t, e)
		for i := range 5 {
			if _, _, err := l.Acquire(t.Context(), fmt.Sprint(i), "x", time.Duration(i+1)*time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		tsotest.Advance(3*time.Minute + 30*time.Second)
		if n, err := l.Sweep(t.Context(), time.Minute); err != nil || n != 2 {
			t.Errorf("swept %d, %v", n, err)
		}
		if by, err := l.Holder(t.Context(), "4"); err != nil || by.Owner != "x" {
			t.Error(by, err)
		}
		e.On(func(context.Context, string, func() (any, error)) (any, error) {
			return nil, status.Error(codes.PermissionDenied, "no")
		})
		if _, err := l.Sweep(t.Context(), 0); err == nil {
			t.Error("no error")
		}
	})
}
