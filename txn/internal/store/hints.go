package store

import (
	"context"
	"encoding/binary"
	"strings"
	"sync"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Hints are messages about new notifications, so that workers need not wait for the next
// sweep. They reach workers of this process. If the timestamp oracle carries hints
// (tso.Client does), each hint that no local worker takes reaches one worker of another
// process. Hints may be lost; the sweep finds every notification.
type Hints struct {
	mu       sync.RWMutex
	next     int
	watchers map[int]func(format.Cell) bool
	Carrier  tso.Hints // nil: none beyond this process
	// registered returns the column of a cell, if it is registered, and the patterns that it is in.
	registered func(format.Cell) []format.Column
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

// Publish offers cells whose notify cells exist to the watchers, and to the carrier. The carrier gets
// a hint for each registration that a cell is in: for its column, and for each pattern.
func (h *Hints) Publish(cells ...format.Cell) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, cell := range cells {
		if h.offer(cell) || h.Carrier == nil {
			continue
		}
		for _, of := range h.registered(cell) {
			h.Carrier.PublishHints(tso.Hint{Topic: hintTopic(cell.Table, of), Key: hintKey(of, cell)})
		}
	}
}

// hintKey is the key of a hint: the row. That of a pattern's hint begins with the cell's qualifier,
// after its length.
func hintKey(of format.Column, cell format.Cell) string {
	if !of.IsPattern() {
		return cell.Row
	}
	return string(binary.AppendUvarint(nil, uint64(len(cell.Qualifier)))) + cell.Qualifier + cell.Row
}

// hinted returns the cell of a hint.
func hinted(hint tso.Hint) (cell format.Cell, ok bool) {
	table, topic, _ := strings.Cut(hint.Topic, "\x00")
	of, ok := format.SplitColumn(topic)
	if !of.IsPattern() {
		return format.Cell{Table: table, Row: hint.Key, Family: of.Family, Qualifier: of.Qualifier}, ok
	}
	size, n := binary.Uvarint([]byte(hint.Key))
	if n <= 0 || size > uint64(len(hint.Key)-n) {
		return cell, false
	}
	name := hint.Key[n:]
	cell = format.Cell{Table: table, Row: name[size:], Family: of.RealFamily(), Qualifier: name[:size]}
	return cell, of.Matches(cell.Column())
}

// offer offers a cell to the watchers, and reports whether one took it. h.mu is held.
func (h *Hints) offer(cell format.Cell) bool {
	for _, f := range h.watchers {
		if f(cell) {
			return true
		}
	}
	return false
}

// Subscribe calls f with cells that other processes notified, until ctx ends. columns are the
// columns and patterns of interest by table. Each hint reaches one subscriber of all. Without a carrier,
// Subscribe returns nil at once.
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
		if cell, ok := hinted(hint); ok {
			f(cell)
		}
	})
}

// hintTopic returns the topic of a column's hints: the table, a zero byte, and the column's
// key. The name of a table contains no zero byte.
func hintTopic(table string, c format.Column) string { return table + "\x00" + c.Key() }
