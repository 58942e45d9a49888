package store

import (
	"cmp"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Every read that correctness depends on has an Interleave at the top of its filter, or at
// the end of a Chain at the top. Otherwise the emulator can tear the read: it sends the row
// by a list of column names, and a writer may change that list meanwhile. An Interleave
// makes a list of its own, and the filters before it only look at cells (design §9,
// docs/design/reads.md). The predicate of a conditional mutation needs no
// Interleave, because no other write of the row runs at that moment.

// ExactColumn matches exactly the column (family, qualifier). The qualifier may hold any
// bytes.
func ExactColumn(family, qualifier string) bigtable.Filter {
	return bigtable.ColumnRangeFilter(family, qualifier, qualifier+"\x00")
}

// WholeFamily matches every column of a family, without a regular expression.
func WholeFamily(family string) bigtable.Filter {
	return bigtable.ColumnRangeFilter(family, "", "")
}

// ExactValue matches the cells with exactly this value.
func ExactValue(value []byte) bigtable.Filter {
	return bigtable.ValueRangeFilter(value, append(slices.Clone(value), 0))
}

// At matches the cells at exactly ts.
func At(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(ts.Cell(), (ts + 1).Cell())
}

// A columnFilter holds the parts that filters of one column consist of. They never change,
// so the client makes them once. Only timestamps differ between requests.
type columnFilter struct {
	key               string          // family:qualifier
	lock, write, mark bigtable.Filter // its metadata
	// visible matches all cells of its lock, write and data columns, and newest the newest
	// cell of each.
	visible, newest bigtable.Filter
}

func newColumnFilter(c format.Column) *columnFilter {
	key := c.Key()
	f := &columnFilter{key: key, lock: ExactColumn(format.LockFamily, key), write: ExactColumn(format.WriteFamily, key), mark: ExactColumn(format.MarkFamily, key)}
	f.visible = Interleave(f.lock, f.write, ExactColumn(c.Family, c.Qualifier))
	f.newest = Chain(Latest, f.visible)
	return f
}

// columnFilters is a cache of columns' filters.
type columnFilters struct {
	mu    sync.RWMutex
	known map[format.Column]*columnFilter
}

// Bounds of the caches by column: an application may use qualifiers as data.
const (
	// maxColumnFilters is how many columns have a cached filter.
	maxColumnFilters = 1024
	// MaxKnownColumnName is how long the name of a cached column may be, in bytes.
	MaxKnownColumnName = 128
)

// filters caches the filters for all tables; a filter does not depend on the table.
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

// DataUpTo is UpTo for values: plain data is visible at every timestamp. Only plain data has
// timestamps below format.PlainBefore, because its writers used wall clocks.
func DataUpTo(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(0, max((ts+1).Cell(), format.PlainBefore))
}

// From matches the cells in [ts, ∞).
func From(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(ts.Cell(), 0)
}

// Chain matches what passes through all filters, one after the other.
func Chain(f ...bigtable.Filter) bigtable.Filter { return bigtable.ChainFilters(f...) }

// Interleave matches what any of the filters matches. Bigtable requires at least two
// filters in an Interleave.
func Interleave(f ...bigtable.Filter) bigtable.Filter {
	if len(f) == 1 {
		f = append(f, bigtable.BlockAllFilter())
	}
	return bigtable.InterleaveFilters(f...)
}

// AnyOf is Interleave for use inside another filter. A single filter stays as it is.
func AnyOf(f []bigtable.Filter) bigtable.Filter {
	if len(f) == 1 {
		return f[0]
	}
	return bigtable.InterleaveFilters(f...)
}

var (
	// Latest matches the newest cell of each column.
	Latest   = bigtable.LatestNFilter(1)
	wholeRow = Interleave(bigtable.PassAllFilter())
)

// FilterBudget is how many bytes of a filter we fill. Bigtable allows 20 KB; the rest is for
// what FilterCost does not count.
const FilterBudget = 18 << 10

// FilterCost returns an upper bound of the encoded size of one column range with its
// messages, in bytes.
func FilterCost(qualifier string) int { return 2*len(qualifier) + 40 }

// FilterOverhead is an upper bound of the encoded size of a timestamp range, in bytes.
const FilterOverhead = 40

// AnyLockAt matches the locks of the transaction that started at startTS, in a predicate.
func AnyLockAt(startTS tso.Timestamp) bigtable.Filter {
	return Chain(WholeFamily(format.LockFamily), At(startTS))
}

// LockAt is the predicate of a commit, a heartbeat and a roll-back: the column has the lock
// of the transaction that started at startTS.
func LockAt(c format.Column, startTS tso.Timestamp) bigtable.Filter {
	return Chain(filters.of(c).lock, At(startTS))
}

// RecordsOf matches the records and marks of a column at or above startTS that may belong to the
// transaction that started there.
func RecordsOf(c format.Column, startTS tso.Timestamp) bigtable.Filter {
	f := filters.of(c)
	var values []bigtable.Filter
	for _, r := range format.RecordRanges(startTS) {
		values = append(values, bigtable.ValueRangeFilter(r[0], r[1]))
	}
	return Chain(Interleave(f.write, f.mark), From(startTS), Interleave(values...))
}

// Conflicts matches what a prewrite at startTS must not find: any lock, and any write record,
// lock-only commit or rollback marker at or above startTS (design §4).
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
	// The emulator copies the row for every branch. A few branches more take less time than
	// another Interleave.
	for _, r := range records {
		branches = append(branches, Chain(r, since))
	}
	return Interleave(branches...)
}

// AnyConflict is Conflicts as a predicate. A predicate only needs to know whether there is a
// conflict, so the newest cell of each column is enough.
func AnyConflict(cols []format.Column, startTS tso.Timestamp) bigtable.Filter {
	return Chain(Latest, Conflicts(cols, startTS))
}

// PrewriteConflict is the predicate of a prewrite: AnyConflict if it has to be exact, or else
// AnythingSince.
func PrewriteConflict(cols []format.Column, startTS tso.Timestamp, exact bool) bigtable.Filter {
	if exact {
		return AnyConflict(cols, startTS)
	}
	return AnythingSince(cols, startTS)
}

// AnythingSince matches what AnyConflict matches, and the records and marks of all other
// columns of the row at or above startTS. So if it does not match, nothing prevents a prewrite.
// It has half of the parts (docs/design/commits.md).
func AnythingSince(cols []format.Column, startTS tso.Timestamp) bigtable.Filter {
	branches := make([]bigtable.Filter, 0, len(cols)+1)
	for _, c := range cols {
		branches = append(branches, filters.of(c).lock)
	}
	// The timestamps come first: the emulator compiles the expression for each cell.
	return Interleave(append(branches, Chain(From(startTS), recordFamilies))...)
}

// recordFamilies keeps Bigtable from reading the data of a large row.
var recordFamilies = bigtable.FamilyFilter(format.WriteFamily + "|" + format.MarkFamily)

// NewestConflicts matches what explains why a prewrite at startTS failed: the newest cell of
// each column in Conflicts, and a rollback marker of the transaction itself, which may have
// any number of later records above it.
func NewestConflicts(cols []format.Column, startTS tso.Timestamp) bigtable.Filter {
	return Interleave(AnyConflict(cols, startTS), Chain(WholeFamily(format.MarkFamily), At(startTS)))
}

// AnyConflictInRow is AnyConflict for all columns of the row, without their names.
func AnyConflictInRow(startTS tso.Timestamp) bigtable.Filter {
	return Chain(Latest, Interleave(
		WholeFamily(format.LockFamily),
		Chain(WholeFamily(format.WriteFamily), From(startTS)),
		Chain(WholeFamily(format.MarkFamily), From(startTS)),
	))
}

// PrewriteCost returns an upper bound of the size that a column adds to Conflicts, in bytes.
func PrewriteCost(c format.Column) int { return 3 * FilterCost(c.Key()) }

// OutcomeCells matches everything at a primary that can decide the outcome of the
// transaction that started at startTS. The primary may have any number of later versions, and
// a read must not return them all (format.RecordRanges).
func OutcomeCells(primary format.Column, startTS tso.Timestamp) bigtable.Filter {
	return Interleave(LockAt(primary, startTS), RecordsOf(primary, startTS))
}

// Undecided is the predicate of the mutation that sets a rollback marker at an empty
// primary. It matches if the primary holds a lock or marker of startTS, or any record at or
// above asOf; the marker must not be set then.
//
// The caller must have obtained asOf before it last read the primary and found it empty. A
// commit of that transaction can then only be above asOf (design §4).
func Undecided(primary format.Column, startTS, asOf tso.Timestamp) bigtable.Filter {
	k := primary.Key()
	return Interleave(
		Chain(ExactColumn(format.LockFamily, k), At(startTS)),
		Chain(ExactColumn(format.MarkFamily, k), At(startTS)),
		Chain(ExactColumn(format.WriteFamily, k), From(asOf)),
		Chain(ExactColumn(format.MarkFamily, k), From(asOf)),
	)
}

// A Selection says which columns a read returns, and how much of them: single columns and
// ranges of qualifiers, which contain neither a column nor each other twice. Without columns and
// ranges it is everything that the table has.
type Selection struct {
	Columns []format.Column
	Ranges  []QualifierRange
	// KeysOnly leaves the values out.
	KeysOnly bool
	// First, if positive, is how many cells of each row the read returns (see firstcells.go).
	First int
	ahead int // how many columns more a request returns
}

// A QualifierRange is the columns of a family with Start ≤ qualifier < End; an empty End is no
// bound.
type QualifierRange struct{ Family, Start, End string }

func (r QualifierRange) has(c format.Column) bool {
	return c.Family == r.Family && c.Qualifier >= r.Start && (r.End == "" || c.Qualifier < r.End)
}

// of matches the metadata of the range in a metadata family, where the columns are
// family:qualifier. The next byte after ':' is ';'.
func (r QualifierRange) of(family string) bigtable.Filter {
	end := r.Family + ";"
	if r.End != "" {
		end = r.Family + ":" + r.End
	}
	return bigtable.ColumnRangeFilter(family, r.Family+":"+r.Start, end)
}

func (s Selection) everything() bool { return len(s.Columns) == 0 && len(s.Ranges) == 0 }

// Has reports whether the selection contains column c. Everything does not contain the
// acknowledgment family.
func (s Selection) Has(c format.Column) bool {
	if s.everything() {
		return c.Family != format.AckFamily
	}
	for _, r := range s.Ranges {
		if r.has(c) {
			return true
		}
	}
	for _, selected := range s.Columns {
		if selected == c {
			return true
		}
	}
	return false
}

// Normalize removes what the selection names twice, because the answer would contain it twice.
func (s *Selection) Normalize() {
	slices.SortFunc(s.Ranges, func(a, b QualifierRange) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Start, b.Start))
	})
	var ranges []QualifierRange
	for _, r := range s.Ranges {
		n := len(ranges) - 1
		switch {
		case n < 0 || ranges[n].Family != r.Family || ranges[n].End != "" && ranges[n].End < r.Start:
			ranges = append(ranges, r)
		case ranges[n].End != "" && (r.End == "" || r.End > ranges[n].End):
			ranges[n].End = r.End
		}
	}
	all := s.Columns
	s.Ranges, s.Columns = ranges, nil
	for _, c := range all {
		if s.everything() || !s.Has(c) {
			s.Columns = append(s.Columns, c)
		}
	}
}

// VisibleAt is the filter of a read at ts: the locks, the latest write records and the latest
// data of the selected columns. A read of everything names dataFamilies, the table's
// families; nil means that it need not name them. If the names of the selected columns do
// not fit into a filter, the read returns more, and recovery.Evaluate drops the rest.
//
// The filter first selects timestamps, then the newest cell of each column. The emulator
// copies the rest of the row for every branch of an Interleave; this way, old versions are
// gone before.
func (s Selection) VisibleAt(ts tso.Timestamp, dataFamilies []string) bigtable.Filter {
	return Chain(DataUpTo(ts), Latest, s.visible(dataFamilies))
}

// Newest is VisibleAt the end of time.
func (s Selection) Newest(dataFamilies []string) bigtable.Filter {
	if s.oneColumn() {
		return filters.of(s.Columns[0]).newest
	}
	return Chain(Latest, s.visible(dataFamilies))
}

func (s Selection) oneColumn() bool {
	return len(s.Ranges) == 0 && len(s.Columns) == 1 && !s.KeysOnly
}

// visible matches all locks, write records and data of the selected columns.
func (s Selection) visible(dataFamilies []string) bigtable.Filter {
	switch {
	case s.everything() && dataFamilies == nil:
		return wholeRow
	case s.oneColumn():
		return filters.of(s.Columns[0]).visible
	}
	return Interleave(s.parts(dataFamilies)...)
}

// parts matches the cells of the selected columns and their metadata.
func (s Selection) parts(dataFamilies []string) []bigtable.Filter {
	data := func(f bigtable.Filter) bigtable.Filter {
		if s.KeysOnly {
			return Chain(f, bigtable.StripValueFilter())
		}
		return f
	}
	if s.everything() || s.Cost() > FilterBudget {
		if !s.everything() {
			dataFamilies = s.allFamilies()
		}
		return wholeFamilies(append([]string{format.LockFamily, format.WriteFamily}, dataFamilies...), data)
	}
	var parts []bigtable.Filter
	for _, r := range s.Ranges {
		some := func(f bigtable.Filter) bigtable.Filter { return f }
		if n := columnsPerRequest(s); n != 0 {
			some = func(f bigtable.Filter) bigtable.Filter { return Chain(f, bigtable.CellsPerRowLimitFilter(n)) }
		}
		parts = append(parts, some(r.of(format.LockFamily)), some(r.of(format.WriteFamily)), data(some(bigtable.ColumnRangeFilter(r.Family, r.Start, r.End))))
	}
	for _, c := range s.Columns {
		f := filters.of(c)
		parts = append(parts, f.lock, f.write, data(ExactColumn(c.Family, c.Qualifier)))
	}
	return parts
}

// WholeFamilies matches whole families. If their names do not fit into a filter, it matches
// all families of the table.
func WholeFamilies(families ...string) []bigtable.Filter {
	return wholeFamilies(families, func(f bigtable.Filter) bigtable.Filter { return f })
}

// wholeFamilies is WholeFamilies with a filter around those of the user's families.
func wholeFamilies(families []string, data func(bigtable.Filter) bigtable.Filter) []bigtable.Filter {
	var all []bigtable.Filter
	cost := 0
	for _, f := range families {
		if format.IsMetadataFamily(f) {
			all = append(all, WholeFamily(f))
		} else {
			all = append(all, data(WholeFamily(f)))
		}
		cost += len(f) + 40
	}
	if cost > FilterBudget {
		return []bigtable.Filter{bigtable.PassAllFilter()}
	}
	return all
}

// Cost returns an upper bound of the size of the filter that names every selected column and
// family, in bytes.
func (s Selection) Cost() int {
	n, keysOnly := 4*FilterOverhead, 0
	if s.KeysOnly {
		keysOnly = 16
	}
	for _, r := range s.Ranges {
		n += 3*(FilterCost(r.Family+":")+len(r.Start)+len(r.End)) + keysOnly
	}
	for _, c := range s.Columns {
		n += 3*FilterCost(c.Key()) + keysOnly
	}
	return n
}

// allFamilies returns the families of the selected columns.
func (s Selection) allFamilies() []string {
	var families []string
	for _, r := range s.Ranges {
		families = append(families, r.Family)
	}
	for _, c := range s.Columns {
		families = append(families, c.Family)
	}
	slices.Sort(families)
	return slices.Compact(families)
}
