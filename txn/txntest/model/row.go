package model

import (
	"slices"
	"strings"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
)

// A row takes one mutation after the other. It keeps its removed cells until a compaction.
type row struct {
	key       string
	until     time.Time // its mutations
	mutations int64
	compacted int64 // number of compactions so far
	removed   int   // removed cells of all columns
	columns   []column
}

type column struct {
	family, qualifier string
	live              []int64 // timestamps
	removed           int
}

func less(a, b *row) bool { return a.key < b.key }

// row returns a row of a table.
func (c *Cluster) row(t *table, key string) *row {
	r, ok := t.rows.Get(&row{key: key})
	if !ok {
		r = &row{key: key, compacted: c.compactions()}
		t.rows.ReplaceOrInsert(r)
	}
	return c.current(r)
}

// compactions is how often each row was compacted.
func (c *Cluster) compactions() int64 { return time.Now().UnixNano() / int64(c.cfg.Compaction) }

// current drops the removed cells of a row if there was a compaction.
func (c *Cluster) current(r *row) *row {
	if n := c.compactions(); r.compacted < n {
		r.compacted, r.removed = n, 0
		r.columns = slices.DeleteFunc(r.columns, func(k column) bool { return len(k.live) == 0 })
		for i := range r.columns {
			r.columns[i].removed = 0
		}
	}
	return r
}

func (r *row) column(family string, qualifier []byte) *column {
	for i := range r.columns {
		if k := &r.columns[i]; k.qualifier == string(qualifier) && k.family == family {
			return k
		}
	}
	r.columns = append(r.columns, column{family: family, qualifier: string(qualifier)})
	return &r.columns[len(r.columns)-1]
}

// apply notes which cells mutations remove. The mark of a removal counts as a removed cell.
func (r *row) apply(mutations []*btpb.Mutation) {
	remove := func(k *column, which func(ts int64) bool) {
		had := len(k.live)
		k.live = slices.DeleteFunc(k.live, which)
		k.removed += had - len(k.live) + 1
		r.removed += had - len(k.live) + 1
	}
	for _, m := range mutations {
		switch x := m.Mutation.(type) {
		case *btpb.Mutation_SetCell_:
			k, ts := r.column(x.SetCell.FamilyName, x.SetCell.ColumnQualifier), x.SetCell.TimestampMicros
			if ts >= 0 && slices.Contains(k.live, ts) {
				k.removed++ // the value that it overwrites
				r.removed++
				continue
			}
			k.live = append(k.live, ts)
		case *btpb.Mutation_DeleteFromColumn_:
			from, to := x.DeleteFromColumn.GetTimeRange().GetStartTimestampMicros(), x.DeleteFromColumn.GetTimeRange().GetEndTimestampMicros()
			remove(r.column(x.DeleteFromColumn.FamilyName, x.DeleteFromColumn.ColumnQualifier), func(ts int64) bool {
				return ts >= from && (to == 0 || ts < to)
			})
		case *btpb.Mutation_DeleteFromFamily_:
			for i := range r.columns {
				if r.columns[i].family == x.DeleteFromFamily.FamilyName {
					remove(&r.columns[i], func(int64) bool { return true })
				}
			}
		case *btpb.Mutation_DeleteFromRow_:
			for i := range r.columns {
				remove(&r.columns[i], func(int64) bool { return true })
			}
		}
	}
}

// passed is how many removed cells a read passes: those of the columns that its filter names, if
// nothing is left in the column. Newest cells come first, so a column with cells ends the search.
func (r *row) passed(f *btpb.RowFilter) (n int) {
	if r.removed == 0 {
		return 0
	}
	named := columnsOf(f, nil)
	for _, k := range r.columns {
		if k.removed > 0 && len(k.live) == 0 && (len(named) == 0 || slices.ContainsFunc(named, func(c columns) bool { return c.have(k) })) {
			n += k.removed
		}
	}
	return n
}

// columns are a range of columns of a family; without end if that is "".
type columns struct{ family, start, end string }

func (c columns) have(k column) bool {
	return c.family == k.family && k.qualifier >= c.start && (c.end == "" || k.qualifier < c.end)
}

// columnsOf adds the columns that a filter names; none: it names none.
func columnsOf(f *btpb.RowFilter, to []columns) []columns {
	switch x := f.GetFilter().(type) {
	case *btpb.RowFilter_Chain_:
		for _, sub := range x.Chain.Filters {
			to = columnsOf(sub, to)
		}
	case *btpb.RowFilter_Interleave_:
		for _, sub := range x.Interleave.Filters {
			to = columnsOf(sub, to)
		}
	case *btpb.RowFilter_Condition_:
		for _, sub := range []*btpb.RowFilter{x.Condition.PredicateFilter, x.Condition.TrueFilter, x.Condition.FalseFilter} {
			to = columnsOf(sub, to)
		}
	case *btpb.RowFilter_ColumnRangeFilter:
		to = append(to, columns{x.ColumnRangeFilter.FamilyName, string(x.ColumnRangeFilter.GetStartQualifierClosed()), string(x.ColumnRangeFilter.GetEndQualifierOpen())})
	case *btpb.RowFilter_FamilyNameRegexFilter:
		for _, name := range strings.Split(x.FamilyNameRegexFilter, "|") {
			to = append(to, columns{family: strings.ReplaceAll(name, "\\", "")})
		}
	}
	return to
}

// applied notes what a request has changed.
func (c *Cluster) applied(table, key string, mutations []*btpb.Mutation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row(c.table(table), key).apply(mutations)
}
