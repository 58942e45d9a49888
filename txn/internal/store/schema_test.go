package store

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// TestReadFamilies: a read of a whole row names the user's families only in a table with observers,
// whose other families may hold much.
func TestReadFamilies(t *testing.T) {
	s := &Schema{Families: []string{"f", format.AckFamily, "g"}}
	if got := s.ReadFamilies(); got != nil {
		t.Errorf("without observers: %q", got)
	}
	s.Observed = map[format.Column]Registration{{Family: "f"}: {}}
	if got := s.ReadFamilies(); !slices.Equal(got, []string{"f", "g"}) {
		t.Errorf("with observers: %q", got)
	}
}

// TestObserversOfLongNames: an observer of a pattern that could not acknowledge a change of a column does not
// count, beside the column's own. Only a pattern that matches a cell decides whether it can be written.
func TestObserversOfLongNames(t *testing.T) {
	long, other := format.Column{Family: "f", Qualifier: strings.Repeat("x", format.MaxColumnKey-20)}, format.Column{Family: "f", Qualifier: strings.Repeat("y", format.MaxColumnKey-20)}
	pattern := format.Column{Family: "f*", Qualifier: "x"}
	s := &Schema{Observed: map[format.Column]Registration{long: {Observers: []string{"o"}}, pattern: {Observers: []string{strings.Repeat("p", 40)}}}, patterns: []format.Column{pattern}}
	for c, want := range map[format.Column][]string{long: {"o"}, other: nil, {Family: "f", Qualifier: "xy"}: s.Observed[pattern].Observers} {
		if r, ok := s.Registration(c); ok != (want != nil) || !slices.Equal(r.Observers, want) || s.IsObserved(c) != ok {
			t.Errorf("%.9v has %d observers, %t, want %d", c, len(r.Observers), ok, len(want))
		}
		if err := s.checkNames(format.Cell{Table: "t", Row: "r", Family: c.Family, Qualifier: c.Qualifier}); errors.Is(err, format.ErrLimit) != (c == long) || err != nil && c != long {
			t.Errorf("a write of %.9v: %v", c, err)
		}
	}
}

// TestDamagedSchema: a record that does not parse, or that a newer release wrote, is an error of the table
// and of an edit.
func TestDamagedSchema(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.store(Config{})
		for _, tt := range []struct {
			record []byte
			want   error
		}{{[]byte{255}, format.ErrCorrupt}, {append(format.Marshal(&recordpb.TableSchema{FormatVersion: format.Version}), 255), format.ErrCorrupt}, {format.Marshal(&recordpb.TableSchema{FormatVersion: 99}), format.ErrFormatVersion}, {format.Marshal(&recordpb.TableSchema{}), format.ErrCorrupt}} {
			w.set(SchemaRowPrefix+"a", SchemaQualifier, tt.record)
			if table, err := s.Table(w.Context(), "a"); table != nil || !errors.Is(err, tt.want) {
				t.Errorf("%x: %v, %v", tt.record, table, err)
			}
			if err := ReplaceSchema(w.Context(), w.OpenTable(format.DefaultMetadataTable), format.DefaultMetadataTable, "a", time.Second, func(*recordpb.TableSchema) error { t.Error("edited"); return nil }); !errors.Is(err, tt.want) {
				t.Errorf("%x: an edit: %v", tt.record, err)
			}
		}
		w.set(GCRowKey, safePointQualifier, append(format.Marshal(&recordpb.SafePoint{FormatVersion: format.Version}), 255))
		if record, _, err := s.SafePoint.ReadRecord(w.Context()); record != nil || !errors.Is(err, format.ErrCorrupt) {
			t.Errorf("a safe point whose end is damaged: %v, %v", record, err)
		}
		if err := s.Pages(w.Context(), "a", nil, nil, nil); !errors.Is(err, format.ErrCorrupt) {
			t.Errorf("pages: %v", err)
		}
		if !errors.Is(&quotaError{denied, ""}, denied) {
			t.Error("a used-up quota hides its error")
		}
	})
}

// TestMetadataHasOneCell: records are at timestamp 0, so a new one replaces the old one.
func TestMetadataHasOneCell(t *testing.T) {
	inWorld(t, func(w *world) {
		const maxAge = time.Minute
		w.schema(&recordpb.TableSchema{Families: []string{"f"}})
		s := w.store(Config{SchemaMaxAge: maxAge, Admin: w.Admin})
		table, err := s.Table(w.Context(), "a")
		w.Must(err)
		for i := range 3 {
			_, err := s.SafePoint.Publish(w.Context(), filterBase+1, filterBase, time.Hour, filterBase)
			w.Must(err)
			w.Must(ReplaceSchema(w.Context(), w.OpenTable(format.DefaultMetadataTable), format.DefaultMetadataTable, "a", time.Second, func(m *recordpb.TableSchema) error {
				m.Families = append(m.Families, strings.Repeat("g", i+1))
				return nil
			}))
			w.After(maxAge + 1)
			_, err = table.Schema.Fresh(w.Context())
			w.Must(err)
		}
		for row, qualifier := range map[string]string{GCRowKey: safePointQualifier, SchemaRowPrefix + "a": SchemaQualifier, FamiliesRowPrefix + "a": FamiliesQualifier} {
			if cells := w.Row(format.DefaultMetadataTable, row)[DeployFamily]; len(cells) != 1 || cells[0].Timestamp != 0 || cells[0].Column != DeployFamily+":"+qualifier {
				t.Errorf("row %s has %v", row, cells)
			}
		}
	})
}
