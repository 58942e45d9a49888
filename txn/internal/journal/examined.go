package journal

import (
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// Examined remembers entries that stand for nothing pending, but could not be removed: their
// transaction may still commit, as far as one read can tell. So that a few of them do not cost a
// request in each scan, the pause before the next read grows.
type Examined struct {
	mu    sync.Mutex
	cells map[format.Cell]examined
}

type examined struct {
	entry Entry
	first time.Time
	pause time.Duration
	next  time.Time
}

const (
	firstPause  = time.Minute
	longestWait = time.Hour
	// maxExamined bounds the memory. Beyond it all are forgotten, which costs a read each.
	maxExamined = 100_000
)

// Due reports whether to examine an entry now.
func (x *Examined) Due(e Entry) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	old, ok := x.cells[e.Cell]
	return !ok || old.entry != e || !time.Now().Before(old.next)
}

// Since returns how long ago the entry was first examined; 0: it was not.
func (x *Examined) Since(e Entry) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if old, ok := x.cells[e.Cell]; ok && old.entry == e {
		return time.Since(old.first)
	}
	return 0
}

// Kept says that an entry was examined, and stays.
func (x *Examined) Kept(e Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cells == nil || len(x.cells) >= maxExamined {
		x.cells = map[format.Cell]examined{}
	}
	pause, first := firstPause, time.Now()
	if old, ok := x.cells[e.Cell]; ok && old.entry == e {
		pause, first = min(2*old.pause, longestWait), old.first
	}
	x.cells[e.Cell] = examined{e, first, pause, time.Now().Add(pause)}
}
