package txn

import "sync"

// Hints tell workers in this process of notifications as soon as they are
// there, so that latency does not wait for the scan. They are best effort:
// whoever needs to know for certain scans.

// hintWatchers are those who want to know.
type hintWatchers struct {
	mu       sync.RWMutex
	next     int
	watchers map[int]func(Cell) bool
}

// WatchNotifications has f called with each cell that this client has notified,
// once its notify cell is there: by a commit, by rolling another client's commit
// forward, or by Notify. f reports whether it takes care of the cell, and has to
// return at once. Call stop to end it; f may still be running then.
func (c *Client) WatchNotifications(f func(Cell) (taken bool)) (stop func()) {
	w := &c.hints
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watchers == nil {
		w.watchers = map[int]func(Cell) bool{}
	}
	id := w.next
	w.next++
	w.watchers[id] = f
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.watchers, id)
	}
}

// hint tells the watchers of cells whose notify cells are there.
func (c *Client) hint(cells ...Cell) {
	if len(cells) == 0 {
		return
	}
	c.hints.mu.RLock()
	defer c.hints.mu.RUnlock()
	for _, cell := range cells {
		for _, f := range c.hints.watchers {
			if f(cell) {
				break
			}
		}
	}
}

// hintApplied tells the watchers of the cells in muts, but for those that
// failed.
func (c *Client) hintApplied(muts, failed []rowMutation) {
	skip := map[string]bool{}
	for _, m := range failed {
		skip[m.row] = true
	}
	for _, m := range muts {
		if !skip[m.row] {
			c.hint(m.hints...)
		}
	}
}
