package store

import (
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Every read that correctness depends on has an Interleave at its top, or at the
// end of a Chain at its top: the emulator tears reads with plain filters while a
// writer changes the row's columns, since what it sends goes by a list of column
// names that it shares with writers. An Interleave makes a list of its own, and
// the filters before it look at cells alone (design §9,
// docs/design/2026-11-20-hot-path.md). The predicate of a conditional mutation is
// evaluated while nobody writes, and needs none.

// ExactColumn matches exactly the column (family, qualifier), whatever its bytes.
func ExactColumn(family, qualifier string) bigtable.Filter {
	return bigtable.ColumnRangeFilter(family, qualifier, qualifier+"\x00")
}

// WholeFamily matches every column of a family without a regular expression.
func WholeFamily(family string) bigtable.Filter {
	return bigtable.ColumnRangeFilter(family, "", "")
}

// At matches the cells at exactly ts.
func At(ts tso.Timestamp) bigtable.Filter {
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

func newColumnFilter(c format.Column) *columnFilter {
	key := c.Key()
	f := &columnFilter{key: key, lock: ExactColumn(format.LockFamily, key), write: ExactColumn(format.WriteFamily, key), mark: ExactColumn(format.MarkFamily, key)}
	f.visible = Interleave(f.lock, f.write, ExactColumn(c.Family, c.Qualifier))
	return f
}

// columnFilters remembers columns' filters.
type columnFilters struct {
	mu    sync.RWMutex
	known map[format.Column]*columnFilter
}

// Bounds of what is remembered: an application may use qualifiers as data.
const (
	maxColumnFilters   = 1024
	MaxKnownColumnName = 128
)

// filters are those of all tables: they do not depend on it.
var filters = columnFilters{known: map[format.Column]*columnFilter{}}

func (k *columnFilters) of(c format.Column) *columnFilter {
	k.mu.RLock()
	f := k.known[c]
	k.mu.RUnlock()
	if f != nil {
		return f
	}
	f = newColumnFilter(c)
	if len(f.key) > MaxKnownColumnName {
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

// UpTo matches the cells in [0, ts].
func UpTo(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(0, (ts + 1).Cell())
}

// DataUpTo is upTo for reads: data from before the table was adopted is visible
// at every timestamp. Nothing else has timestamps like its, whose are of wall
// clocks (prePercolator).
func DataUpTo(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(0, max((ts+1).Cell(), format.PlainBefore))
}

// From matches the cells in [ts, ∞).
func From(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(ts.Cell(), 0)
}

func Chain(f ...bigtable.Filter) bigtable.Filter { return bigtable.ChainFilters(f...) }

// Interleave joins filters; Bigtable wants at least two in an Interleave.
func Interleave(f ...bigtable.Filter) bigtable.Filter {
	if len(f) == 1 {
		f = append(f, bigtable.BlockAllFilter())
	}
	return bigtable.InterleaveFilters(f...)
}

// AnyOf joins filters below the top level.
func AnyOf(f []bigtable.Filter) bigtable.Filter {
	if len(f) == 1 {
		return f[0]
	}
	return bigtable.InterleaveFilters(f...)
}

var (
	Latest   = bigtable.LatestNFilter(1)
	wholeRow = Interleave(bigtable.PassAllFilter())
)

// filterBudget is the part of Bigtable's 20 KB filter limit that we fill; the
// rest is left for what filterCost does not count.
const FilterBudget = 18 << 10

// FilterCost bounds the encoded size of one column range and the messages
// around it; filterOverhead that of a timestamp range.
func FilterCost(qualifier string) int { return 2*len(qualifier) + 40 }

const FilterOverhead = 40

// LockAt is the predicate of a commit, a heartbeat and a clean-up: the lock of
// the transaction that started at startTS is on the column.
func LockAt(c format.Column, startTS tso.Timestamp) bigtable.Filter {
	return Chain(filters.of(c).lock, At(startTS))
}

// Conflicts is what a prewrite at startTS must not find: any lock, or a write
// record, lock-only mark or rollback marker at or above it (design §4).
func Conflicts(cols []format.Column, startTS tso.Timestamp) bigtable.Filter {
	branches := make([]bigtable.Filter, 0, len(cols)+2)
	records := make([]bigtable.Filter, 0, 2*len(cols))
	for _, c := range cols {
		f := filters.of(c)
		branches = append(branches, f.lock)
		records = append(records, f.write, f.mark)
	}
	since := From(startTS)
	if len(cols) > 1 {
		return Interleave(append(branches, Chain(AnyOf(records), since))...)
	}
	// The emulator copies the row for every branch: for a few, a branch each takes
	// less than another Interleave.
	for _, r := range records {
		branches = append(branches, Chain(r, since))
	}
	return Interleave(branches...)
}

// AnyConflict is conflicts as a predicate, which needs to know whether there are
// any, and not which: of each column the newest cell tells.
func AnyConflict(cols []format.Column, startTS tso.Timestamp) bigtable.Filter {
	return Chain(Latest, Conflicts(cols, startTS))
}

// AnyConflictInRow is inTheWay for all columns of the row, and names none.
func AnyConflictInRow(startTS tso.Timestamp) bigtable.Filter {
	return Chain(Latest, Interleave(
		WholeFamily(format.LockFamily),
		Chain(WholeFamily(format.WriteFamily), From(startTS)),
		Chain(WholeFamily(format.MarkFamily), From(startTS)),
	))
}

// PrewriteCost bounds the size that a column adds to conflicts.
func PrewriteCost(c format.Column) int { return 3 * FilterCost(c.Key()) }

// OutcomeCells matches everything at a primary that can decide the outcome of the
// transaction that started at startTS.
func OutcomeCells(primary format.Column, startTS tso.Timestamp) bigtable.Filter {
	k := primary.Key()
	return Interleave(
		Chain(ExactColumn(format.LockFamily, k), At(startTS)),
		Chain(ExactColumn(format.WriteFamily, k), From(startTS)),
		Chain(ExactColumn(format.MarkFamily, k), From(startTS)),
	)
}

// Undecided is the predicate of marker-if-nothing-there: it matches when the
// primary holds a lock or marker of startTS, or any record at or above asOf.
// asOf has to be a timestamp obtained before the primary was last read and
// found empty: a commit of that transaction can then only stand above it
// (design §4).
func Undecided(primary format.Column, startTS, asOf tso.Timestamp) bigtable.Filter {
	k := primary.Key()
	return Interleave(
		Chain(ExactColumn(format.LockFamily, k), At(startTS)),
		Chain(ExactColumn(format.MarkFamily, k), At(startTS)),
		Chain(ExactColumn(format.WriteFamily, k), From(asOf)),
		Chain(ExactColumn(format.MarkFamily, k), From(asOf)),
	)
}

// A selection says which columns a read returns: single ones, whole families,
// or, when empty, everything the table has.
type Selection struct {
	Columns  []format.Column
	Families []string
}

func (s Selection) everything() bool { return len(s.Columns) == 0 && len(s.Families) == 0 }

func (s Selection) Has(c format.Column) bool {
	if s.everything() {
		return c.Family != format.AckFamily
	}
	for _, f := range s.Families {
		if f == c.Family {
			return true
		}
	}
	for _, o := range s.Columns {
		if o == c {
			return true
		}
	}
	return false
}

// VisibleAt is the filter of a read at ts: locks, the latest write record and
// the latest data of the selected columns. dataFamilies are the table's, as a
// read of everything has to name them; nil: it need not. Where naming what is
// selected would pass Bigtable's limit, more is read, and evaluate drops what
// was not asked for.
//
// Timestamps come first, then the newest cell of each column: for every branch
// of an Interleave, the emulator copies what is left of the row, and old versions
// are not left then. The newest lock of a column is all of its locks: a prewrite
// is refused where there is a lock at any timestamp, so no column has two.
func (s Selection) VisibleAt(ts tso.Timestamp, dataFamilies []string) bigtable.Filter {
	readable := DataUpTo(ts)
	switch {
	case s.everything() && dataFamilies == nil:
		return Chain(readable, Latest, wholeRow)
	case len(s.Families) == 0 && len(s.Columns) == 1:
		return Chain(readable, Latest, filters.of(s.Columns[0]).visible)
	}
	return Chain(readable, Latest, Interleave(s.parts(dataFamilies)...))
}

// parts matches the cells of the selected columns and of their metadata.
func (s Selection) parts(dataFamilies []string) []bigtable.Filter {
	switch {
	case s.everything():
		return WholeFamilies(append([]string{format.LockFamily, format.WriteFamily}, dataFamilies...)...)
	case s.Cost() > FilterBudget:
		return WholeFamilies(append([]string{format.LockFamily, format.WriteFamily}, s.allFamilies()...)...)
	}
	var parts []bigtable.Filter
	for _, f := range s.Families {
		// Qualifiers of the family's metadata start with "family:", and ';'
		// follows ':'.
		parts = append(parts, bigtable.ColumnRangeFilter(format.LockFamily, f+":", f+";"), bigtable.ColumnRangeFilter(format.WriteFamily, f+":", f+";"), WholeFamily(f))
	}
	for _, c := range s.Columns {
		f := filters.of(c)
		parts = append(parts, f.lock, f.write, ExactColumn(c.Family, c.Qualifier))
	}
	return parts
}

// WholeFamilies matches whole families; all families there are, when their names alone
// would be too much for a filter.
func WholeFamilies(families ...string) []bigtable.Filter {
	var all []bigtable.Filter
	cost := 0
	for _, f := range families {
		all = append(all, WholeFamily(f))
		cost += len(f) + 40
	}
	if cost > FilterBudget {
		return []bigtable.Filter{bigtable.PassAllFilter()}
	}
	return all
}

// Cost bounds the size of the filter that names every column and family.
func (s Selection) Cost() int {
	n := 4 * FilterOverhead
	for _, f := range s.Families {
		n += 3 * FilterCost(f+":")
	}
	for _, c := range s.Columns {
		n += 3 * FilterCost(c.Key())
	}
	return n
}

// allFamilies are the families of everything that is selected.
func (s Selection) allFamilies() []string {
	families := slices.Clone(s.Families)
	for _, c := range s.Columns {
		families = append(families, c.Family)
	}
	slices.Sort(families)
	return slices.Compact(families)
}
