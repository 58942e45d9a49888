package watch

import (
	"slices"
	"strings"
	"time"
)

// The heat map of a table: ranges of keys with about as many rows each, and slots of time.
const (
	heatRows  = 24
	heatSlots = 60
	HeatTime  = 10 * time.Second // of a slot
)

// A Heat counts locks, conflicts and pending changes by range of keys and by time.
type Heat struct {
	Bounds []string // where each range but the first begins
	Slots  []HeatSlot
}

// A HeatSlot is a column of a heat map: the most that each range of keys had within it.
type HeatSlot struct {
	Time      int64 `json:"t"`         // seconds since 1970
	Locks     []int `json:"locks"`     // locks by range
	Conflicts []int `json:"conflicts"` // runs of observers that lost a conflict, by range
	Pending   []int `json:"pending"`   // notified cells by range
}

// divide sets the ranges to those of the pages. Slots of other ranges are dropped.
func (h *Heat) divide(pages []page) {
	total, sum := 0, 0.0
	for _, p := range pages {
		total += p.rows
	}
	ranges := min(heatRows, total)
	var bounds []string
	for _, p := range pages {
		for _, mark := range p.marks {
			if sum > 0 && sum*float64(ranges) >= float64(total*(len(bounds)+1)) {
				bounds = append(bounds, mark)
			}
			sum += float64(p.rows) / float64(len(p.marks))
		}
	}
	// Ranges move with every write; they are only divided anew where they have become
	// quite different.
	if len(h.Bounds) >= heatRows*2/3 || len(bounds) <= len(h.Bounds)*5/4 {
		return
	}
	old := h.Bounds
	h.Bounds = bounds
	for i, s := range h.Slots {
		c := newHeatSlot(s.Time, len(bounds)+1)
		for j := range s.Locks {
			to := 0
			if j > 0 {
				to = h.find(old[j-1])
			}
			c.raise(to, s.Locks[j], s.Conflicts[j], s.Pending[j])
		}
		h.Slots[i] = c
	}
}

func newHeatSlot(at int64, n int) HeatSlot {
	return HeatSlot{at, make([]int, n), make([]int, n), make([]int, n)}
}

// raise raises the counts of a range to at least these.
func (c *HeatSlot) raise(i, locks, conflicts, pending int) {
	c.Locks[i], c.Conflicts[i], c.Pending[i] = max(c.Locks[i], locks), max(c.Conflicts[i], conflicts), max(c.Pending[i], pending)
}

// find is the range of a key.
func (h *Heat) find(key string) int {
	i, found := slices.BinarySearchFunc(h.Bounds, key, strings.Compare)
	if found {
		i++
	}
	return i
}

// Add counts what is known of the rows now.
func (h *Heat) Add(rows map[string]*Row, now time.Time) {
	if len(rows) == 0 && len(h.Slots) == 0 {
		return
	}
	n := len(h.Bounds) + 1
	c := newHeatSlot(now.Truncate(HeatTime).Unix(), n)
	for key, k := range rows {
		i := h.find(key)
		c.Locks[i] += len(k.Locks) + len(k.Unreadable)
		for _, seen := range k.Seen {
			if !seen.Acknowledged() {
				c.Pending[i]++
			}
			c.Conflicts[i] += Conflicting(seen)
		}
	}
	if l := len(h.Slots); l > 0 && h.Slots[l-1].Time == c.Time {
		for i := range n {
			h.Slots[l-1].raise(i, c.Locks[i], c.Conflicts[i], c.Pending[i])
		}
		return
	}
	h.Slots = append(h.Slots, c)
	if len(h.Slots) > heatSlots {
		h.Slots = h.Slots[1:]
	}
}
