package store

import (
	"sync"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// Hints tell the workers of this process of new notifications, so that these need not wait for
// the next look at the journal. Workers of other processes find them there.
type Hints struct {
	mu       sync.RWMutex
	next     int
	watchers map[int]func(format.Cell) bool
}

// Watch calls f with each cell that this client has notified, once its notify cell exists. f
// reports whether it takes care of the cell, and must return at once. After stop, f is not
// called again, but a last call may still run.
func (h *Hints) Watch(f func(format.Cell) (taken bool)) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers == nil {
		h.watchers = map[int]func(format.Cell) bool{}
	}
	id := h.next
	h.next++
	h.watchers[id] = f
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, id)
	}
}

// Publish offers cells whose notify cells exist to the watchers, until one takes it.
func (h *Hints) Publish(cells ...format.Cell) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, cell := range cells {
		for _, f := range h.watchers {
			if f(cell) {
				break
			}
		}
	}
}
