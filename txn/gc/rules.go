package gc

import (
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// rules decide what of a row is garbage (design §8 rules 5 and 7). Whatever
// they call garbage stays garbage: at or below the safe point a column gets no
// new version, so what a decision was made of does not change, and a removal
// that is sent twice, or very late, or by two collectors at once, removes
// nothing else. That is why removals need no condition. Newest deletes are the
// exception, see conditional.
type rules struct {
	safePoint tso.Timestamp
	// deletesUpTo is the newest commit_ts at which a column's newest delete may
	// go: one retention before the safe point.
	deletesUpTo tso.Timestamp
	plain       bool
}

// filter reads what the rules need of a row: its locks and write records, since
// data belongs to them; and marks and data only as far as they may go.
func (r rules) filter(families []string) bigtable.Filter {
	filters := []bigtable.Filter{
		store.WholeFamily(format.LockFamily),
		store.WholeFamily(format.WriteFamily),
		store.Chain(store.WholeFamily(format.MarkFamily), store.UpTo(r.safePoint)),
		store.Chain(store.WholeFamily(format.NotifyFamily), bigtable.StripValueFilter()),
	}
	for _, f := range families {
		filters = append(filters, store.Chain(store.WholeFamily(f), store.DataUpTo(r.safePoint)))
	}
	return store.Interleave(filters...)
}

// storedCell is a cell that may go.
type storedCell struct {
	ts    tso.Timestamp
	bytes int64
}

// columnCells is what the rules see of a column of a row.
type columnCells struct {
	column  format.Column
	writes  []columnWrite
	marks   []storedCell // at or below the safe point
	data    []storedCell // of transactions, at or below the safe point
	plain   []storedCell
	locked  []tso.Timestamp // start timestamps of locks
	notified bool            // there is a notify cell
}

type columnWrite struct {
	format.WriteRecord
	bytes int64
}

// columnGarbage is what goes of a column: ranges below a version that stays,
// and single cells.
type columnGarbage struct {
	column      format.Column
	writesBelow tso.Timestamp // write records in [0, writesBelow)
	dataBelow   tso.Timestamp // data of transactions in (plain, dataBelow)
	orphans     []tso.Timestamp
	marks       bool          // all marks at or below the safe point
	plain       bool          // all plain data
	newest      tso.Timestamp // the newest delete, and all before it; 0: it stays
}

// rowGarbage is what goes of a row.
type rowGarbage struct {
	rules   rules
	columns []columnGarbage // without newest deletes
	deletes []columnGarbage // with newest deletes
	// locks at or below the safe point are to be resolved before anything goes.
	locks  []*format.Lock
	counts Counts
	err    error
}

// row decides about a row as it was read, in one request.
func (r rules) row(t *store.Table, raw bigtable.Row) *rowGarbage {
	g := &rowGarbage{rules: r}
	columns := map[format.Column]*columnCells{}
	get := func(c format.Column) *columnCells {
		if columns[c] == nil {
			columns[c] = &columnCells{column: c}
		}
		return columns[c]
	}
	for family, items := range raw {
		for _, item := range items {
			cell := storedCell{tso.FromCell(item.Timestamp), int64(len(item.Value) + len(item.Column) - len(family) - 1)}
			if !format.IsMetadataFamily(family) {
				c, _ := format.SplitColumn(item.Column)
				if h := get(c); item.Timestamp < format.PrePercolator {
					h.plain = append(h.plain, cell)
				} else {
					h.data = append(h.data, cell)
				}
				continue
			}
			if family == format.NotifyFamily && format.IsFailure(item) {
				continue // its notify cell stands beside it
			}
			c, at, err := format.MetadataCell(t.Name, raw.Key(), item)
			if err != nil {
				g.err = err
				return g
			}
			h := get(c)
			switch family {
			case format.NotifyFamily:
				h.notified = true
			case format.MarkFamily:
				h.marks = append(h.marks, cell)
			case format.LockFamily:
				l, err := format.DecodeLock(at, cell.ts, item.Value)
				if err != nil {
					g.err = err
					return g
				}
				h.locked = append(h.locked, l.StartTS)
				if l.StartTS <= r.safePoint {
					g.locks = append(g.locks, l)
				}
			case format.WriteFamily:
				w, err := format.DecodeWrite(at, cell.ts, item.Value)
				if err != nil {
					g.err = err
					return g
				}
				h.writes = append(h.writes, columnWrite{w, cell.bytes})
			}
		}
	}
	for _, h := range columns {
		c, counts := r.column(h)
		if counts.Cells == 0 {
			continue
		}
		g.counts.add(counts)
		g.counts.RowsChanged = 1
		if c.newest != 0 {
			g.deletes = append(g.deletes, c)
		} else {
			g.columns = append(g.columns, c)
		}
	}
	return g
}

// column decides about a column. The newest version at or below the safe point
// is what reads there see; it stays, and everything newer. Versions of a column
// never interleave, so what is older ends where its data, or the delete, stands.
func (r rules) column(h *columnCells) (g columnGarbage, n Counts) {
	g.column = h.column
	count := func(cells []storedCell, kind *int64, goes func(tso.Timestamp) bool) (some bool) {
		for _, c := range cells {
			if goes(c.ts) {
				some = true
				*kind++
				n.Cells++
				n.Bytes += c.bytes
			}
		}
		return some
	}
	all := func(tso.Timestamp) bool { return true }

	// A rollback marker has done its work when no prewrite can come any more, and
	// a lock-only commit when no transaction is left that it could conflict with.
	g.marks = count(h.marks, &n.Marks, all)

	var newest columnWrite
	named := map[tso.Timestamp]bool{}
	for _, w := range h.writes {
		named[w.StartTS] = true
		if w.CommitTS <= r.safePoint && w.CommitTS > newest.CommitTS {
			newest = w
		}
	}
	if newest.CommitTS == 0 {
		// Without a version that says otherwise, plain data is visible, and other
		// data may be somebody's who used timestamps like ours (docs/guarantees.md).
		return g, n
	}
	for _, ts := range h.locked {
		named[ts] = true
	}
	keepData := newest.StartTS
	if newest.Kind == format.KindDelete {
		keepData = newest.CommitTS
	}
	for _, w := range h.writes {
		if w.CommitTS < newest.CommitTS {
			g.writesBelow = newest.CommitTS
			n.Versions++
			n.Cells++
			n.Bytes += w.bytes
		}
	}
	if count(h.data, &n.Data, func(ts tso.Timestamp) bool { return ts < keepData }) {
		g.dataBelow = keepData
	}
	count(h.data, &n.Data, func(ts tso.Timestamp) bool {
		orphan := ts >= keepData && ts <= r.safePoint && !named[ts]
		if orphan {
			g.orphans = append(g.orphans, ts)
		}
		return orphan
	})
	if r.plain {
		g.plain = count(h.plain, &n.Plain, all)
	}
	// The newest delete hides late roll-forwards of what it deleted, and plain
	// data; observers that are yet to run see by it that the column changed.
	if newest.Kind == format.KindDelete && newest.CommitTS <= r.deletesUpTo && !h.notified && (r.plain || len(h.plain) == 0) {
		g.newest = newest.CommitTS
		n.Versions++
		n.Deletes++
		n.Cells++
		n.Bytes += newest.bytes
	}
	return g, n
}

// remove adds the removal of a column's garbage.
func (r rules) remove(m *bigtable.Mutation, g columnGarbage) (ops int) {
	drop := func(family, qualifier string, start, end bigtable.Timestamp) {
		m.DeleteTimestampRange(family, qualifier, start, end)
		ops++
	}
	c := g.column
	switch {
	case g.newest != 0:
		drop(format.WriteFamily, c.Key(), 0, (g.newest + 1).Cell())
	case g.writesBelow != 0:
		drop(format.WriteFamily, c.Key(), 0, g.writesBelow.Cell())
	}
	if g.dataBelow != 0 {
		drop(c.Family, c.Qualifier, format.PrePercolator, g.dataBelow.Cell())
	}
	for _, ts := range g.orphans {
		drop(c.Family, c.Qualifier, ts.Cell(), (ts + 1).Cell())
	}
	if g.marks {
		drop(format.MarkFamily, c.Key(), 0, (r.safePoint + 1).Cell())
	}
	if g.plain {
		drop(c.Family, c.Qualifier, 0, format.PrePercolator)
	}
	return ops
}

// maxMutationOps bounds the changes in one mutation of garbage collection. A
// column's are never split.
const maxMutationOps = 10_000

// mutations are the unconditional removals of a row.
func (g *rowGarbage) mutations(key string) []store.RowMutation {
	var muts []store.RowMutation
	for _, c := range g.columns {
		if len(muts) == 0 || muts[len(muts)-1].Ops >= maxMutationOps {
			muts = append(muts, store.RowMutation{Row: key, Mut: bigtable.NewMutation()})
		}
		last := &muts[len(muts)-1]
		last.Ops += g.rules.remove(last.Mut, c)
	}
	return muts
}

// conditionalRemoval is sent unless its predicate matches.
type conditionalRemoval struct {
	unless bigtable.Filter
	mut    *bigtable.Mutation
}

// conditional are the removals of newest deletes. Without its write records a
// column shows plain data, and an observer finds no change: a plain write or a
// notify cell that came since the row was read keeps the delete.
func (g *rowGarbage) conditional() []conditionalRemoval {
	var parts []conditionalRemoval
	var filters []bigtable.Filter
	cost := 0
	m := bigtable.NewMutation()
	for _, c := range g.deletes {
		need := 2*store.FilterCost(c.column.Key()) + store.FilterOverhead
		if cost > 0 && cost+need > store.FilterBudget {
			parts = append(parts, conditionalRemoval{store.Interleave(filters...), m})
			filters, m, cost = nil, bigtable.NewMutation(), 0
		}
		cost += need
		filters = append(filters, store.ExactColumn(format.NotifyFamily, c.column.Key()))
		if !g.rules.plain {
			filters = append(filters, store.Chain(store.ExactColumn(c.column.Family, c.column.Qualifier), bigtable.TimestampRangeFilterMicros(0, format.PrePercolator)))
		}
		g.rules.remove(m, c)
	}
	if len(filters) > 0 {
		parts = append(parts, conditionalRemoval{store.Interleave(filters...), m})
	}
	return slices.Clip(parts)
}
