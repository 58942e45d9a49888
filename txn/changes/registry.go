package changes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// ErrRegistration means that a registration contradicts an existing one. The error
// says which. Nothing was changed.
var ErrRegistration = errors.New("observer registration")

// An ObservedColumn is a column whose commits set a notify cell, or a pattern of such columns
// ([txn.Pattern]).
type ObservedColumn struct {
	Table  string
	Column format.Column
	// Observers are the ids of its registered observers, sorted.
	Observers []string
	// Weak says that the column can only be notified, not written.
	Weak bool
}

// ObservedColumns reads the observed columns of a table, in order of the columns. It
// reads the schema record, not what this client has cached of it.
func ObservedColumns(ctx context.Context, client *txn.Client, table string) ([]ObservedColumn, error) {
	c := access.ResolverOf(client)
	t, err := c.Table(ctx, table)
	if err != nil {
		return nil, err
	}
	s, err := t.Schema.ReloadObserved(ctx)
	if err != nil {
		return nil, err
	}
	var all []ObservedColumn
	for col, o := range s.Observed {
		all = append(all, ObservedColumn{table, col, slices.Sorted(slices.Values(o.Observers)), o.Weak})
	}
	slices.SortFunc(all, func(a, b ObservedColumn) int { return strings.Compare(a.Column.Key(), b.Column.Key()) })
	return all, nil
}

// Watching returns the observers of a column among those of its table: those that are registered
// for the column, and those for patterns that it is in. ok is false if it is not observed.
func Watching(all []ObservedColumn, table string, column format.Column) (o ObservedColumn, ok bool) {
	o = ObservedColumn{Table: table, Column: column}
	for _, other := range all {
		if other.Table == table && other.Column.Matches(column) {
			own := format.Acknowledging(column, other.Observers)
			o.Observers, o.Weak, ok = append(o.Observers, own...), o.Weak || other.Weak, ok || len(own) > 0 || len(other.Observers) == 0
		}
	}
	slices.Sort(o.Observers)
	return o, ok
}

// CannotAcknowledge returns the first observer that watches a cell, and that cannot acknowledge
// changes of it, because the name of its acknowledgment would be too long; "": none. Such an observer
// watches a pattern. It does not run for the cell, and transactions can only read and delete the cell.
func CannotAcknowledge(all []ObservedColumn, cell format.Cell) (observer string) {
	for _, o := range all {
		if o.Table == cell.Table && o.Column.Matches(cell.Column()) {
			for _, id := range o.Observers {
				if !format.CanAcknowledge(cell.Column(), id) {
					return id
				}
			}
		}
	}
	return ""
}

// RegisterObserver adds an observer to a column, or to all columns of a [txn.Pattern]. To register it again is
// harmless. An id belongs to one column of a table. A column has either strong
// notifications, which commits set, or weak ones (see txn.Table.Notify). A
// registration that contradicts this fails with ErrRegistration.
//
// The registry is part of the table's schema record, so that every writer sets
// notify cells, whether it runs observers or not. Running clients notice a new
// observer up to a minute later. Changes that they commit before that
// may have no notification; see notify.Backfill.
//
// A pattern may contain cells whose names are too long for acknowledgments of the observer; it reads no
// data, so it cannot tell. These cells can still be read and deleted, without runs, and Backfill reports
// them.
func RegisterObserver(ctx context.Context, client *txn.Client, table string, col format.Column, observer string, weak bool) error {
	c := access.ResolverOf(client)
	if err := CheckRegistration(table, col, observer); err != nil {
		return err
	}
	if weak && col.IsPattern() {
		return format.Invalidf("observer %s: a pattern (%s) cannot take weak notifications: no transaction can write such columns", observer, col)
	}
	return editObserved(ctx, c, table, func(m *recordpb.TableSchema) error { return register(m, table, col, observer, weak) })
}

// register adds an observer to a schema record.
func register(m *recordpb.TableSchema, table string, col format.Column, observer string, weak bool) error {
	if !slices.Contains(m.Families, col.RealFamily()) {
		return fmt.Errorf("changes: observer %s of column %s in table %q: %w: the table has no family %q; known are %s", observer, col, table, format.ErrSchema, col.RealFamily(), strings.Join(m.Families, ", "))
	}
	var entry *recordpb.ObservedColumn
	for _, o := range m.Observed {
		switch here := store.ColumnOf(o); {
		case here == col:
			entry = o
		case (weak || o.Weak) && (here.Matches(col) || col.Matches(here)):
			return fmt.Errorf("changes: observer %s of column %s in table %q: %w: a pattern cannot contain a column for weak notifications, and %s is registered for %s ones", observer, col, table, ErrRegistration, here, strength(o.Weak))
		case slices.Contains(o.Observers, observer):
			return fmt.Errorf("changes: observer %s of column %s in table %q: %w: it is registered for column %s: use another id, or remove that registration first (changes.UnregisterObserver, percctl observer remove)", observer, col, table, ErrRegistration, here)
		}
	}
	switch {
	case entry == nil:
		entry = &recordpb.ObservedColumn{Column: &recordpb.Column{Family: col.Family, Qualifier: []byte(col.Qualifier)}, Weak: weak}
		m.Observed = append(m.Observed, entry)
	case entry.Weak != weak:
		return fmt.Errorf("changes: observer %s of column %s in table %q: %w: the column is registered for %s notifications, by %s", observer, col, table, ErrRegistration, strength(entry.Weak), strings.Join(append(entry.Observers, "table init"), ", "))
	}
	if !slices.Contains(entry.Observers, observer) {
		entry.Observers = append(entry.Observers, observer)
	}
	return nil
}

// CheckRegistration returns the error with which [RegisterObserver] refuses names that
// no table could accept: an empty table name, an invalid column or id, or a column and an
// id that are too long together. It reads nothing.
func CheckRegistration(table string, column format.Column, observer string) error {
	if table == "" {
		return format.Invalidf("empty table name")
	}
	if err := format.CheckColumn(format.Column{Family: column.RealFamily(), Qualifier: column.Qualifier}); err != nil {
		return err
	}
	if err := format.CheckObserver(observer); err != nil {
		return err
	}
	if key := format.AckColumn(column, observer).Key(); !format.CanAcknowledge(column, observer) {
		return format.Limitf("acknowledgment column %q has %d bytes; %d are allowed", key, len(key), format.MaxColumnKey)
	}
	return nil
}

func strength(weak bool) string {
	if weak {
		return "weak"
	}
	return "strong"
}

// UnregisterObserver removes an observer's registration, and reports whether there
// was one. A column without observers is not observed any more, and workers that
// find a notification of it remove the notification. Acknowledgments stay: an
// observer that is registered again under the same id continues where it stopped.
func UnregisterObserver(ctx context.Context, client *txn.Client, table, observer string) (found bool, err error) {
	c := access.ResolverOf(client)
	err = editObserved(ctx, c, table, func(m *recordpb.TableSchema) error {
		found = unregister(m, observer) || found // an earlier try may have removed it
		return nil
	})
	return found, err
}

// unregister removes an observer from a schema record, and reports whether it was there.
func unregister(m *recordpb.TableSchema, observer string) bool {
	for i, o := range m.Observed {
		if slices.Contains(o.Observers, observer) {
			o.Observers = slices.DeleteFunc(o.Observers, func(id string) bool { return id == observer })
			if len(o.Observers) == 0 {
				m.Observed = slices.Delete(m.Observed, i, i+1)
			}
			return true
		}
	}
	return false
}

// editObserved changes a table's schema record and reads it back. It tries again after a failure that
// may pass, until ctx ends: an edit that has been applied changes nothing the second time.
func editObserved(ctx context.Context, c *recovery.Resolver, table string, edit func(*recordpb.TableSchema) error) error {
	t, err := c.Table(ctx, table)
	if err != nil {
		return err
	}
	for pause := c.Store.Config.Backoff.Start(); ; {
		err = store.ReplaceSchema(ctx, c.Metadata.API, c.Metadata.Name, table, c.Store.Config.RPCTimeout, func(m *recordpb.TableSchema) error {
			if m.FormatVersion == 0 {
				return fmt.Errorf("changes: table %q: %w: its schema record was removed from metadata table %q", table, format.ErrNotInitialized, c.Metadata.Name)
			}
			return edit(m)
		})
		if !store.CutShort(ctx, err) {
			break
		}
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, fmt.Sprintf("changes: editing the schema record of table %q", table), err)
		}
	}
	if err != nil {
		return err
	}
	_, err = t.Schema.ReloadObserved(ctx)
	return err
}
