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

// An Observation is the state of an observed cell at one timestamp: its newest
// change, and which observers have acknowledged it (paper §2.4).
type Observation struct {
	Cell format.Cell
	// StartTS is the start_ts of the observing transaction. The observation holds
	// at that timestamp, and an acknowledgment will say it.
	StartTS tso.Timestamp
	// ChangeTS is the commit_ts of the cell's newest put or delete. In a column for
	// weak notifications it is the timestamp of the newest notification. It is 0 if
	// the cell never changed, and 1 for a value from before the table's adoption. If
	// garbage collection has removed the newest delete, it is the change that a
	// replay names, and 0 without a replay.
	ChangeTS tso.Timestamp
	// Weak says that the column is for weak notifications.
	Weak bool
	// Observers are the ids of the column's registered observers, sorted.
	Observers []string
	// Acks are the start_ts of the last successful runs, by observer.
	Acks map[string]tso.Timestamp
	// Triggers are the cell's notifications up to StartTS, oldest first. One run
	// handles all of these changes.
	Triggers []format.NotifyCell
	// Failures are the failures of the last runs, by observer.
	Failures map[string]format.Failure
	// Locked is set by [Observations] alone: a transaction that writes or
	// acknowledges the cell has not ended, or its client died.
	Locked bool

	// writer is the write record of the newest change.
	writer format.WriteRecord
	// gone says that the cell itself does not show its newest change any more.
	gone bool
}

// Pending reports whether the observer has not acknowledged the newest change.
func (o *Observation) Pending(observer string) bool { return o.ChangeTS > o.Acks[observer] }

// KnownUpTo is the newest notification of the cell that the observation has seen; 0:
// none. Once every observer has acknowledged the newest change, the notifications up
// to there may be removed.
//
// It is not StartTS. A client stores a weak notification, or that of a replay or a
// backfill, some time after it got its timestamp, so one below StartTS may not have
// arrived yet. One that arrives below the newest seen notification does not matter: an
// observer that has seen the newest one has run at a higher timestamp, and that run
// waits for the locks of the transactions that notified below it.
func (o *Observation) KnownUpTo() tso.Timestamp {
	if n := len(o.Triggers); n > 0 {
		return o.Triggers[n-1].TS
	}
	return 0
}

// Replays are the notifications of the cell if only they show what its newest change is: garbage
// collection has removed the newest delete. Otherwise it is nil. Of several replays, each may name
// another change. One with a lower timestamp may arrive later and name a newer change, so only
// those that were seen may be removed.
func (o *Observation) Replays() (seen []tso.Timestamp) {
	if !o.gone {
		return nil
	}
	for _, t := range o.Triggers {
		seen = append(seen, t.TS)
	}
	return seen
}

// KnownChange is the newest change of the cell, for [Cleared], or 0 if the observation has not
// seen its notification. Versions of a cell never interleave, so a transaction that started up to
// there and has not committed the cell yet never will. That does not hold for other
// notifications.
func (o *Observation) KnownChange() tso.Timestamp {
	if o.Weak || o.KnownUpTo() < o.ChangeTS {
		return 0
	}
	return o.ChangeTS
}

// Failure returns what is stored about an observer's failed runs on the newest change. A
// change that is a dead letter has not failed any more once it is notified again: a
// replay notifies the cell after the letter was stored, but the failure beside the
// notification may be stored after both.
func (o *Observation) Failure(observer string) (f format.Failure, failed bool) {
	f, failed = o.Failures[observer]
	if !failed || f.ChangeTS != o.ChangeTS {
		return format.Failure{}, false
	}
	if f.NotBefore == format.Never && o.KnownUpTo() > f.LastTS {
		return format.Failure{}, false
	}
	return f, true
}

// Parked reports whether the newest change is a dead letter of the observer, while its
// notification waits for another observer.
func (o *Observation) Parked(observer string) bool {
	f, _ := o.Failure(observer)
	return f.NotBefore == format.Never
}

// Acknowledged reports whether every registered observer has acknowledged the
// newest change, so that the notifications up to KnownUpTo may be removed.
func (o *Observation) Acknowledged() bool { return !slices.ContainsFunc(o.Observers, o.Pending) }

// Observe reads everything that decides whether the observers of a cell must run:
// its newest change, their acknowledgments, and the notifications. It takes one
// request. Like every read of the transaction it shows the state at the start
// timestamp, and waits for locks. It also reads the cell's value, so that a Get of
// the cell makes no request.
//
// From then on the notifications count as the cause of the transaction: its own
// notifications carry one hop more. Observe fails as a Get would.
func Observe(ctx context.Context, tx *txn.Txn, cell format.Cell) (*Observation, error) {
	if err := format.CheckCell(cell); err != nil {
		return nil, err
	}
	t := access.TransactionOf(tx)
	if err := t.CheckReadable(); err != nil {
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
	column, _ := s.Registration(cell.Column())
	o := &Observation{Cell: cell, StartTS: t.StartTS(), Weak: column.Weak, Observers: slices.Clone(column.Observers), Acks: map[string]tso.Timestamp{}, Failures: map[string]format.Failure{}}
	slices.Sort(o.Observers)
	ctx, end := t.Observing(ctx, cell.Table)
	row, err := o.read(ctx, r, tbl)
	if err = end(err); err != nil {
		return nil, err
	}
	t.Remember(tbl, row, cell)
	for _, trigger := range o.Triggers {
		t.CausedBy(trigger.Hops + 1)
	}
	return o, nil
}

// read reads the stored state for o.Observers, and returns the cell and its acknowledgments.
func (o *Observation) read(ctx context.Context, c *recovery.Resolver, tbl *store.Table) (bigtable.Row, error) {
	sel := store.Selection{Columns: []format.Column{o.Cell.Column()}}
	for _, id := range o.Observers {
		sel.Columns = append(sel.Columns, format.AckColumn(o.Cell.Column(), id))
	}
	key := o.Cell.Column().Key()
	notify := store.Chain(o.notifyColumns(), store.UpTo(o.StartTS), bigtable.LatestNFilter(store.MaxNotifyCells))
	f := store.Interleave(notify, sel.VisibleAt(o.StartTS, nil))
	row, raw, err := recovery.ReadResolved(ctx, c, tbl, o.Cell.Row, sel, f, o.StartTS, nil)
	if err != nil {
		return nil, err
	}
	if err := o.setTriggers(raw); err != nil {
		return nil, err
	}
	if err := o.setAcks(ctx, c, row, raw); err != nil {
		return nil, err
	}
	_, present := store.FindColumn(row[o.Cell.Family], key)
	if err := o.setChange(raw, present); err != nil {
		return nil, err
	}
	return row, nil
}

// setChange finds the cell's newest change among its triggers or write records.
// present says that the cell has a value.
func (o *Observation) setChange(raw bigtable.Row, present bool) (err error) {
	if o.Weak {
		if n := len(o.Triggers); n > 0 {
			o.ChangeTS = o.Triggers[n-1].TS
		}
		return nil
	}
	w, ok := store.FindColumn(raw[format.WriteFamily], format.WriteFamily+":"+o.Cell.Column().Key())
	o.gone = !ok && !present
	if ok {
		o.writer, err = format.DecodeWrite(o.Cell, tso.FromCell(w.Timestamp), w.Value)
		o.ChangeTS = o.writer.CommitTS
	} else if present {
		o.ChangeTS = 1
	} else {
		for _, t := range o.Triggers {
			o.ChangeTS = max(o.ChangeTS, t.Replayed)
		}
	}
	return err
}

// notifyColumns matches the cell's notify column and the columns of its failures.
// If naming them takes more than 1 KiB of Bigtable's limit of a filter (20 KiB), it
// matches the whole family.
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

// setTriggers reads the notify cells and the failures.
func (o *Observation) setTriggers(raw bigtable.Row) error {
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
			o.Triggers = append(o.Triggers, format.DecodeNotifyCell(tso.FromCell(item.Timestamp), item.Value))
		}
	}
	slices.Reverse(o.Triggers) // Bigtable returns the newest first
	return nil
}

// setAcks reads the acknowledgments from row, and their write records from raw.
func (o *Observation) setAcks(ctx context.Context, c *recovery.Resolver, row, raw bigtable.Row) error {
	for _, id := range o.Observers {
		ack := o.ackCell(id)
		item, ok := store.FindColumn(row[format.AckFamily], ack.Column().Key())
		if !ok {
			continue
		}
		var startTS tso.Timestamp // 0: a plain write
		if w, ok := store.FindColumn(raw[format.WriteFamily], format.WriteFamily+":"+ack.Column().Key()); ok {
			var err error
			if _, startTS, err = format.DecodeKindAndStart(ack, tso.FromCell(w.Timestamp), w.Value); err != nil {
				return err
			}
		}
		o.setAck(ctx, c, id, item.Value, startTS)
	}
	return nil
}

func (o *Observation) ackCell(observer string) format.Cell {
	c := format.AckColumn(o.Cell.Column(), observer)
	return format.Cell{Table: o.Cell.Table, Row: o.Cell.Row, Family: c.Family, Qualifier: c.Qualifier}
}

// setAck takes the value of an acknowledgment, which the transaction that started at startTS
// wrote. It ignores a damaged one: no run of the observer has written that, so the observer
// must run. Its own acknowledgment then replaces the damaged one.
func (o *Observation) setAck(ctx context.Context, c *recovery.Resolver, observer string, value []byte, startTS tso.Timestamp) {
	ts, err := format.DecodeAck(o.ackCell(observer), value, startTS)
	if err != nil {
		c.Log.WarnContext(ctx, "an acknowledgment is damaged and does not count; its observer runs again", "observer", observer, "cell", o.Cell, "error", err)
		return
	}
	o.Acks[observer] = ts
}

// Acknowledge buffers the acknowledgment that an observer has seen the changes of
// o.Cell up to o.StartTS. The transaction commits only if no other transaction has
// acknowledged for that observer since it started. That is why at most one run
// commits for each change.
func Acknowledge(tx *txn.Txn, o *Observation, observer string) {
	access.TransactionOf(tx).Put(o.ackCell(observer), binary.BigEndian.AppendUint64(nil, uint64(o.StartTS)))
}
