package changes

import (
	"context"
	"iter"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// maxAckVersions is how many versions of an acknowledgment one request reads: the
// committed one, and those of runs that have not ended. If the committed one is
// not among them, another request reads it.
const maxAckVersions = 8

// Observations iterates over the notifications in rows of a table (nil: all
// rows), as [Notifications] does, and returns for each what [Observe] would: which
// observers have not acknowledged it. Unlike Observe it waits for no lock and
// resolves none, so it also works where something is stuck. If
// [Observation.Locked] is set, the answer may change when that lock is resolved.
// Each page of rows with notifications costs a second request.
//
// If a column is not observed any more, the observation has no observers.
func Observations(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet) iter.Seq2[Observation, error] {
	c := access.ResolverOf(client)
	return func(yield func(Observation, error) bool) {
		if err := eachObservation(ctx, c, table, rs, func(o Observation) bool { return yield(o, nil) }); err != nil {
			yield(Observation{}, err)
		}
	}
}

func eachObservation(ctx context.Context, c *recovery.Resolver, name string, rs bigtable.RowSet, yield func(Observation) bool) error {
	asOf, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	filter := func(*store.Table) bigtable.Filter {
		return store.Interleave(store.Chain(store.WholeFamily(format.NotifyFamily), bigtable.LatestNFilter(store.MaxNotifyCells)))
	}
	return c.Pages(ctx, name, rs, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
		schema, err := t.Schema.Fresh(ctx)
		if err != nil {
			return false, err
		}
		states, err := readObserved(ctx, c, t, schema, page, asOf)
		if err != nil {
			return false, err
		}
		for _, raw := range page {
			found := notificationsOf(t, raw)
			for _, n := range found {
				o, err := newObservation(ctx, c, t, schema, n, states[raw.Key()], asOf)
				if err != nil {
					return false, err
				}
				if !yield(o) {
					return false, nil
				}
			}
		}
		return true, nil
	})
}

// readObserved reads the state of the observed columns in the rows of a page:
// locks, newest records, and acknowledgments.
func readObserved(ctx context.Context, c *recovery.Resolver, t *store.Table, s *store.Schema, page []bigtable.Row, asOf tso.Timestamp) (map[string]bigtable.Row, error) {
	rows := map[string]bigtable.Row{}
	var set store.RowSet
	for _, raw := range page {
		set.Keys = append(set.Keys, raw.Key())
	}
	err := t.ReadKeys(ctx, set, func(raw bigtable.Row) bool {
		rows[raw.Key()] = raw
		return true
	}, bigtable.RowFilter(observedState(s, asOf)))
	return rows, err
}

// observedState matches the state of the observed columns and their
// acknowledgments, without the users' values. If naming the columns takes more
// than Bigtable's limit of a filter, or if there are patterns, it matches whole families.
func observedState(s *store.Schema, asOf tso.Timestamp) bigtable.Filter {
	var locks, writes, acks, plain []bigtable.Filter
	cost := 0
	for col, o := range s.Observed {
		if col.IsPattern() {
			cost = store.FilterBudget + 1
			break
		}
		cols := []format.Column{col}
		for _, id := range o.Observers {
			ack := format.AckColumn(col, id)
			cols = append(cols, ack)
			acks = append(acks, store.ExactColumn(ack.Family, ack.Qualifier))
			cost += store.FilterCost(ack.Key())
		}
		for _, col := range cols {
			locks = append(locks, store.ExactColumn(format.LockFamily, col.Key()))
			writes = append(writes, store.ExactColumn(format.WriteFamily, col.Key()))
			cost += 2 * store.FilterCost(col.Key())
		}
		plain = append(plain, store.ExactColumn(col.Family, col.Qualifier))
		cost += store.FilterCost(col.Key())
	}
	if cost > store.FilterBudget || len(s.Observed) == 0 {
		locks, writes, acks, plain = store.WholeFamilies(format.LockFamily), store.WholeFamilies(format.WriteFamily), store.WholeFamilies(format.AckFamily), store.WholeFamilies(s.DataFamilies()...)
	}
	if len(acks) == 0 {
		acks = store.WholeFamilies(format.AckFamily)
	}
	return store.Interleave(
		store.Chain(store.AnyOf(locks), store.UpTo(asOf), store.Latest, bigtable.StripValueFilter()),
		store.Chain(store.AnyOf(writes), store.UpTo(asOf), store.Latest),
		store.Chain(store.AnyOf(acks), store.UpTo(asOf), bigtable.LatestNFilter(maxAckVersions)),
		store.Chain(store.AnyOf(plain), bigtable.TimestampRangeFilterMicros(0, format.PlainBefore), store.Latest, bigtable.StripValueFilter()),
	)
}

// newObservation returns the observation of a notified cell from raw, an answer to
// observedState.
func newObservation(ctx context.Context, c *recovery.Resolver, t *store.Table, s *store.Schema, n Notification, raw bigtable.Row, asOf tso.Timestamp) (Observation, error) {
	col := n.Cell.Column()
	observed, _ := s.Registration(col)
	o := Observation{
		Cell: n.Cell, StartTS: asOf, Weak: observed.Weak, Observers: slices.Sorted(slices.Values(observed.Observers)),
		Acks: map[string]tso.Timestamp{}, Triggers: n.Triggers, Failures: n.Failures,
	}
	_, o.Locked = store.FindColumn(raw[format.LockFamily], format.LockFamily+":"+col.Key())
	_, present := store.FindColumn(raw[col.Family], col.Key())
	if err := o.setChange(raw, present); err != nil {
		return o, err
	}
	for _, id := range o.Observers {
		ack := format.AckColumn(col, id)
		if _, locked := store.FindColumn(raw[format.LockFamily], format.LockFamily+":"+ack.Key()); locked {
			o.Locked = true
		}
		w, ok := store.FindColumn(raw[format.WriteFamily], format.WriteFamily+":"+ack.Key())
		if !ok {
			continue
		}
		value, startTS, err := committedAck(ctx, c, t, o.ackCell(id), w, raw)
		if err != nil {
			return o, err
		}
		o.setAck(ctx, c, id, value, startTS)
	}
	return o, nil
}

// committedAck returns the value that an acknowledgment's write record names, and the
// start_ts of its transaction.
func committedAck(ctx context.Context, c *recovery.Resolver, t *store.Table, ack format.Cell, record bigtable.ReadItem, raw bigtable.Row) ([]byte, tso.Timestamp, error) {
	w, err := format.DecodeWrite(ack, tso.FromCell(record.Timestamp), record.Value)
	if err != nil {
		return nil, 0, err
	}
	for _, item := range raw[format.AckFamily] {
		if item.Column == ack.Column().Key() && item.Timestamp == w.StartTS.Cell() {
			return item.Value, w.StartTS, nil
		}
	}
	e := &recovery.Evaluation{Exact: []recovery.ExactRead{{Column: ack.Column(), CommitTS: w.CommitTS, StartTS: w.StartTS}}}
	if err := e.ReadExact(ctx, t, ack.Row); err != nil {
		return nil, 0, err
	}
	item, _ := store.FindColumn(e.Row[format.AckFamily], ack.Column().Key())
	return item.Value, w.StartTS, nil
}
