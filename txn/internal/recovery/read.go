package recovery

import (
	"context"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Evaluation applies the read rule of design §4 to what Bigtable returned for
// one row.
type Evaluation struct {
	// Row holds the values that are decided, as the user knows them.
	Row bigtable.Row
	// Locks stand in the way of the read.
	Locks []*format.Lock
	// Exact are the columns whose value has to be read at another timestamp
	// than that of the latest data, because another transaction prewrote in
	// between.
	Exact []ExactRead
	// Stranded are lock-only locks past their ttl. They are in no reader's way,
	// and are cleared behind the read.
	Stranded []*format.Lock
}

type ExactRead struct {
	Column format.Column
	// CommitTS is 0 for pre-Percolator data.
	CommitTS tso.Timestamp
	// StartTS is where the data is; 0 for the latest pre-Percolator data.
	StartTS tso.Timestamp
}

func (e ExactRead) filter() bigtable.Filter {
	c := store.ExactColumn(e.Column.Family, e.Column.Qualifier)
	if e.StartTS == 0 {
		return store.Chain(c, bigtable.TimestampRangeFilterMicros(0, format.PlainBefore), store.Latest)
	}
	return store.Chain(c, store.At(e.StartTS))
}

// Ignored holds the start timestamps of transactions whose locks a read walks
// past: they committed after the read's timestamp.
type Ignored map[tso.Timestamp]bool

// Evaluate reads raw, the answer to selection.visibleAt(readTS). The values that
// it finds share raw's memory, and have their commit timestamps there from then
// on: what has no locks in the way can be evaluated once.
func Evaluate(t *store.Table, raw bigtable.Row, sel store.Selection, readTS tso.Timestamp, passed Ignored) (e Evaluation, err error) {
	key := raw.Key()
	for _, item := range raw[format.LockFamily] {
		c, cell, err := format.MetadataCell(t.Name, key, item)
		if err != nil {
			return Evaluation{}, err
		}
		ts := tso.FromCell(item.Timestamp)
		if !sel.Has(c) || passed[ts] {
			continue
		}
		lock, err := format.DecodeLock(cell, ts, item.Value)
		if err != nil {
			return Evaluation{}, err
		}
		if lock.Kind == format.KindLock {
			// Whatever becomes of it, the value stays the same.
			if lock.ExpiresTS() <= readTS {
				e.Stranded = append(e.Stranded, lock)
			}
			continue
		}
		e.Locks = append(e.Locks, lock)
	}
	if len(e.Locks) > 0 {
		return e, nil
	}
	writes := raw[format.WriteFamily]
	for _, item := range writes {
		c, cell, err := format.MetadataCell(t.Name, key, item)
		if err != nil {
			return Evaluation{}, err
		}
		if !sel.Has(c) {
			continue
		}
		commitTS := tso.FromCell(item.Timestamp)
		kind, startTS, err := format.DecodeKindAndStart(cell, commitTS, item.Value)
		if err != nil {
			return Evaluation{}, err
		}
		if kind == format.KindDelete {
			continue
		}
		items := raw[c.Family]
		i, ok := format.ItemIndex(items, item.Column[len(format.WriteFamily)+1:])
		if ok && items[i].Timestamp == startTS.Cell() {
			items[i].Timestamp = bigtable.Timestamp(commitTS)
			e.addItem(c.Family, items, i)
		} else {
			e.Exact = append(e.Exact, ExactRead{c, commitTS, startTS})
		}
	}
	for family, items := range raw {
		if format.IsMetadataFamily(family) {
			continue
		}
		for i, item := range items {
			if _, ok := findWrite(writes, item.Column); ok {
				continue
			}
			c, ok := format.SplitColumn(item.Column)
			if !ok || !sel.Has(c) {
				continue
			}
			if item.Timestamp < format.PlainBefore {
				e.addItem(c.Family, items, i)
			} else {
				// Data that is not committed hides older pre-Percolator data.
				e.Exact = append(e.Exact, ExactRead{Column: c})
			}
		}
	}
	if len(e.Exact) == 0 {
		e.Sort()
	}
	return e, nil
}

// findWrite looks up the write record of a column, given as family:qualifier.
func findWrite(writes []bigtable.ReadItem, column string) (int, bool) {
	return slices.BinarySearchFunc(writes, column, func(it bigtable.ReadItem, c string) int {
		return strings.Compare(it.Column[len(format.WriteFamily)+1:], c)
	})
}

// addItem adds a value that was read, items[i]. As long as all values of a family
// are wanted, and come in their order, they are not copied.
func (e *Evaluation) addItem(family string, items []bigtable.ReadItem, i int) {
	if taken := e.Row[family]; len(taken) == i && (i == 0 || &taken[0] == &items[0]) {
		e.setItems(family, items[:i+1:i+1])
	} else {
		e.setItems(family, append(taken, items[i]))
	}
}

func (e *Evaluation) setItems(family string, items []bigtable.ReadItem) {
	if e.Row == nil {
		e.Row = bigtable.Row{}
	}
	e.Row[family] = items
}

func (e *Evaluation) Sort() {
	byColumn := func(a, b bigtable.ReadItem) int { return strings.Compare(a.Column, b.Column) }
	for _, items := range e.Row {
		if !slices.IsSortedFunc(items, byColumn) {
			slices.SortFunc(items, byColumn)
		}
	}
}

// ReadExact completes an evaluation that has no locks left: one more read of
// the row for all columns whose data was not in the first.
func (e *Evaluation) ReadExact(ctx context.Context, t *store.Table, row string) error {
	for len(e.Exact) > 0 {
		n, cost := 0, 0
		var filters []bigtable.Filter
		for n < len(e.Exact) && (n == 0 || cost+store.FilterCost(e.Exact[n].Column.Key())+store.FilterOverhead < store.FilterBudget) {
			filters = append(filters, e.Exact[n].filter())
			cost += store.FilterCost(e.Exact[n].Column.Key()) + store.FilterOverhead
			n++
		}
		raw, err := t.ReadRow(ctx, row, store.Interleave(filters...))
		if err != nil {
			return err
		}
		for _, x := range e.Exact[:n] {
			items := raw[x.Column.Family]
			i, ok := format.ItemIndex(items, x.Column.Key())
			switch {
			case ok:
				if x.StartTS != 0 {
					items[i].Timestamp = bigtable.Timestamp(x.CommitTS)
				}
				e.setItems(x.Column.Family, append(e.Row[x.Column.Family], items[i]))
			case x.StartTS != 0:
				return format.Corruptf(format.Cell{Table: t.Name, Row: row, Family: x.Column.Family, Qualifier: x.Column.Qualifier}, "the write record at %d names data at %d, which is not there", x.CommitTS, x.StartTS)
			}
		}
		e.Exact = e.Exact[n:]
	}
	e.Sort()
	return nil
}

// A readFunc is table.readRow, or in its place.
type ReadFunc func(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error)

// ReadVisible reads one row at ts: one request, unless a lock or another
// transaction's prewrite is in the way.
func ReadVisible(ctx context.Context, r *Resolver, t *store.Table, row string, sel store.Selection, ts tso.Timestamp) (bigtable.Row, error) {
	visible, _, err := ReadResolved(ctx, r, t, row, sel, sel.VisibleAt(ts, t.Schema.Current().ReadFamilies()), ts, nil)
	return visible, err
}

// ReadResolved is visibleRow with a filter that may read more than
// sel.visibleAt(ts). It returns what was read last, as it is stored, too: no
// lock stood in the way then. The first read is made by first, where that is not
// nil.
func ReadResolved(ctx context.Context, r *Resolver, t *store.Table, row string, sel store.Selection, f bigtable.Filter, ts tso.Timestamp, first ReadFunc) (visible, raw bigtable.Row, err error) {
	var passed Ignored
	read := first
	if read == nil {
		read = t.ReadRow
	}
	for ; ; read = t.ReadRow {
		raw, err := read(ctx, row, f)
		if err != nil {
			return nil, nil, err
		}
		e, err := Evaluate(t, raw, sel, ts, passed)
		if err != nil {
			return nil, nil, err
		}
		if len(e.Locks) > 0 {
			if passed == nil {
				passed = map[tso.Timestamp]bool{}
			}
			again, err := ResolveForRead(ctx, r, e.Locks, ts, passed)
			if err != nil {
				return nil, nil, err
			}
			if again {
				continue
			}
			if e, err = Evaluate(t, raw, sel, ts, passed); err != nil {
				return nil, nil, err
			}
		}
		ResolveInBackground(r, e.Stranded, ts)
		if err := e.ReadExact(ctx, t, row); err != nil {
			return nil, nil, err
		}
		return e.Row, raw, nil
	}
}

// ResolveInBackground settles stranded locks in the background.
func ResolveInBackground(r *Resolver, stranded []*format.Lock, ts tso.Timestamp) {
	for _, l := range stranded {
		r.Background.Run(func(ctx context.Context) {
			if _, err := r.ResolveForWrite(ctx, l, ts, func() {}); err != nil {
				r.Log.DebugContext(ctx, "clearing a stranded lock behind a read failed", "cell", l.Cell, "start_ts", l.StartTS, "error", err)
			}
		})
	}
}

// ResolveForRead settles the locks that a read at ts met. Those of transactions
// that committed after ts are added to passed; again says that others were
// cleared away, so that the row has to be read again.
func ResolveForRead(ctx context.Context, r *Resolver, locks []*format.Lock, ts tso.Timestamp, passed Ignored) (again bool, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.Store.Config.Parallelism)
	walkPast := make([]bool, len(locks))
	for i, l := range locks {
		g.Go(func() (err error) {
			walkPast[i], err = r.resolveOneForRead(gctx, l, ts)
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
