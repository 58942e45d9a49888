package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// newExpiryEnv makes table a, where the values of family f expire after a time, and those of
// family g never.
func newExpiryEnv(t *testing.T, after time.Duration) *txntest.Env {
	t.Helper()
	env := newGCEnv(t)
	env.CreateTable("a", "f", "g")
	setExpiry(t, env.Client, after)
	return env
}

func setExpiry(t *testing.T, c *txn.Client, after time.Duration) {
	t.Helper()
	if err := admin.SetExpiry(t.Context(), c, "a", "f", after); err != nil {
		t.Fatal(err)
	}
}

// waysToRead read f:q of a row of table a.
var waysToRead = map[string]func(ctx context.Context, c *txn.Client, s *txn.Snapshot, row string) (string, error){
	"Get": func(ctx context.Context, c *txn.Client, s *txn.Snapshot, row string) (string, error) {
		v, _, err := s.Table("a").Get(ctx, row, "f", "q")
		return string(v), err
	},
	"ReadRow": func(ctx context.Context, c *txn.Client, s *txn.Snapshot, row string) (string, error) {
		r, err := s.Table("a").ReadRow(ctx, row)
		return fqOf(r), err
	},
	"ReadRow of columns": func(ctx context.Context, c *txn.Client, s *txn.Snapshot, row string) (string, error) {
		r, err := s.Table("a").ReadRow(ctx, row, txn.Columns(txn.Column{Family: "f", Qualifier: "q"}))
		return fqOf(r), err
	},
	"ReadRows": func(ctx context.Context, c *txn.Client, s *txn.Snapshot, row string) (value string, err error) {
		for r, rerr := range s.Table("a").ReadRows(ctx, nil) {
			if err = rerr; err == nil && r.Key() == row {
				value = fqOf(r)
			}
		}
		return value, err
	},
}

func fqOf(r bigtable.Row) string {
	for _, item := range r["f"] {
		return string(item.Value)
	}
	return ""
}

// wantEverywhere reads f:q of a row in all ways.
func wantEverywhere(t *testing.T, c *txn.Client, s *txn.Snapshot, row, want string) {
	t.Helper()
	for way, read := range waysToRead {
		if got, err := read(t.Context(), c, s, row); err != nil || got != want {
			t.Errorf("%s: row %s at %d is %q, %v; want %q", way, row, s.ReadTS(), got, err, want)
		}
	}
}

// A value is absent from commit_ts plus the expiry on, in every way to read. Reads at earlier
// timestamps show it still. An expired value hides older versions.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newExpiryEnv(t, time.Hour)
		c := env.Client
		mustSet(t, c, "older", "r")
		commitTS, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("r", "f", "q", []byte("v"))
			tx.Table("a").Set("r", "g", "q", []byte("stays"))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// The read has to look for the value behind data of a transaction under way.
		for _, kind := range []string{"plain", "hidden plain"} {
			m := bigtable.NewMutation()
			m.Set("f", "q", bigtable.Time(time.Now()).TruncateToMilliseconds(), []byte(kind))
			if err := env.Bigtable.Open("a").Apply(t.Context(), kind, m); err != nil {
				t.Fatal(err)
			}
		}
		m := bigtable.NewMutation()
		orphan := commitTS.Cell()
		m.Set("f", "q", orphan, []byte("orphan"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), "hidden plain", m); err != nil {
			t.Fatal(err)
		}
		before := takeSnapshot(t, c)
		advance(time.Hour - time.Minute)
		last := takeSnapshot(t, c)
		// A plain write over a transaction's value is hidden, and stays so.
		m = bigtable.NewMutation()
		m.Set("f", "q", bigtable.Time(time.Now()).TruncateToMilliseconds(), []byte("plain and late"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), "r", m); err != nil {
			t.Fatal(err)
		}
		advance(2 * time.Minute)
		after := takeSnapshot(t, c)
		for row, value := range map[string]string{"r": "v", "plain": "plain", "hidden plain": "hidden plain"} {
			wantEverywhere(t, c, before, row, value)
			wantEverywhere(t, c, last, row, value)
			wantEverywhere(t, c, after, row, "")
		}
		until := commitTS.Add(time.Hour)
		wantEverywhere(t, c, takeSnapshot(t, c, txn.At(until-1)), "r", "v")
		wantEverywhere(t, c, takeSnapshot(t, c, txn.At(until)), "r", "")
		if v, ok, err := after.Table("a").Get(t.Context(), "r", "g", "q"); err != nil || !ok || string(v) != "stays" {
			t.Errorf("a family without expiry shows %q, %v", v, err)
		}
		wantLatest(t, c, "r", "absent")
		wantLatest(t, c, "plain", "absent")
		// A new value is shown again, and a transaction reads its own.
		tx := beginSet(t, c, "new", "r")
		if v, _, err := tx.Table("a").Get(t.Context(), "r", "f", "q"); err != nil || string(v) != "new" {
			t.Errorf("own write: %q, %v", v, err)
		}
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantLatest(t, c, "r", "new")
		m = bigtable.NewMutation()
		m.DeleteTimestampRange("f", "q", orphan, orphan+1000)
		if err := env.Bigtable.Open("a").Apply(t.Context(), "hidden plain", m); err != nil {
			t.Fatal(err)
		}
	})
}

// A client that was idle when an expiry was set honours it in its first read, in every way to read.
// Before the fix it showed what it knew to last, and read the schema beside that.
func TestExpirySetWhileIdle(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	for way, read := range waysToRead {
		synctest.Test(t, func(t *testing.T) {
			env := newGCEnv(t)
			env.CreateTable("a", "f", "g")
			mustSet(t, env.Client, "v", "r")
			idle := env.NewClient(txn.Config{TokenTTL: -1})
			if err := idle.CheckTable(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			setExpiry(t, env.Client, time.Hour)
			advance(2 * time.Hour)
			if got, err := read(t.Context(), idle, takeSnapshot(t, idle), "r"); err != nil || got != "" {
				t.Errorf("%s: %q, %v two hours after; it lasts one hour", way, got, err)
			}
		})
	}
}

// Columns that a transaction reads ahead expire as well.
func TestExpiryOfPrefetchedColumns(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		s := newPrefetchScene(t, txn.Config{})
		setExpiry(t, s.env.Client, time.Hour)
		advance(time.Hour + 2*time.Minute)
		// The first read after a pause begins to read the schema again.
		s.read(begin(t, s.c), "row6", "a")
		synctest.Wait()
		s.faults.Reset()
		tx := begin(t, s.c, txn.Named(page))
		for _, q := range []string{"a", "b", "c"} {
			if v, ok, err := tx.Table("a").Get(t.Context(), "row7", "f", q); ok || err != nil {
				t.Errorf("column %s is %q, %v", q, v, err)
			}
		}
		if n := s.faults.Count()[txntest.StepRead]; n != 1 {
			t.Errorf("%d reads, want 1 with all columns", n)
		}
		tx.Rollback()
	})
}

// The latest state and later snapshots of a client agree on what has expired, also if the
// snapshot takes an old timestamp.
func TestExpiryOfTheLatestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newExpiryEnv(t, time.Hour)
		c := env.NewClient(txn.Config{TokenTTL: -1})
		mustSet(t, c, "v", "r")
		wantLatest(t, c, "r", "v")
		advance(time.Hour + time.Second)
		wantLatest(t, c, "r", "absent")
		wantValue(t, takeSnapshot(t, c, txn.MaxStaleness(24*time.Hour)), "r", "")
		asked := c.Stats().Timestamps
		wantLatest(t, c, "r", "absent")
		if n := c.Stats().Timestamps - asked; n != 0 {
			t.Errorf("asked the oracle %d times for what it knows", n)
		}
		// A client that has not asked the oracle yet.
		m := bigtable.NewMutation()
		m.Set("f", "q", 1000, []byte("plain"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), "plain", m); err != nil {
			t.Fatal(err)
		}
		wantLatest(t, env.NewClient(txn.Config{TokenTTL: -1}), "plain", "absent")
	})
}

// A serializable transaction that has read a value commits before it expires, or not at all.
// Otherwise a snapshot between the two would see the value gone and the transaction not yet.
func TestExpiryOfSerializable(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	column := txn.Column{Family: "f", Qualifier: "q"}
	ways := map[string]func(ctx context.Context, tx *txn.Txn) error{
		"Get": func(ctx context.Context, tx *txn.Txn) error {
			_, _, err := tx.Table("a").Get(ctx, "r", "f", "q")
			return err
		},
		"Observe and Get": func(ctx context.Context, tx *txn.Txn) error {
			_, err := changes.Observe(ctx, tx, txn.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "q"})
			if err == nil {
				_, _, err = tx.Table("a").Get(ctx, "r", "f", "q")
			}
			return err
		},
	}
	for name, opts := range map[string][]txn.ReadOption{
		"": {txn.Columns(column)}, " of keys": {txn.Columns(column), txn.KeysOnly()}, " of first cells": {txn.Columns(column), txn.CellsPerRow(1)},
	} {
		ways["ReadRow"+name] = func(ctx context.Context, tx *txn.Txn) error {
			_, err := tx.Table("a").ReadRow(ctx, "r", opts...)
			return err
		}
		ways["ReadRows"+name] = func(ctx context.Context, tx *txn.Txn) (err error) {
			for _, err = range tx.Table("a").ReadRows(ctx, bigtable.RowList{"r"}, opts...) {
			}
			return err
		}
	}
	for name, read := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newGCEnv(t)
				env.InitTable(admin.TableSpec{Name: "a", Families: []string{"f", "g"}, Observed: []txn.Column{column}})
				setExpiry(t, env.Client, time.Hour)
				commit := func(wait time.Duration, opts ...txn.TxnOption) error {
					mustSet(t, env.Client, "v", "r")
					tx := begin(t, env.Client, opts...)
					if err := read(t.Context(), tx); err != nil {
						t.Fatal(err)
					}
					tx.Table("a").Set("effect", "g", "q", nil)
					advance(wait)
					_, err := tx.Commit(t.Context())
					return err
				}
				if err := commit(time.Hour-time.Minute, txn.Serializable()); err != nil {
					t.Errorf("before the expiry: %v", err)
				}
				if err := commit(time.Hour+time.Second, txn.Serializable()); !errors.Is(err, txn.ErrConflict) {
					t.Errorf("after the expiry: %v, want a conflict", err)
				}
				if err := commit(time.Hour + time.Second); err != nil {
					t.Errorf("not serializable: %v", err)
				}
			})
		})
	}
}

// An expiry writes nothing. A run of an observer after it sees the change, and no value. After
// garbage collection nothing is left, and nothing is pending.
func TestExpiryAndObservers(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := newExpiryEnv(t, time.Hour)
		c, cell := env.Client, txn.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "q"}
		if err := changes.RegisterObserver(t.Context(), c, "a", cell.Column(), "o", false); err != nil {
			t.Fatal(err)
		}
		mustSet(t, c, "v", "r")
		observe := func(ack bool) (*changes.Observation, bool) {
			tx := begin(t, c)
			defer tx.Rollback()
			o, err := changes.Observe(t.Context(), tx, cell)
			if err != nil {
				t.Fatal(err)
			}
			_, ok, err := tx.Table("a").Get(t.Context(), cell.Row, cell.Family, cell.Qualifier)
			if err != nil {
				t.Fatal(err)
			}
			if ack {
				changes.Acknowledge(tx, o, "o")
				if _, err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			return o, ok
		}
		if o, ok := observe(false); !ok || !o.Pending("o") {
			t.Errorf("before the expiry: value %v, pending %v", ok, o.Pending("o"))
		}
		for range 8 { // garbage collection leaves what an observer has not seen
			advance(time.Hour)
			runGC(t, c, gc.Config{})
		}
		if o, ok := observe(true); ok || !o.Pending("o") {
			t.Errorf("after the expiry: value %v, pending %v", ok, o.Pending("o"))
		}
		if o, ok := observe(false); ok || o.Pending("o") {
			t.Errorf("after the run: value %v, pending %v", ok, o.Pending("o"))
		}
	})
}

// An index cannot follow an expiry, so neither is possible with the other.
func TestExpiryRefusesIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f", "g")
		env.CreateTable("i", "e", "x")
		c := env.Client
		create := func(column, entries string) error {
			all, err := index.New("i", entries, index.Index{Name: "by-" + column, Table: "a", Columns: []txn.Column{{Family: column, Qualifier: "q"}}})
			if err != nil {
				t.Fatal(err)
			}
			all.Keep(c)
			return all.Create(t.Context(), c, "by-"+column, nil)
		}
		expire := func(table, family string) error {
			return admin.SetExpiry(t.Context(), c, table, family, time.Hour)
		}
		if err := errors.Join(create("g", "e"), expire("a", "f"), expire("i", "x")); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"an expiry of an indexed family":         expire("a", "g"),
			"an expiry of the entries of an index":   expire("i", "e"),
			"an index of a family with expiry":       create("f", "e"),
			"an index with entries that expire":      create("g", "x"),
			"an expiry of a family that is not":      expire("a", "none"),
			"an expiry of a table that is not":       expire("none", "f"),
			"an expiry of less than a second":        admin.SetExpiry(t.Context(), c, "a", "f", time.Millisecond),
			"an expiry of acknowledgments":           expire("a", format.AckFamily),
			"an expiry of the records of a table":    expire("a", format.WriteFamily),
			"an expiry of a negative length of time": admin.SetExpiry(t.Context(), c, "a", "f", -time.Hour),
		} {
			if !errors.Is(err, txn.ErrSchema) && !errors.Is(err, txn.ErrInvalid) && !errors.Is(err, txn.ErrNotInitialized) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// Clients notice another expiry when they read the schema again. What has expired and is still
// stored comes back with a longer one. Garbage collection relies on an expiry only when every
// client has known it for a retention.
func TestExpiryChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newExpiryEnv(t, time.Hour)
		c := env.NewClient(txn.Config{TokenTTL: -1})
		mustSet(t, c, "v", "r")
		for _, after := range []time.Duration{time.Minute, 0, 24 * time.Hour, time.Hour} {
			setExpiry(t, env.Client, after)
			d, err := admin.Describe(t.Context(), c, "a")
			if err != nil || d.Expiries["f"] != after {
				t.Errorf("described as %v, %v", d.Expiries, err)
			}
			advance(2 * time.Minute) // Config.SchemaMaxAge, and more
			want := "v"
			if after == time.Minute {
				want = ""
			}
			wantValue(t, takeSnapshot(t, c), "r", want)
			setExpiry(t, env.Client, time.Hour)
			advance(2 * time.Minute)
		}
	})
}

// TestExpiryTakenBackBesideACollector: a collector that began before an expiry was taken back
// removes nothing that a snapshot has shown since. Values come back that no collector can have
// removed.
func TestExpiryTakenBackBesideACollector(t *testing.T) {
	long.Test(t, "a collection of 3,000 rows, one a second")
	synctest.Test(t, func(t *testing.T) {
		env := newExpiryEnv(t, time.Hour)
		c := env.Client
		const n = 3000
		rows := make([]string, n)
		for i := range rows {
			rows[i] = fmt.Sprintf("row%04d", i)
		}
		mustSet(t, c, "v", rows...)
		advance(3 * time.Hour)
		runGC(t, c, gc.Config{})
		mustSet(t, c, "v", "young")
		advance(2 * retention)
		collector := env.NewClient(txn.Config{TokenTTL: -1})
		done := inBackground(func() error {
			r, err := gc.Run(t.Context(), collector, gc.Config{Retention: retention, Rate: 1})
			if err == nil && r.Total.Versions < n/2 {
				t.Errorf("the collector has removed only %d values", r.Total.Versions)
			}
			return err
		})
		advance(12 * time.Minute) // the fence, the locks, and some pages
		setExpiry(t, c, 0)
		advance(30 * time.Minute) // the youngest value would have expired
		s := takeSnapshot(t, c)
		wantValue(t, s, "young", "v")
		first := valueAt(t, s, rows[n-1])
		if o := <-done; o.err != nil || o.took < 45*time.Minute {
			t.Fatalf("the collector ended after %v: %v", o.took, o.err)
		}
		for _, s := range []*txn.Snapshot{s, takeSnapshot(t, c)} {
			if v := valueAt(t, s, rows[n-1]); v != first {
				t.Errorf("%d has shown %q, and now %q", s.ReadTS(), first, v)
			}
			wantValue(t, s, "young", "v")
		}
	})
}

// TestExpiryTakenBackInTime: an expiry that was a mistake hides nothing for good if it is taken back
// before garbage collection relies on it.
func TestExpiryTakenBackInTime(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := newExpiryEnv(t, 0)
		c := env.Client
		mustSet(t, c, "v", "r")
		for range 3 {
			advance(retention)
			runGC(t, c, gc.Config{})
		}
		advance(2 * time.Hour)
		setExpiry(t, c, time.Minute)
		advance(retention - time.Minute)
		runGC(t, c, gc.Config{})
		advance(2 * time.Minute)
		wantValue(t, takeSnapshot(t, c), "r", "")
		setExpiry(t, c, 0)
		advance(2 * time.Minute)
		wantValue(t, takeSnapshot(t, c), "r", "v")
		for range 4 {
			advance(retention)
			runGC(t, c, gc.Config{})
		}
		wantValue(t, takeSnapshot(t, c), "r", "v")
	})
}

// expiryModel is what table a holds: versions of cells, by the rules of the documentation.
type expiryModel struct {
	after    tso.Timestamp
	versions map[txn.Cell][]expiryVersion // in the order of their commits
}

type expiryVersion struct {
	ts      tso.Timestamp
	value   string
	deleted bool
}

// show returns what a read at ts shows, and how close that is to an expiry.
func (m *expiryModel) show(cell txn.Cell, ts tso.Timestamp) (value string, near bool) {
	for _, v := range slices.Backward(m.versions[cell]) {
		if v.ts > ts {
			continue
		}
		age := ts - v.ts - m.after
		switch {
		case v.deleted:
			return "", false
		case cell.Family == "f" && age >= 0:
			return "", age < 1e6
		}
		return v.value, cell.Family == "f" && age > -1e6
	}
	return "", false
}

// TestExpiryModel compares random histories with a model: transactions, plain values from
// before, snapshots that are held, reads of the latest state, and collections. In the end,
// garbage collection has removed whatever expired.
func TestExpiryModel(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	t.Parallel()
	histories := uint64(12)
	if long.Reduced() {
		histories = 3
	}
	for seed := range histories {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runExpiryModel(t, rand.New(rand.NewPCG(seed, 18))) })
		})
	}
}

func runExpiryModel(t *testing.T, r *rand.Rand) {
	after := []time.Duration{time.Minute, 5 * time.Minute, 20 * time.Minute}[r.IntN(3)]
	env := newExpiryEnv(t, after)
	c := env.Client
	m := &expiryModel{tso.Timestamp(after.Microseconds()), map[txn.Cell][]expiryVersion{}}
	anyCell := func() txn.Cell {
		return txn.Cell{Table: "a", Row: fmt.Sprint("r", r.IntN(4)), Family: []string{"f", "g"}[r.IntN(2)], Qualifier: "q"}
	}
	for range 3 { // plain values
		cell, at := anyCell(), bigtable.Time(time.Now().Add(-time.Duration(r.IntN(1200))*time.Second)).TruncateToMilliseconds()
		mut := bigtable.NewMutation()
		mut.Set(cell.Family, cell.Qualifier, at, []byte("plain"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), cell.Row, mut); err != nil {
			t.Fatal(err)
		}
		m.versions[cell] = append(m.versions[cell], expiryVersion{tso.Timestamp(at), "plain", false})
		slices.SortFunc(m.versions[cell], func(a, b expiryVersion) int { return int(a.ts - b.ts) })
	}
	check := func(s *txn.Snapshot) (tooOld bool) {
		got := map[txn.Cell]string{}
		for row, err := range s.Table("a").ReadRows(t.Context(), nil) {
			if errors.Is(err, txn.ErrTooOld) {
				return true
			} else if err != nil {
				t.Fatal(err)
			}
			for family, items := range row {
				for _, item := range items {
					got[txn.Cell{Table: "a", Row: row.Key(), Family: family, Qualifier: "q"}] = string(item.Value)
				}
			}
		}
		for i := range 8 {
			cell := txn.Cell{Table: "a", Row: fmt.Sprint("r", i/2), Family: []string{"f", "g"}[i%2], Qualifier: "q"}
			want, _ := m.show(cell, s.ReadTS())
			v, _, err := s.Table("a").Get(t.Context(), cell.Row, cell.Family, cell.Qualifier)
			if errors.Is(err, txn.ErrTooOld) {
				return true
			}
			if err != nil || string(v) != want || got[cell] != want {
				t.Errorf("%s at %d: Get %q, %v; ReadRows %q; want %q", cell, s.ReadTS(), v, err, got[cell], want)
			}
		}
		return false
	}
	var held []*txn.Snapshot
	for range 60 {
		switch r.IntN(6) {
		case 0, 1:
			writes := map[txn.Cell]expiryVersion{}
			for range 1 + r.IntN(3) {
				writes[anyCell()] = expiryVersion{value: fmt.Sprint(r.IntN(1000)), deleted: r.IntN(4) == 0}
			}
			ts, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				for cell, v := range writes {
					if v.deleted {
						tx.Table("a").Delete(cell.Row, cell.Family, cell.Qualifier)
					} else {
						tx.Table("a").Set(cell.Row, cell.Family, cell.Qualifier, []byte(v.value))
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			for cell, v := range writes {
				v.ts = ts
				m.versions[cell] = append(m.versions[cell], v)
			}
		case 2:
			advance(time.Duration(r.IntN(600)) * time.Second)
		case 3:
			runGC(t, c, gc.Config{Plain: r.IntN(2) == 0})
		case 4:
			s := takeSnapshot(t, c)
			check(s)
			held = append(held, s)
		case 5:
			for cell := range maps.Keys(m.versions) {
				want, near := m.show(cell, tso.FromTime(time.Now())+1000) // a commit_ts may be slightly ahead
				v, _, err := c.Latest("a").Get(t.Context(), cell.Row, cell.Family, cell.Qualifier)
				if err != nil || !near && string(v) != want {
					t.Errorf("the latest %s is %q, %v; want %q", cell, v, err, want)
				}
			}
		}
		held = slices.DeleteFunc(held, check)
	}
	for range 5 {
		advance(after + retention)
		runGC(t, c, gc.Config{})
	}
	for i := range 4 {
		for family, items := range stored(t, env, fmt.Sprint("r", i)) {
			for _, item := range items {
				if item.Column == "f:q" || item.Column == family+":f:q" {
					t.Errorf("row r%d still has %s at %d", i, item.Column, item.Timestamp)
				}
			}
		}
	}
}

// An adoption keeps the maximum ages of the policies that it clears. A limit of versions never
// removed the newest value, so it becomes no expiry.
func TestAdoptionKeepsMaximumAge(t *testing.T) {
	age, versions := bigtable.MaxAgePolicy, bigtable.MaxVersionsPolicy
	for _, tt := range []struct {
		policy bigtable.GCPolicy
		want   time.Duration
	}{
		{age(48 * time.Hour), 48 * time.Hour},
		{versions(3), 0},
		{bigtable.UnionPolicy(versions(1), age(48*time.Hour)), 48 * time.Hour},
		{bigtable.IntersectionPolicy(versions(1), age(48*time.Hour)), 0},
		{bigtable.UnionPolicy(age(72*time.Hour), bigtable.IntersectionPolicy(age(24*time.Hour), age(48*time.Hour))), 48 * time.Hour},
	} {
		t.Run(tt.policy.String(), func(t *testing.T) {
			env := newPlainRows(t, 1)
			if err := env.Admin.SetGCPolicy(t.Context(), "a", "f", tt.policy); err != nil {
				t.Fatal(err)
			}
			m := bigtable.NewMutation()
			m.Set("f", "q", bigtable.Time(time.Now().Add(-47*time.Hour)).TruncateToMilliseconds(), []byte("young"))
			m.Set("f", "old", bigtable.Time(time.Now().Add(-49*time.Hour)).TruncateToMilliseconds(), []byte("old"))
			if err := env.Bigtable.Open("a").Apply(t.Context(), "r", m); err != nil {
				t.Fatal(err)
			}
			plan, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env))
			if err != nil || plan.Families[0].Expiry != tt.want {
				t.Fatalf("planned %+v, %v; want %v", plan.Families, err, tt.want)
			}
			mustAdopt(t, env, adoptA(env))
			d, err := admin.Describe(t.Context(), env.Client, "a")
			if err != nil || d.Expiries["f"] != tt.want {
				t.Errorf("recorded %v, %v; want %v", d.Expiries, err, tt.want)
			}
			s := takeSnapshot(t, env.Client)
			wantValue(t, s, "r", "young")
			if _, ok, err := s.Table("a").Get(t.Context(), "r", "f", "old"); err != nil || ok != (tt.want == 0) {
				t.Errorf("the old value is shown: %v, %v", ok, err)
			}
		})
	}
}
