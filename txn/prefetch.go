package txn

import (
	"sync"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Prefetching (paper §2.5): to read a second column of a row takes another request, but costs
// almost nothing if the first request reads it too. So the client learns which columns
// transactions ask for after the first one of a row, and prefetches them from then on.
//
// What the client learns is a guess, and nothing depends on it. Prefetched cells are read
// like others, at the transaction's timestamp. A cell that would cost more (because it is
// locked, or its value is at another timestamp) is not prefetched.

const (
	// patternWarmUp is how many rows the client must have seen before it prefetches.
	patternWarmUp = 3
	// patternWindow is after how many rows the client halves its counts. So after a
	// change, the new pattern outweighs the old one after about as many rows.
	patternWindow = 256
	// maxPatternColumns and maxPatterns bound what a client remembers, to about a
	// megabyte. Beyond it, the client ignores further columns and drops a pattern that
	// is used little. If qualifiers are data, most of them never return.
	maxPatternColumns = 16
	maxPatterns       = 1024
	// maxPrefetchFilter bounds how many bytes of a filter the prefetched columns take.
	maxPrefetchFilter = 6 << 10
)

// A patternKey says where a pattern applies: to rows of a table in which transactions of
// one name ask for the column first.
type patternKey struct {
	table, name string // name is that of the transaction
	first       Column
}

// patterns are all patterns of a client.
type patterns struct {
	mu  sync.RWMutex
	all map[patternKey]*pattern
}

// A pattern counts which columns transactions asked for after a first one.
type pattern struct {
	mu      sync.Mutex
	rows    int // in which a transaction asked for the first column
	columns []laterColumn
}

// A laterColumn is a column that transactions asked for in count of a pattern's rows. bytes
// is the size of its largest value; it shrinks by a quarter each patternWindow.
type laterColumn struct {
	column Column
	count  int
	bytes  int
}

func (p *patterns) find(key patternKey) *pattern {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.all[key]
}

// findOrAdd returns the pattern for key. A new one counts the current row.
func (p *patterns) findOrAdd(key patternKey) *pattern {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.all[key]; n != nil {
		return n
	}
	if p.all == nil {
		p.all = map[patternKey]*pattern{}
	}
	if len(p.all) >= maxPatterns {
		p.evict()
	}
	n := &pattern{rows: 1}
	p.all[key] = n
	return n
}

// evict drops the least used of eight random patterns. The caller holds p.mu.
func (p *patterns) evict() {
	var least patternKey
	var rows, looked int
	for key, n := range p.all {
		n.mu.Lock()
		if looked == 0 || n.rows < rows {
			least, rows = key, n.rows
		}
		n.mu.Unlock()
		if looked++; looked == 8 {
			break
		}
	}
	delete(p.all, least)
}

func (p *patterns) forget(key patternKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, key)
}

// beginRow counts one more row and returns the columns to prefetch: those that transactions
// asked for in at least every second row, as far as their expected values fit into budget
// bytes. So the client reads at most as many cells without need as it saves requests.
func (p *pattern) beginRow(budget int) []Column {
	p.mu.Lock()
	defer p.mu.Unlock()
	var cols []Column
	if p.rows >= patternWarmUp {
		filter := 0
		for _, f := range p.columns {
			cost := 3 * store.FilterCost(f.column.Key())
			if 2*f.count < p.rows || f.bytes > budget || filter+cost > maxPrefetchFilter {
				continue
			}
			budget -= f.bytes
			filter += cost
			cols = append(cols, f.column)
		}
	}
	if p.rows++; p.rows >= patternWindow {
		p.rows /= 2
		kept := p.columns[:0]
		for _, f := range p.columns {
			f.count /= 2
			f.bytes -= f.bytes / 4
			if f.count > 0 {
				kept = append(kept, f)
			}
		}
		p.columns = kept
	}
	return cols
}

// count counts a column that a transaction asked for after the first one.
func (p *pattern) count(c Column, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.columns {
		if f := &p.columns[i]; f.column == c {
			f.count++
			f.bytes = max(f.bytes, bytes)
			return
		}
	}
	if len(p.columns) < maxPatternColumns {
		p.columns = append(p.columns, laterColumn{c, 1, bytes})
	}
}

// noteSize takes in the size of a column's value.
func (p *pattern) noteSize(c Column, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.columns {
		if f := &p.columns[i]; f.column == c {
			f.bytes = max(f.bytes, bytes)
		}
	}
}
