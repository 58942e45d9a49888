package admin

import (
	"bytes"
	"cmp"
	"context"
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

// A Shown says what a snapshot shows of a column.
type Shown string

// What a snapshot shows of a column.
const (
	// ShownValue: a committed value.
	ShownValue Shown = "value"
	// ShownPlain: a value that was written without a transaction.
	ShownPlain Shown = "plain value"
	// ShownDeleted: nothing, because a transaction deleted the value.
	ShownDeleted Shown = "deleted"
	// ShownExpired: nothing, because the value is older than the family's expiry.
	ShownExpired Shown = "expired"
	// ShownNothing: nothing was committed yet.
	ShownNothing Shown = "nothing"
	// ShownDamaged: the read fails. Err says why.
	ShownDamaged Shown = "damaged"
)

// A Reading is what snapshots read of a column from one timestamp to another.
type Reading struct {
	Cell format.Cell
	// From is the first timestamp, and To is the first one at which snapshots read something
	// else; 0: none so far.
	From, To tso.Timestamp
	Shown    Shown
	// Value is set for ShownValue and ShownPlain.
	Value []byte
	// CommitTS is that of the value or of the deletion. For a plain value it is the cell's own
	// timestamp, in microseconds.
	CommitTS tso.Timestamp
	// Lock is a lock of a transaction that began at or before From. A read resolves it, waits for
	// it or passes it before it returns what Shown says, or what that transaction committed.
	Lock *format.Lock
	Err  error
}

// A RowHistory is what is stored in a row, and what snapshots read of it.
type RowHistory struct {
	Versions []Version // as History returns them
	Readings []Reading // by column, then by From
	// SafePoint is the deployment's safe point. Snapshots below it fail, and the Readings begin
	// there.
	SafePoint tso.Timestamp
}

// ReadHistory returns what History returns, and what snapshots up to now read of each column.
// It applies the rule of reads (recovery.Evaluate) to the stored cells, and resolves no lock.
func ReadHistory(ctx context.Context, client *txn.Client, table, row string, now tso.Timestamp) (*RowHistory, error) {
	c := access.ResolverOf(client)
	h := &RowHistory{}
	t, raw, err := storedRow(ctx, c, table, row, 0)
	if err != nil {
		return nil, err
	}
	h.Versions = versionsOf(t, row, raw)
	if h.SafePoint, err = c.SafePoint.Current(ctx); err != nil {
		return nil, err
	}
	for _, column := range storedColumns(raw) {
		if err := column.read(ctx, t, row, h, now); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// A storedColumn has the stored cells of a column, the newest first.
type storedColumn struct {
	name                format.Column
	locks, writes, data []bigtable.ReadItem
}

// storedColumns sorts the cells of a row by column.
func storedColumns(raw bigtable.Row) []*storedColumn {
	byKey := map[string]*storedColumn{}
	column := func(key string) *storedColumn {
		if byKey[key] == nil {
			name, _ := format.SplitColumn(key)
			byKey[key] = &storedColumn{name: name}
		}
		return byKey[key]
	}
	for family, items := range raw {
		for _, item := range items {
			key := strings.TrimPrefix(item.Column, family+":")
			switch {
			case family == format.LockFamily:
				column(key).locks = append(column(key).locks, item)
			case family == format.WriteFamily:
				column(key).writes = append(column(key).writes, item)
			case !format.IsMetadataFamily(family):
				column(item.Column).data = append(column(item.Column).data, item)
			}
		}
	}
	var all []*storedColumn
	for _, c := range byKey {
		if len(c.locks)+len(c.writes)+len(c.data) > 0 && c.name.Family != "" {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *storedColumn) int { return strings.Compare(a.name.Key(), b.name.Key()) })
	return all
}

// read adds the readings of a column, which change where a record, a lock or an expiry is.
func (c *storedColumn) read(ctx context.Context, t *store.Table, row string, h *RowHistory, now tso.Timestamp) error {
	expiries, err := t.Schema.FreshExpiries(ctx)
	if err != nil {
		return err
	}
	changes := []tso.Timestamp{h.SafePoint}
	add := func(commitTS, ts tso.Timestamp) {
		changes = append(changes, ts)
		if until, ok := expiries.Until(c.name.Family, commitTS); ok {
			changes = append(changes, until)
		}
	}
	for _, item := range slices.Concat(c.locks, c.writes) {
		add(tso.FromCell(item.Timestamp), tso.FromCell(item.Timestamp))
	}
	for _, item := range c.data {
		if item.Timestamp < format.PlainBefore {
			add(tso.Timestamp(item.Timestamp), h.SafePoint) // snapshots of all times read it
		}
	}
	slices.Sort(changes)
	first := len(h.Readings)
	for _, at := range slices.Compact(changes) {
		if at < h.SafePoint || at > now {
			continue
		}
		r := c.at(ctx, t, row, at)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if n := len(h.Readings); n > first && r.same(h.Readings[n-1]) {
			continue
		} else if n > first {
			h.Readings[n-1].To = at
		}
		h.Readings = append(h.Readings, r)
	}
	return nil
}

func (r Reading) same(o Reading) bool {
	return r.Shown == o.Shown && r.CommitTS == o.CommitTS && bytes.Equal(r.Value, o.Value) && r.Lock == nil && o.Lock == nil && r.Err == nil && o.Err == nil
}

// at is what a snapshot reads.
func (c *storedColumn) at(ctx context.Context, t *store.Table, row string, ts tso.Timestamp) Reading {
	r := Reading{Cell: format.Cell{Table: t.Name, Row: row, Family: c.name.Family, Qualifier: c.name.Qualifier}, From: ts}
	sel := store.Selection{Columns: []format.Column{c.name}}
	visible := func(items []bigtable.ReadItem, most int) (some []bigtable.ReadItem) {
		for _, item := range items {
			if (item.Timestamp < format.PlainBefore || tso.FromCell(item.Timestamp) <= ts) && len(some) < most {
				some = append(some, item) // a copy: Evaluate changes timestamps
			}
		}
		return some
	}
	raw := func() bigtable.Row { // what sel.VisibleAt(ts) matches
		answer := bigtable.Row{}
		for family, items := range map[string][]bigtable.ReadItem{format.LockFamily: visible(c.locks, len(c.locks)), format.WriteFamily: visible(c.writes, 1), c.name.Family: visible(c.data, 1)} {
			if len(items) > 0 {
				items[0].Row = row
				answer[family] = items
			}
		}
		return answer
	}
	e, err := recovery.Evaluate(ctx, t, raw(), sel, ts, nil)
	if len(e.Locks) > 0 && err == nil {
		r.Lock = e.Locks[0]
		passed := recovery.Ignored{}
		for _, l := range e.Locks {
			passed[l.StartTS] = true
		}
		e, err = recovery.Evaluate(ctx, t, raw(), sel, ts, passed)
	}
	if err == nil {
		err = e.ReadExactFrom(func(startTS tso.Timestamp) (bigtable.ReadItem, bool) {
			i := slices.IndexFunc(c.data, func(item bigtable.ReadItem) bool {
				return startTS == 0 && item.Timestamp < format.PlainBefore || startTS != 0 && item.Timestamp == startTS.Cell()
			})
			if i < 0 {
				return bigtable.ReadItem{}, false
			}
			return c.data[i], true
		}, t, row)
	}
	writes := visible(c.writes, 1)
	switch {
	case err != nil:
		r.Shown, r.Err = ShownDamaged, err
	case len(e.Row[c.name.Family]) > 0:
		item := e.Row[c.name.Family][0]
		r.Shown, r.Value, r.CommitTS = cmp.Or(plainIf(len(writes) == 0), ShownValue), item.Value, tso.Timestamp(item.Timestamp)
	case e.Expired > 0:
		r.Shown = ShownExpired
	case len(writes) > 0:
		r.Shown, r.CommitTS = ShownDeleted, tso.FromCell(writes[0].Timestamp)
	default:
		r.Shown = ShownNothing
	}
	return r
}

func plainIf(plain bool) Shown {
	if plain {
		return ShownPlain
	}
	return ""
}
