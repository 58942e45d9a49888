package store

import (
	"context"
	"strings"
	"sync"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Hints tell workers of notifications as soon as they are there, so that latency
// does not wait for the scan: in this process, and, through a timestamp oracle
// that carries hints (tso.Client does), in one other. They are best effort:
// a worker that needs to know for certain scans.
type Hints struct {
	mu       sync.RWMutex
	next     int
	watchers map[int]func(format.Cell) bool
	Carrier  tso.Hints // nil: none beyond this process
}

// Watch has f called with each cell that this client has notified, once its notify
// cell is there. f reports whether it takes care of the cell, and has to return at
// once. stop ends it; f may still be running then.
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

// Publish tells the watchers of cells whose notify cells are there.
func (h *Hints) Publish(cells ...format.Cell) {
	if len(cells) == 0 {
		return
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, cell := range cells {
		if !h.offer(cell) && h.Carrier != nil {
			h.Carrier.PublishHints(tso.Hint{Topic: hintTopic(cell.Table, cell.Column()), Key: cell.Row})
		}
	}
}

// offer offers a cell to the watchers. h.mu is held.
func (h *Hints) offer(cell format.Cell) bool {
	for _, f := range h.watchers {
		if f(cell) {
			return true
		}
	}
	return false
}

// Subscribe has f called with cells of the columns of tables that other processes have
// notified and hinted, until ctx ends. Each hint reaches one of all subscribers.
// Where the oracle carries no hints it returns nil at once.
func (h *Hints) Subscribe(ctx context.Context, columns map[string][]format.Column, f func(format.Cell)) error {
	if h.Carrier == nil || len(columns) == 0 {
		return nil
	}
	var topics []string
	for table, cols := range columns {
		for _, c := range cols {
			topics = append(topics, hintTopic(table, c))
		}
	}
	return h.Carrier.SubscribeHints(ctx, topics, func(hint tso.Hint) {
		table, key, _ := strings.Cut(hint.Topic, "\x00")
		if col, ok := format.SplitColumn(key); ok {
			f(format.Cell{Table: table, Row: hint.Key, Family: col.Family, Qualifier: col.Qualifier})
		}
	})
}

// hintTopic is table, a zero byte, and the column's key. A table's name has no
// zero byte in it.
func hintTopic(table string, c format.Column) string { return table + "\x00" + c.Key() }
