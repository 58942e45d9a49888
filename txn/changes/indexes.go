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
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// An Index is an index of columns of a table, in the table's schema record. Package index
// maintains it.
type Index struct {
	Name    string
	Columns []format.Column
	// Entries is where its entries are: TABLE/FAMILY.
	Entries string
}

// Indexes reads the indexes of a table from its schema record.
func Indexes(ctx context.Context, client *txn.Client, table string) ([]Index, error) {
	t, err := access.ResolverOf(client).Table(ctx, table)
	if err != nil {
		return nil, err
	}
	s, err := t.Schema.ReloadObserved(ctx)
	if err != nil {
		return nil, err
	}
	var all []Index
	for _, i := range s.Indexes {
		all = append(all, Index(i))
	}
	return all, nil
}

// RegisterIndex records an index in the schema record of a table. From then on clients refuse
// to write its columns, unless they maintain the index (txn.Client.BeforeCommit). Running
// clients notice it up to a minute later ([AwaitIndex]). To register it again is harmless. Another
// index of the same name and place is replaced. If the values of a column expire, or those of the
// entries, it fails with txn.ErrSchema: entries and values would expire at different times.
func RegisterIndex(ctx context.Context, client *txn.Client, table string, index Index) error {
	m := &recordpb.ColumnIndex{Name: index.Name, Entries: index.Entries}
	for _, c := range index.Columns {
		m.Columns = append(m.Columns, &recordpb.Column{Family: c.Family, Qualifier: []byte(c.Qualifier)})
	}
	r := access.ResolverOf(client)
	place, family, _ := strings.Cut(index.Entries, "/")
	entries, err := r.Table(ctx, place)
	if err == nil {
		err = entries.Schema.Reload(ctx)
	}
	if err != nil {
		return err
	}
	return editObserved(ctx, r, table, func(s *recordpb.TableSchema) error {
		for _, c := range index.Columns {
			if store.ExpiriesOf(s)[c.Family].After > 0 || entries.Schema.Expiries()[family].After > 0 {
				return fmt.Errorf("changes: index %s of table %q: %w: column %s or the entries in %s expire, and an index cannot follow that", index.Name, table, format.ErrSchema, c, index.Entries)
			}
			if !slices.Contains(s.Families, c.Family) {
				return fmt.Errorf("changes: index %s of table %q: %w: the table has no family %q", index.Name, table, format.ErrSchema, c.Family)
			}
		}
		i := slices.IndexFunc(s.Indexes, same(index))
		if i < 0 {
			s.Indexes = append(s.Indexes, m)
		} else {
			s.Indexes[i] = m
		}
		return nil
	})
}

// AwaitIndex waits until no client that does not maintain a registered index can commit a write of
// its columns: a minute. A commit that began before reads the schema record again.
func AwaitIndex(ctx context.Context) error {
	if store.Sleep(ctx, store.SchemaNotice) != nil {
		return store.Ended(ctx, "changes: waiting until every client knows an index", nil)
	}
	return nil
}

// FindIndex finds the table whose schema record names an index, and what it says; "": none does.
func FindIndex(ctx context.Context, client *txn.Client, name, entries string) (table string, index Index, err error) {
	tables, err := access.ResolverOf(client).TableNames(ctx)
	if err != nil {
		return "", Index{}, err
	}
	for _, table := range tables {
		all, err := Indexes(ctx, client, table)
		if errors.Is(err, format.ErrNotInitialized) || errors.Is(err, format.ErrInvalid) {
			continue // it was deleted
		}
		if err != nil {
			return "", Index{}, err
		}
		for _, i := range all {
			if i.Name == name && i.Entries == entries {
				return table, i, nil
			}
		}
	}
	return "", Index{}, nil
}

// UnregisterIndex removes an index from the schema record of a table. It looks only at the name
// and the place of the entries.
func UnregisterIndex(ctx context.Context, client *txn.Client, table string, index Index) error {
	return editObserved(ctx, access.ResolverOf(client), table, func(s *recordpb.TableSchema) error {
		s.Indexes = slices.DeleteFunc(s.Indexes, same(index))
		return nil
	})
}

func same(index Index) func(*recordpb.ColumnIndex) bool {
	return func(m *recordpb.ColumnIndex) bool {
		i := store.IndexOf(m)
		return i.Name == index.Name && i.Entries == index.Entries
	}
}
