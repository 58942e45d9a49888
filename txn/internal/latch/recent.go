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

// Recent remembers recent commits of cells: those of this client, and those of other
// clients that its prewrites conflicted with, or that its reads waited for. A transaction that began before such a commit
// and writes the cell will conflict. It need not send a prewrite to find that out. Recent
// holds one cell for each slot; a newer commit replaces an older one there.
type Recent struct {
	seed  maphash.Seed
	mu    sync.Mutex
	slots []recentCommit // empty: it remembers nothing
}

type recentCommit struct {
	cell     format.Cell
	commitTS tso.Timestamp
}

// recentSlots is how many cells a client remembers.
const recentSlots = 1024

const hour = tso.Timestamp(time.Hour / time.Microsecond)

// NewRecent returns a Recent. If latchWait is negative, latches are off, and it remembers
// nothing.
func NewRecent(latchWait time.Duration) *Recent {
	slots := recentSlots
	if latchWait < 0 {
		slots = 0
	}
	return &Recent{seed: maphash.MakeSeed(), slots: make([]recentCommit, slots)}
}

// Committed remembers a successful commit of this client.
func (r *Recent) Committed(rows []*store.RowWrites, commitTS tso.Timestamp) {
	if len(r.slots) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	allowed := len(r.slots) / 8 // a large transaction must not replace everything
	for _, row := range rows {
		for _, w := range row.Writes {
			if allowed--; allowed < 0 {
				return
			}
			r.note(w.Cell, commitTS)
		}
	}
}

// Conflicted remembers the commit that a prewrite or a read conflicted with, if err names one. It does
// not remember one an hour above the transaction: such a record may be above the oracle, and
// an operator may remove it (admin.ApplyRepair).
func (r *Recent) Conflicted(err error) {
	var c *format.ConflictError
	if len(r.slots) == 0 || !errors.As(err, &c) || c.Reason != format.ConflictWrite || c.ConflictTS > c.StartTS+hour {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(c.Cell, c.ConflictTS)
}

func hashCell(c *format.Cell, seed maphash.Seed) uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := maphash.String(seed, c.Row)
	h = h*odd ^ maphash.String(seed, c.Qualifier)
	h = h*odd ^ maphash.String(seed, c.Family)
	return h*odd ^ maphash.String(seed, c.Table)
}

func (r *Recent) note(cell format.Cell, commitTS tso.Timestamp) {
	s := &r.slots[hashCell(&cell, r.seed)%uint64(len(r.slots))]
	if s.commitTS < commitTS {
		*s = recentCommit{cell, commitTS}
	}
}

// Since reports whether Recent knows a commit of a cell at or above startTS.
func (r *Recent) Since(cell format.Cell, startTS tso.Timestamp) bool {
	if len(r.slots) == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.slots[hashCell(&cell, r.seed)%uint64(len(r.slots))]
	return s.commitTS >= startTS && s.cell == cell
}

// Conflict returns the conflict that a prewrite of rows at startTS would fail with. It is
// nil unless Recent knows a commit of one of the cells at or above startTS.
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
