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

// An Evaluation is the result of the read rule (design §4) for one row.
type Evaluation struct {
	// Row holds the values that are known, as the user's columns.
	Row bigtable.Row
	// Locks are the locks that the read must resolve first. If there are any, Row is empty.
	Locks []*format.Lock
	// Exact are the columns whose value is at another timestamp than the latest data,
	// because another transaction has prewritten the column since.
	Exact []ExactRead
	// Stranded are expired lock-only locks. They block no reader; the client resolves them
	// after the read.
	Stranded []*format.Lock

	keysOnly bool
	rest     *store.Selection // columns that the answer does not contain; nil if there are none
	// Expired is when the last of the expired values expired; 0: none was left out.
	Expired tso.Timestamp

	readTS   tso.Timestamp
	expiries store.Expiries
}

// An ExactRead names the data cell that a read needs.
type ExactRead struct {
	Column format.Column
	// CommitTS is the timestamp of the commit; 0 for plain data.
	CommitTS tso.Timestamp
	// StartTS is the timestamp of the data; 0 for the latest plain data.
	StartTS tso.Timestamp
	// HiddenBy is the start_ts of the transaction whose data hides plain data.
	HiddenBy tso.Timestamp
}

// filters returns what reads the cell. For plain data of a read of the latest state, they match also what
// shows that the cell did not change since the answer that it completes: see unchanged.
func (e ExactRead) filters(keysOnly, latest bool) []bigtable.Filter {
	c := store.ExactColumn(e.Column.Family, e.Column.Qualifier)
	if keysOnly {
		c = store.Chain(c, bigtable.StripValueFilter())
	}
	if e.StartTS != 0 {
		return []bigtable.Filter{store.Chain(c, store.At(e.StartTS))}
	}
	data := store.Chain(c, bigtable.TimestampRangeFilterMicros(0, format.PlainBefore), store.Latest)
	if !latest {
		return []bigtable.Filter{data}
	}
	key := e.Column.Key()
	return []bigtable.Filter{
		data,
		store.Chain(store.LockAt(e.Column, e.HiddenBy), bigtable.StripValueFilter()),
		store.Chain(store.ExactColumn(format.WriteFamily, key), store.Latest, bigtable.StripValueFilter()),
	}
}

// unchanged reports whether plain data that is missing in an answer was missing before: the lock is
// still there, and no transaction has committed the column.
func (e ExactRead) unchanged(raw bigtable.Row) bool {
	is := func(item bigtable.ReadItem) bool {
		_, column, _ := strings.Cut(item.Column, ":")
		return column == e.Column.Key()
	}
	return e.StartTS == 0 && slices.ContainsFunc(raw[format.LockFamily], is) && !slices.ContainsFunc(raw[format.WriteFamily], is)
}

// Ignored holds the start timestamps of transactions whose locks a read ignores, because
// they committed above the read's timestamp or can only commit there.
type Ignored map[tso.Timestamp]bool

// Evaluate applies the read rule to raw, the answer to sel.VisibleAt(readTS).
//
// The values in the result share the memory of raw, and Evaluate replaces their timestamps
// there by commit timestamps. So a row can be evaluated again only if the first result had
// Locks. Evaluate waits if the client has to read expiries first.
func Evaluate(ctx context.Context, t *store.Table, raw bigtable.Row, sel store.Selection, readTS tso.Timestamp, ignored Ignored) (e Evaluation, err error) {
	key := raw.Key()
	if e.keysOnly = sel.KeysOnly; sel.First > 0 {
		sel, e.rest = store.Known(sel, raw)
	}
	if e.expiries, err = t.Schema.FreshExpiries(ctx); err != nil {
		return Evaluation{}, err
	}
	e.readTS = readTS
	for _, item := range raw[format.LockFamily] {
		c, cell, err := format.MetadataCell(t.Name, key, item)
		if err != nil {
			return Evaluation{}, err
		}
		ts := tso.FromCell(item.Timestamp)
		if !sel.Has(c) || ignored[ts] {
			continue
		}
		lock, err := format.DecodeLock(cell, ts, item.Value)
		if err != nil {
			return Evaluation{}, err
		}
		if lock.Kind == format.KindLock {
			// The value is the same, whether the transaction commits or not.
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
		if kind == format.KindDelete || e.expired(c.Family, commitTS) {
			continue
		}
		items := raw[c.Family]
		i, ok := store.ColumnIndex(items, item.Column[len(format.WriteFamily)+1:])
		if ok && items[i].Timestamp == startTS.Cell() {
			items[i].Timestamp = bigtable.Timestamp(commitTS)
			e.addItem(c.Family, items, i)
		} else {
			e.Exact = append(e.Exact, ExactRead{Column: c, CommitTS: commitTS, StartTS: startTS})
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
				if !e.expired(c.Family, tso.Timestamp(item.Timestamp)) {
					e.addItem(c.Family, items, i)
				}
			} else {
				// Uncommitted data hides older plain data.
				e.Exact = append(e.Exact, ExactRead{Column: c, HiddenBy: tso.FromCell(item.Timestamp)})
			}
		}
	}
	if len(e.Exact) == 0 {
		e.Sort()
	}
	return e, nil
}

// expired reports whether the read does not show a value any more, and notes it.
func (e *Evaluation) expired(family string, commitTS tso.Timestamp) bool {
	if !e.expiries.Expired(family, commitTS, e.readTS) {
		return false
	}
	until, _ := e.expiries.Until(family, commitTS)
	e.Expired = max(e.Expired, until)
	return true
}

// findWrite returns the index of a column's write record. column is family:qualifier.
func findWrite(writes []bigtable.ReadItem, column string) (int, bool) {
	return slices.BinarySearchFunc(writes, column, func(it bigtable.ReadItem, c string) int {
		return strings.Compare(it.Column[len(format.WriteFamily)+1:], c)
	})
}

// addItem adds the cell items[i] to the result, without its value if the read wants none. It
// copies nothing as long as the read wants all cells of the family and adds them in their order.
func (e *Evaluation) addItem(family string, items []bigtable.ReadItem, i int) {
	if e.keysOnly {
		items[i].Value = nil
	}
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

// Sort puts the values of each family in the order of their columns.
func (e *Evaluation) Sort() {
	byColumn := func(a, b bigtable.ReadItem) int { return strings.Compare(a.Column, b.Column) }
	for _, items := range e.Row {
		if !slices.IsSortedFunc(items, byColumn) {
			slices.SortFunc(items, byColumn)
		}
	}
}

// Complete completes an Evaluation without Locks of a read at ts: it reads what the answer did
// not contain (ReadExact), and the rest of a row that shows fewer cells than the read wants.
func (e *Evaluation) Complete(ctx context.Context, r *Resolver, t *store.Table, row string, sel store.Selection, ts tso.Timestamp) error {
	if err := e.ReadExact(ctx, t, row); err != nil || sel.First == 0 {
		return err
	}
	if missing := sel.First - store.CountCells(e.Row); e.rest != nil && missing > 0 {
		e.rest.First = missing
		rest, err := ReadVisible(ctx, r, t, row, *e.rest, ts)
		if err != nil {
			return err
		}
		for family, items := range rest {
			e.setItems(family, append(slices.Clip(e.Row[family]), items...))
		}
	}
	e.Row = store.FirstCells(e.Row, sel.First)
	return nil
}

// ReadExact completes an Evaluation without Locks that is not of first cells: it reads the row
// again for all columns in e.Exact. That is one request, unless their names do not fit into one
// filter.
func (e *Evaluation) ReadExact(ctx context.Context, t *store.Table, row string) error {
	missing, err := e.readExact(ctx, t, row, false)
	if err != nil {
		return err
	}
	return missingData(t, row, missing)
}

// missingData returns an error if a write record has no data. Plain data may be missing: the
// column is absent then.
func missingData(t *store.Table, row string, missing []ExactRead) error {
	for _, m := range missing {
		if m.StartTS != 0 {
			return format.Corruptf(format.Cell{Table: t.Name, Row: row, Family: m.Column.Family, Qualifier: m.Column.Qualifier}, "the write record at %d names data at %d, which is not there", m.CommitTS, m.StartTS)
		}
	}
	return nil
}

// readExact is ReadExact, and returns the columns that have no data at their timestamp. If latest is set, it leaves
// out those for which the answer shows that they had none before.
func (e *Evaluation) readExact(ctx context.Context, t *store.Table, row string, latest bool) (missing []ExactRead, err error) {
	for len(e.Exact) > 0 {
		n, cost := 0, 0
		var filters []bigtable.Filter
		for n < len(e.Exact) {
			more := e.Exact[n].filters(e.keysOnly, latest)
			cost += len(more) * (store.FilterCost(e.Exact[n].Column.Key()) + store.FilterOverhead)
			if n > 0 && cost >= store.FilterBudget {
				break
			}
			filters = append(filters, more...)
			n++
		}
		raw, err := t.ReadRow(ctx, row, store.Interleave(filters...))
		if err != nil {
			return nil, err
		}
		for _, exact := range e.Exact[:n] {
			items := raw[exact.Column.Family]
			i, ok := store.ColumnIndex(items, exact.Column.Key())
			if !ok {
				if !latest || !exact.unchanged(raw) {
					missing = append(missing, exact)
				}
				continue
			}
			e.takeExact(exact, items[i])
		}
		e.Exact = e.Exact[n:]
	}
	e.Sort()
	return missing, nil
}

// ReadExactFrom is ReadExact for one column whose stored cells the caller has. find returns the data
// of a start timestamp; for 0, the latest plain data.
func (e *Evaluation) ReadExactFrom(find func(startTS tso.Timestamp) (bigtable.ReadItem, bool), t *store.Table, row string) error {
	var missing []ExactRead
	for _, exact := range e.Exact {
		if item, ok := find(exact.StartTS); ok {
			e.takeExact(exact, item)
		} else {
			missing = append(missing, exact)
		}
	}
	e.Exact = nil
	return missingData(t, row, missing)
}

// takeExact adds the data that a column needs.
func (e *Evaluation) takeExact(exact ExactRead, item bigtable.ReadItem) {
	if exact.StartTS != 0 {
		item.Timestamp = bigtable.Timestamp(exact.CommitTS)
	} else if e.expired(exact.Column.Family, tso.Timestamp(item.Timestamp)) {
		return
	}
	e.setItems(exact.Column.Family, append(e.Row[exact.Column.Family], item))
}

// A ReadFunc reads one row, as store.Table.ReadRow does.
type ReadFunc func(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error)

// ReadVisible reads one row at ts. It needs one request, unless it must resolve a lock, or
// another transaction has prewritten a column.
func ReadVisible(ctx context.Context, r *Resolver, t *store.Table, row string, sel store.Selection, ts tso.Timestamp) (bigtable.Row, error) {
	visible, _, err := ReadResolved(ctx, r, t, row, sel, t.VisibleAt(sel, ts), ts, nil)
	return visible, err
}

// ReadResolved is ReadVisible with a filter f that may match more than sel.VisibleAt(ts). It
// also returns the stored cells that it read last, when no lock blocked the read any more.
// The first request is made by first, if first is not nil.
func ReadResolved(ctx context.Context, r *Resolver, t *store.Table, row string, sel store.Selection, f bigtable.Filter, ts tso.Timestamp, first ReadFunc) (visible, raw bigtable.Row, err error) {
	var ignored Ignored
	read := first
	if read == nil {
		read = t.ReadRow
	}
	for ; ; read = t.ReadRow {
		raw, err := read(ctx, row, f)
		if err != nil {
			return nil, nil, err
		}
		e, err := Evaluate(ctx, t, raw, sel, ts, ignored)
		if err != nil {
			return nil, nil, err
		}
		if len(e.Locks) > 0 {
			if ignored == nil {
				ignored = map[tso.Timestamp]bool{}
			}
			readAgain, err := ResolveForRead(ctx, r, e.Locks, ts, ignored)
			if err != nil {
				return nil, nil, err
			}
			if readAgain {
				continue
			}
			if e, err = Evaluate(ctx, t, raw, sel, ts, ignored); err != nil {
				return nil, nil, err
			}
		}
		ResolveInBackground(r, e.Stranded, ts)
		if err := e.Complete(ctx, r, t, row, sel, ts); err != nil {
			return nil, nil, err
		}
		return e.Row, raw, nil
	}
}

// ResolveInBackground resolves stranded locks in the background.
func ResolveInBackground(r *Resolver, stranded []*format.Lock, ts tso.Timestamp) {
	for _, l := range stranded {
		r.Background.Run(func(ctx context.Context) {
			if _, err := r.ResolveForWrite(ctx, l, ts, func() {}); err != nil {
				r.Log.DebugContext(ctx, "could not resolve a stranded lock that a read found", "cell", l.Cell, "start_ts", l.StartTS, "error", err)
			}
		})
	}
}

// ResolveForRead resolves the locks that a read at ts found. It adds transactions that
// committed above ts to ignored. readAgain says that it removed other locks, so the caller
// must read the row again.
func ResolveForRead(ctx context.Context, r *Resolver, locks []*format.Lock, ts tso.Timestamp, ignored Ignored) (readAgain bool, err error) {
	return resolveEach(ctx, r, locks, ignored, func(ctx context.Context, l *format.Lock) (bool, error) { return r.resolveOneForRead(ctx, l, ts) })
}

// resolveEach calls resolve for each lock, and adds the transactions of those locks to ignored
// for which it returns true.
func resolveEach(ctx context.Context, r *Resolver, locks []*format.Lock, ignored Ignored, resolve func(context.Context, *format.Lock) (ignore bool, err error)) (readAgain bool, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.Store.Config.Parallelism)
	ignore := make([]bool, len(locks))
	for i, l := range locks {
		g.Go(func() (err error) {
			ignore[i], err = resolve(gctx, l)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return false, err
	}
	for i, l := range locks {
		if ignore[i] {
			ignored[l.StartTS] = true
		} else {
			readAgain = true
		}
	}
	return readAgain, nil
}
