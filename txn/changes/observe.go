package changes

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// An Observation is what a transaction finds when it looks at an observed cell:
// whether there is a change that an observer has not acknowledged (paper §2.4,
// design §7).
type Observation struct {
	Cell format.Cell
	// StartTS of the transaction that looked: what the observation is good for,
	// and what an acknowledgment will say.
	StartTS tso.Timestamp
	// ChangeTS is the commit_ts of the cell's newest change, a put or delete;
	// on a column for weak notifications, the timestamp of the newest
	// notification. 0: the cell never changed. A value from before the table was
	// adopted counts as a change at 1.
	ChangeTS tso.Timestamp
	// Weak: the column is for weak notifications.
	Weak bool
	// Observers that are registered for the column, in order of their ids.
	Observers []string
	// Acks holds, by observer, the start_ts of its last successful run.
	Acks map[string]tso.Timestamp
	// Triggers are the cell's notifications up to StartTS, oldest first. Changes
	// whose notify cells are there collapse into one run.
	Triggers []format.Trigger
	// Failures holds, by observer, what became of its last run, where that was
	// no success.
	Failures map[string]format.Failure
	// Locked is set by [Client.Observations] alone: a transaction that writes the
	// cell or acknowledges it is under way, or its client died in the middle.
	Locked bool

	// writer is where the change's transaction started and has its primary.
	writer format.WriteRecord
}

// Pending reports whether observer has not acknowledged the newest change.
func (o *Observation) Pending(observer string) bool { return o.ChangeTS > o.Acks[observer] }

// Known is the timestamp up to which all notifications of the cell were there to
// be seen: what is said of the newest change holds for them, so that they may be
// removed when it has been dealt with. Of a written column, that is StartTS. A weak
// notification is written at the commit_ts of its transaction, some time after
// that was taken: one below StartTS may still be on its way, to a cell whose
// observer ran before. What is on its way below the newest one that was seen does
// not matter: the run for that one waits for the locks of its transaction.
func (o *Observation) Known() tso.Timestamp {
	if o.Weak {
		return o.ChangeTS
	}
	return o.StartTS
}

// Settled reports whether every registered observer has acknowledged the newest
// change, so that the notifications up to Known may be removed.
func (o *Observation) Settled() bool { return !slices.ContainsFunc(o.Observers, o.Pending) }

// Observe reads, in one request, everything that decides whether observers of a
// cell have to run: its newest change, their acknowledgments, and the
// notifications. Like every read it waits for locks, and like every read it is
// of the state at the transaction's start timestamp. The cell's own value is
// read along, and [View.Get] does not ask for it again.
//
// The transaction counts from then on as caused by the notifications that were
// found, see [Lock.Hops].
func Observe(ctx context.Context, tx *txn.Txn, cell format.Cell) (*Observation, error) {
	if err := format.CheckCell(cell); err != nil {
		return nil, err
	}
	t := access.Transaction(tx)
	if err := t.Alive(); err != nil {
		return nil, err
	}
	r := t.Resolver()
	tbl, err := r.Table(ctx, cell.Table)
	if err != nil {
		return nil, err
	}
	s, err := tbl.Schema.Fresh(ctx)
	if err != nil {
		return nil, err
	}
	column := s.Observed[cell.Column()]
	o := &Observation{Cell: cell, StartTS: t.StartTS(), Weak: column.Weak, Observers: slices.Clone(column.Observers), Acks: map[string]tso.Timestamp{}, Failures: map[string]format.Failure{}}
	slices.Sort(o.Observers)
	ctx, end := t.Observing(ctx, cell.Table)
	value, present, err := o.read(ctx, r, tbl)
	if err = end(err); err != nil {
		return nil, err
	}
	t.Remember(cell, value, present)
	for _, trigger := range o.Triggers {
		t.CausedBy(trigger.Hops + 1)
	}
	return o, nil
}

// read fills in what is stored, for o.Observers, and returns the cell's value.
func (o *Observation) read(ctx context.Context, c *recovery.Resolver, tbl *store.Table) (value []byte, present bool, err error) {
	sel := store.Selection{Columns: []format.Column{o.Cell.Column()}}
	for _, id := range o.Observers {
		sel.Columns = append(sel.Columns, format.AckColumn(o.Cell.Column(), id))
	}
	key := o.Cell.Column().Key()
	notify := store.Chain(o.notifyColumns(), store.UpTo(o.StartTS), bigtable.LatestNFilter(format.MaxTriggers))
	f := store.Interleave(notify, sel.VisibleAt(o.StartTS, nil))
	row, raw, err := recovery.ReadResolved(ctx, c, tbl, o.Cell.Row, sel, f, o.StartTS, nil)
	if err != nil {
		return nil, false, err
	}
	if err := o.triggers(raw); err != nil {
		return nil, false, err
	}
	if err := o.acks(row); err != nil {
		return nil, false, err
	}
	item, present := format.FindItem(row[o.Cell.Family], key)
	if o.Weak {
		if n := len(o.Triggers); n > 0 {
			o.ChangeTS = o.Triggers[n-1].TS
		}
		return item.Value, present, nil
	}
	if w, ok := format.FindItem(raw[format.WriteFamily], format.WriteFamily+":"+key); ok {
		if o.writer, err = format.DecodeWrite(o.Cell, tso.FromCell(w.Timestamp), w.Value); err != nil {
			return nil, false, err
		}
		o.ChangeTS = o.writer.CommitTS
	} else if present {
		o.ChangeTS = 1
	}
	return item.Value, present, nil
}

// notifyColumns matches the cell's notify column and those of the failures;
// the whole family where naming them would take too much of Bigtable's limit.
func (o *Observation) notifyColumns() bigtable.Filter {
	key := o.Cell.Column().Key()
	columns, cost := []bigtable.Filter{store.ExactColumn(format.NotifyFamily, key)}, store.FilterCost(key)
	for _, id := range o.Observers {
		q := format.FailureQualifier(id, o.Cell.Column())
		columns = append(columns, store.ExactColumn(format.NotifyFamily, q))
		cost += store.FilterCost(q)
	}
	if cost > 1<<10 {
		return store.WholeFamily(format.NotifyFamily)
	}
	return store.AnyOf(columns)
}

// triggers reads the notify cells, and the failures that stand beside them.
func (o *Observation) triggers(raw bigtable.Row) error {
	for _, item := range raw[format.NotifyFamily] {
		_, qualifier, _ := strings.Cut(item.Column, ":")
		switch id, key, failure := format.SplitFailure(qualifier); {
		case failure && key == o.Cell.Column().Key():
			f, err := format.DecodeFailure(o.Cell, item.Value)
			if err != nil {
				return err
			}
			o.Failures[id] = f
		case qualifier == o.Cell.Column().Key():
			o.Triggers = append(o.Triggers, format.DecodeTrigger(tso.FromCell(item.Timestamp), item.Value))
		}
	}
	slices.Reverse(o.Triggers) // Bigtable returns the newest first
	return nil
}

func (o *Observation) acks(row bigtable.Row) error {
	for _, id := range o.Observers {
		col := format.AckColumn(o.Cell.Column(), id)
		item, ok := format.FindItem(row[format.AckFamily], col.Key())
		if !ok {
			continue
		}
		ts, err := format.DecodeAck(o.Cell, id, item.Value)
		if err != nil {
			return err
		}
		o.Acks[id] = ts
	}
	return nil
}

// Acknowledge buffers the acknowledgment that an observer has seen the changes
// of o.Cell up to o.StartTS. The transaction commits only if nobody else has
// acknowledged for that observer since it started, which is what lets at most
// one run commit for each change.
func Acknowledge(tx *txn.Txn, o *Observation, observer string) {
	c := format.AckColumn(o.Cell.Column(), observer)
	access.Transaction(tx).Put(format.Cell{Table: o.Cell.Table, Row: o.Cell.Row, Family: c.Family, Qualifier: c.Qualifier}, binary.BigEndian.AppendUint64(nil, uint64(o.StartTS)))
}
