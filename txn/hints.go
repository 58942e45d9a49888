package txn

import (
	"context"
	"strings"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// Hints tell workers of notifications as soon as they are there, so that latency
// does not wait for the scan: in this process, and, through a timestamp oracle
// that carries hints (tso.Client does), in one other. They are best effort:
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
		if !c.hints.take(cell) {
			c.publish(cell)
		}
	}
}

// take offers a cell to the watchers. w.mu is held.
func (w *hintWatchers) take(cell Cell) bool {
	for _, f := range w.watchers {
		if f(cell) {
			return true
		}
	}
	return false
}

// publish hints to another process what nobody here takes care of.
func (c *Client) publish(cell Cell) {
	if hints, ok := c.oracle.(tso.Hints); ok {
		hints.PublishHints(tso.Hint{Topic: hintTopic(cell.Table, cell.Column()), Key: cell.Row})
	}
}

// hintTopic is table, a zero byte, and the column's key. A table's name has no
// zero byte in it.
func hintTopic(table string, c Column) string { return table + "\x00" + c.key() }

// SubscribeNotifications has f called with cells of the columns that other
// processes have notified and hinted, until ctx ends. Each hint comes to one of
// all subscribers, so f should take care of it. Where the oracle carries no
// hints it returns nil at once.
func (c *Client) SubscribeNotifications(ctx context.Context, columns []ObservedColumn, f func(Cell)) error {
	hints, ok := c.oracle.(tso.Hints)
	if !ok || len(columns) == 0 {
		return nil
	}
	var topics []string
	for _, col := range columns {
		topics = append(topics, hintTopic(col.Table, col.Column))
	}
	return hints.SubscribeHints(ctx, topics, func(h tso.Hint) {
		table, key, _ := strings.Cut(h.Topic, "\x00")
		if col, ok := splitColumn(key); ok {
			f(Cell{table, h.Key, col.Family, col.Qualifier})
		}
	})
}

// applied tells the watchers of the cells in muts, but for those that failed, and
// the spans of their commits.
func (c *Client) applied(muts, failed []rowMutation) {
	// Not by row: a batch holds those of several transactions.
	skip := map[*bigtable.Mutation]bool{}
	for _, m := range failed {
		skip[m.mut] = true
	}
	for _, m := range muts {
		if !skip[m.mut] {
			c.hint(m.hints...)
			m.secondaries.done(1)
		}
	}
}
