package watch

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Table is what is known of one table.
type Table struct {
	Name     string
	Rows     map[string]*Row          // rows with locks or notifications
	Columns  []changes.ObservedColumn // observed columns
	Sample   Sample
	Heat     Heat
	Passes   int           // passes that ended
	LastPass time.Duration // time that the last pass took
	More     bool          // the limit left locks or notifications out, in this pass or the last one

	// The pass under way: the rest of the boundaries, and the next row to read.
	parts []string
	at    string
	began time.Time // zero: none

	passEnded time.Time
	paged     time.Time // when a pass last read a page
	omitted   bool      // something was left out in this pass
	pages     []page    // in order of rows, those of the last pass and of this one
	looked    time.Time // when columns and sample were read
}

// A page is what one read of the pass covered.
type page struct {
	start, end string // an empty end is the end of the table
	rows       int
	marks      []string // some of its keys, evenly spaced
	at         time.Time
}

// pageMarks is how many keys of a page are kept.
const pageMarks = 8

const (
	partsPage   = 4   // boundaries that one page may cross
	refreshRows = 100 // rows that are read again in one request
	maxPages    = 2000
)

func family(name string) bigtable.Filter { return bigtable.ColumnRangeFilter(name, "", "") }

// rowsFilter returns the locks of each row, whether it has notifications, and one cell of it
// without its value, so that the limit of rows bounds what a request reads. A column of the
// notify family keeps a cell for each change that no observer has handled: the newest is
// enough. The top is an Interleave, like that of every read whose parts have to fit
// together.
var rowsFilter = bigtable.InterleaveFilters(family(format.LockFamily),
	bigtable.ChainFilters(family(format.NotifyFamily), bigtable.LatestNFilter(1), bigtable.StripValueFilter()),
	bigtable.ChainFilters(bigtable.StripValueFilter(), bigtable.CellsPerRowLimitFilter(1)))

// readTimeout bounds one read.
const readTimeout = 20 * time.Second

// readRows reads rows of the table.
func (t *Table) readRows(ctx context.Context, bt *bigtable.Client, rows bigtable.RowSet, limit int) (found []bigtable.Row, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err = bt.Open(t.Name).ReadRows(ctx, rows, func(r bigtable.Row) bool {
		found = append(found, r)
		return true
	}, bigtable.RowFilter(rowsFilter), bigtable.LimitRows(int64(limit)))
	return found, err
}

// begin begins a pass over rows from start to end, between the boundaries of tablets.
func (t *Table) begin(boundaries []string, start string, now time.Time) {
	slices.Sort(boundaries)
	t.parts, t.at, t.began = boundaries, start, now
	t.More, t.omitted = t.omitted, false
}

// end ends the pass.
func (t *Table) end(now time.Time) {
	t.LastPass, t.passEnded, t.began, t.at = now.Sub(t.began), now, time.Time{}, ""
	t.Passes++
	t.More = t.omitted
	t.Heat.divide(t.pages)
}

// next is where the next page ends at most.
func (t *Table) next(end string) string {
	for len(t.parts) > 0 && t.parts[0] <= t.at {
		t.parts = t.parts[1:]
	}
	if len(t.parts) < partsPage {
		return end
	}
	if p := t.parts[partsPage-1]; end == "" || p < end {
		return p
	}
	return end
}

// cover replaces what is known of rows from start to before end. It keeps the rows that
// were read since the page.
func (t *Table) cover(start, end string, found []bigtable.Row, at time.Time, room func(*Row) bool) {
	within := func(key string) bool { return key >= start && (end == "" || key < end) }
	there := map[string]bool{}
	for _, r := range found {
		there[r.Key()] = true
		t.put(r.Key(), newRow(t.Name, r, at), room)
	}
	for key, k := range t.Rows {
		if within(key) && !there[key] && k.at.Before(at) {
			delete(t.Rows, key)
		}
	}
	p := page{start, end, len(found), nil, at}
	for i := range pageMarks {
		if n := len(found) * i / pageMarks; n < len(found) && (i == 0 || found[n].Key() > p.marks[len(p.marks)-1]) {
			p.marks = append(p.marks, found[n].Key())
		}
	}
	i, _ := slices.BinarySearchFunc(t.pages, start, func(p page, s string) int { return strings.Compare(p.start, s) })
	j := i
	for j < len(t.pages) && (end == "" || t.pages[j].start < end) {
		j++
	}
	t.pages = slices.Replace(t.pages, i, j, p)
	if len(t.pages) > maxPages {
		t.halve()
	}
}

// halve joins each page with the next one.
func (t *Table) halve() {
	var half []page
	for i := 0; i < len(t.pages); i += 2 {
		p := t.pages[i]
		if i+1 < len(t.pages) {
			q := t.pages[i+1]
			p.end, p.rows, p.marks = q.end, p.rows+q.rows, append(p.marks[:len(p.marks):len(p.marks)], q.marks...)
			if len(p.marks) > pageMarks {
				for i := range pageMarks {
					p.marks[i] = p.marks[i*len(p.marks)/pageMarks]
				}
				p.marks = p.marks[:pageMarks]
			}
			if q.at.Before(p.at) {
				p.at = q.at
			}
		}
		half = append(half, p)
	}
	t.pages = half
}

func (t *Table) put(key string, k *Row, room func(*Row) bool) {
	old := t.Rows[key]
	if old == nil && !k.empty() && !room(k) {
		t.omitted = true
	}
	if k.empty() {
		delete(t.Rows, key)
		return
	}
	if old != nil && k.notified {
		k.Seen, k.seenAt = old.Seen, old.seenAt
	}
	t.Rows[key] = k
}

// Count is how many rows the pages have, and when the oldest of them was read.
func (t *Table) Count() (rows int, oldest time.Time) {
	for i, p := range t.pages {
		rows += p.rows
		if i == 0 || p.at.Before(oldest) {
			oldest = p.at
		}
	}
	return rows, oldest
}

// due returns up to refreshRows keys of rows that were last read before a time, the oldest
// first; with notified, those whose notifications were compared with acknowledgments.
func (t *Table) due(before time.Time, notified bool) (keys []string) {
	of := func(key string) time.Time {
		if notified {
			return t.Rows[key].seenAt
		}
		return t.Rows[key].at
	}
	for key, k := range t.Rows {
		if of(key).Before(before) && (!notified || k.notified) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(of(a).Compare(of(b)), strings.Compare(a, b)) })
	keys = keys[:min(len(keys), refreshRows)]
	slices.Sort(keys)
	return keys
}

// oldestRow is when the row that was not read for the longest was read.
func (t *Table) oldestRow() time.Time {
	oldest := time.Now()
	for _, k := range t.Rows {
		if k.at.Before(oldest) {
			oldest = k.at
		}
	}
	return oldest
}
