package changes

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

func observedColumn(family, qualifier string, weak bool, observers ...string) *recordpb.ObservedColumn {
	return &recordpb.ObservedColumn{Column: &recordpb.Column{Family: family, Qualifier: []byte(qualifier)}, Observers: observers, Weak: weak}
}

// TestRegistrationsExactly: what a registration makes of a schema record, and what it contradicts.
func TestRegistrationsExactly(t *testing.T) {
	schema := func() *recordpb.TableSchema {
		return &recordpb.TableSchema{Families: []string{"f", "g"}, Observed: []*recordpb.ObservedColumn{
			observedColumn("f", "strong", false, "a", "b"), observedColumn("f", "weak", true, "w"), observedColumn("g*", "p", false, "p"),
		}}
	}
	column := func(family, qualifier string) format.Column {
		return format.Column{Family: family, Qualifier: qualifier}
	}
	for _, tt := range []struct {
		name     string
		column   format.Column
		observer string
		weak     bool
		err      error
		says     string
		want     func(*recordpb.TableSchema)
	}{
		{"another observer", column("f", "strong"), "c", false, nil, "", func(m *recordpb.TableSchema) { m.Observed[0].Observers = []string{"a", "b", "c"} }},
		{"again", column("f", "strong"), "a", false, nil, "", func(*recordpb.TableSchema) {}},
		{"weak, again", column("f", "weak"), "w", true, nil, "", func(*recordpb.TableSchema) {}},
		{"another weak observer", column("f", "weak"), "v", true, nil, "", func(m *recordpb.TableSchema) { m.Observed[1].Observers = []string{"w", "v"} }},
		{"another column", column("g", "q"), "c", false, nil, "", func(m *recordpb.TableSchema) { m.Observed = append(m.Observed, observedColumn("g", "q", false, "c")) }},
		{"another weak column", column("f", "q"), "c", true, nil, "", func(m *recordpb.TableSchema) { m.Observed = append(m.Observed, observedColumn("f", "q", true, "c")) }},
		{"a column of a pattern", column("g", "px"), "c", false, nil, "", func(m *recordpb.TableSchema) { m.Observed = append(m.Observed, observedColumn("g", "px", false, "c")) }},
		{"a pattern", format.Pattern("f", "s"), "c", false, nil, "", func(m *recordpb.TableSchema) {
			m.Observed = append(m.Observed, observedColumn("f*", "s", false, "c"))
		}},
		{"no family", column("h", "q"), "c", false, format.ErrSchema, `no family "h"; known are f, g`, nil},
		{"no family of a pattern", format.Pattern("h", "q"), "c", false, format.ErrSchema, `no family "h"`, nil},
		{"the id of another column", column("g", "q"), "b", false, ErrRegistration, "registered for column f:strong", nil},
		{"strong for weak", column("f", "strong"), "c", true, ErrRegistration, "strong notifications, by a, b", nil},
		{"weak for strong", column("f", "weak"), "c", false, ErrRegistration, "weak notifications, by w", nil},
		{"weak, in a pattern", column("g", "px"), "c", true, ErrRegistration, "g*:p is registered for strong ones", nil},
		{"weak, beside a pattern", column("g", "x"), "c", true, nil, "", func(m *recordpb.TableSchema) { m.Observed = append(m.Observed, observedColumn("g", "x", true, "c")) }},
		{"a pattern with a weak column", format.Pattern("f", "w"), "c", false, ErrRegistration, "f:weak is registered for weak ones", nil},
	} {
		m, want := schema(), schema()
		err := register(m, "t", tt.column, tt.observer, tt.weak)
		if !errors.Is(err, tt.err) || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.want != nil {
			tt.want(want)
		}
		if d := cmp.Diff(want, m, protocmp.Transform()); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
	for _, tt := range []struct {
		observer string
		found    bool
		want     func(*recordpb.TableSchema)
	}{
		{"a", true, func(m *recordpb.TableSchema) { m.Observed[0].Observers = []string{"b"} }},
		{"w", true, func(m *recordpb.TableSchema) { m.Observed = slices.Delete(m.Observed, 1, 2) }},
		{"none", false, func(*recordpb.TableSchema) {}},
	} {
		m, want := schema(), schema()
		tt.want(want)
		if found := unregister(m, tt.observer); found != tt.found || !proto.Equal(m, want) {
			t.Errorf("unregister %s: %t, %v", tt.observer, found, m)
		}
	}
}

// TestCheckRegistration: names that no table accepts are refused, with the reason.
func TestCheckRegistration(t *testing.T) {
	c := format.Column{Family: "f", Qualifier: "q"}
	longest := format.MaxColumnKey - len(format.AckColumn(format.Column{Family: "f"}, "o").Key())
	for _, tt := range []struct {
		table    string
		column   format.Column
		observer string
		err      error
	}{
		{"t", c, "o", nil},
		{"t", format.Pattern("f", "q"), "o", nil},
		{"t", format.Column{Family: "f", Qualifier: strings.Repeat("q", longest)}, "o", nil},
		{"t", format.Column{Family: "f", Qualifier: strings.Repeat("q", longest+1)}, "o", format.ErrLimit},
		{"", c, "o", format.ErrInvalid},
		{"t", format.Column{Qualifier: "q"}, "o", format.ErrInvalid},
		{"t", c, "", format.ErrInvalid},
	} {
		if err := CheckRegistration(tt.table, tt.column, tt.observer); !errors.Is(err, tt.err) {
			t.Errorf("%q %d %q: %v, want %v", tt.table, len(tt.column.Qualifier), tt.observer, err, tt.err)
		}
	}
}

// TestWatching: the observers of a column are those of the column and of the patterns that it is in, if
// they can acknowledge its changes.
func TestWatching(t *testing.T) {
	long := strings.Repeat("o", 90)
	name := strings.Repeat("q", format.MaxColumnKey-len(format.AckColumn(format.Column{Family: "f"}, "").Key())-50)
	all := []ObservedColumn{
		{Table: "t", Column: format.Column{Family: "f", Qualifier: "q"}, Observers: []string{"b"}},
		{Table: "t", Column: format.Pattern("f", ""), Observers: []string{"a", long}},
		{Table: "t", Column: format.Column{Family: "f", Qualifier: "weak"}, Observers: []string{"w"}, Weak: true},
		{Table: "t", Column: format.Column{Family: "g", Qualifier: "init"}},
		{Table: "u", Column: format.Column{Family: "f", Qualifier: "q"}, Observers: []string{"c"}},
		{Table: "v", Column: format.Pattern("f", ""), Observers: []string{long}},
		{Table: "y", Column: format.Column{Family: "f", Qualifier: "weak"}, Observers: []string{"w"}, Weak: true},
		{Table: "y", Column: format.Pattern("f", ""), Observers: []string{"a"}},
		{Table: "z", Column: format.Column{Family: "f", Qualifier: name}, Observers: []string{"a"}},
		{Table: "z", Column: format.Pattern("f", ""), Observers: []string{long}},
	}
	for _, tt := range []struct {
		table, family, qualifier string
		observers                string
		weak, ok                 bool
		cannot                   string
	}{
		{"t", "f", "q", "a b " + long, false, true, ""},
		{"t", "f", "x", "a " + long, false, true, ""},
		{"t", "f", name, "a", false, true, long},
		{"t", "f", "weak", "a " + long + " w", true, true, ""},
		{"t", "g", "init", "", false, true, ""},
		{"t", "g", "x", "", false, false, ""},
		{"u", "f", "q", "c", false, true, ""},
		{"v", "f", name, "", false, false, long},
		{"v", "g", name, "", false, false, ""},
		{"w", "f", name, "", false, false, ""},
		{"y", "f", "weak", "a w", true, true, ""},
		{"z", "f", name, "a", false, true, long},
	} {
		c := format.Column{Family: tt.family, Qualifier: tt.qualifier}
		want := ObservedColumn{Table: tt.table, Column: c, Observers: strings.Fields(tt.observers), Weak: tt.weak}
		got, ok := Watching(all, tt.table, c)
		if !slices.Equal(got.Observers, want.Observers) || got.Weak != want.Weak || got.Table != want.Table || got.Column != c || ok != tt.ok {
			t.Errorf("%.5s: %+v, %t", tt.qualifier, got, ok)
		}
		if id := CannotAcknowledge(all, format.Cell{Table: tt.table, Row: "r", Family: tt.family, Qualifier: tt.qualifier}); id != tt.cannot {
			t.Errorf("%.5s: %q cannot acknowledge", tt.qualifier, id)
		}
	}
}
