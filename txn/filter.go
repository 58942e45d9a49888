package txn

import (
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// Every read that correctness depends on has an Interleave at its top, or at the
// end of a Chain at its top: the emulator tears reads with plain filters while a
// writer changes the row's columns, since what it sends goes by a list of column
// names that it shares with writers. An Interleave makes a list of its own, and
// the filters before it look at cells alone (design §9,
// docs/design/2026-11-20-hot-path.md). The predicate of a conditional mutation is
// evaluated while nobody writes, and needs none.

// column matches exactly the column (family, qualifier), whatever its bytes.
func column(family, qualifier string) bigtable.Filter {
	return bigtable.ColumnRangeFilter(family, qualifier, qualifier+"\x00")
}

// wholeFamily matches every column of a family without a regular expression.
func wholeFamily(family string) bigtable.Filter {
	return bigtable.ColumnRangeFilter(family, "", "")
}

// at matches the cells at exactly ts.
func at(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(ts.Cell(), (ts + 1).Cell())
}

// A columnFilter holds what the filters of one column are made of. Filters never
// change, so they are made once; only timestamps differ from request to request.
type columnFilter struct {
	key               string          // family:qualifier
	lock, write, mark bigtable.Filter // its metadata
	// visible matches all cells of its lock, write and data columns.
	visible bigtable.Filter
}

func newColumnFilter(c Column) *columnFilter {
	key := c.key()
	f := &columnFilter{key: key, lock: column(LockFamily, key), write: column(WriteFamily, key), mark: column(MarkFamily, key)}
	f.visible = interleave(f.lock, f.write, column(c.Family, c.Qualifier))
	return f
}

// columnFilters remembers columns' filters.
type columnFilters struct {
	mu    sync.RWMutex
	known map[Column]*columnFilter
}

// Bounds of what is remembered: an application may use qualifiers as data.
const (
	maxColumnFilters   = 1024
	maxKnownColumnName = 128
)

// filters are those of all tables: they do not depend on it.
var filters = columnFilters{known: map[Column]*columnFilter{}}

func (k *columnFilters) of(c Column) *columnFilter {
	k.mu.RLock()
	f := k.known[c]
	k.mu.RUnlock()
	if f != nil {
		return f
	}
	f = newColumnFilter(c)
	if len(f.key) > maxKnownColumnName {
		return f
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.known) >= maxColumnFilters {
		clear(k.known)
	}
	k.known[c] = f
	return f
}

// upTo matches the cells in [0, ts].
func upTo(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(0, (ts + 1).Cell())
}

// dataUpTo is upTo for reads: data from before the table was adopted is visible
// at every timestamp. Nothing else has timestamps like its, whose are of wall
// clocks (prePercolator).
func dataUpTo(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(0, max((ts+1).Cell(), prePercolator))
}

// from matches the cells in [ts, ∞).
func from(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(ts.Cell(), 0)
}

func chain(f ...bigtable.Filter) bigtable.Filter { return bigtable.ChainFilters(f...) }

// interleave joins filters; Bigtable wants at least two in an Interleave.
func interleave(f ...bigtable.Filter) bigtable.Filter {
	if len(f) == 1 {
		f = append(f, bigtable.BlockAllFilter())
	}
	return bigtable.InterleaveFilters(f...)
}

// anyOf joins filters below the top level.
func anyOf(f []bigtable.Filter) bigtable.Filter {
	if len(f) == 1 {
		return f[0]
	}
	return bigtable.InterleaveFilters(f...)
}

var (
	latest   = bigtable.LatestNFilter(1)
	wholeRow = interleave(bigtable.PassAllFilter())
)

// filterBudget is the part of Bigtable's 20 KB filter limit that we fill; the
// rest is left for what filterCost does not count.
const filterBudget = 18 << 10

// filterCost bounds the encoded size of one column range and the messages
// around it; filterOverhead that of a timestamp range.
func filterCost(qualifier string) int { return 2*len(qualifier) + 40 }

const filterOverhead = 40

// lockAt is the predicate of a commit, a heartbeat and a clean-up: the lock of
// the transaction that started at startTS is on the column.
func lockAt(c Column, startTS tso.Timestamp) bigtable.Filter {
	return chain(filters.of(c).lock, at(startTS))
}

// conflicts is what a prewrite at startTS must not find: any lock, or a write
// record, lock-only mark or rollback marker at or above it (design §4).
func conflicts(cols []Column, startTS tso.Timestamp) bigtable.Filter {
	branches := make([]bigtable.Filter, 0, len(cols)+2)
	records := make([]bigtable.Filter, 0, 2*len(cols))
	for _, c := range cols {
		f := filters.of(c)
		branches = append(branches, f.lock)
		records = append(records, f.write, f.mark)
	}
	since := from(startTS)
	if len(cols) > 1 {
		return interleave(append(branches, chain(anyOf(records), since))...)
	}
	// The emulator copies the row for every branch: for a few, a branch each takes
	// less than another Interleave.
	for _, r := range records {
		branches = append(branches, chain(r, since))
	}
	return interleave(branches...)
}

// inTheWay is conflicts as a predicate, which needs to know whether there are
// any, and not which: of each column the newest cell tells.
func inTheWay(cols []Column, startTS tso.Timestamp) bigtable.Filter {
	return chain(latest, conflicts(cols, startTS))
}

// inTheWayOfRow is inTheWay for all columns of the row, and names none.
func inTheWayOfRow(startTS tso.Timestamp) bigtable.Filter {
	return chain(latest, interleave(
		wholeFamily(LockFamily),
		chain(wholeFamily(WriteFamily), from(startTS)),
		chain(wholeFamily(MarkFamily), from(startTS)),
	))
}

// prewriteCost bounds the size that a column adds to conflicts.
func prewriteCost(c Column) int { return 3 * filterCost(c.key()) }

// outcomeCells matches everything at a primary that can decide the outcome of the
// transaction that started at startTS.
func outcomeCells(primary Column, startTS tso.Timestamp) bigtable.Filter {
	k := primary.key()
	return interleave(
		chain(column(LockFamily, k), at(startTS)),
		chain(column(WriteFamily, k), from(startTS)),
		chain(column(MarkFamily, k), from(startTS)),
	)
}

// undecided is the predicate of marker-if-nothing-there: it matches when the
// primary holds a lock or marker of startTS, or any record at or above asOf.
// asOf has to be a timestamp obtained before the primary was last read and
// found empty: a commit of that transaction can then only stand above it
// (design §4).
func undecided(primary Column, startTS, asOf tso.Timestamp) bigtable.Filter {
	k := primary.key()
	return interleave(
		chain(column(LockFamily, k), at(startTS)),
		chain(column(MarkFamily, k), at(startTS)),
		chain(column(WriteFamily, k), from(asOf)),
		chain(column(MarkFamily, k), from(asOf)),
	)
}

// A selection says which columns a read returns: single ones, whole families,
// or, when empty, everything the table has.
type selection struct {
	columns  []Column
	families []string
}

func (s selection) everything() bool { return len(s.columns) == 0 && len(s.families) == 0 }

func (s selection) has(c Column) bool {
	if s.everything() {
		return c.Family != AckFamily
	}
	for _, f := range s.families {
		if f == c.Family {
			return true
		}
	}
	for _, o := range s.columns {
		if o == c {
			return true
		}
	}
	return false
}

// visibleAt is the filter of a read at ts: locks, the latest write record and
// the latest data of the selected columns. dataFamilies are the table's, as a
// read of everything has to name them; nil: it need not. Where naming what is
// selected would pass Bigtable's limit, more is read, and evaluate drops what
// was not asked for.
//
// Timestamps come first, then the newest cell of each column: for every branch
// of an Interleave, the emulator copies what is left of the row, and old versions
// are not left then. The newest lock of a column is all of its locks: a prewrite
// is refused where there is a lock at any timestamp, so no column has two.
func (s selection) visibleAt(ts tso.Timestamp, dataFamilies []string) bigtable.Filter {
	readable := dataUpTo(ts)
	switch {
	case s.everything() && dataFamilies == nil:
		return chain(readable, latest, wholeRow)
	case len(s.families) == 0 && len(s.columns) == 1:
		return chain(readable, latest, filters.of(s.columns[0]).visible)
	}
	return chain(readable, latest, interleave(s.parts(dataFamilies)...))
}

// parts matches the cells of the selected columns and of their metadata.
func (s selection) parts(dataFamilies []string) []bigtable.Filter {
	switch {
	case s.everything():
		return whole(append([]string{LockFamily, WriteFamily}, dataFamilies...)...)
	case s.cost() > filterBudget:
		return whole(append([]string{LockFamily, WriteFamily}, s.allFamilies()...)...)
	}
	var parts []bigtable.Filter
	for _, f := range s.families {
		// Qualifiers of the family's metadata start with "family:", and ';'
		// follows ':'.
		parts = append(parts, bigtable.ColumnRangeFilter(LockFamily, f+":", f+";"), bigtable.ColumnRangeFilter(WriteFamily, f+":", f+";"), wholeFamily(f))
	}
	for _, c := range s.columns {
		f := filters.of(c)
		parts = append(parts, f.lock, f.write, column(c.Family, c.Qualifier))
	}
	return parts
}

// whole matches whole families; all families there are, when their names alone
// would be too much for a filter.
func whole(families ...string) []bigtable.Filter {
	var all []bigtable.Filter
	cost := 0
	for _, f := range families {
		all = append(all, wholeFamily(f))
		cost += len(f) + 40
	}
	if cost > filterBudget {
		return []bigtable.Filter{bigtable.PassAllFilter()}
	}
	return all
}

// cost bounds the size of the filter that names every column and family.
func (s selection) cost() int {
	n := 4 * filterOverhead
	for _, f := range s.families {
		n += 3 * filterCost(f+":")
	}
	for _, c := range s.columns {
		n += 3 * filterCost(c.key())
	}
	return n
}

// allFamilies are the families of everything that is selected.
func (s selection) allFamilies() []string {
	families := slices.Clone(s.families)
	for _, c := range s.columns {
		families = append(families, c.Family)
	}
	slices.Sort(families)
	return slices.Compact(families)
}
