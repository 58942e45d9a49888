package latch

import (
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Recent remembers which cells were committed last, and when, by this
// client or by others whose commits were in its way: a transaction that began
// before such a commit and writes the cell is going to conflict with it, and
// need not send a prewrite to learn that. It holds as many cells as it has
// slots; a newer commit takes an older one's place.
type Recent struct {
	seed  maphash.Seed
	mu    sync.Mutex
	slots []recentCommit
}

type recentCommit struct {
	cell     format.Cell
	commitTS tso.Timestamp
}

// recentSlots is how many cells a client remembers with their last commit.
const recentSlots = 1024

// NewRecent makes one that remembers nothing where latches are off.
func NewRecent(latchWait time.Duration) *Recent {
	slots := recentSlots
	if latchWait < 0 {
		slots = 0
	}
	return &Recent{seed: maphash.MakeSeed(), slots: make([]recentCommit, slots)}
}

// Committed remembers a commit that is known to stand.
func (r *Recent) Committed(rows []*store.RowWrites, commitTS tso.Timestamp) {
	if len(r.slots) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	left := max(1, len(r.slots)/8) // a transaction of many cells leaves room for others
	for _, row := range rows {
		for _, w := range row.Writes {
			if left--; left < 0 {
				return
			}
			r.note(w.Cell, commitTS)
		}
	}
}

// Conflicted remembers the commit that a prewrite ran into.
func (r *Recent) Conflicted(err error) {
	var c *format.ConflictError
	if len(r.slots) == 0 || !errors.As(err, &c) || c.Reason != format.ConflictWrite {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(c.Cell, c.ConflictTS)
}

func (r *Recent) note(cell format.Cell, commitTS tso.Timestamp) {
	s := &r.slots[hashCell(&cell, r.seed)%uint64(len(r.slots))]
	if s.commitTS < commitTS {
		*s = recentCommit{cell, commitTS}
	}
}

// Conflict returns what a prewrite at startTS would: it is nil unless a commit
// of one of the cells is known to stand at or above startTS.
func (r *Recent) Conflict(rows []*store.RowWrites, startTS tso.Timestamp) *format.ConflictError {
	if len(r.slots) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range rows {
		for _, w := range row.Writes {
			s := &r.slots[hashCell(&w.Cell, r.seed)%uint64(len(r.slots))]
			if s.commitTS >= startTS && s.cell == w.Cell {
				return &format.ConflictError{Cell: s.cell, StartTS: startTS, ConflictTS: s.commitTS, Reason: format.ConflictWrite}
			}
		}
	}
	return nil
}
