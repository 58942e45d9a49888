package txn

import (
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// recentCommits remembers which cells were committed last, and when, by this
// client or by others whose commits were in its way: a transaction that began
// before such a commit and writes the cell is going to conflict with it, and
// need not send a prewrite to learn that. It holds as many cells as it has
// slots; a newer commit takes an older one's place.
type recentCommits struct {
	seed  maphash.Seed
	mu    sync.Mutex
	slots []recentCommit
}

type recentCommit struct {
	cell     Cell
	commitTS tso.Timestamp
}

// recentSlots is how many cells a client remembers with their last commit.
const recentSlots = 1024

// newRecentCommits makes one that remembers nothing where latches are off.
func newRecentCommits(latchWait time.Duration) *recentCommits {
	slots := recentSlots
	if latchWait < 0 {
		slots = 0
	}
	return &recentCommits{seed: maphash.MakeSeed(), slots: make([]recentCommit, slots)}
}

// committed remembers a commit that is known to stand.
func (r *recentCommits) committed(rows []*store.RowWrites, commitTS tso.Timestamp) {
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
			r.put(w.Cell, commitTS)
		}
	}
}

// conflicted remembers the commit that a prewrite ran into.
func (r *recentCommits) conflicted(err error) {
	var c *ConflictError
	if len(r.slots) == 0 || !errors.As(err, &c) || c.Reason != ConflictWrite {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(c.Cell, c.ConflictTS)
}

func (r *recentCommits) put(cell Cell, commitTS tso.Timestamp) {
	s := &r.slots[hashCell(&cell, r.seed)%uint64(len(r.slots))]
	if s.commitTS < commitTS {
		*s = recentCommit{cell, commitTS}
	}
}

// conflict returns what a prewrite at startTS would: it is nil unless a commit
// of one of the cells is known to stand at or above startTS.
func (r *recentCommits) conflict(rows []*store.RowWrites, startTS tso.Timestamp) *ConflictError {
	if len(r.slots) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range rows {
		for _, w := range row.Writes {
			s := &r.slots[hashCell(&w.Cell, r.seed)%uint64(len(r.slots))]
			if s.commitTS >= startTS && s.cell == w.Cell {
				return &ConflictError{Cell: s.cell, StartTS: startTS, ConflictTS: s.commitTS, Reason: ConflictWrite}
			}
		}
	}
	return nil
}

// knownConflict is a conflict that needs no request.
func (c *commit) knownConflict() error {
	if e := c.client.recent.conflict(c.rows, c.startTS); e != nil {
		c.client.Counters.EarlyConflicts.Add(1)
		return e
	}
	return nil
}
