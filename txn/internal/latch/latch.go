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

// Two transactions that write one cell and overlap, from start_ts to commit_ts,
// cannot both commit (first committer wins). Those of one client find that out
// here, as far as possible, instead of by requests: they queue for the cells that
// they are about to write, and one that conflicts queues before its next run, so
// that its start_ts comes after the commit of the one in front of it.
//
// Latches are for speed alone: nothing relies on them, whoever waits too long
// goes on without, and other processes do not see them.

const (
	latchSlots = 1024
	// maxLatched bounds the cells of a transaction that takes latches; a larger one
	// would hold up too many others.
	maxLatched = 128
	// maxOvertaken is how often one that waits is overtaken at one of its slots.
	maxOvertaken = 8
	// maxLatchQueue bounds those that wait at one slot; whoever comes then goes on
	// without.
	maxLatchQueue = 1024
)

// Latches are the queues of one client. Each cell hashes to a slot; a transaction
// enters the queues of all of its slots at once and is given all of them at
// once, when they are free, so that nobody holds one while waiting for another.
// Those behind it may be served meanwhile, but only so often.
type Latches struct {
	wait time.Duration // negative: no latches
	seed maphash.Seed

	mu    sync.Mutex
	slots [latchSlots]latchSlot
}

type latchSlot struct {
	holder *Latch
	since  time.Time
	queue  []*Latch
}

// Latch is what one transaction holds and waits for; nil is none.
type Latch struct {
	latches      *Latches
	slots   []uint16 // ascending
	inline     [4]uint16
	granted chan struct{} // closed when the slots are its own; nil: it never waited
	// overtaken counts those behind it that were served first.
	overtaken int
}

func New(wait time.Duration) *Latches {
	return &Latches{wait: wait, seed: maphash.MakeSeed()}
}

// SlotsOf are the slots of a commit's cells; none where latches do not apply.
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

// Acquire takes slots. nil without an error says that the caller goes on without:
// it has waited for Config.LatchWait, or too many wait already. The error is that
// of an ended context.
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
	select {
	case <-l.granted:
		return l, true, nil
	case <-ctx.Done():
		err = store.Ended(ctx, "waiting for another transaction of this client that writes the same cells", nil)
		ls.stopWaiting(l, false)
	case <-timer.C:
		ls.stopWaiting(l, true)
	}
	return nil, true, err
}

// takeOrEnqueue takes the slots of l, or enters it into their queues.
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

// available reports that l may have its slots now: nobody does, and nobody in front
// of it has been overtaken too often. The mutex is held.
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

// grant gives l its slots. The mutex is held.
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

// dequeue takes l out of the queues. The mutex is held.
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

// stopWaiting gives up waiting. When that was for as long as anybody waits, it takes
// the slots away from who has had them for longer: a function that runs for long
// holds up one that waits, and no more.
func (ls *Latches) stopWaiting(l *Latch, overdue bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.dequeue(l)
	for _, n := range l.slots {
		s := &ls.slots[n]
		// Its turn may have come just now.
		if s.holder == l || overdue && s.holder != nil && time.Since(s.since) >= ls.wait {
			s.holder = nil
		}
	}
	ls.grantFree(l.slots)
}

// grantFree gives free slots to those who wait. The mutex is held.
func (ls *Latches) grantFree(slots []uint16) {
	for _, n := range slots {
		s := &ls.slots[n]
		for i := 0; s.holder == nil && i < len(s.queue); i++ {
			if l := s.queue[i]; ls.available(l) {
				ls.grant(l)
				break
			}
		}
	}
}

// Release gives up what l holds; more than once is fine.
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

// Covers reports that l was taken for all of slots.
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
