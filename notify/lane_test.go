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

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// TestLaneLosesNothing offers few cells from many goroutines, as hints and as a
// finder does. Whatever was accepted is looked at by a look that began after the
// offer, and no cell is looked at twice at a time.
func TestLaneLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rows = 12
		w := &Worker{cfg: Config{Queue: 2}}
		l := newLane(w, nil)
		var mu sync.Mutex
		var offered, looked [rows]int
		var busy [rows]atomic.Bool
		w.later.open()
		defer w.later.close()
		l.look = func(_, _ context.Context, _ *lane, task task) time.Duration {
			var row int
			_, _ = fmt.Sscan(task.cell.Row, &row)
			if busy[row].Swap(true) {
				t.Errorf("row %d is looked at twice at a time", row)
			}
			mu.Lock()
			looked[row] = offered[row]
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
		for row := range rows { // what was refused is found by a finder
			l.offer(ctx, task{cell: txn.Cell{Row: fmt.Sprint(row)}}, true)
		}
		<-time.After(time.Second)
		synctest.Wait()
		for row := range rows {
			if looked[row] != offered[row] {
				t.Errorf("row %d: the last look began after %d of %d offers", row, looked[row], offered[row])
			}
			if l.busy(fmt.Sprint(row)) {
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

// TestBoundedMemory: neither what is to be removed nor what is remembered of
// cells grows without end.
func TestBoundedMemory(t *testing.T) {
	w := &Worker{cfg: Config{Queue: 1}}
	c := newCleaner(w) // not started: a store that does not answer
	for range 2 * maxPending {
		c.add(changes.Cleared{})
	}
	if n := len(c.pending); n != maxPending {
		t.Errorf("%d removals are kept", n)
	}
	l := newLane(w, nil)
	for i := range maxSettled + 10 {
		l.settle(fmt.Sprint(i), 1, time.Hour)
	}
	if n := len(l.settled); n > maxSettled {
		t.Errorf("%d cells are remembered", n)
	}
	w.later.open()
	defer w.later.close()
	for range 2 * maxTimers {
		w.later.after(time.Hour, func() {})
	}
	if n := len(w.later.all); n != maxTimers {
		t.Errorf("%d timers", n)
	}
}
