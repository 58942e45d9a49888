package latch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// wantIdle fails the test if a slot is held or a Latch waits.
func (ls *Latches) wantIdle(t *testing.T) {
	t.Helper()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for c, q := range ls.cells {
		if !q.idle() || q.waiting != nil {
			t.Errorf("cell %s is held (%v), %d wait", c, q.holder != nil, len(q.waiting))
		}
	}
}

// cells returns cells with numbers as names.
func cells(names ...int) (cells []format.Cell) {
	for _, n := range names {
		cells = append(cells, format.Cell{Table: "t", Row: fmt.Sprint(n), Family: "f"})
	}
	return cells
}

func rowsOf(cells []format.Cell) (rows []*store.RowWrites) {
	for _, c := range cells {
		rows = append(rows, &store.RowWrites{Row: c.Row, Writes: []*store.Write{{Cell: c}}})
	}
	return rows
}

// TestLatchesExclude: transactions take random cells. No two hold one cell, none waits
// without limit, and the cells are free in the end, even those of transactions that gave up.
func TestLatchesExclude(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Hour)
		holders := make([]int, 8)
		var mu sync.Mutex
		var g sync.WaitGroup
		gaveUp := 0
		for w := range 32 {
			g.Go(func() {
				rnd := rand.New(rand.NewPCG(1, uint64(w)))
				for range 50 {
					some := make([]int, 1+rnd.IntN(4))
					for i := range some {
						some[i] = rnd.IntN(len(holders))
					}
					slices.Sort(some)
					some = slices.Compact(some)
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rnd.IntN(200))*time.Millisecond)
					l, _, err := ls.Acquire(ctx, cells(some...))
					cancel()
					if err != nil {
						if !errors.Is(err, context.DeadlineExceeded) {
							t.Error(err)
						}
						mu.Lock()
						gaveUp++
						mu.Unlock()
						continue
					}
					mu.Lock()
					for _, n := range some {
						if holders[n]++; holders[n] > 1 {
							t.Errorf("cell %d has %d holders", n, holders[n])
						}
					}
					mu.Unlock()
					<-time.After(time.Duration(rnd.IntN(10)) * time.Millisecond)
					mu.Lock()
					for _, n := range some {
						holders[n]--
					}
					mu.Unlock()
					l.Release()
					l.Release()
				}
			})
		}
		g.Wait()
		ls.wantIdle(t)
		if gaveUp == 0 {
			t.Error("no transaction gave up waiting; the test must try that too")
		}
	})
}

// TestLatchesServeInTurn: transactions that need one cell overtake one that needs two, but
// only maxOvertaken times.
func TestLatchesServeInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Hour)
		got := func(some ...int) *Latch {
			l, waited, err := ls.Acquire(t.Context(), cells(some...))
			if l == nil || waited || err != nil {
				t.Fatalf("cells %v: %v, waited: %v, %v", some, l, waited, err)
			}
			return l
		}
		first := got(2)
		served := make(chan string, 100)
		var g sync.WaitGroup
		wait := func(name string, some ...int) {
			g.Go(func() {
				l, _, err := ls.Acquire(t.Context(), cells(some...))
				if l == nil || err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				served <- name
				<-time.After(time.Millisecond)
				l.Release()
			})
			synctest.Wait() // until it has entered the queue
		}
		wait("both", 1, 2)
		for i := range 2 * maxOvertaken {
			wait(fmt.Sprint(i), 1)
		}
		<-time.After(time.Second)
		if n := len(served); n != maxOvertaken {
			t.Errorf("%d overtook the transaction that waits for two cells, want %d", n, maxOvertaken)
		}
		first.Release()
		g.Wait()
		close(served)
		var order []string
		for name := range served {
			order = append(order, name)
		}
		if i := slices.Index(order, "both"); i != maxOvertaken || !slices.IsSortedFunc(slices.Delete(slices.Clone(order), i, i+1), func(a, b string) int { return len(a) - len(b) }) {
			t.Errorf("served in the order %v", order)
		}
		ls.wantIdle(t)
	})
}

// TestLatchesAreOvertaken: a transaction that waited for Config.LatchWait continues
// without. It frees a slot that its holder has had for that long, so the next one need not
// wait.
func TestLatchesAreOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Second)
		stuck, _, _ := ls.Acquire(t.Context(), cells(7))
		<-time.After(10 * time.Second)
		began := time.Now()
		if l, waited, err := ls.Acquire(t.Context(), cells(7)); l != nil || !waited || err != nil || time.Since(began) != time.Second {
			t.Errorf("%v, waited: %v, %v after %v", l, waited, err, time.Since(began))
		}
		l, waited, err := ls.Acquire(t.Context(), cells(7))
		if l == nil || waited || err != nil {
			t.Fatalf("the next transaction did not get the slot at once: latch %v, waited: %v, error %v", l, waited, err)
		}
		stuck.Release() // the slot belongs to l now
		if l.queues[0].holder != l {
			t.Error("a transaction that had lost the slot released it")
		}
		l.Release()
		ls.wantIdle(t)
	})
}

// TestLatchesKeepTheirPlace: as long as others get a slot in turn, a transaction waits longer than
// Config.LatchWait. It gives up when one of them has had the slot for that long. A slot that is free does
// not count.
func TestLatchesKeepTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Second)
		began := time.Now()
		holds := func(some []format.Cell, at, hold, wantAt time.Duration, want bool) {
			time.AfterFunc(at, func() {
				l, waited, err := ls.Acquire(t.Context(), some)
				if got := time.Since(began); got != wantAt || (l != nil) != want || waited != (got != at) || err != nil {
					t.Errorf("asked for %v after %v: %v after %v, waited: %v, %v; want %v after %v", some, at, l != nil, got, waited, err, want, wantAt)
				}
				<-time.After(hold)
				l.Release()
			})
		}
		const ms = time.Millisecond
		holds(cells(7), 0, 800*ms, 0, true)
		holds(cells(7), 100*ms, 800*ms, 800*ms, true)
		holds(cells(7), 200*ms, 10*time.Second, 1600*ms, true)
		holds(cells(7), 300*ms, 0, 2600*ms, false) // the third one has had it for a second
		holds(cells(7), 3*time.Second, 0, 3*time.Second, true)

		holds(cells(1), 0, ms, 0, true) // free from then on
		holds(cells(2), 5*time.Second, 500*ms, 5*time.Second, true)
		holds(cells(2), 5*time.Second+ms, 700*ms, 5500*ms, true)
		holds(cells(1, 2), 5*time.Second+2*ms, 0, 6200*ms, true)

		stuck, _, _ := ls.Acquire(t.Context(), cells(3))
		holds(cells(3), 0, 0, time.Second, false) // it has had the slot for exactly a second
		<-time.After(time.Minute)
		stuck.Release()
		ls.wantIdle(t)
	})
}

// TestLatchesPassOn: a transaction that stops waiting lets those behind it continue at
// once: they get the cells that it freed, or that were kept for it.
func TestLatchesPassOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Second)
		acquire := func(ctx context.Context, some ...int) <-chan *Latch {
			got := make(chan *Latch, 1)
			go func() {
				l, _, _ := ls.Acquire(ctx, cells(some...))
				got <- l
			}()
			synctest.Wait() // until it has the cells, or is in their queues
			return got
		}
		want := func(got <-chan *Latch, after time.Duration) {
			t.Helper()
			began := time.Now()
			if l := <-got; l == nil || time.Since(began) != after {
				t.Errorf("got %v after %v, want the cells after %v", l, time.Since(began), after)
			} else {
				defer l.Release()
			}
		}
		stuck := <-acquire(t.Context(), 7)
		<-time.After(500 * time.Millisecond)
		overdue := acquire(t.Context(), 7)
		<-time.After(500 * time.Millisecond)
		behind := acquire(t.Context(), 7)
		want(behind, 500*time.Millisecond) // when the other one has waited for a second
		if l := <-overdue; l != nil {
			t.Error("the transaction that waited too long got the slot")
		}
		stuck.Release()

		first := <-acquire(t.Context(), 2)
		ctx, cancel := context.WithCancel(t.Context())
		both := acquire(ctx, 1, 2)
		for range maxOvertaken {
			(<-acquire(t.Context(), 1)).Release()
		}
		behind = acquire(t.Context(), 1)
		if len(behind) > 0 {
			t.Error("a transaction was overtaken too often")
		}
		cancel()
		want(behind, 0)
		if l := <-both; l != nil {
			t.Error("the cancelled transaction got its cells")
		}
		first.Release()
		ls.wantIdle(t)
	})
}

// TestLatchQueueIsBounded: if a queue is full, the next transaction continues without.
func TestLatchQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Hour)
		first, _, _ := ls.Acquire(t.Context(), cells(7))
		ctx, cancel := context.WithCancel(t.Context())
		var g sync.WaitGroup
		for range maxLatchQueue {
			g.Go(func() {
				if l, _, err := ls.Acquire(ctx, cells(7)); l != nil || !errors.Is(err, context.Canceled) {
					t.Errorf("%v, %v", l, err)
				}
			})
		}
		synctest.Wait()
		if l, waited, err := ls.Acquire(t.Context(), cells(6, 7)); l != nil || waited || err != nil {
			t.Errorf("%v, waited: %v, %v; want to continue at once", l, waited, err)
		}
		cancel()
		g.Wait()
		first.Release()
		ls.wantIdle(t)
	})
}

// TestGrantedAtTheEnd: a Latch that gives up may get its cells a moment before. It frees them. Only those
// in front of it count as overtaken.
func TestGrantedAtTheEnd(t *testing.T) {
	ls := New(time.Hour)
	var all []*Latch
	for _, some := range [][]format.Cell{cells(1), cells(1, 2), cells(2), cells(2, 3)} {
		l := &Latch{latches: ls}
		ls.takeOrEnqueue(l, some)
		all = append(all, l)
	}
	// The second waits for the first, and the third overtook the second. The last one waits for the third.
	all[2].Release()
	<-all[3].granted
	if got := []int{all[0].overtaken, all[1].overtaken, all[2].overtaken, all[3].overtaken}; !slices.Equal(got, []int{0, 2, 0, 0}) {
		t.Errorf("overtaken %v times", got)
	}
	ls.stopWaiting(all[3])
	ls.stopWaiting(all[1])
	all[0].Release()
	ls.wantIdle(t)
}

// Cells that conflicted lately are contended, and no other cells. If there are too many, those go that
// nobody uses.
func TestContended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Second)
		want := func(when string, some ...int) {
			t.Helper()
			if got := ls.Contended(rowsOf(cells(1, 2, 3))); !slices.Equal(got, cells(some...)) {
				t.Errorf("%s: %v, want %v", when, got, cells(some...))
			}
		}
		want("at first")
		ls.Conflicted(cells(1)[0])
		<-time.After(contendedFor / 2)
		ls.Conflicted(cells(3)[0])
		want("after two conflicts", 1, 3)
		held, _, _ := ls.Acquire(t.Context(), cells(3))
		<-time.After(contendedFor / 2)
		want("a minute after the first", 3)
		for i := range maxContended {
			ls.Conflicted(cells(100 + i)[0])
		}
		want("after many others", 3)
		if n := len(ls.cells); n > maxContended {
			t.Errorf("%d queues, want at most %d", n, maxContended)
		}
		held.Release()
		<-time.After(contendedFor)
		want("a minute later")
		off := New(-1)
		off.Conflicted(cells(1)[0])
		if got := off.Contended(rowsOf(cells(1))); got != nil || off.Any() {
			t.Errorf("without latches: %v", got)
		}
	})
}

// A transaction queues when it reads a cell, if those before it wrote the cell that they had read.
func TestExpects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls, c := New(time.Second), cells(1)[0]
		want := func(when string, perhaps, certain bool) {
			t.Helper()
			if p, c := ls.Expects(c, false), ls.Expects(c, true); p != perhaps || c != certain {
				t.Errorf("%s: %t, and of one that will write it %t", when, p, c)
			}
		}
		want("before a conflict", false, false)
		ls.Conflicted(c)
		want("after a conflict", true, true)
		ls.Ended(c, false)
		want("after a read alone", false, true)
		ls.Ended(c, true)
		want("after one write", false, true)
		ls.Ended(c, true)
		want("after two writes", true, true)
		<-time.After(contendedFor)
		want("after a minute", false, false)
	})
}

// A Latch takes more cells only if it need not wait for them.
func TestExtend(t *testing.T) {
	ls := New(time.Hour)
	l := ls.Try(cells(1))
	if ls.Try(cells(2, 1)) != nil || ls.Try(nil) != nil || l.Extend(cells(1, 2)) != true || ls.Try(cells(2)) != nil {
		t.Error("a cell has two holders, or none")
	}
	other := ls.Try(cells(3))
	if l.Extend(cells(4, 3)) || ls.Try(cells(4)) == nil {
		t.Error("it got one cell of two")
	}
	var none *Latch
	if none.Extend(cells(5)) || !none.Extend(nil) {
		t.Error("no latch holds something")
	}
	l.Release()
	other.Release()
	if ls.Try(cells(1, 2, 3)) == nil {
		t.Error("the cells are not free")
	}
}

// A small transaction queues for all its cells, and a large one for those that are contended. A cell
// that is not contended leaves nothing behind.
func TestCellsOf(t *testing.T) {
	ls := New(time.Hour)
	ls.Conflicted(cells(7)[0])
	var names []int
	for i := range maxLatched {
		names = append(names, i)
	}
	small, large := cells(names...), cells(append(names, maxLatched)...)
	if got := ls.CellsOf(rowsOf(small), nil); !slices.Equal(got, small) {
		t.Errorf("%d cells: %v", len(small), got)
	}
	if got := ls.CellsOf(rowsOf(large), nil); !slices.Equal(got, cells(7)) {
		t.Errorf("%d cells: %v", len(large), got)
	}
	if got := New(-1).CellsOf(rowsOf(small), nil); got != nil {
		t.Errorf("without latches: %v", got)
	}
	l, _, _ := ls.Acquire(t.Context(), small)
	if n := len(ls.cells); n != maxLatched {
		t.Errorf("%d queues", n)
	}
	l.Release()
	if n := len(ls.cells); n != 1 {
		t.Errorf("%d queues are left, want that of the contended cell", n)
	}
}

// The next transaction at a cell that other clients took first waits. The pauses grow with each of these,
// and shrink with each commit.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls, pauses := New(time.Second), store.Backoff{Min: time.Second, Max: 3 * time.Second}
		cell := cells(1)[0]
		waits := func(some ...int) time.Duration {
			t.Helper()
			l, _, _ := ls.Acquire(t.Context(), cells(some...))
			defer l.Release()
			began := time.Now()
			paused, err := l.Pause(t.Context())
			took := time.Since(began)
			if paused != (took > 0) || err != nil {
				t.Errorf("paused: %v for %v, %v", paused, took, err)
			}
			return took
		}
		for i, bound := range []time.Duration{1, 2, 3, 3, 3, 3, 3, 3} {
			ls.Lost(cell, pauses)
			if took := waits(2); took > 0 {
				t.Errorf("at another cell: %v", took)
			}
			if took := waits(2, 1); took == 0 || took > bound*time.Second {
				t.Errorf("pause %d took %v, want at most %d s", i, took, bound)
			}
			if took := waits(1); took > 0 {
				t.Errorf("after the pause: %v", took)
			}
		}
		ls.Lost(cell, pauses)
		ls.Won(rowsOf(cells(1, 2)))
		if took := waits(1); took > 0 || ls.cells[cell].bound != time.Second {
			t.Errorf("after a commit: %v, and then at most %v", took, ls.cells[cell].bound)
		}
		ls.Lost(cell, pauses)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		l := ls.Try(cells(1))
		if _, err := l.Pause(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%v; want the context's error", err)
		}
		l.Release()
		off := New(-1)
		off.Lost(cell, pauses)
		off.Won(rowsOf(cells(1)))
		if len(off.cells) > 0 {
			t.Error("without latches: it remembers a cell")
		}
	})
}
