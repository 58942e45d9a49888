package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

const (
	recordOnly = "scan meta[schema/a]"
	withCheck  = "scan meta[schema/a families/a]"
)

// TestSchemaSource: when a client reads the schema of a table again, and what it asks the admin service.
func TestSchemaSource(t *testing.T) {
	const maxAge = time.Minute
	inWorld(t, func(w *world) {
		w.schema(&recordpb.TableSchema{Families: []string{"f"}})
		s := w.store(Config{SchemaMaxAge: maxAge, Admin: w.Admin})
		table, err := s.Table(w.Context(), "a")
		w.Must(err)
		src := &table.Schema
		w.Expect("the first", withCheck+", describe")
		families := func(want ...string) {
			w.Helper()
			if got := src.latest.Load().Families; !slices.Equal(got, want) {
				t.Errorf("families %v, want %v", got, want)
			}
		}
		families(format.AckFamily, "f")
		again, err := s.Table(w.Context(), "a")
		if w.Must(err); again != table {
			t.Error("another table")
		}
		fresh := func(what, did string) {
			w.Helper()
			if _, err := src.Fresh(w.Context()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			w.Expect(what, did)
		}
		w.After(maxAge)
		fresh("at its age", "")
		w.After(1)
		fresh("too old", withCheck+", describe, change meta/families/a")
		check := string(w.get(FamiliesRowPrefix + "a"))
		if families, ok := checkedFamilies(check); !ok || !slices.Equal(families, []string{format.AckFamily, "f"}) {
			t.Errorf("stored check %q", check)
		}
		w.After(maxAge + 1)
		fresh("too old again", withCheck+", describe, change meta/families/a")
		if string(w.get(FamiliesRowPrefix+"a")) == check {
			t.Error("the check is the same")
		}
		// Another client has checked, and its result counts.
		w.set(FamiliesRowPrefix+"a", FamiliesQualifier, []byte("1 other f g"))
		w.After(maxAge + 1)
		fresh("another client's check", withCheck)
		families("f", "g")
		w.After(maxAge + 1)
		fresh("the same again", withCheck+", describe, change meta/families/a")
		families(format.AckFamily, "f")
		w.set(FamiliesRowPrefix+"a", FamiliesQualifier, []byte("2 other h"))
		w.After(maxAge + 1)
		fresh("a check of another version", withCheck+", describe, change meta/families/a")
		// Newer and Reload ask the admin service themselves, and store a result that is another one.
		if _, err := src.Newer(w.Context(), src.latest.Load()); err != nil {
			t.Error(err)
		}
		w.Expect("newer", withCheck+", describe")
		w.Must(w.Admin.CreateColumnFamily(w.Context(), "a", "g"))
		w.Must(src.Reload(w.Context()))
		w.Expect("another family", withCheck+", describe, change meta/families/a")
		families(format.AckFamily, "f", "g")
		old := *src.latest.Load()
		old.loaded = old.loaded.Add(-1)
		if got, err := src.Newer(w.Context(), &old); err != nil || got != src.latest.Load() {
			t.Errorf("newer than an old one: %v, %v", got, err)
		}
		w.Expect("newer than an old one", "")
		// Reads of everything else.
		w.Must(src.CheckRead(w.Context(), Selection{Columns: []format.Column{{Family: "g"}}}))
		w.Expect("a known family", "")
		w.Must(w.Admin.CreateColumnFamily(w.Context(), "a", "h"))
		w.Must(src.CheckRead(w.Context(), Selection{Columns: []format.Column{{Family: "h"}}}))
		w.Expect("a new family", withCheck+", describe, change meta/families/a")
		if err := src.CheckRead(w.Context(), Selection{Columns: []format.Column{{Family: "i"}}}); !errors.Is(err, format.ErrSchema) || !strings.Contains(err.Error(), `no family "i"`) {
			t.Error(err)
		}
		w.Expect("no family", withCheck+", describe")
		w.Inject("scan", denied)
		if err := src.CheckRead(w.Context(), Selection{Columns: []format.Column{{Family: "i"}}}); !Permanent(err) {
			t.Error(err)
		}
		w.Did()
		// The result of a check whose storing fails counts for this client.
		w.set(FamiliesRowPrefix+"a", FamiliesQualifier, []byte("1 again f"))
		w.After(maxAge + 1)
		fresh("another client's check", withCheck)
		w.Inject("change", lost)
		w.After(maxAge + 1)
		fresh("not stored", withCheck+", describe, change meta/families/a")
		families(format.AckFamily, "f", "g", "h")
		w.After(maxAge + 1)
		fresh("so it asks again", withCheck+", describe, change meta/families/a")
		// Errors.
		w.After(maxAge + 1)
		w.Inject("describe", denied)
		if _, err := src.Fresh(w.Context()); !Permanent(err) {
			t.Error(err)
		}
		w.Did()
		w.Must(w.Admin.DeleteColumnFamily(w.Context(), "a", format.MarkFamily))
		if _, err := src.Fresh(w.Context()); !errors.Is(err, format.ErrSchema) || !strings.Contains(err.Error(), "families _mark are missing") {
			t.Error(err)
		}
		w.Must(w.Admin.SetGCPolicy(w.Context(), "a", "f", bigtable.MaxVersionsPolicy(1)))
		if _, err := src.Fresh(w.Context()); !errors.Is(err, format.ErrSchema) || !strings.Contains(err.Error(), "policy") {
			t.Error(err)
		}
	})
}

// TestSchemaQuota: if the quota of the admin service is used up, a client tries again, and uses the
// check that another client stores meanwhile.
func TestSchemaQuota(t *testing.T) {
	exhausted := status.Error(codes.ResourceExhausted, "quota")
	inWorld(t, func(w *world) {
		w.schema(&recordpb.TableSchema{Families: []string{"f"}})
		s := w.store(Config{Admin: w.Admin})
		w.Inject("describe", exhausted, exhausted)
		began := time.Now()
		if _, err := s.Table(w.Context(), "a"); err != nil {
			t.Error(err)
		}
		w.Expect("two refusals", withCheck+", describe, "+withCheck+", describe, "+withCheck+", describe, change meta/families/a")
		if d := time.Since(began); d <= 0 || d > time.Second {
			t.Errorf("it paused for %v", d)
		}
		if len(s.refused) != 0 {
			t.Error("it keeps other tables waiting")
		}
		table, src := s.tables["a"], &s.tables["a"].Schema
		w.Inject("describe", exhausted)
		done := make(chan error)
		s.refused <- struct{}{} // another table waits for the quota
		go func() { _, err := src.Newer(w.Context(), src.latest.Load()); done <- err }()
		w.After(time.Hour)
		w.Expect("another table waits", withCheck+", describe")
		w.set(FamiliesRowPrefix+table.Name, FamiliesQualifier, []byte("1 other f x"))
		<-s.refused
		w.Must(<-done)
		w.Expect("another client's check", withCheck)
		if got := src.latest.Load().Families; !slices.Equal(got, []string{"f", "x"}) {
			t.Errorf("families %v", got)
		}
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		w.Inject("describe", slices.Repeat([]error{exhausted}, 1000)...)
		if _, err := src.Newer(ctx, src.latest.Load()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "verifying the families") || !strings.Contains(err.Error(), "quota") {
			t.Error(err)
		}
		if n := strings.Count(strings.Join(w.Did(), ","), "describe"); n < 5 || n > 40 {
			t.Errorf("%d requests in a minute", n)
		}
		ctx, cancel = context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		s.refused <- struct{}{}
		if _, err := src.Newer(ctx, src.latest.Load()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "quota") {
			t.Error(err)
		}
		w.Inject("describe")
	})
}

// TestSchemaForReads: a read needs a young record, but no families. The background reads it before it is
// too old.
func TestSchemaForReads(t *testing.T) {
	const maxAge = time.Minute
	for _, admin := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.schema(&recordpb.TableSchema{Families: []string{"f"}, Expiries: []*recordpb.FamilyExpiry{{Family: "f", AfterMicros: 1}}})
			cfg, scan, reload := Config{SchemaMaxAge: maxAge}, recordOnly, recordOnly
			if admin {
				cfg.Admin, scan, reload = w.Admin, withCheck, withCheck+", describe, change meta/families/a"
			}
			s := w.store(cfg)
			unopened := s.NewTable("a")
			if e, err := unopened.Schema.FreshExpiries(w.Context()); e != nil || err != nil {
				t.Errorf("a table that was not opened: %v, %v", e, err)
			}
			table, err := s.Table(w.Context(), "a")
			w.Must(err)
			src := &table.Schema
			w.Did()
			expiries := func(what string, after tso.Timestamp, did string) {
				w.Helper()
				if e, err := src.FreshExpiries(w.Context()); err != nil || e["f"].After != after || src.Expiries()["f"].After != after {
					t.Errorf("%s: %v, %v", what, e, err)
				}
				w.Expect(what, did)
			}
			w.schema(&recordpb.TableSchema{Families: []string{"f", "g"}, Expiries: []*recordpb.FamilyExpiry{{Family: "f", AfterMicros: 2}}, Journal: recordpb.Journal_JOURNAL_ALWAYS})
			w.After(maxAge)
			expiries("at its age", 1, "")
			w.After(1)
			expiries("too old", 2, scan)
			if got := src.latest.Load().Families; slices.Contains(got, "g") == admin || !src.Journaled() {
				t.Errorf("families %v", got)
			}
			w.After(maxAge + 1)
			w.Inject("scan", denied)
			if _, err := src.FreshExpiries(w.Context()); !Permanent(err) || len(src.reloading) != 0 {
				t.Errorf("denied: %v", err)
			}
			w.Did()
			src.reloading <- struct{}{}
			if _, err := src.FreshExpiries(canceled(w.Context())); !errors.Is(err, context.Canceled) {
				t.Errorf("another call reads it: %v", err)
			}
			<-src.reloading
			w.Must(src.Reload(w.Context()))
			w.Did()
			// The background.
			src.Current()
			w.After(0)
			w.Expect("young", "")
			w.After(maxAge*9/10 - 1)
			src.Current()
			w.After(0)
			w.Expect("almost young", "")
			w.After(maxAge / 10)
			before := src.latest.Load()
			if src.Current() != before {
				t.Error("it waits for the record")
			}
			src.Current() // one reload at a time
			w.After(0)
			w.Expect("old", reload)
			w.After(maxAge)
			w.Inject("scan", denied)
			src.Current()
			w.After(0)
			w.Expect("denied", scan)
			src.Current()
			w.After(time.Second - 1)
			w.Expect("not at once again", "")
			w.After(1)
			src.Current()
			w.After(0)
			w.Expect("again", reload)
			w.After(maxAge)
			s.Background.closed = true // it takes no work
			src.Current()
			if len(src.reloading) != 0 {
				t.Error("nobody reloads, but the place is taken")
			}
			s.Background.closed = false
		})
	}
}

// TestReplaceSchema: an edit of a record is not lost if another client edits it at the same time, and
// changes nothing if there is nothing to change.
func TestReplaceSchema(t *testing.T) {
	inWorld(t, func(w *world) {
		meta := w.OpenTable(format.DefaultMetadataTable)
		replace := func(edit func(*recordpb.TableSchema) error) error {
			return ReplaceSchema(w.Context(), meta, "m", "a", time.Second, edit)
		}
		stored := func() *recordpb.TableSchema {
			m := &recordpb.TableSchema{}
			w.Must(proto.Unmarshal(w.get(SchemaRowPrefix+"a"), m))
			return m
		}
		add := func(family string) func(*recordpb.TableSchema) error {
			return func(m *recordpb.TableSchema) error {
				if !slices.Contains(m.Families, family) {
					m.Families = append(m.Families, family)
				}
				return nil
			}
		}
		const read, change = "read meta/schema/a", "change meta/schema/a"
		w.Must(replace(add("f")))
		w.Expect("no record", read+", "+change)
		w.Must(replace(add("f")))
		w.Expect("nothing to change", read)
		w.Must(replace(func(*recordpb.TableSchema) error { return nil }))
		w.Expect("no edit", read)
		raced := false
		w.Must(replace(func(m *recordpb.TableSchema) error {
			if !raced {
				raced = true
				w.schema(&recordpb.TableSchema{Families: []string{"f", "other"}})
			}
			return add("g")(m)
		}))
		w.Expect("another client", read+", "+change+", "+read+", "+change)
		if got := stored(); !slices.Equal(got.Families, []string{"f", "other", "g"}) || got.FormatVersion != format.Version {
			t.Errorf("stored %v", got)
		}
		w.set(SchemaRowPrefix+"a", SchemaQualifier, nil)
		w.Must(w.Client.Open(format.DefaultMetadataTable).Apply(w.Context(), SchemaRowPrefix+"a", deleteRow()))
		raced = false
		w.Must(replace(func(m *recordpb.TableSchema) error {
			if !raced {
				raced = true
				w.schema(&recordpb.TableSchema{Families: []string{"first"}})
			}
			return add("g")(m)
		}))
		if got := stored(); !slices.Equal(got.Families, []string{"first", "g"}) {
			t.Errorf("stored %v", got)
		}
		w.Did()
		stop := errors.New("stop")
		if err := replace(func(*recordpb.TableSchema) error { return stop }); err != stop {
			t.Error(err)
		}
		w.Expect("stopped", read)
		for kind, want := range map[string]string{"read": read, "change": read + ", " + change} {
			w.Inject(kind, lost)
			if err := replace(add(kind)); !Transient(err) {
				t.Errorf("%s: %v", kind, err)
			}
			w.Expect(kind, want)
		}
		for kind, want := range map[string]string{"read": read, "change": read + ", " + change} {
			w.Inject(kind, errNever)
			if err := replace(add(kind)); status.Code(errors.Unwrap(err)) != codes.DeadlineExceeded && !Transient(err) {
				t.Errorf("%s: %v", kind, err)
			}
			w.Expect(kind, want)
		}
		for value, want := range map[string]error{"\xff": format.ErrCorrupt, "\x08\x63": format.ErrFormatVersion} {
			w.set(SchemaRowPrefix+"a", SchemaQualifier, []byte(value))
			if err := replace(add("x")); !errors.Is(err, want) {
				t.Errorf("%q: %v", value, err)
			}
		}
	})
}

func deleteRow() *bigtable.Mutation {
	m := bigtable.NewMutation()
	m.DeleteRow()
	return m
}
