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
	for n, s := range ls.slots {
		if s.holder != nil || s.queue != nil {
			t.Errorf("slot %d is held (%v), %d wait", n, s.holder != nil, len(s.queue))
		}
	}
}

// TestLatchesExclude: transactions take random slots. No two hold one slot, none waits
// without limit, and the slots are free in the end, even those of transactions that gave up.
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
					slots := make([]uint16, 1+rnd.IntN(4))
					for i := range slots {
						slots[i] = uint16(rnd.IntN(len(holders)))
					}
					slices.Sort(slots)
					slots = slices.Compact(slots)
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rnd.IntN(200))*time.Millisecond)
					l, _, err := ls.Acquire(ctx, slots)
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
					for _, n := range slots {
						if holders[n]++; holders[n] > 1 {
							t.Errorf("slot %d has %d holders", n, holders[n])
						}
					}
					mu.Unlock()
					<-time.After(time.Duration(rnd.IntN(10)) * time.Millisecond)
					mu.Lock()
					for _, n := range slots {
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

// TestLatchesServeInTurn: transactions that need one slot overtake one that needs two, but
// only maxOvertaken times.
func TestLatchesServeInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Hour)
		got := func(slots ...uint16) *Latch {
			l, waited, err := ls.Acquire(t.Context(), slots)
			if l == nil || waited || err != nil {
				t.Fatalf("slots %v: %v, waited: %v, %v", slots, l, waited, err)
			}
			return l
		}
		first := got(2)
		served := make(chan string, 100)
		var g sync.WaitGroup
		wait := func(name string, slots ...uint16) {
			g.Go(func() {
				l, _, err := ls.Acquire(t.Context(), slots)
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
			t.Errorf("%d overtook the transaction that waits for two slots, want %d", n, maxOvertaken)
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
		stuck, _, _ := ls.Acquire(t.Context(), []uint16{7})
		<-time.After(10 * time.Second)
		began := time.Now()
		if l, waited, err := ls.Acquire(t.Context(), []uint16{7}); l != nil || !waited || err != nil || time.Since(began) != time.Second {
			t.Errorf("%v, waited: %v, %v after %v", l, waited, err, time.Since(began))
		}
		l, waited, err := ls.Acquire(t.Context(), []uint16{7})
		if l == nil || waited || err != nil {
			t.Fatalf("the next transaction did not get the slot at once: latch %v, waited: %v, error %v", l, waited, err)
		}
		stuck.Release() // the slot belongs to l now
		if l.latches.slots[7].holder != l {
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
		holds := func(slots []uint16, at, hold, wantAt time.Duration, want bool) {
			time.AfterFunc(at, func() {
				l, waited, err := ls.Acquire(t.Context(), slots)
				if got := time.Since(began); got != wantAt || (l != nil) != want || waited != (got != at) || err != nil {
					t.Errorf("asked for %v after %v: %v after %v, waited: %v, %v; want %v after %v", slots, at, l != nil, got, waited, err, want, wantAt)
				}
				<-time.After(hold)
				l.Release()
			})
		}
		const ms = time.Millisecond
		holds([]uint16{7}, 0, 800*ms, 0, true)
		holds([]uint16{7}, 100*ms, 800*ms, 800*ms, true)
		holds([]uint16{7}, 200*ms, 10*time.Second, 1600*ms, true)
		holds([]uint16{7}, 300*ms, 0, 2600*ms, false) // the third one has had it for a second
		holds([]uint16{7}, 3*time.Second, 0, 3*time.Second, true)

		holds([]uint16{1}, 0, ms, 0, true) // free from then on
		holds([]uint16{2}, 5*time.Second, 500*ms, 5*time.Second, true)
		holds([]uint16{2}, 5*time.Second+ms, 700*ms, 5500*ms, true)
		holds([]uint16{1, 2}, 5*time.Second+2*ms, 0, 6200*ms, true)

		stuck, _, _ := ls.Acquire(t.Context(), []uint16{3})
		holds([]uint16{3}, 0, 0, time.Second, false) // it has had the slot for exactly a second
		<-time.After(time.Minute)
		stuck.Release()
		ls.wantIdle(t)
	})
}

// TestLatchesPassOn: a transaction that stops waiting lets those behind it continue at
// once: they get the slots that it freed, or that were kept for it.
func TestLatchesPassOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Second)
		acquire := func(ctx context.Context, slots ...uint16) <-chan *Latch {
			got := make(chan *Latch, 1)
			go func() {
				l, _, _ := ls.Acquire(ctx, slots)
				got <- l
			}()
			synctest.Wait() // until it has the slots, or is in their queues
			return got
		}
		want := func(got <-chan *Latch, after time.Duration) {
			t.Helper()
			began := time.Now()
			if l := <-got; l == nil || time.Since(began) != after {
				t.Errorf("got %v after %v, want the slots after %v", l, time.Since(began), after)
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
			t.Error("the cancelled transaction got its slots")
		}
		first.Release()
		ls.wantIdle(t)
	})
}

// TestLatchesOfLargeTransactions: a transaction of more than maxLatched cells, in however many
// rows, takes no latches.
func TestLatchesOfLargeTransactions(t *testing.T) {
	ls := New(time.Hour)
	rows := []*store.RowWrites{{Row: "a"}, {Row: "b"}}
	for i := range maxLatched {
		c := format.Cell{Table: "t", Row: rows[i%2].Row, Family: "f", Qualifier: fmt.Sprint(i)}
		rows[i%2].Writes = append(rows[i%2].Writes, &store.Write{Cell: c})
	}
	if len(ls.SlotsOf(rows, nil)) == 0 {
		t.Errorf("%d cells: no latches", maxLatched)
	}
	rows[0].Writes = append(rows[0].Writes, &store.Write{Cell: format.Cell{Table: "t", Row: "a", Family: "f", Qualifier: "one more"}})
	if slots := ls.SlotsOf(rows, nil); slots != nil {
		t.Errorf("%d cells: slots %v, want no latches", maxLatched+1, slots)
	}
}

// TestLatchQueueIsBounded: if a queue is full, the next transaction continues without.
func TestLatchQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(time.Hour)
		first, _, _ := ls.Acquire(t.Context(), []uint16{7})
		ctx, cancel := context.WithCancel(t.Context())
		var g sync.WaitGroup
		for range maxLatchQueue {
			g.Go(func() {
				if l, _, err := ls.Acquire(ctx, []uint16{7}); l != nil || !errors.Is(err, context.Canceled) {
					t.Errorf("%v, %v", l, err)
				}
			})
		}
		synctest.Wait()
		if l, waited, err := ls.Acquire(t.Context(), []uint16{6, 7}); l != nil || waited || err != nil {
			t.Errorf("%v, waited: %v, %v; want to continue at once", l, waited, err)
		}
		cancel()
		g.Wait()
		first.Release()
		ls.wantIdle(t)
	})
}

// TestExpected: a function's slots are known after it needed the same ones several times in a
// row, and had to wait each time.
func TestExpected(t *testing.T) {
	var e Expected
	const function, other = 1, 2
	note := func(slots []uint16, contended bool, times int) {
		for range times {
			e.Note(function, slots, contended)
		}
	}
	want := func(what string, slots []uint16) {
		t.Helper()
		if got := e.Of(function); !slices.Equal(got, slots) {
			t.Errorf("%s: %v, want %v", what, got, slots)
		}
	}
	want("at first", nil)
	note([]uint16{1, 2}, true, sureAfter-1)
	want("too early", nil)
	note([]uint16{1, 2}, true, 1)
	want("after enough calls", []uint16{1, 2})
	note([]uint16{3}, true, 1)
	want("after other slots", nil)
	note([]uint16{3}, true, sureAfter)
	want("after enough calls", []uint16{3})
	note([]uint16{3}, false, 1)
	want("after a call that did not wait", nil)
	note([]uint16{3}, true, sureAfter)
	note(nil, true, 1)
	want("after a call without latches", nil)
	if len(e.known) != 0 {
		t.Errorf("%d functions are remembered", len(e.known))
	}
	for f := range uintptr(maxExpected + 1) {
		if n := len(e.known); n != int(f) {
			t.Errorf("%d functions are remembered, want %d", n, f)
		}
		e.Note(other+f, []uint16{1}, true)
	}
	if n := len(e.known); n != 1 {
		t.Errorf("after one function too many, %d are remembered", n)
	}
}

// TestSlots: cells that differ in any part mostly have different slots, the same cell always has
// the same one, and a transaction of too many cells has none.
func TestSlots(t *testing.T) {
	ls := New(time.Second)
	rows := func(n int, cell func(i int) format.Cell) []*store.RowWrites {
		r := []*store.RowWrites{{}, {}}
		for i := range n {
			r[i%2].Writes = append(r[i%2].Writes, &store.Write{Cell: cell(i)})
		}
		return r
	}
	for part, cell := range map[string]func(i int) format.Cell{
		"table":  func(i int) format.Cell { return format.Cell{Table: fmt.Sprint(i), Row: "r", Family: "f"} },
		"row":    func(i int) format.Cell { return format.Cell{Table: "t", Row: fmt.Sprint(i), Family: "f"} },
		"family": func(i int) format.Cell { return format.Cell{Table: "t", Row: "r", Family: fmt.Sprint(i)} },
		"qualifier": func(i int) format.Cell {
			return format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: fmt.Sprint(i)}
		},
	} {
		all := rows(maxLatched, cell)
		slots := ls.SlotsOf(all, nil)
		if len(slots) <= maxLatched*3/4 || !slices.IsSorted(slots) || slots[len(slots)-1] >= latchSlots || !slices.Equal(slots, ls.SlotsOf(all, nil)) {
			t.Errorf("%d cells with different names of the %s have %d slots: %v", maxLatched, part, len(slots), slots)
		}
		if got := ls.SlotsOf(rows(maxLatched+1, cell), nil); got != nil {
			t.Errorf("%d cells have slots: %v", maxLatched+1, got)
		}
		if got := New(0).SlotsOf(all, nil); len(got) == 0 {
			t.Error("latches that wait for no time have no slots")
		}
		if got := New(-1).SlotsOf(all, nil); got != nil {
			t.Errorf("without latches, cells have slots: %v", got)
		}
	}
	same := func(int) format.Cell { return format.Cell{Table: "t", Row: "r"} }
	if got := ls.SlotsOf(rows(3, same), nil); len(got) != 1 {
		t.Errorf("one cell has slots %v", got)
	}
	l, waited, err := ls.Acquire(t.Context(), []uint16{3, 5, 7})
	if err != nil || waited {
		t.Fatal(waited, err)
	}
	for _, tt := range []struct {
		slots []uint16
		want  bool
	}{{nil, true}, {[]uint16{5}, true}, {[]uint16{3, 5, 7}, true}, {[]uint16{3, 4}, false}, {[]uint16{8}, false}} {
		if l.Covers(tt.slots) != tt.want {
			t.Errorf("3, 5 and 7 cover %v: %t", tt.slots, !tt.want)
		}
	}
	if (*Latch)(nil).Covers(nil) {
		t.Error("no latch covers something")
	}
	if l, waited, err := ls.Acquire(t.Context(), nil); l != nil || waited || err != nil {
		t.Errorf("no slots: %v, %t, %v", l, waited, err)
	}
}

// TestGrantedAtTheEnd: a Latch that gives up may get its slots a moment before. It frees them. Only those
// in front of it count as overtaken.
func TestGrantedAtTheEnd(t *testing.T) {
	ls := New(time.Hour)
	var all []*Latch
	for _, slots := range [][]uint16{{1}, {1, 2}, {2}, {2, 3}} {
		l := &Latch{latches: ls, slots: slots}
		ls.takeOrEnqueue(l)
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
