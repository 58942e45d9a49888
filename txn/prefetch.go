package txn

import (
	"sync"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Prefetching (paper §2.5): reading a second column of a row costs a request as
// long as the first, and next to nothing if both are read in one. So the client
// learns from what transactions did which columns are asked for behind a first
// one, and reads them along from then on.
//
// What the client learns is a guess, and nothing depends on it. Prefetched cells are read
// like others, at the transaction's timestamp. A cell that would cost more (because it is
// locked, or its value is at another timestamp) is not prefetched.

const (
	// patternWarmUp is how many rows have to be seen before anything is guessed.
	patternWarmUp = 3
	// patternWindow is after how many rows the counts are halved: what has changed
	// outweighs what was, after about as many.
	patternWindow = 256
	// maxPatternColumns and maxPatterns bound what a client learns, to about a
	// megabyte. Where qualifiers are data, most of it is never seen again.
	maxPatternColumns = 16
	maxPatterns       = 1024
	// maxPrefetchFilter bounds what naming the columns may take of a filter.
	maxPrefetchFilter = 6 << 10
)

// A patternKey is where a pattern holds: in rows of a table of which a kind of
// transaction asks for this column first.
type patternKey struct {
	table, name string
	first       Column
}

// patterns is all that a client has learned.
type patterns struct {
	mu  sync.RWMutex
	all map[patternKey]*pattern
}

// A pattern counts which columns were asked for behind a first one.
type pattern struct {
	mu      sync.Mutex
	rows    int // of which the first column was asked for
	columns []laterColumn
}

// A laterColumn column was asked for in count of the rows. bytes is the size of its
// values: the largest, forgotten by and by.
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

// findOrAdd returns a pattern for a row whose first column was asked for already.
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

// evict drops the least used of some patterns.
func (p *patterns) evict() {
	var least patternKey
	rows, looked := 0, 0
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

// beginRow counts one more row and returns the columns to read along: those that were
// asked for in at least every second row, as long as their values are expected to fit the
// budget. So at most as many cells are read without need as requests are saved.
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

// count counts a column that was asked for behind the first.
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

// noteSize learns the size of a column's value.
func (p *pattern) noteSize(c Column, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.columns {
		if f := &p.columns[i]; f.column == c {
			f.bytes = max(f.bytes, bytes)
		}
	}
}
