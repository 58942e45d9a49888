package latch

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// If two transactions write one cell and overlap, from start_ts to commit_ts, only the
// first committer wins. Transactions of one client need no requests to find that out: a
// transaction queues for the cells that it will write. After a conflict, it queues before
// its next run, so that its new start_ts is above the commit of the transaction in front.

const (
	// latchSlots is how many slots the cells are distributed over.
	latchSlots = 1024
	// maxLatched is how many cells a transaction may write to take latches. A larger one
	// continues without: cells share slots, and two transactions of 100 cells each always have
	// a slot in common. So the transactions of a job would wait for each other.
	maxLatched = 16
	// maxOvertaken is how often other transactions may overtake a waiting one at its
	// slots.
	maxOvertaken = 8
	// maxLatchQueue is how many transactions may wait at one slot. The next one continues
	// without latches.
	maxLatchQueue = 1024
)

// Latches are the queues of one client. Each cell hashes to a slot. A transaction enters
// the queues of all its slots at once. It gets all slots at once, when all are free, so no
// transaction holds one slot while it waits for another. Transactions behind it may
// overtake it meanwhile, but only maxOvertaken times.
type Latches struct {
	wait time.Duration // how long a transaction may hold up another one; negative: no latches
	seed maphash.Seed

	mu    sync.Mutex
	slots [latchSlots]latchSlot
}

type latchSlot struct {
	holder *Latch    // nil: free
	since  time.Time // when holder got the slot
	queue  []*Latch  // waiting, in the order of their arrival
}

// A Latch is what one transaction holds or waits for. A nil Latch holds nothing.
type Latch struct {
	latches *Latches
	slots   []uint16      // ascending
	inline  [4]uint16     // memory for slots, if they are few
	granted chan struct{} // closed when the Latch gets its slots; nil: it did not wait
	// overtaken counts how often a Latch behind this one got a slot first.
	overtaken int
}

// New returns the queues of a client. wait is how long a transaction waits at most for one
// other transaction; if it is negative, there are no latches.
func New(wait time.Duration) *Latches {
	return &Latches{wait: wait, seed: maphash.MakeSeed()}
}

// SlotsOf appends the slots of a commit's cells to slots, and sorts them. The result is nil
// if the commit takes no latches.
func (ls *Latches) SlotsOf(rows []*store.RowWrites, slots []uint16) []uint16 {
	n := 0
	for _, r := range rows {
		n += len(r.Writes)
	}
	if ls.wait < 0 || n > maxLatched {
		return nil
	}
	for _, r := range rows {
		for _, w := range r.Writes {
			slots = append(slots, uint16(hashCell(&w.Cell, ls.seed)%latchSlots))
		}
	}
	slices.Sort(slots)
	return slices.Compact(slots)
}

func hashCell(c *format.Cell, seed maphash.Seed) uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := maphash.String(seed, c.Row)
	h = h*odd ^ maphash.String(seed, c.Qualifier)
	h = h*odd ^ maphash.String(seed, c.Family)
	return h*odd ^ maphash.String(seed, c.Table)
}

// Acquire waits until it holds all of slots. A nil Latch without an error means that the
// caller continues without: another transaction had one of the slots for Config.LatchWait, or
// a queue is full, or slots is empty. The error is that of the ended context.
func (ls *Latches) Acquire(ctx context.Context, slots []uint16) (l *Latch, waited bool, err error) {
	if len(slots) == 0 {
		return nil, false, nil
	}
	l = &Latch{latches: ls}
	l.slots = append(l.inline[:0], slots...)
	if full := ls.takeOrEnqueue(l); full {
		return nil, false, nil
	}
	if l.granted == nil {
		return l, false, nil
	}
	timer := time.NewTimer(ls.wait)
	defer timer.Stop()
	for {
		select {
		case <-l.granted:
			return l, true, nil
		case <-ctx.Done():
			ls.stopWaiting(l)
			return nil, true, store.Ended(ctx, "percolator: waiting for another transaction of this client that writes the same cells", nil)
		case <-timer.C:
			more := ls.patience(l)
			if more <= 0 {
				ls.stopWaiting(l)
				return nil, true, nil
			}
			timer.Reset(more)
		}
	}
}

// patience returns how much longer l waits before it looks again. It is 0 if a transaction has
// had one of l's slots for as long as another one waits at most. As long as the queue moves, l
// keeps its place, however long the queue is.
func (ls *Latches) patience(l *Latch) time.Duration {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	more := ls.wait
	for _, n := range l.slots {
		if s := &ls.slots[n]; s.holder != nil {
			more = min(more, ls.wait-time.Since(s.since))
		}
	}
	return more
}

// takeOrEnqueue grants l its slots if they are available. Otherwise it puts l into their
// queues. full reports that a queue had no room.
func (ls *Latches) takeOrEnqueue(l *Latch) (full bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.available(l) {
		ls.grant(l)
		return false
	}
	for _, n := range l.slots {
		if len(ls.slots[n].queue) >= maxLatchQueue {
			return true
		}
	}
	l.granted = make(chan struct{})
	for _, n := range l.slots {
		s := &ls.slots[n]
		s.queue = append(s.queue, l)
	}
	return false
}

// available reports whether l may have its slots now: all are free, and no Latch in front
// of l has been overtaken too often. ls.mu is held.
func (ls *Latches) available(l *Latch) bool {
	for _, n := range l.slots {
		s := &ls.slots[n]
		if s.holder != nil {
			return false
		}
		for _, other := range s.queue {
			if other == l {
				break
			}
			if other.overtaken >= maxOvertaken {
				return false
			}
		}
	}
	return true
}

// grant gives l its slots and removes it from their queues. ls.mu is held.
func (ls *Latches) grant(l *Latch) {
	now := time.Now()
	for _, n := range l.slots {
		s := &ls.slots[n]
		s.holder, s.since = l, now
		for _, other := range s.queue {
			if other == l {
				break
			}
			other.overtaken++
		}
	}
	if l.granted != nil {
		ls.dequeue(l)
		close(l.granted)
	}
}

// dequeue removes l from the queues. ls.mu is held.
func (ls *Latches) dequeue(l *Latch) {
	for _, n := range l.slots {
		s := &ls.slots[n]
		if i := slices.Index(s.queue, l); i >= 0 {
			s.queue = slices.Delete(s.queue, i, i+1)
		}
		if len(s.queue) == 0 {
			s.queue = nil
		}
	}
}

// stopWaiting removes l from the queues. It also frees those of its slots that their holders
// have had for as long as a transaction may wait. So a function that runs long holds up one
// transaction, and not the next ones.
func (ls *Latches) stopWaiting(l *Latch) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.dequeue(l)
	for _, n := range l.slots {
		s := &ls.slots[n]
		// l may have got the slot just now.
		if s.holder == l || time.Since(s.since) >= ls.wait {
			s.holder = nil
		}
	}
	ls.grantFree(l.slots)
}

// grantFree grants slots that are free to the first waiting Latch that may have them.
// ls.mu is held.
func (ls *Latches) grantFree(slots []uint16) {
	for _, n := range slots {
		s := &ls.slots[n]
		for i := 0; s.holder == nil && i < len(s.queue); i++ {
			if l := s.queue[i]; ls.available(l) {
				ls.grant(l)
			}
		}
	}
}

// Release frees the slots that l still holds. It may be called more than once.
func (l *Latch) Release() {
	if l == nil {
		return
	}
	ls := l.latches
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, n := range l.slots {
		if s := &ls.slots[n]; s.holder == l {
			s.holder = nil
		}
	}
	ls.grantFree(l.slots)
}

// Covers reports whether l was acquired for all of slots.
func (l *Latch) Covers(slots []uint16) bool {
	if l == nil {
		return false
	}
	for _, n := range slots {
		if _, ok := slices.BinarySearch(l.slots, n); !ok {
			return false
		}
	}
	return true
}
