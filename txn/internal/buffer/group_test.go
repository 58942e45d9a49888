package buffer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
)

// inStore runs f in a world with tables "a" and "b" whose column f:o is observed, and f:w takes weak
// notifications. Their schemas are a minute old.
func inStore(t *testing.T, f func(w *worldtest.World, s *store.Store, schema func(families ...string))) {
	worldtest.Run(t, map[string][]string{format.DefaultMetadataTable: {store.DeployFamily}}, func(w *worldtest.World) {
		schema := func(families ...string) {
			m := &recordpb.TableSchema{FormatVersion: format.Version, Families: families}
			for _, q := range []string{"o", "w"} {
				m.Observed = append(m.Observed, &recordpb.ObservedColumn{Column: &recordpb.Column{Family: "f", Qualifier: []byte(q)}, Observers: []string{"x"}, Weak: q == "w"})
			}
			for _, table := range []string{"a", "b"} {
				w.Set(format.DefaultMetadataTable, store.SchemaRowPrefix+table, store.DeployFamily, store.SchemaQualifier, 0, format.Marshal(m))
			}
		}
		schema("f")
		s, err := store.New(w.Context(), w, store.Config{})
		w.Must(err)
		for _, table := range []string{"a", "b"} {
			_, err := s.Table(w.Context(), table)
			w.Must(err)
		}
		w.After(time.Minute)
		w.Did()
		f(w, s, schema)
	})
}

// TestGroup: the primary's row is first, and the other rows are in order, as are their columns. Only a family
// that the client does not know, and a schema that is too old, make a request. What cannot be
// committed, or a schema that cannot be read, is an error.
func TestGroup(t *testing.T) {
	inStore(t, func(w *worldtest.World, s *store.Store, schema func(...string)) {
		in := func(table, row, column string) format.Cell {
			family, qualifier, _ := strings.Cut(column, ":")
			return format.Cell{Table: table, Row: row, Family: family, Qualifier: qualifier}
		}
		group := func(b *Buffer) (string, error) {
			rows, err := b.Group(w.Context(), s, nil)
			var text []string
			for _, r := range rows {
				line := r.Table.Name + "/" + r.Row
				for _, c := range r.Writes {
					line += " " + c.Cell.Qualifier
					if c.Observed {
						line += "!"
					}
				}
				text = append(text, line)
			}
			return strings.Join(text, ", "), err
		}
		b := &Buffer{}
		b.Set(in("b", "m", "f:q"), format.KindPut, nil)
		for _, row := range strings.Split("zmfydxceg", "") {
			b.Set(in("a", row, "f:q"), format.KindPut, nil)
			b.Set(in("b", row, "f:o"), format.KindLock, nil)
		}
		for _, q := range strings.Split("6812703594", "") {
			b.Set(in("a", "e", "f:"+q), format.KindPut, nil)
		}
		b.Set(in("b", "z", "f:o"), format.KindDelete, nil)
		want := "b/m o q, a/c q, a/d q, a/e 0 1 2 3 4 5 6 7 8 9 q, a/f q, a/g q, a/m q, a/x q, a/y q, a/z q, b/c o, b/d o, b/e o, b/f o, b/g o, b/x o, b/y o, b/z o!"
		if got, err := group(b); got != want || err != nil {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
		w.Expect("known families", "")

		one := func(cells ...format.Cell) *Buffer {
			b := &Buffer{}
			for _, c := range cells {
				b.Set(c, format.KindPut, nil)
			}
			return b
		}
		wide := &Buffer{}
		for i := range format.MaxMutations/3 + 1 {
			wide.Set(in("a", "r", fmt.Sprint("f:", i)), format.KindPut, nil)
		}
		family := one(in("a", "r", "g:q"))
		const read = "scan percolator[schema/a]"
		for _, tt := range []struct {
			name     string
			b        *Buffer
			fault    error
			want     error
			requests string
		}{
			{"no such family", family, nil, format.ErrSchema, read},
			{"it cannot be looked for", family, worldtest.Denied, worldtest.Denied, read},
			{"a weak column", one(in("a", "r", "f:w")), nil, format.ErrSchema, ""},
			{"too many columns", wide, nil, format.ErrLimit, ""},
			{"a table that cannot be opened", one(in("c", "r", "f:q")), worldtest.Denied, worldtest.Denied, "scan percolator[schema/c]"},
		} {
			if tt.fault != nil {
				w.Inject("scan", tt.fault)
			}
			if got, err := group(tt.b); !errors.Is(err, tt.want) || got != "" {
				t.Errorf("%s: %q, %v, want %v", tt.name, got, err, tt.want)
			}
			w.Expect(tt.name, tt.requests)
		}
		schema("f", "g")
		if got, err := group(family); got != "a/r q" || err != nil {
			t.Errorf("a family that was added: %s, %v", got, err)
		}
		w.Expect("a family that was added", read)
		w.After(time.Minute + 1)
		w.Inject("scan", worldtest.Denied)
		if got, err := group(family); !errors.Is(err, worldtest.Denied) || got != "" {
			t.Errorf("an old schema: %s, %v", got, err)
		}
		w.Expect("an old schema", read)
	})
}

// TestNotifications: they are in order, and all of them have to be of columns that take them.
func TestNotifications(t *testing.T) {
	inStore(t, func(w *worldtest.World, s *store.Store, _ func(...string)) {
		b, want := &Buffer{}, []format.Cell{}
		for _, row := range strings.Split("abcdefgh", "") {
			want = append(want, format.Cell{Table: "b", Row: row, Family: "f", Qualifier: "w"})
		}
		for _, i := range []int{3, 1, 7, 5, 0, 2, 6, 4} {
			b.AddNotification(want[i])
		}
		if got, err := b.Notifications(w.Context(), s); !slices.Equal(got, want) || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		w.Expect("notifications", "")
		b.AddNotification(format.Cell{Table: "b", Row: "a", Family: "f", Qualifier: "o"})
		if got, err := b.Notifications(w.Context(), s); got != nil || !errors.Is(err, format.ErrSchema) {
			t.Errorf("of a column that takes none: %v, %v", got, err)
		}
	})
}
