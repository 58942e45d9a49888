package txn

import (
	"context"
	"iter"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// maxAckVersions is how many versions of an acknowledgment are read along with
// it: the committed one, and those of runs that are under way.
const maxAckVersions = 8

// Observations iterates over the notifications in rows of a table (nil: all
// rows), as Notifications does, and says of each what [Txn.Observe] would: which
// observers have still to acknowledge it. Unlike that it waits for no lock and
// settles none, so that it can look at what is stuck: where Observation.Locked is
// set, what it says may be about to change. It costs a second request a page of
// rows that have notifications.
//
// Observers of a cell whose column is not observed any more are none.
func Observations(ctx context.Context, client *Client, name string, rs bigtable.RowSet) iter.Seq2[Observation, error] {
	c := resolverOf(client)
	return func(yield func(Observation, error) bool) {
		if err := eachObservation(ctx, c, name, rs, func(o Observation) bool { return yield(o, nil) }); err != nil {
			yield(Observation{}, err)
		}
	}
}

func eachObservation(ctx context.Context, c *resolver, name string, rs bigtable.RowSet, yield func(Observation) bool) error {
	asOf, err := c.clock.timestamp(ctx)
	if err != nil {
		return err
	}
	filter := func(*table) bigtable.Filter {
		return interleave(chain(wholeFamily(NotifyFamily), bigtable.LatestNFilter(maxTriggers)))
	}
	return c.pages(ctx, name, rs, filter, func(t *table, page []bigtable.Row) (bool, error) {
		schema, err := t.schema.fresh(ctx)
		if err != nil {
			return false, err
		}
		behind, err := readObserved(ctx, c, t, schema, page, asOf)
		if err != nil {
			return false, err
		}
		for _, raw := range page {
			found, err := notificationsOf(t, raw)
			if err != nil {
				return false, err
			}
			for _, n := range found {
				o, err := newObservation(ctx, c, t, schema, n, behind[raw.Key()], asOf)
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

// behind reads what the rows of a page hold about their observed columns:
// locks, newest records, and acknowledgments.
func readObserved(ctx context.Context, c *resolver, t *table, s *schema, page []bigtable.Row, asOf tso.Timestamp) (map[string]bigtable.Row, error) {
	rows := map[string]bigtable.Row{}
	set := rowSet{keys: []string{}}
	for _, raw := range page {
		set.keys = append(set.keys, raw.Key())
	}
	f := bigtable.RowFilter(observedState(s, asOf))
	for !set.empty() {
		request := set.request(false)
		err := t.readRows(ctx, request, func(raw bigtable.Row) bool {
			rows[raw.Key()] = raw
			return true
		}, f)
		if err != nil {
			return nil, err
		}
		set = set.answered(request, false)
	}
	return rows, nil
}

// observedState matches what is stored about the observed columns and their
// acknowledgments, without the users' values.
func observedState(s *schema, asOf tso.Timestamp) bigtable.Filter {
	var locks, writes, acks, plain []bigtable.Filter
	cost := 0
	for col, o := range s.observed {
		cols := []Column{col}
		for _, id := range o.observers {
			ack := ackColumn(col, id)
			cols = append(cols, ack)
			acks = append(acks, column(ack.Family, ack.Qualifier))
			cost += filterCost(ack.key())
		}
		for _, col := range cols {
			locks = append(locks, column(LockFamily, col.key()))
			writes = append(writes, column(WriteFamily, col.key()))
			cost += 2 * filterCost(col.key())
		}
		plain = append(plain, column(col.Family, col.Qualifier))
		cost += filterCost(col.key())
	}
	if cost > filterBudget || len(s.observed) == 0 {
		locks, writes, acks, plain = whole(LockFamily), whole(WriteFamily), whole(AckFamily), whole(s.dataFamilies()...)
	}
	if len(acks) == 0 {
		acks = whole(AckFamily)
	}
	return interleave(
		chain(anyOf(locks), upTo(asOf), latest, bigtable.StripValueFilter()),
		chain(anyOf(writes), upTo(asOf), latest),
		chain(anyOf(acks), upTo(asOf), bigtable.LatestNFilter(maxAckVersions)),
		chain(anyOf(plain), bigtable.TimestampRangeFilterMicros(0, prePercolator), latest, bigtable.StripValueFilter()),
	)
}

// observation says what raw, an answer to observedState, means for a
// notification.
func newObservation(ctx context.Context, c *resolver, t *table, s *schema, n Notification, raw bigtable.Row, asOf tso.Timestamp) (Observation, error) {
	col := n.Cell.Column()
	observed := s.observed[col]
	o := Observation{
		Cell: n.Cell, StartTS: asOf, Weak: observed.weak, Observers: slices.Sorted(slices.Values(observed.observers)),
		Acks: map[string]tso.Timestamp{}, Triggers: n.Triggers, Failures: n.Failures,
	}
	_, o.Locked = find(raw[LockFamily], LockFamily+":"+col.key())
	if err := o.changed(raw); err != nil {
		return o, err
	}
	for _, id := range o.Observers {
		ack := ackColumn(col, id)
		if _, locked := find(raw[LockFamily], LockFamily+":"+ack.key()); locked {
			o.Locked = true
		}
		w, ok := find(raw[WriteFamily], WriteFamily+":"+ack.key())
		if !ok {
			continue
		}
		value, err := committedAck(ctx, c, t, Cell{t.name, n.Cell.Row, ack.Family, ack.Qualifier}, w, raw)
		if err != nil {
			return o, err
		}
		if o.Acks[id], err = decodeAck(n.Cell, id, value); err != nil {
			return o, err
		}
	}
	return o, nil
}

// changed finds the cell's newest change, as read does.
func (o *Observation) changed(raw bigtable.Row) (err error) {
	key := o.Cell.Column().key()
	if o.Weak {
		if n := len(o.Triggers); n > 0 {
			o.ChangeTS = o.Triggers[n-1].TS
		}
		return nil
	}
	if w, ok := find(raw[WriteFamily], WriteFamily+":"+key); ok {
		if o.writer, err = decodeWrite(o.Cell, tso.FromCell(w.Timestamp), w.Value); err == nil {
			o.ChangeTS = o.writer.commitTS
		}
	} else if _, ok := find(raw[o.Cell.Family], key); ok {
		o.ChangeTS = 1
	}
	return err
}

// committedAck is the value that an acknowledgment's write record names.
func committedAck(ctx context.Context, c *resolver, t *table, ack Cell, record bigtable.ReadItem, raw bigtable.Row) ([]byte, error) {
	w, err := decodeWrite(ack, tso.FromCell(record.Timestamp), record.Value)
	if err != nil {
		return nil, err
	}
	for _, item := range raw[AckFamily] {
		if item.Column == ack.Column().key() && item.Timestamp == w.startTS.Cell() {
			return item.Value, nil
		}
	}
	e := &evaluation{exact: []exactRead{{ack.Column(), w.commitTS, w.startTS}}}
	if err := e.readExact(ctx, t, ack.Row); err != nil {
		return nil, err
	}
	item, _ := find(e.row[AckFamily], ack.Column().key())
	return item.Value, nil
}
