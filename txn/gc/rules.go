package gc

import (
	"cmp"
	"fmt"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// rules decide which cells of a row are garbage (docs/gc.md). Garbage stays
// garbage: a column gets no new version at or below the safe point, so the cells
// that a decision depends on do not change. A removal that is sent twice, very
// late, or by two collectors at once removes nothing else. That is why removals
// need no condition. Newest deletes are the exception, see conditional.
type rules struct {
	safePoint tso.Timestamp
	// drained is a safe point that was published at least one retention ago. Until
	// then a late request may arrive, which a rollback marker stops, or over which a
	// newest delete lies. So both are garbage only at or below it.
	drained tso.Timestamp
	plain   bool // Config.Plain
	// settled, if it is set, says which write records no lock needs any more, in a run that has
	// not resolved all locks. Such a run keeps the others, and all marks and newest deletes.
	settled func(format.Cell, format.WriteRecord) bool
}

// filter reads what the rules need to know about a row: all locks and write
// records, because they name data, but marks and data only up to the safe point. Of
// data, it reads only what that filter returns; nil: all.
func (r rules) filter(families []string, only bigtable.Filter) bigtable.Filter {
	filters := []bigtable.Filter{
		store.WholeFamily(format.LockFamily),
		store.WholeFamily(format.WriteFamily),
		store.Chain(store.WholeFamily(format.MarkFamily), store.UpTo(r.safePoint)),
		store.Chain(store.WholeFamily(format.NotifyFamily), bigtable.StripValueFilter()),
	}
	for _, f := range families {
		data := []bigtable.Filter{store.WholeFamily(f), store.DataUpTo(r.safePoint)}
		if only != nil {
			data = append(data, only)
		}
		filters = append(filters, store.Chain(data...))
	}
	return store.Interleave(filters...)
}

// storedCell is a cell that may go.
type storedCell struct {
	ts    tso.Timestamp
	bytes int64
}

// columnCells is what is stored in one column of a row.
type columnCells struct {
	column   format.Column
	writes   []columnWrite
	marks    []storedCell    // that may go
	markers  []tso.Timestamp // rollback markers that stay
	data     []storedCell    // of transactions, at or below the safe point
	plain    []storedCell
	locked   []tso.Timestamp // start timestamps of locks
	notified bool            // there is a notify cell
	seen     tso.Timestamp   // if observers have acknowledged the column: up to where all of these have seen its changes
}

type columnWrite struct {
	format.WriteRecord
	bytes     int64
	unsettled bool // a lock may need the record
}

// columnGarbage is the garbage of a column: ranges below a version that stays,
// and single cells.
type columnGarbage struct {
	column      format.Column
	writesBelow tso.Timestamp // write records in [0, writesBelow), but not kept
	kept        []span
	dataBelow   tso.Timestamp      // data of transactions in (plain, dataBelow)
	unnamed     tso.Timestamp      // data that nothing names and that may be of a lost record; else 0
	marks       bool               // all marks at or below the safe point, but not markers
	markers     []span             // of rollbacks that stay, if marks go
	plainBelow  bigtable.Timestamp // plain data in [0, plainBelow)
	newest      tso.Timestamp      // commit_ts of the newest delete or expired value, if that is garbage; else 0
}

// A span is what stays between cells that go: no cell in it goes. So the changes of a removal are as
// many as the gaps in what stays, and not as many as what stays.
type span struct{ first, last tso.Timestamp }

// spans returns the spans of what stays, in order.
func spans(stays, goes []tso.Timestamp) (all []span) {
	slices.Sort(stays)
	slices.Sort(goes)
	for _, ts := range stays {
		below, _ := slices.BinarySearch(goes, ts)
		if n := len(all); n > 0 && (below == 0 || goes[below-1] < all[n-1].first) {
			all[n-1].last = ts
		} else {
			all = append(all, span{ts, ts})
		}
	}
	return all
}

// rowGarbage is the garbage of a row.
type rowGarbage struct {
	rules   rules
	columns []columnGarbage // without them
	deletes []columnGarbage // with newest deletes or expired values
	before  []columnGarbage // of deletes, what one mutation with a condition could not remove
	// locks are the locks at or below the safe point. They must be resolved before
	// anything is removed.
	locks  []*format.Lock
	counts Counts
	// If err is set, nothing of the row is removed, and why says the same in a word.
	err error
	why SkipReason
}

// row finds the garbage of a row that was read in one request.
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
				if h := get(c); item.Timestamp < format.PlainBefore {
					cell.ts = tso.Timestamp(item.Timestamp)
					h.plain = append(h.plain, cell)
				} else {
					h.data = append(h.data, cell)
				}
				continue
			}
			if format.IsFailure(item) {
				continue // the row has its notify cell, too
			}
			c, at, err := format.MetadataCell(t.Name, raw.Key(), item)
			if err != nil {
				g.err, g.why = err, SkippedDamaged
				return g
			}
			h := get(c)
			switch family {
			case format.NotifyFamily:
				h.notified = true
			case format.MarkFamily:
				if r.settled != nil {
					continue
				}
				m, err := format.DecodeMark(at, cell.ts, item.Value)
				if (err != nil || m.Kind == format.KindRollback) && cell.ts > r.drained {
					h.markers = append(h.markers, cell.ts)
				} else {
					h.marks = append(h.marks, cell)
				}
			case format.LockFamily:
				l, err := format.DecodeLock(at, cell.ts, item.Value)
				if err != nil {
					g.err, g.why = err, SkippedDamaged
					return g
				}
				h.locked = append(h.locked, l.StartTS)
				if l.StartTS <= r.safePoint {
					g.locks = append(g.locks, l)
				}
			case format.WriteFamily:
				w, err := format.DecodeWrite(at, cell.ts, item.Value)
				if err != nil {
					g.err, g.why = err, SkippedDamaged
					return g
				}
				h.writes = append(h.writes, columnWrite{w, cell.bytes, r.settled != nil && !r.settled(at, w)})
			}
		}
	}
	expiries := t.Schema.Expiries()
	setSeen(columns)
	for _, h := range columns {
		c, counts := r.column(h, expiries.ExpiredUpTo(h.column.Family, r.drained))
		if c.unnamed != 0 {
			err := fmt.Errorf("gc: the data at %d of %s has no write record and no lock", c.unnamed, c.column.Key())
			return &rowGarbage{rules: r, err: err, why: SkippedUnnamed}
		}
		if counts.Cells == 0 {
			continue
		}
		g.counts.add(counts)
		g.counts.RowsChanged = 1
		g.add(c)
	}
	return g
}

// add adds the garbage of a column.
func (g *rowGarbage) add(c columnGarbage) {
	if c.newest == 0 {
		g.columns = append(g.columns, c)
		return
	}
	if len(c.markers) > maxMutationOps-fewOps {
		g.before = append(g.before, columnGarbage{column: c.column, marks: c.marks, markers: c.markers})
		c.marks, c.markers = false, nil
	}
	g.deletes = append(g.deletes, c)
}

// setSeen sets how far the observers of columns have seen changes. An acknowledgment's start_ts
// says that. An observer without one has seen nothing, so no delete can surprise it.
func setSeen(columns map[format.Column]*columnCells) {
	for ack, h := range columns {
		observed, _, ok := format.ObserverOf(ack)
		if !ok || columns[observed] == nil || len(h.writes) == 0 {
			continue
		}
		newest := slices.MaxFunc(h.writes, func(a, b columnWrite) int { return cmp.Compare(a.CommitTS, b.CommitTS) }).StartTS
		if seen := &columns[observed].seen; *seen == 0 || newest < *seen {
			*seen = newest
		}
	}
}

// column finds the garbage of a column. Reads at the safe point see the newest
// version at or below it. That version stays, and everything newer. Versions of
// a column never interleave, so everything older is below the start_ts of that
// version, or below its commit_ts if it is a delete.
//
// No read that is still possible shows values that were committed up to expired.
//
// The protocol leaves no data that neither a record nor a lock names. So data that is not below that
// version had a record that was lost. Another record of its transaction may restore it
// (admin.RepairLostRecord), and that may be in the same row. So the row stays as it is.
func (r rules) column(h *columnCells, expired tso.Timestamp) (g columnGarbage, n Counts) {
	g.column = h.column
	count := func(cells []storedCell, kind *int64, garbage func(tso.Timestamp) bool) (some bool) {
		for _, c := range cells {
			if garbage(c.ts) {
				some = true
				*kind++
				n.Cells++
				n.Bytes += c.bytes
			}
		}
		return some
	}
	all := func(tso.Timestamp) bool { return true }

	// The record of a lock-only write is needed until no transaction is left that it
	// could conflict with, which is so at or below the safe point. A rollback marker
	// is needed longer.
	if g.marks = count(h.marks, &n.Marks, all); g.marks {
		goes := make([]tso.Timestamp, len(h.marks))
		for i, c := range h.marks {
			goes[i] = c.ts
		}
		g.markers = spans(h.markers, goes)
	}

	var newest columnWrite
	named := map[tso.Timestamp]bool{}
	for _, w := range h.writes {
		named[w.StartTS] = true
		if w.CommitTS <= r.safePoint && w.CommitTS > newest.CommitTS {
			newest = w
		}
	}
	plainBelow := bigtable.Timestamp(expired).TruncateToMilliseconds()
	if r.plain && newest.CommitTS != 0 {
		plainBelow = format.PlainBefore
	}
	if count(h.plain, &n.Plain, func(ts tso.Timestamp) bool { return bigtable.Timestamp(ts) < plainBelow }) {
		g.plainBelow = plainBelow
	}
	if newest.CommitTS == 0 {
		// Without a version, other plain data is visible, and other data may come from a
		// plain writer that used timestamps like ours (docs/guarantees.md).
		return g, n
	}
	for _, ts := range h.locked {
		named[ts] = true
	}
	// The newest delete hides plain data, and late roll-forwards of the versions
	// that it deleted. It also shows observers that have not run yet that the column
	// changed. An expired value does the same. An observer that has seen an older value, but not
	// the delete (which is a dead letter, or was made while the observer was not registered),
	// would take that value for absent.
	deleted := newest.Kind == format.KindDelete && newest.CommitTS <= r.drained && (h.seen == 0 || h.seen >= newest.CommitTS)
	newestGoes := (deleted || newest.CommitTS <= expired) && !h.notified && (r.plain || len(h.plain) == 0)
	keepData := newest.StartTS
	if newest.Kind == format.KindDelete || newestGoes {
		keepData = newest.CommitTS
	}
	var kept, goes []tso.Timestamp
	for _, w := range h.writes {
		switch {
		case w.CommitTS >= newest.CommitTS:
		case w.unsettled:
			kept = append(kept, w.CommitTS)
		default:
			goes = append(goes, w.CommitTS)
			g.writesBelow = newest.CommitTS
			n.Versions++
			n.Cells++
			n.Bytes += w.bytes
		}
	}
	if g.writesBelow != 0 {
		g.kept = spans(kept, goes)
	}
	if count(h.data, &n.Data, func(ts tso.Timestamp) bool { return ts < keepData }) {
		g.dataBelow = keepData
	}
	for _, c := range h.data {
		if c.ts >= keepData && c.ts <= r.safePoint && !named[c.ts] {
			g.unnamed = c.ts
		}
	}
	if newestGoes {
		g.newest = newest.CommitTS
		n.Versions++
		if newest.Kind == format.KindDelete {
			n.Deletes++
		}
		n.Cells++
		n.Bytes += newest.bytes
	}
	return g, n
}

// remove calls drop with each range of cells that a column's garbage is in.
func (r rules) remove(g columnGarbage, drop func(family, qualifier string, start, end bigtable.Timestamp)) {
	c := g.column
	dropBetween := func(family string, kept []span, below tso.Timestamp) {
		from := tso.Timestamp(0)
		for _, s := range append(kept, span{below, below}) {
			if from < s.first {
				drop(family, c.Key(), from.Cell(), s.first.Cell())
			}
			from = s.last + 1
		}
	}
	switch {
	case g.newest != 0:
		drop(format.WriteFamily, c.Key(), 0, (g.newest + 1).Cell())
	case g.writesBelow != 0:
		dropBetween(format.WriteFamily, g.kept, g.writesBelow)
	}
	if g.dataBelow != 0 {
		drop(c.Family, c.Qualifier, format.PlainBefore, g.dataBelow.Cell())
	}
	if g.marks {
		dropBetween(format.MarkFamily, g.markers, r.safePoint+1)
	}
	if g.plainBelow != 0 {
		drop(c.Family, c.Qualifier, 0, g.plainBelow)
	}
}

const (
	// maxMutationOps limits the changes in one mutation, which Bigtable limits to 100,000
	// (format.MaxMutations).
	maxMutationOps = 10_000
	// fewOps is at least how many changes a column needs without single cells.
	fewOps = 8
)

// mutations are the unconditional removals of a row.
func (g *rowGarbage) mutations(key string) []store.RowMutation { return g.removals(key, g.columns) }

// removals divide what goes of columns into mutations. If a run stops between two of them, what is left
// is garbage as before.
func (g *rowGarbage) removals(key string, columns []columnGarbage) (muts []store.RowMutation) {
	for _, c := range columns {
		g.rules.remove(c, func(family, qualifier string, start, end bigtable.Timestamp) {
			if len(muts) == 0 || muts[len(muts)-1].Ops >= maxMutationOps {
				muts = append(muts, store.RowMutation{Row: key, Mut: bigtable.NewMutation()})
			}
			last := &muts[len(muts)-1]
			last.Mut.DeleteTimestampRange(family, qualifier, start, end)
			last.Ops++
		})
	}
	return muts
}

// conditionalRemoval is sent unless its predicate matches.
type conditionalRemoval struct {
	unless bigtable.Filter
	mut    *bigtable.Mutation
}

// conditional are the removals of newest deletes and expired values. A column without write records
// shows its plain data, and shows no change to an observer. So a plain write or a
// notify cell that came since the row was read keeps the delete.
func (g *rowGarbage) conditional() []conditionalRemoval {
	var parts []conditionalRemoval
	var filters []bigtable.Filter
	cost, ops := 0, 0
	m := bigtable.NewMutation()
	for _, c := range g.deletes {
		need := 2*store.FilterCost(c.column.Key()) + store.FilterOverhead
		changes := fewOps + len(c.markers)
		if cost+need > store.FilterBudget || ops+changes > maxMutationOps { // one column needs less, see format.MaxColumnKey
			parts = append(parts, conditionalRemoval{store.Interleave(filters...), m})
			filters, m, cost, ops = nil, bigtable.NewMutation(), 0, 0
		}
		cost, ops = cost+need, ops+changes
		filters = append(filters, store.ExactColumn(format.NotifyFamily, c.column.Key()))
		if !g.rules.plain {
			filters = append(filters, store.Chain(store.ExactColumn(c.column.Family, c.column.Qualifier), bigtable.TimestampRangeFilterMicros(0, format.PlainBefore)))
		}
		g.rules.remove(c, m.DeleteTimestampRange)
	}
	if len(filters) > 0 {
		parts = append(parts, conditionalRemoval{store.Interleave(filters...), m})
	}
	return slices.Clip(parts)
}
