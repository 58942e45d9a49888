package txn

import (
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// Every read that correctness depends on has an Interleave at its top: the
// emulator tears reads with a plain or Chain filter while a writer changes the
// row's columns, and never those (design §9).

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

// upTo matches the cells in [0, ts].
func upTo(ts tso.Timestamp) bigtable.Filter {
	return bigtable.TimestampRangeFilterMicros(0, (ts + 1).Cell())
}

// dataUpTo is upTo for data cells: those from before the table was adopted are
// visible at every timestamp.
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

var latest = bigtable.LatestNFilter(1)

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
	return interleave(chain(column(LockFamily, c.key()), at(startTS)))
}

// conflicts is the predicate of a prewrite at startTS: any lock, or a write
// record, lock-only mark or rollback marker at or above it (design §4).
func conflicts(cols []Column, startTS tso.Timestamp) bigtable.Filter {
	var locks, writes, marks []bigtable.Filter
	for _, c := range cols {
		locks = append(locks, column(LockFamily, c.key()))
		writes = append(writes, column(WriteFamily, c.key()))
		marks = append(marks, column(MarkFamily, c.key()))
	}
	return interleave(
		anyOf(locks),
		chain(anyOf(append(writes, marks...)), from(startTS)),
	)
}

// prewriteCost bounds the size that a column adds to conflicts.
func prewriteCost(c Column) int { return 3 * filterCost(c.key()) }

// fate reads everything at a primary that can decide the fate of the
// transaction that started at startTS.
func fate(primary Column, startTS tso.Timestamp) bigtable.Filter {
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
// the latest data of the selected columns. dataFamilies are the table's. Where
// naming what is selected would pass Bigtable's limit, more is read, and
// evaluate drops what was not asked for.
func (s selection) visibleAt(ts tso.Timestamp, dataFamilies []string) bigtable.Filter {
	var locks, writes, data []bigtable.Filter
	switch {
	case s.everything():
		locks, writes, data = whole(LockFamily), whole(WriteFamily), whole(dataFamilies...)
	case s.cost() > filterBudget:
		locks, writes, data = whole(LockFamily), whole(WriteFamily), whole(s.allFamilies()...)
	}
	if locks == nil {
		for _, f := range s.families {
			// Qualifiers of the family's metadata start with "family:", and ';'
			// follows ':'.
			locks = append(locks, bigtable.ColumnRangeFilter(LockFamily, f+":", f+";"))
			writes = append(writes, bigtable.ColumnRangeFilter(WriteFamily, f+":", f+";"))
			data = append(data, wholeFamily(f))
		}
		for _, c := range s.columns {
			locks = append(locks, column(LockFamily, c.key()))
			writes = append(writes, column(WriteFamily, c.key()))
			data = append(data, column(c.Family, c.Qualifier))
		}
	}
	return interleave(
		chain(anyOf(locks), upTo(ts)),
		chain(anyOf(writes), upTo(ts), latest),
		chain(anyOf(data), dataUpTo(ts), latest),
	)
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
