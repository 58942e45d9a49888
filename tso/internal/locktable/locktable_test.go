package locktable

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestCheck: the bounds of names, owners and ttls.
func TestCheck(t *testing.T) {
	x := strings.Repeat
	for _, tt := range []struct {
		name, owner string
		ttl         time.Duration
		says        string
	}{
		{"n", "o", 1, ""},
		{x("n", MaxName), x("o", MaxName), MaxTTL, ""},
		{"", "o", 1, "lock name of 0 bytes"},
		{x("n", MaxName+1), "o", 1, "lock name of 2049 bytes"},
		{"n", "", 1, "lock owner of 0 bytes"},
		{"n", x("o", MaxName+1), 1, "lock owner of 2049 bytes"},
		{"n", "o", 0, "lock ttl of 0s"},
		{"n", "o", MaxTTL + 1, "lock ttl of 10m0.000000001s"},
	} {
		if err := Check(tt.name, tt.owner, tt.ttl); (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%d, %d, %v: error %v, want %q", len(tt.name), len(tt.owner), tt.ttl, err, tt.says)
		}
	}
	table := New(0, 0)
	if _, _, err := table.Acquire("n", "o", 0, nil); err == nil {
		t.Error("a lock without a ttl was taken")
	}
	if err := table.Release("n", ""); err == nil {
		t.Error("a lock of nobody was released")
	}
	if _, err := table.Holder(""); err == nil {
		t.Error("a lock without a name has a holder")
	}
}

// TestLock: a lock excludes other owners to the end of its ttl, and not longer. Its owner renews
// it, and nobody else releases it.
func TestLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(0, 0)
		acquire := func(owner string, ok bool, want Holder) {
			t.Helper()
			if got, by, err := table.Acquire("n", owner, time.Minute, nil); got != ok || by != want || err != nil {
				t.Errorf("%s: %t, %+v, %v; want %t, %+v", owner, got, by, err, ok, want)
			}
		}
		holder := func(want Holder) {
			t.Helper()
			if got, err := table.Holder("n"); got != want || err != nil {
				t.Errorf("held by %+v, %v; want %+v", got, err, want)
			}
		}
		holder(Holder{})
		acquire("a", true, Holder{"a", time.Minute})
		<-time.After(20 * time.Second)
		holder(Holder{"a", 40 * time.Second})
		acquire("b", false, Holder{"a", 40 * time.Second})
		acquire("a", true, Holder{"a", time.Minute}) // renewed
		if err := table.Release("n", "b"); err != nil || table.Len() != 1 {
			t.Errorf("released by b: %v, %d locks", err, table.Len())
		}
		<-time.After(time.Minute - 1)
		acquire("b", false, Holder{"a", 1})
		<-time.After(1)
		holder(Holder{})
		acquire("b", true, Holder{"b", time.Minute})
		if err := table.Release("n", "b"); err != nil || table.Len() != 0 {
			t.Errorf("released: %v, %d locks", err, table.Len())
		}
		acquire("a", true, Holder{"a", time.Minute})
	})
}

// TestRoom: each client and all together have exactly the room that New says. A lock that is
// renewed takes no more, and goes to the client that renewed it. Expired locks make room, but at
// most once a second the table looks for them.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := len("a0") + len("o") + Overhead
		table := New(3*one, 2*one)
		acquire := func(name, client string, ttl time.Duration, want error) {
			t.Helper()
			if ok, _, err := table.Acquire(name, "o", ttl, client); !errors.Is(err, want) || ok != (want == nil) {
				t.Errorf("%s of %s: %t, %v; want %v", name, client, ok, err, want)
			}
		}
		size := func(locks int) {
			t.Helper()
			if n, bytes := table.Size(); n != locks || bytes != locks*one {
				t.Errorf("%d locks, %d bytes; want %d, %d", n, bytes, locks, locks*one)
			}
		}
		acquire("a0", "a", time.Minute, nil)
		acquire("a1", "a", time.Minute, nil)
		acquire("a1", "a", time.Minute, nil) // renewed
		acquire("a2", "a", time.Minute, ErrFull)
		acquire("b0", "b", time.Second, nil)
		acquire("b1", "b", time.Second, ErrFull) // all have three
		size(3)
		acquire("a1", "b", time.Minute, nil) // which is b's then
		acquire("b0", "a", time.Second, nil) // and this is a's
		acquire("a2", "a", time.Minute, ErrFull)
		if err := table.Release("a0", "o"); err != nil {
			t.Error(err)
		}
		size(2)
		acquire("a2", "a", time.Minute, nil)
		acquire("a3", "a", time.Minute, ErrFull) // looks for expired locks
		<-time.After(time.Second)
		acquire("a3", "a", time.Minute, nil) // in the place of b0
		size(3)
		if err := table.Release("a3", "o"); err != nil {
			t.Error(err)
		}
		acquire("a4", "a", time.Millisecond, nil)
		<-time.After(sweepPause - 1)
		acquire("a5", "a", time.Minute, ErrFull) // less than a second after the last check
		<-time.After(1)
		acquire("a5", "a", time.Minute, nil)
		if err := table.Release("a5", "o"); err != nil {
			t.Error(err)
		}
		acquire("b0", "b", time.Millisecond, nil)
		<-time.After(time.Millisecond)
		size(3) // nobody looked since
		<-time.After(sweepPause)
		size(2)
		<-time.After(time.Minute)
		size(0)
		acquire("a0", "a", time.Minute, nil)
		acquire("b0", "b", time.Minute, nil)
		acquire("b1", "b", time.Minute, nil)
		acquire("a0", "b", time.Minute, ErrFull) // it would be b's third
		<-time.After(time.Minute)
		if n := table.Len(); n != 0 {
			t.Errorf("%d locks are held after they expired", n)
		}
		if len(table.by) != 0 {
			t.Errorf("clients without locks count: %v", table.by)
		}
	})
}

// TestLeastRoom: the smallest bounds that there are have no room for a lock.
func TestLeastRoom(t *testing.T) {
	for _, table := range []*Table{New(1, 0), New(0, 1)} {
		if ok, _, err := table.Acquire("n", "o", time.Minute, nil); ok || !errors.Is(err, ErrFull) || table.Len() != 0 {
			t.Errorf("%d bytes for all, %d for each: %t, %v", table.all, table.each, ok, err)
		}
	}
}

// TestSweep: a table without bounds removes expired locks when it has doubled.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(0, 0)
		n := 0
		add := func(until int, ttl time.Duration) {
			for ; n < until; n++ {
				if ok, _, err := table.Acquire(fmt.Sprint(n), "o", ttl, nil); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
		}
		add(500, time.Second)
		<-time.After(time.Second)
		add(minSweep-1, time.Minute)
		if len(table.held) != minSweep-1 {
			t.Errorf("%d locks before the first sweep", len(table.held))
		}
		add(minSweep, time.Minute)
		if want := minSweep - 500; len(table.held) != want || table.Len() != want || table.bytes == 0 {
			t.Errorf("%d locks after it, want %d", len(table.held), want)
		}
		add(2000, time.Minute) // swept again when there were twice as many
		if len(table.held) != 1500 || table.sweep != 4*(minSweep-500) {
			t.Errorf("%d locks, the next sweep at %d", len(table.held), table.sweep)
		}
	})
}
