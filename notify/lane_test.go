package notify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestLaneLosesNothing offers few cells from many goroutines, as hints and as a finder
// does. Each accepted cell has a check that begins after the offer, and no cell has two
// checks at the same time.
func TestLaneLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rows = 12
		var later timers
		l := newLane(nil, 1, 2, &later)
		var mu sync.Mutex
		var offered, checked [rows]int
		var busy [rows]atomic.Bool
		later.open()
		defer later.close()
		l.check = func(_, _ context.Context, _ *lane, task task) time.Duration {
			var row int
			_, _ = fmt.Sscan(task.cell.Row, &row)
			if busy[row].Swap(true) {
				t.Errorf("row %d has two checks at the same time", row)
			}
			mu.Lock()
			checked[row] = offered[row]
			mu.Unlock()
			<-time.After(time.Duration(rand.IntN(3)) * time.Millisecond)
			busy[row].Store(false)
			if rand.IntN(10) == 0 {
				return time.Millisecond // once more, later
			}
			return 0
		}
		ctx, cancel := context.WithCancel(t.Context())
		var work, offers sync.WaitGroup
		for range 2 {
			work.Go(func() { l.work(ctx, ctx) })
		}
		var refused atomic.Int32
		for g := range 8 {
			offers.Go(func() {
				for range 200 {
					row := rand.IntN(rows)
					mu.Lock()
					offered[row]++
					mu.Unlock()
					if !l.offer(ctx, task{cell: txn.Cell{Row: fmt.Sprint(row)}}, g%2 == 0) {
						refused.Add(1)
					}
					<-time.After(time.Duration(rand.IntN(2)) * time.Millisecond)
				}
			})
		}
		offers.Wait()
		for row := range rows { // a finder finds the cells that were refused
			l.offer(ctx, task{cell: txn.Cell{Row: fmt.Sprint(row)}}, true)
		}
		<-time.After(time.Second)
		synctest.Wait()
		for row := range rows {
			if checked[row] != offered[row] {
				t.Errorf("row %d: the last check began after %d of %d offers", row, checked[row], offered[row])
			}
			if l.busy(txn.Cell{Row: fmt.Sprint(row)}) {
				t.Errorf("row %d is still counted as busy", row)
			}
		}
		if refused.Load() == 0 {
			t.Error("the queue was never full")
		}
		cancel()
		work.Wait()
	})
}

// TestAllWaiting: a lane leaves a cell to its timers only while every observer's failure
// belongs to the newest notification and its pause lasts. Otherwise no sweep would find a
// cell whose timer was lost.
func TestAllWaiting(t *testing.T) {
	l := newLane([]*handler{{id: "a"}, {id: "b"}}, 1, 1, nil)
	failed := func(last, notBefore tso.Timestamp) format.Failure {
		return format.Failure{LastTS: last, NotBefore: notBefore}
	}
	both := map[string]format.Failure{"a": failed(7, 20), "b": failed(7, 30)}
	triggers := []format.NotifyCell{{TS: 5}, {TS: 7}}
	for name, c := range map[string]struct {
		triggers []format.NotifyCell
		failures map[string]format.Failure
		now      tso.Timestamp
		want     bool
	}{
		"both pause":             {triggers, both, 19, true},
		"one pause has ended":    {triggers, both, 20, false},
		"both pauses have ended": {triggers, both, 31, false},
		"unknown time":           {triggers, both, 0, false},
		"no notification":        {nil, both, 19, false},
		"one has not failed":     {triggers, map[string]format.Failure{"a": failed(7, 20)}, 19, false},
		"one is a dead letter":   {triggers, map[string]format.Failure{"a": failed(7, 20), "b": failed(7, never)}, 19, true},
		"both are dead letters":  {triggers, map[string]format.Failure{"a": failed(7, never), "b": failed(7, never)}, 19, false},
		"a newer notification":   {append(triggers, format.NotifyCell{TS: 8}), both, 19, false},
	} {
		if got := l.allWaiting(changes.Notification{Triggers: c.triggers, Failures: c.failures}, c.now); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// TestSkips: a lane leaves a cell out for as long as it was told, unless a newer notification
// arrives.
func TestSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLane(nil, 1, 1, nil)
		skipped := func(want bool, triggers ...tso.Timestamp) {
			t.Helper()
			n := changes.Notification{Cell: txn.Cell{Row: "r"}}
			for _, ts := range triggers {
				n.Triggers = append(n.Triggers, format.NotifyCell{TS: ts})
			}
			if l.skipped(n) != want {
				t.Errorf("notifications at %v are skipped: %t", triggers, !want)
			}
		}
		skipped(false, 1)
		l.skip(txn.Cell{Row: "r"}, 7, time.Minute)
		skipped(true, 5, 7)
		skipped(true)
		<-time.After(time.Minute)
		skipped(true, 7)
		<-time.After(1)
		skipped(false, 7)
		l.skip(txn.Cell{Row: "r"}, 7, time.Minute)
		skipped(false, 8, 7)
		skipped(false, 7) // the skip has ended
		l.skip(txn.Cell{Row: "other"}, 7, time.Minute)
		skipped(false, 7)
	})
}

// TestCellsOfARow: a lane of a pattern keeps the cells of one row apart.
func TestCellsOfARow(t *testing.T) {
	l := newLane([]*handler{{concurrency: 1}}, 1, 2, nil)
	for _, q := range []string{"a", "b", "a"} {
		if !l.offer(t.Context(), task{cell: txn.Cell{Row: "r", Qualifier: q}}, false) {
			t.Errorf("%s is refused", q)
		}
	}
	if n := len(l.queue); n != 2 {
		t.Errorf("%d cells wait, want 2", n)
	}
}

// TestRoomOfALane: a finder waits for room for a while, once. After that its cells join the hints,
// until it finds room again at once. A hint without room is refused.
func TestRoomOfALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLane([]*handler{{concurrency: 1}}, 1, 2, nil)
		offer := func(row string, finder, want bool, wait time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			if got := l.offer(ctx, task{cell: txn.Cell{Row: row}}, finder); got != want || time.Since(began) != wait {
				t.Errorf("%s: accepted %t after %v, want %t after %v", row, got, time.Since(began), want, wait)
			}
			if l.busy(txn.Cell{Row: row}) != want {
				t.Errorf("%s is queued: %t", row, !want)
			}
		}
		offer("f1", true, true, 0)
		offer("f1", true, true, 0) // it is queued already
		offer("h1", false, true, 0)
		offer("f2", true, true, roomTimeout)
		offer("f3", true, false, time.Second) // hints have no room either
		offer("h2", false, false, 0)
		if len(l.found) != 1 || len(l.queue) != 2 {
			t.Fatalf("%d cells found, %d hinted", len(l.found), len(l.queue))
		}
		<-l.queue
		offer("h3", false, true, 0) // that a hint has room says nothing about the finder
		<-l.queue
		offer("f4", true, true, 0) // without another wait
		<-l.found
		offer("f5", true, true, 0)
		<-l.queue
		offer("f6", true, true, roomTimeout) // it is fast again, so worth a wait
		<-l.queue
		go func() { <-time.After(roomTimeout / 2); <-l.found }()
		<-l.found
		offer("f7", true, true, 0)
		offer("f8", true, true, roomTimeout/2)
	})
}

// TestBoundedMemory: neither the cells that the cleaner has to clear nor a lane's skips
// nor its timers grow without bound.
func TestBoundedMemory(t *testing.T) {
	long.RacedAtNight(t)
	c := newCleaner(nil, nil, nil) // not started: a store that does not answer
	for range 2 * maxWaiting {
		c.add(changes.Cleared{})
	}
	if n := len(c.waiting); n != maxWaiting {
		t.Errorf("the cleaner keeps %d cells, want %d", n, maxWaiting)
	}
	var later timers
	l := newLane(nil, 1, 1, &later)
	for i := range maxSkips + 10 {
		l.skip(txn.Cell{Row: fmt.Sprint(i)}, 1, time.Hour)
	}
	if n := len(l.skips); n != 10 {
		t.Errorf("the lane keeps %d skips, want the last 10", n)
	}
	later.open()
	defer later.close()
	for range 2 * maxTimers {
		later.after(time.Hour, func() {})
	}
	if n := len(later.all); n != maxTimers {
		t.Errorf("%d timers, want %d", n, maxTimers)
	}
}

// TestTimers: timers call while they are open, those that have fired make room for more, and none
// fires once they are closed.
func TestTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var later timers
		var calls atomic.Int64
		call := func() { calls.Add(1) }
		later.after(0, call) // closed
		later.open()
		for range 2 {
			for range maxTimers + 1 {
				later.after(time.Second, call)
			}
			<-time.After(time.Second)
			synctest.Wait()
		}
		if n := calls.Load(); n != 2*maxTimers || len(later.all) != 0 {
			t.Errorf("%d calls, want %d; %d timers are left", n, 2*maxTimers, len(later.all))
		}
		later.after(time.Second, call)
		later.close()
		later.after(time.Second, call)
		<-time.After(time.Minute)
		if n := calls.Load(); n != 2*maxTimers {
			t.Errorf("%d calls after close", n-2*maxTimers)
		}
	})
}
