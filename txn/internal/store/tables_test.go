package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// TestTables: tables that can be opened, and errors of those that cannot.
func TestTables(t *testing.T) {
	inWorld(t, func(w *world) {
		w.schema(&recordpb.TableSchema{Families: []string{"f"}})
		s := w.store(Config{})
		for name, want := range map[string]error{"": format.ErrInvalid, format.DefaultMetadataTable: format.ErrInvalid, "b": format.ErrNotInitialized} {
			if table, err := s.Table(w.Context(), name); table != nil || !errors.Is(err, want) || len(s.opening) != 0 {
				t.Errorf("%q: %v, %v", name, table, err)
			}
		}
		w.Did()
		tables := make(chan *Table)
		for range 5 {
			go func() { table, _ := s.Table(w.Context(), "a"); tables <- table }()
		}
		first := <-tables
		for range 4 {
			if table := <-tables; table == nil || table != first {
				t.Errorf("%p and %p", table, first)
			}
		}
		w.Expect("five calls", recordOnly)
		if len(s.opening) != 0 {
			t.Errorf("opening %v", s.opening)
		}
		w.set(SchemaRowPrefix+"b", SchemaQualifier, []byte{8, 1})
		if names, err := s.TableNames(w.Context()); err != nil || !slices.Equal(names, []string{"a", "b"}) {
			t.Errorf("names %v, %v", names, err)
		}
		var rows []string
		more := func(r bigtable.Row, v []byte) (bool, error) {
			rows = append(rows, fmt.Sprintf("%s %d", r.Key(), len(v)))
			return len(rows) != 2, nil
		}
		w.Must(s.MetadataRows(w.Context(), SchemaRowPrefix, SchemaQualifier, more))
		w.set(SchemaRowPrefix+"c", "other", nil)
		w.set(SchemaRowPrefix+"c", SchemaQualifier, nil)
		rows = append(rows, "x")
		w.Must(s.MetadataRows(w.Context(), SchemaRowPrefix, SchemaQualifier, more))
		if !slices.Equal(rows, []string{"schema/a 5", "schema/b 2", "x", "schema/a 5", "schema/b 2", "schema/c 0"}) {
			t.Errorf("rows %q", rows)
		}
		stop := errors.New("stop")
		if err := s.MetadataRows(w.Context(), SchemaRowPrefix, SchemaQualifier, func(bigtable.Row, []byte) (bool, error) { return true, stop }); err != stop {
			t.Error(err)
		}
		w.Inject("bulk", denied)
		if err := s.Mutate(w.Context(), map[string][]RowMutation{"a": {{Row: "r", Mut: bigtable.NewMutation(), Ops: 1}}, "none": {{Row: "r"}}}); !errors.Is(err, format.ErrNotInitialized) || !Permanent(err) {
			t.Error(err)
		}
		w.Did()
		pages := func(read func(context.Context, string, bigtable.RowSet, func(*Table) bigtable.Filter, func(*Table, []bigtable.Row) (bool, error)) error, table string) error {
			return read(w.Context(), table, nil, func(*Table) bigtable.Filter { return bigtable.PassAllFilter() }, func(*Table, []bigtable.Row) (bool, error) { return true, nil })
		}
		w.Inject("scan", lost)
		w.Must(pages(s.Pages, "a"))
		w.Expect("pages", "scan a[(∞,∞)], scan a[(∞,∞)]")
		w.Inject("scan", lost)
		if err := pages(s.TryPages, "a"); !Transient(err) {
			t.Error(err)
		}
		if err := pages(s.Pages, "b2"); !errors.Is(err, format.ErrNotInitialized) || s.open != 0 {
			t.Errorf("%v, %d open", err, s.open)
		}
		// The end: what is open may end first.
		w.Must(s.Enter())
		w.Must(s.Enter())
		if !s.BeginClose() || s.BeginClose() {
			t.Error("it begins to close once")
		}
		if err := s.Enter(); !errors.Is(err, format.ErrClosed) {
			t.Error(err)
		}
		if _, err := s.Table(w.Context(), "a"); err != nil {
			t.Errorf("while it closes: %v", err)
		}
		s.Leave()
		select {
		case <-s.idle:
			t.Error("one is open")
		default:
		}
		s.Leave()
		<-s.idle
		w.Must(s.Drain(w.Context()))
		s.EndClose()
		for what, err := range map[string]error{
			"table":    func() error { _, err := s.Table(w.Context(), "a"); return err }(),
			"names":    func() error { _, err := s.TableNames(w.Context()); return err }(),
			"metadata": s.MetadataRows(w.Context(), "", "", nil),
			"pages":    pages(s.Pages, "a"),
		} {
			if !errors.Is(err, format.ErrClosed) {
				t.Errorf("%s after the end: %v", what, err)
			}
		}
		other := w.store(Config{})
		w.Must(other.Enter())
		other.BeginClose()
		if err := other.Drain(canceled(w.Context())); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "neither committed nor rolled back") {
			t.Error(err)
		}
		idle := w.store(Config{})
		idle.BeginClose()
		<-idle.idle
		w.Must(idle.Drain(w.Context()))
		w.Must(w.Admin.DeleteTable(w.Context(), format.DefaultMetadataTable))
		if _, err := New(w.Context(), w, Config{}); !errors.Is(err, format.ErrNotInitialized) || !strings.Contains(err.Error(), "does not exist") {
			t.Error(err)
		}
	})
}

// TestOracleTimes: what a client makes of the oracle's answers.
func TestOracleTimes(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.store(Config{})
		c := &s.Clock
		w.After(time.Second)
		w.Inject("oracle", denied)
		if _, err := c.Timestamp(w.Context()); !errors.Is(err, denied) {
			t.Errorf("denied: %v", err)
		}
		if _, _, ok := c.ReadableWithin(time.Hour); ok || c.Now() != 0 {
			t.Errorf("now %d, readable %t, without an answer", c.Now(), ok)
		}
		s.SafePoint.resting.Store(true)
		before := s.Counters.Timestamps.Load()
		began := time.Now()
		ts, asked, err := c.CommitTimestamp(w.Context())
		if s.SafePoint.resting.Load() {
			t.Error("the client rests while it works")
		}
		if ts != filterBase+1 || !asked.Equal(began) || err != nil || c.Newest() != 0 || s.Counters.Timestamps.Load() != before+1 {
			t.Errorf("commit at %d, asked %v, %v; newest %d", ts, asked, err, c.Newest())
		}
		w.After(time.Millisecond)
		if c.Now() != ts+1000 {
			t.Errorf("now %d", c.Now()-ts)
		}
		if ts, err = c.Timestamp(w.Context()); ts != filterBase+2 || err != nil || c.Newest() != ts || !c.isStart {
			t.Errorf("start at %d, %v; newest %d", ts, err, c.Newest())
		}
		w.Did()
		cell := format.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "q"}
		for _, tt := range []struct {
			ts   tso.Timestamp
			did  string
			want error
		}{{c.Now(), "", nil}, {c.Now() + maxUnconfirmed, "", nil}, {c.Now() + maxUnconfirmed + 1, "oracle", format.ErrCorrupt}} {
			if err := c.Confirm(w.Context(), cell, tt.ts); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("a commit at %d: %v", tt.ts-filterBase, err)
			}
			w.Expect(fmt.Sprint(tt), tt.did)
		}
		w.now = c.Now() + 2*maxUnconfirmed
		w.Must(c.Confirm(w.Context(), cell, w.now+1))
		w.Expect("the oracle is ahead", "oracle")
		w.Inject("oracle", denied)
		if err := c.Confirm(w.Context(), cell, w.now+2*maxUnconfirmed); err == nil || errors.Is(err, format.ErrCorrupt) {
			t.Errorf("without the oracle: %v", err)
		}
		newest := c.Newest()
		for ts, want := range map[tso.Timestamp]error{tso.Min - 1: format.ErrInvalid, tso.Min: nil, tso.Max: nil, tso.Max + 1: format.ErrInvalid} {
			w.now = ts - 1
			if got, _, err := c.CommitTimestamp(w.Context()); !errors.Is(err, want) || want == nil && (err != nil || got != ts) {
				t.Errorf("the oracle answered %d: %d, %v", ts, got, err)
			}
		}
		w.Inject("oracle", denied)
		if ts, err := c.Timestamp(w.Context()); ts != 0 || err == nil || c.Newest() != newest {
			t.Errorf("failed: %d, %v", ts, err)
		}
		s.EndClose()
		if ts, err := c.Timestamp(w.Context()); ts != 0 || !errors.Is(err, format.ErrClosed) {
			t.Errorf("closed: %d, %v", ts, err)
		}
	})
}

// TestNotifiable: which cells can be notified. A client that does not know the observer reads the schema
// once more.
func TestNotifiable(t *testing.T) {
	inWorld(t, func(w *world) {
		record := &recordpb.TableSchema{Families: []string{"f"}, Observed: []*recordpb.ObservedColumn{observed("f", "strong", false, "o"), observed("f", "weak", true, "o")}}
		w.schema(record)
		s := w.store(Config{})
		_, err := s.Table(w.Context(), "a")
		w.Must(err)
		w.Did()
		for _, tt := range []struct {
			qualifier string
			weak      bool
			did       string
			want      string
		}{
			{"strong", false, "", ""}, {"strong", true, recordOnly, "takes no weak notifications"}, {"weak", true, "", ""}, {"weak", false, "", ""},
			{"none", false, recordOnly, "no observer is registered"}, {"none", true, recordOnly, "no observer is registered"},
		} {
			w.After(time.Microsecond)
			err := CheckNotifiable(w.Context(), s, format.Cell{Table: "a", Row: "r", Family: "f", Qualifier: tt.qualifier}, tt.weak)
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, format.ErrSchema) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%+v: %v", tt, err)
			}
			w.Expect(fmt.Sprint(tt), tt.did)
		}
		record.Observed = append(record.Observed, observed("f", "none", false, "o"), observed("f*", "x", false, "o"))
		w.schema(record)
		w.After(1)
		w.Must(CheckNotifiable(w.Context(), s, format.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "none"}, false))
		w.After(1)
		long := format.Cell{Table: "a", Row: "r", Family: "f", Qualifier: strings.Repeat("x", format.MaxColumnKey-8)}
		for cell, want := range map[format.Cell]error{{}: format.ErrInvalid, {Table: "a", Family: "f", Qualifier: "strong"}: format.ErrInvalid, {Table: "none", Row: "r", Family: "f"}: format.ErrNotInitialized, long: format.ErrLimit} {
			if err := CheckNotifiable(w.Context(), s, cell, false); !errors.Is(err, want) {
				t.Errorf("%.20v: %v", cell, err)
			}
		}
		w.Inject("scan", denied)
		if err := CheckNotifiable(w.Context(), s, format.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "y"}, false); !Permanent(err) {
			t.Error(err)
		}
		w.After(2 * time.Minute)
		w.Inject("scan", denied)
		if err := CheckNotifiable(w.Context(), s, format.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "weak"}, true); !Permanent(err) {
			t.Error(err)
		}
		// Notify cells: one mutation for cells of a row that follow each other.
		w.Did()
		var cells []format.Cell
		for _, c := range []string{"ra", "rb", "sa", "rc"} {
			cells = append(cells, format.Cell{Table: "a", Row: c[:1], Family: "f", Qualifier: c[1:]})
		}
		w.Must(WriteNotifications(w.Context(), s, cells, filterBase, []byte("v")))
		w.Expect("notify", "bulk a[r s r]")
		var stored []string
		w.Must(w.Client.Open("a").ReadRows(w.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
			for _, it := range r[format.NotifyFamily] {
				stored = append(stored, fmt.Sprintf("%s %s %s %d", r.Key(), it.Column, it.Value, tso.FromCell(it.Timestamp)-filterBase))
			}
			return true
		}))
		if !slices.Equal(stored, []string{"r _notify:f:a v 0", "r _notify:f:b v 0", "r _notify:f:c v 0", "s _notify:f:a v 0"}) {
			t.Errorf("stored %q", stored)
		}
		cells = nil
		for i := range 2*maxNotifyOps + 1 {
			cells = append(cells, format.Cell{Table: "a", Row: "t", Family: "f", Qualifier: fmt.Sprint(i)})
		}
		w.Must(WriteNotifications(w.Context(), s, cells, filterBase, nil))
		w.Expect("many", "bulk a[t t t]")
		w.Inject("bulk", denied)
		if err := WriteNotifications(w.Context(), s, cells, filterBase, nil); !Permanent(err) {
			t.Error(err)
		}
	})
}
