package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// TestExpiries: from when on reads do not show a value.
func TestExpiries(t *testing.T) {
	e := ExpiriesOf(&recordpb.TableSchema{Expiries: []*recordpb.FamilyExpiry{{Family: "f", AfterMicros: 10, SinceTs: 5}, {Family: "g", AfterMicros: 1}, {Family: "h"}, {Family: "i", AfterMicros: -1}}})
	if want := (Expiries{"f": {After: 10, Since: 5}, "g": {After: 1}}); !maps.Equal(e, want) {
		t.Errorf("expiries %v, want %v", e, want)
	}
	if got := ExpiriesOf(&recordpb.TableSchema{}); got != nil {
		t.Errorf("none became %v", got)
	}
	for _, tt := range []struct {
		family       string
		commit, read tso.Timestamp
		want         bool
	}{{"f", 100, 109, false}, {"f", 100, 110, true}, {"f", 100, 111, true}, {"x", 100, 1000, false}} {
		if e.Expired(tt.family, tt.commit, tt.read) != tt.want {
			t.Errorf("%s committed at %d, read at %d: expired %t", tt.family, tt.commit, tt.read, !tt.want)
		}
	}
	if until, ok := e.Until("f", 100); until != 110 || !ok {
		t.Errorf("until %d, %t", until, ok)
	}
	items := func(at ...bigtable.Timestamp) (all []bigtable.ReadItem) {
		for _, ts := range at {
			all = append(all, bigtable.ReadItem{Timestamp: ts})
		}
		return all
	}
	for _, tt := range []struct {
		row  bigtable.Row
		want tso.Timestamp
	}{
		{nil, 0}, {bigtable.Row{"x": items(100)}, 0}, {bigtable.Row{"f": items(100)}, 110}, {bigtable.Row{"f": items(100, 98, 99)}, 108},
		{bigtable.Row{"f": items(90, 91, 95)}, 101}, {bigtable.Row{"f": items(98), "g": items(104, 100)}, 101}, {bigtable.Row{"f": items(98), "g": items(104)}, 105},
		{bigtable.Row{"f": items(format.PlainBefore)}, 0}, {bigtable.Row{"f": items(format.PlainBefore - 1)}, tso.Timestamp(format.PlainBefore) + 9},
	} {
		if got := e.EarliestUntil(tt.row, 100); got != tt.want {
			t.Errorf("%v: the first expires at %d, want %d", tt.row, got, tt.want)
		}
	}
}

// TestEndExpiry: of the values that an expiry hid, those stay expired that a collector may have
// removed. That is so after any number of changes.
func TestEndExpiry(t *testing.T) {
	m := &recordpb.TableSchema{}
	change := func(after, now, drained, draining int64) Expiry {
		EndExpiry(m, "f", &recordpb.SafePoint{DrainedTs: drained, DrainingTs: draining}, tso.Timestamp(now))
		EndExpiry(m, "g", &recordpb.SafePoint{DrainedTs: drained, DrainingTs: draining}, tso.Timestamp(now))
		if after > 0 {
			m.Expiries = append(m.Expiries, &recordpb.FamilyExpiry{Family: "f", AfterMicros: after, SinceTs: now})
		}
		return ExpiriesOf(m)["f"]
	}
	for i, tt := range []struct {
		after, now, drained, draining int64
		want                          Expiry
	}{
		{100, 1000, 800, 900, Expiry{After: 100, Since: 1000}},                                  // the first
		{50, 2000, 900, 999, Expiry{After: 50, Since: 2000}},                                    // no collector relied on it
		{0, 3000, 1000, 2000, Expiry{Gone: 1950, GoneSince: 3000}},                              // one did, or soon will
		{200, 4000, 3000, 3000, Expiry{After: 200, Since: 4000, Gone: 1950, GoneSince: 3000}},   // there was none
		{300, 5000, 4100, 4050, Expiry{After: 300, Since: 5000, Gone: 3900, GoneSince: 5000}},   // a longer one
		{4000, 6000, 5500, 5500, Expiry{After: 4000, Since: 6000, Gone: 5200, GoneSince: 6000}}, // a much longer one
		{0, 7000, 6500, 6500, Expiry{Gone: 5200, GoneSince: 6000}},                              // what was gone stays
	} {
		if got := change(tt.after, tt.now, tt.drained, tt.draining); got != tt.want || len(m.Expired) > 1 {
			t.Errorf("change %d: %+v, want %+v; %v", i, got, tt.want, m.Expired)
		}
	}
	e := ExpiriesOf(m)
	if until, ok := e.Until("f", 5201); ok {
		t.Errorf("a younger value lasts until %d", until)
	}
	if !e.Expired("f", 5200, 5200) || e.Expired("f", 5201, 1<<50) {
		t.Error("the largest commit_ts of what is gone does not divide the values")
	}
}

// schemaOf returns a schema of families f and g, with columns, patterns and indexes.
func schemaOf(t *testing.T, edit func(*recordpb.TableSchema)) *Schema {
	t.Helper()
	record := &recordpb.TableSchema{FormatVersion: format.Version, Families: []string{"f", "g"}}
	edit(record)
	b, err := proto.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	s, err := DecodeSchema("t", b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func observed(family, qualifier string, weak bool, ids ...string) *recordpb.ObservedColumn {
	return &recordpb.ObservedColumn{Column: &recordpb.Column{Family: family, Qualifier: []byte(qualifier)}, Observers: ids, Weak: weak}
}

// TestRegistrations: which observers a column has, of its own and of patterns that it is in.
func TestRegistrations(t *testing.T) {
	plain := schemaOf(t, func(m *recordpb.TableSchema) {
		m.Observed = []*recordpb.ObservedColumn{observed("f", "q", false, "o"), observed("f", "w", true, "p")}
	})
	long := strings.Repeat("x", format.MaxColumnKey-len(format.AckFamily)-len("f")-len("::/")-len("ab"))
	patterns := schemaOf(t, func(m *recordpb.TableSchema) {
		m.Observed = []*recordpb.ObservedColumn{observed("f", "q", false, "o"), observed("f*", "q", false, "a"), observed("f*", "", false, "ab", "abc"), observed("g*", "", false)}
	})
	for _, tt := range []struct {
		schema            *Schema
		family, qualifier string
		ids               string
		weak, ok          bool
	}{
		{plain, "f", "q", "o", false, true}, {plain, "f", "w", "p", true, true}, {plain, "f", "x", "", false, false},
		{patterns, "f", "q", "o a ab abc", false, true}, {patterns, "f", "qq", "a ab abc", false, true}, {patterns, "f", "z", "ab abc", false, true},
		{patterns, "g", "q", "", false, true}, {patterns, "h", "q", "", false, false},
		{patterns, "f", long, "ab", false, true}, {patterns, "f", long + "x", "", false, false},
	} {
		c := format.Column{Family: tt.family, Qualifier: tt.qualifier}
		r, ok := tt.schema.Registration(c)
		if strings.Join(r.Observers, " ") != tt.ids || r.Weak != tt.weak || ok != tt.ok || tt.schema.IsObserved(c) != tt.ok {
			t.Errorf("%.20v has %v, %t; observed %t", c, r, ok, tt.schema.IsObserved(c))
		}
		cell := format.Cell{Table: "t", Row: "r", Family: tt.family, Qualifier: tt.qualifier}
		if err := tt.schema.checkNames(cell); errors.Is(err, format.ErrLimit) != strings.HasPrefix(tt.qualifier, long) || err != nil && !strings.Contains(err.Error(), fmt.Sprint(format.MaxColumnKey+1)) {
			t.Errorf("%.20v: %.200v", c, err)
		}
	}
	if got := (&Schema{Families: []string{"f", format.AckFamily}}).DataFamilies(); !slices.Equal(got, []string{"f"}) {
		t.Errorf("data families %v", got)
	}
}

// TestCheckWrite: which writes a schema refuses.
func TestCheckWrite(t *testing.T) {
	long := strings.Repeat("x", format.MaxColumnKey-len(format.AckFamily)-len("f")-len("::/"))
	s := schemaOf(t, func(m *recordpb.TableSchema) {
		m.Observed = []*recordpb.ObservedColumn{observed("f", "weak", true, "o"), observed("f*", "x", false, "o")}
		m.Indexes = []*recordpb.ColumnIndex{{Name: "other", Entries: "u/i"}, {Name: "index", Entries: "t/i", Columns: []*recordpb.Column{{Family: "g", Qualifier: []byte("a")}, {Family: "g", Qualifier: []byte("b")}}}}
	})
	for _, tt := range []struct {
		family, qualifier string
		kind              format.Kind
		keeps             []string
		want              error
	}{
		{"f", "q", format.KindPut, nil, nil}, {"h", "q", format.KindPut, nil, format.ErrSchema}, {"h", "q", format.KindLock, nil, format.ErrSchema},
		{format.AckFamily, "q", format.KindPut, nil, nil},
		{"f", "weak", format.KindPut, nil, format.ErrSchema}, {"f", "weak", format.KindDelete, nil, format.ErrSchema}, {"f", "weak", format.KindLock, nil, nil},
		{"f", long, format.KindPut, nil, format.ErrLimit}, {"f", long, format.KindDelete, nil, nil}, {"f", long, format.KindLock, nil, nil},
		{"g", "b", format.KindPut, nil, format.ErrSchema}, {"g", "b", format.KindDelete, []string{"u/i"}, format.ErrSchema}, {"g", "b", format.KindLock, nil, nil},
		{"g", "b", format.KindPut, []string{"u/i", "t/i"}, nil}, {"g", "c", format.KindPut, nil, nil}, {"f", "a", format.KindPut, nil, nil},
	} {
		w := &Write{Cell: format.Cell{Table: "t", Row: "r", Family: tt.family, Qualifier: tt.qualifier}, Kind: tt.kind}
		if err := s.CheckWrite("t", w, tt.keeps); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%v of %s:%.10s with %v: %v, want %v", tt.kind, tt.family, tt.qualifier, tt.keeps, err, tt.want)
		}
	}
	for missing, sel := range map[string]Selection{
		"":  {Columns: []format.Column{{Family: "f"}, {Family: format.AckFamily}}, Ranges: []QualifierRange{{Family: "g"}}},
		"h": {Columns: []format.Column{{Family: "f"}, {Family: "h"}}}, "i": {Ranges: []QualifierRange{{Family: "g"}, {Family: "i"}}, Columns: []format.Column{{Family: "h"}}},
	} {
		if got := s.missing(sel); got != missing {
			t.Errorf("%+v: %q is missing, want %q", sel, got, missing)
		}
	}
}

// TestSchemaRecords: what a record becomes, and which format version it needs.
func TestSchemaRecords(t *testing.T) {
	index := &recordpb.ColumnIndex{Name: "i", Entries: "t/e", Columns: []*recordpb.Column{{Family: "f", Qualifier: []byte("q")}}}
	got := schemaOf(t, func(m *recordpb.TableSchema) {
		m.Journal = recordpb.Journal_JOURNAL_LATER
		m.Indexes = []*recordpb.ColumnIndex{index}
		m.Expiries = []*recordpb.FamilyExpiry{{Family: "f", AfterMicros: 1}}
		m.Observed = []*recordpb.ObservedColumn{observed("f", "q", true, "o"), observed("f*", "p", false)}
	})
	want := &Schema{Families: []string{"f", "g", format.AckFamily}, Journal: recordpb.Journal_JOURNAL_LATER, Indexes: []Index{{"i", []format.Column{{Family: "f", Qualifier: "q"}}, "t/e"}}, Expiries: Expiries{"f": {After: 1}},
		Observed: map[format.Column]Registration{{Family: "f", Qualifier: "q"}: {[]string{"o"}, true}, {Family: "f*", Qualifier: "p"}: {}}, patterns: []format.Column{{Family: "f*", Qualifier: "p"}}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Schema{}), cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	for _, tt := range []struct {
		value []byte
		want  error
	}{{[]byte{255}, format.ErrCorrupt}, {nil, format.ErrCorrupt}, {[]byte{8, 100}, format.ErrFormatVersion}} {
		if s, err := DecodeSchema("t", tt.value); s != nil || !errors.Is(err, tt.want) {
			t.Errorf("%v: %v, %v", tt.value, s, err)
		}
	}
	for check, want := range map[string]string{"": "false", "1 x f g": "true f g", "1 x f": "true f", "1 x": "false", "2 x f": "false"} {
		families, ok := checkedFamilies(check)
		if got := strings.TrimSpace(fmt.Sprint(ok) + " " + strings.Join(families, " ")); got != want {
			t.Errorf("%q: %s", check, got)
		}
	}
}

// TestMergeOfSchemas: an answer that arrives late does not undo what a later read found. Families come
// from the later verification, if the client verifies them.
func TestMergeOfSchemas(t *testing.T) {
	now := time.Now()
	old := &Schema{Families: []string{"old"}, readNumber: 5, loaded: now, reloadAge: 1, check: "old", Adopted: 1}
	if s := (&Schema{}); s.merge(nil, true) != s {
		t.Error("the first schema changed")
	}
	for _, tt := range []struct {
		number   uint64
		loaded   time.Duration
		verified bool
		want     string
	}{
		{6, 1, true, "new new new"}, {6, 1, false, "new new new"}, {4, 1, true, "old new new"}, {4, 1, false, "old old new"},
		{6, -1, true, "new old old"}, {6, -1, false, "new new old"}, {5, 0, true, "new new new"}, {4, -1, true, "old old old"},
	} {
		s := &Schema{Families: []string{"new"}, readNumber: tt.number, loaded: now.Add(tt.loaded), reloadAge: 2, check: "new", Adopted: 2}
		got := s.merge(old, tt.verified)
		record := map[tso.Timestamp]string{1: "old", 2: "new"}[got.Adopted]
		if says := record + " " + got.Families[0] + " " + got.check; says != tt.want || (got.check == "new") != (got.reloadAge == 2 && got.loaded.Equal(s.loaded)) || got == s {
			t.Errorf("%+v: %s, %+v", tt, says, got)
		}
	}
}

// TestCheckPolicy: a policy of Bigtable may delete what is live. An empty one does so in the emulator.
func TestCheckPolicy(t *testing.T) {
	for _, host := range []string{"", "localhost"} {
		t.Setenv("BIGTABLE_EMULATOR_HOST", host)
		for policy, want := range map[string]bool{NoPolicy: true, EmptyPolicy: host == "", "versions() > 1": false} {
			if err := CheckPolicy("t", bigtable.FamilyInfo{Name: "f", GCPolicy: policy}); (err == nil) != want || err != nil && !errors.Is(err, format.ErrSchema) {
				t.Errorf("policy %q, emulator %q: %v", policy, host, err)
			}
		}
	}
}

// TestAttempts: which failed reads are worth another try, and what the last error says.
func TestAttempts(t *testing.T) {
	s, err := NewRequests(&scriptedTable{}, Config{Logger: slog.New(slog.DiscardHandler), Backoff: Backoff{1, 1}})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("why"))
	wrap := func(code codes.Code) error { return WrapRPC(t.Context(), "read", "t", status.Error(code, "x")) }
	for code, want := range map[codes.Code]bool{codes.Unavailable: true, codes.Aborted: true, codes.DeadlineExceeded: true, codes.Internal: true, codes.PermissionDenied: false, codes.ResourceExhausted: false, codes.Unknown: false} {
		if worthRetrying(t.Context(), wrap(code)) != want || worthRetrying(ended, wrap(code)) || CutShort(t.Context(), wrap(code)) != want {
			t.Errorf("%v is worth another try: %t", code, !want)
		}
		if worthRetrying(t.Context(), status.Error(code, "x")) {
			t.Errorf("%v that is not of Bigtable is worth another try", code)
		}
	}
	if CutShort(t.Context(), nil) {
		t.Error("an answer was cut short")
	}
	a := s.NewTable("t").attempts()
	if err := a.again(ended, wrap(codes.Unavailable)); status.Code(errors.Unwrap(err)) == codes.OK && !strings.Contains(err.Error(), "x") || errors.Is(err, context.Canceled) {
		t.Errorf("the context ended the first try: %v", err)
	}
	a = s.NewTable("t").attempts()
	if err := a.again(t.Context(), wrap(codes.Unavailable)); err != nil {
		t.Error(err)
	}
	if err := a.again(t.Context(), wrap(codes.PermissionDenied)); err == nil || strings.Contains(err.Error(), "attempts") {
		t.Errorf("refused: %v", err)
	}
	err = a.again(ended, WrapRPC(ended, "read", "t", context.Canceled))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `read on table "t": 3 attempts failed`) || !strings.Contains(err.Error(), "Unavailable") || !strings.Contains(err.Error(), "why") {
		t.Errorf("the third: %v", err)
	}
	s.EndClose()
	if err := a.again(t.Context(), wrap(codes.Unavailable)); !errors.Is(err, format.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
