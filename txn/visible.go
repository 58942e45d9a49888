package txn

import (
	"context"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
)

// evaluation applies the read rule of design §4 to what Bigtable returned for
// one row.
type evaluation struct {
	// row holds the values that are decided, as the user knows them.
	row bigtable.Row
	// locks stand in the way of the read.
	locks []*Lock
	// exact are the columns whose value has to be read at another timestamp
	// than that of the latest data, because another transaction prewrote in
	// between.
	exact []exactRead
	// stranded are lock-only locks past their ttl. They are in no reader's way,
	// and are cleared behind the read.
	stranded []*Lock
}

type exactRead struct {
	column Column
	// commitTS is 0 for pre-Percolator data.
	commitTS tso.Timestamp
	// startTS is where the data is; 0 for the latest pre-Percolator data.
	startTS tso.Timestamp
}

func (e exactRead) filter() bigtable.Filter {
	c := column(e.column.Family, e.column.Qualifier)
	if e.startTS == 0 {
		return chain(c, bigtable.TimestampRangeFilterMicros(0, prePercolator), latest)
	}
	return chain(c, at(e.startTS))
}

// passed holds the start timestamps of transactions whose locks a read walks
// past: they committed after the read's timestamp.
type passed map[tso.Timestamp]bool

// evaluate reads raw, the answer to selection.visibleAt(readTS). The values that
// it finds share raw's memory, and have their commit timestamps there from then
// on: what has no locks in the way can be evaluated once.
func evaluate(t *table, raw bigtable.Row, sel selection, readTS tso.Timestamp, passed passed) (e evaluation, err error) {
	key := raw.Key()
	for _, item := range raw[LockFamily] {
		c, cell, err := metadataCell(t.name, key, item)
		if err != nil {
			return evaluation{}, err
		}
		ts := tso.FromCell(item.Timestamp)
		if !sel.has(c) || passed[ts] {
			continue
		}
		lock, err := decodeLock(cell, ts, item.Value)
		if err != nil {
			return evaluation{}, err
		}
		if lock.Kind == KindLock {
			// Whatever becomes of it, the value stays the same.
			if lock.ExpiresTS() <= readTS {
				e.stranded = append(e.stranded, lock)
			}
			continue
		}
		e.locks = append(e.locks, lock)
	}
	if len(e.locks) > 0 {
		return e, nil
	}
	writes := raw[WriteFamily]
	for _, item := range writes {
		c, cell, err := metadataCell(t.name, key, item)
		if err != nil {
			return evaluation{}, err
		}
		if !sel.has(c) {
			continue
		}
		commitTS := tso.FromCell(item.Timestamp)
		kind, startTS, err := readWrite(cell, commitTS, item.Value)
		if err != nil {
			return evaluation{}, err
		}
		if kind == KindDelete {
			continue
		}
		items := raw[c.Family]
		i, ok := position(items, item.Column[len(WriteFamily)+1:])
		if ok && items[i].Timestamp == startTS.Cell() {
			items[i].Timestamp = bigtable.Timestamp(commitTS)
			e.take(c.Family, items, i)
		} else {
			e.exact = append(e.exact, exactRead{c, commitTS, startTS})
		}
	}
	for family, items := range raw {
		if isMetadataFamily(family) {
			continue
		}
		for i, item := range items {
			if _, ok := findWrite(writes, item.Column); ok {
				continue
			}
			c, ok := splitColumn(item.Column)
			if !ok || !sel.has(c) {
				continue
			}
			if item.Timestamp < prePercolator {
				e.take(c.Family, items, i)
			} else {
				// Data that is not committed hides older pre-Percolator data.
				e.exact = append(e.exact, exactRead{column: c})
			}
		}
	}
	if len(e.exact) == 0 {
		e.sort()
	}
	return e, nil
}

// findWrite looks up the write record of a column, given as family:qualifier.
func findWrite(writes []bigtable.ReadItem, column string) (int, bool) {
	return slices.BinarySearchFunc(writes, column, func(it bigtable.ReadItem, c string) int {
		return strings.Compare(it.Column[len(WriteFamily)+1:], c)
	})
}

// take adds a value that was read, items[i]. As long as all values of a family
// are wanted, and come in their order, they are not copied.
func (e *evaluation) take(family string, items []bigtable.ReadItem, i int) {
	if taken := e.row[family]; len(taken) == i && (i == 0 || &taken[0] == &items[0]) {
		e.put(family, items[:i+1:i+1])
	} else {
		e.put(family, append(taken, items[i]))
	}
}

func (e *evaluation) put(family string, items []bigtable.ReadItem) {
	if e.row == nil {
		e.row = bigtable.Row{}
	}
	e.row[family] = items
}

func (e *evaluation) sort() {
	byColumn := func(a, b bigtable.ReadItem) int { return strings.Compare(a.Column, b.Column) }
	for _, items := range e.row {
		if !slices.IsSortedFunc(items, byColumn) {
			slices.SortFunc(items, byColumn)
		}
	}
}

// readExact completes an evaluation that has no locks left: one more read of
// the row for all columns whose data was not in the first.
func (e *evaluation) readExact(ctx context.Context, t *table, row string) error {
	for len(e.exact) > 0 {
		n, cost := 0, 0
		var filters []bigtable.Filter
		for n < len(e.exact) && (n == 0 || cost+filterCost(e.exact[n].column.key())+filterOverhead < filterBudget) {
			filters = append(filters, e.exact[n].filter())
			cost += filterCost(e.exact[n].column.key()) + filterOverhead
			n++
		}
		raw, err := t.readRow(ctx, row, interleave(filters...))
		if err != nil {
			return err
		}
		for _, x := range e.exact[:n] {
			items := raw[x.column.Family]
			i, ok := position(items, x.column.key())
			switch {
			case ok:
				if x.startTS != 0 {
					items[i].Timestamp = bigtable.Timestamp(x.commitTS)
				}
				e.put(x.column.Family, append(e.row[x.column.Family], items[i]))
			case x.startTS != 0:
				return corrupt(Cell{t.name, row, x.column.Family, x.column.Qualifier}, "the write record at %d names data at %d, which is not there", x.commitTS, x.startTS)
			}
		}
		e.exact = e.exact[n:]
	}
	e.sort()
	return nil
}

// A readFunc is table.readRow, or in its place.
type readFunc func(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error)

// visibleRow reads one row at ts: one request, unless a lock or another
// transaction's prewrite is in the way.
func visibleRow(ctx context.Context, r *resolver, t *table, row string, sel selection, ts tso.Timestamp) (bigtable.Row, error) {
	visible, _, err := settledRow(ctx, r, t, row, sel, sel.visibleAt(ts, t.schema.current().readFamilies()), ts, nil)
	return visible, err
}

// settledRow is visibleRow with a filter that may read more than
// sel.visibleAt(ts). It returns what was read last, as it is stored, too: no
// lock stood in the way then. The first read is made by first, where that is not
// nil.
func settledRow(ctx context.Context, r *resolver, t *table, row string, sel selection, f bigtable.Filter, ts tso.Timestamp, first readFunc) (visible, raw bigtable.Row, err error) {
	var passed passed
	read := first
	if read == nil {
		read = t.readRow
	}
	for ; ; read = t.readRow {
		raw, err := read(ctx, row, f)
		if err != nil {
			return nil, nil, err
		}
		e, err := evaluate(t, raw, sel, ts, passed)
		if err != nil {
			return nil, nil, err
		}
		if len(e.locks) > 0 {
			if passed == nil {
				passed = map[tso.Timestamp]bool{}
			}
			again, err := clearForRead(ctx, r, e.locks, ts, passed)
			if err != nil {
				return nil, nil, err
			}
			if again {
				continue
			}
			if e, err = evaluate(t, raw, sel, ts, passed); err != nil {
				return nil, nil, err
			}
		}
		clearBehind(r, e.stranded, ts)
		if err := e.readExact(ctx, t, row); err != nil {
			return nil, nil, err
		}
		return e.row, raw, nil
	}
}

// clearBehind settles stranded locks in the background.
func clearBehind(r *resolver, stranded []*Lock, ts tso.Timestamp) {
	for _, l := range stranded {
		r.background.run(func(ctx context.Context) {
			if _, err := r.resolveForWrite(ctx, l, ts, func() {}); err != nil {
				r.log.DebugContext(ctx, "clearing a stranded lock behind a read failed", "cell", l.Cell, "start_ts", l.StartTS, "error", err)
			}
		})
	}
}

// clearForRead settles the locks that a read at ts met. Those of transactions
// that committed after ts are added to passed; again says that others were
// cleared away, so that the row has to be read again.
func clearForRead(ctx context.Context, r *resolver, locks []*Lock, ts tso.Timestamp, passed passed) (again bool, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.store.cfg.Parallelism)
	walkPast := make([]bool, len(locks))
	for i, l := range locks {
		g.Go(func() (err error) {
			walkPast[i], err = r.resolveForRead(gctx, l, ts)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return false, err
	}
	for i, l := range locks {
		if walkPast[i] {
			passed[l.StartTS] = true
		} else {
			again = true
		}
	}
	return again, nil
}
