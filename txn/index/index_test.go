package index_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

func TestMaintain(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		_, x, c := newEnv(t)
		create(t, x, c, "email", "place", "words")
		mustSet(t, c, "1", map[txn.Column]string{email: "bob@x", city: "Bern", name: "Bob", words: "a b"})
		mustSet(t, c, "2", map[txn.Column]string{email: "ann@x", city: "Bern", name: "Ann", words: "b c"})
		mustSet(t, c, "3", map[txn.Column]string{city: "Bern"}) // has no key
		all := func() (all []string) {
			r := x.At(snapshot(t, c))
			for _, name := range []string{"email", "place", "words"} {
				all = append(all, scan(t, r, name, index.Query{})...)
				wantCorrect(t, x, c, name)
			}
			return all
		}
		for _, tt := range []struct {
			name, row string
			cells     map[txn.Column]string
			want      string
		}{
			{"nothing indexed", "3", map[txn.Column]string{{Family: "f", Qualifier: "other"}: "x"}, "ann@x=2 bob@x=1 Bern,Ann=2 Bern,Bob=1 a=1 b=1 b=2 c=2"},
			{"the same value", "1", map[txn.Column]string{email: "bob@x"}, "ann@x=2 bob@x=1 Bern,Ann=2 Bern,Bob=1 a=1 b=1 b=2 c=2"},
			{"another value", "1", map[txn.Column]string{email: "b@x"}, "ann@x=2 b@x=1 Bern,Ann=2 Bern,Bob=1 a=1 b=1 b=2 c=2"},
			{"one column of a key", "3", map[txn.Column]string{name: "Cid"}, "ann@x=2 b@x=1 Bern,Ann=2 Bern,Bob=1 Bern,Cid=3 a=1 b=1 b=2 c=2"},
			{"a deleted column", "2", map[txn.Column]string{email: "-", city: "-"}, "b@x=1 Bern,Bob=1 Bern,Cid=3 a=1 b=1 b=2 c=2"},
			{"fewer keys", "2", map[txn.Column]string{words: "c d"}, "b@x=1 Bern,Bob=1 Bern,Cid=3 a=1 b=1 c=2 d=2"},
			{"an empty value", "2", map[txn.Column]string{email: "", words: ""}, "=2 b@x=1 Bern,Bob=1 Bern,Cid=3 a=1 b=1"},
		} {
			mustSet(t, c, tt.row, tt.cells)
			if got := strings.Join(all(), " "); got != tt.want {
				t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			}
		}
		_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return tx.Table("users").DeleteRow(ctx, "1") })
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(all(), " "), "=2 Bern,Cid=3"; got != want {
			t.Errorf("a deleted row: %q, want %q", got, want)
		}
	})
}

func TestUnique(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		create(t, x, c, "email")
		mustSet(t, c, "1", map[txn.Column]string{email: "bob@x"})
		err := set(t.Context(), c, "2", map[txn.Column]string{email: "bob@x"})
		var taken *index.UniqueError
		if !errors.As(err, &taken) || !errors.Is(err, index.ErrUnique) || taken.Index != "email" || taken.Row != "2" || taken.Other != "1" || !slices.Equal(taken.Key, index.Key{"bob@x"}) {
			t.Errorf("a second row with the key: %v", err)
		}
		for email, want := range map[string]string{"bob@x": "1", "ann@x": ""} {
			if row, ok, err := x.At(snapshot(t, c)).Get(t.Context(), "email", email); err != nil || row != want || ok != (want != "") {
				t.Errorf("Get of %s: row %q, exists: %v, error: %v", email, row, ok, err)
			}
		}
		// Two rows of one transaction.
		_, err = c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("users").Set("3", "f", "email", []byte("new@x"))
			tx.Table("users").Set("4", "f", "email", []byte("new@x"))
			return nil
		})
		if !errors.Is(err, index.ErrUnique) {
			t.Errorf("two rows of one transaction: %v", err)
		}
		// Two rows exchange their keys.
		mustSet(t, c, "2", map[txn.Column]string{email: "ann@x"})
		_, err = c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("users").Set("1", "f", "email", []byte("ann@x"))
			tx.Table("users").Set("2", "f", "email", []byte("bob@x"))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		wantScan(t, x.At(snapshot(t, c)), "email", index.Query{}, "ann@x=1", "bob@x=2")
		// A key is free again after its row is deleted.
		mustSet(t, c, "2", map[txn.Column]string{email: "-"})
		mustSet(t, c, "3", map[txn.Column]string{email: "bob@x"})
		wantCorrect(t, x, c, "email")
		// Of many that want one key at the same time, one gets it.
		var all sync.WaitGroup
		var mu sync.Mutex
		got := 0
		for i := range 10 {
			c := keeping(env, newIndexes(t, declared()...), txn.Config{})
			all.Go(func() {
				err := set(t.Context(), c, fmt.Sprint("many", i), map[txn.Column]string{email: "many@x"})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					got++
				} else if !errors.Is(err, index.ErrUnique) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got != 1 {
			t.Errorf("%d rows got one key", got)
		}
		wantCorrect(t, x, c, "email")
	})
}

// TestOneColumnEach: two transactions each set one column of a key. Without locks of the other
// column, neither would write the entry of the values that the row has in the end. If the row
// has an entry before, both remove it, and that alone makes a conflict.
func TestOneColumnEach(t *testing.T) {
	for _, before := range []map[txn.Column]string{nil, {city: "Bern", name: "Bob"}} {
		synctest.Test(t, func(t *testing.T) {
			_, x, c := newEnv(t)
			create(t, x, c, "place")
			var want []string
			if before != nil {
				mustSet(t, c, "1", before)
				want = []string{"new,Bob=1"}
			}
			var both [2]*txn.Txn
			for i, col := range []txn.Column{city, name} {
				tx, err := c.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				tx.Table("users").Set("1", col.Family, col.Qualifier, []byte("new"))
				both[i] = tx
			}
			if _, err := both[0].Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := both[1].Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
				t.Errorf("before %v: the second commit: %v, want a conflict", before, err)
			}
			wantScan(t, x.At(snapshot(t, c)), "place", index.Query{}, want...)
			wantCorrect(t, x, c, "place")
		})
	}
}

func TestScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, x, c := newEnv(t)
		create(t, x, c, "place")
		for i, place := range [][2]string{{"Basel", "Ann"}, {"Bern", "Ann"}, {"Bern", "Bob"}, {"Bern", "Bob\x00"}, {"Bern\x00", "Cid"}, {"Bern\xff", "Dan"}, {"", ""}} {
			mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{city: place[0], name: place[1]})
		}
		mustSet(t, c, "20", map[txn.Column]string{city: "Bern", name: "Bob"})
		r := x.At(snapshot(t, c))
		wantScan(t, r, "place", index.Query{}, ",=6", "Basel,Ann=0", "Bern,Ann=1", "Bern,Bob=2", "Bern,Bob=20", "Bern,Bob\x00=3", "Bern\x00,Cid=4", "Bern\xff,Dan=5")
		wantScan(t, r, "place", index.Query{Prefix: index.Key{"Bern"}}, "Bern,Ann=1", "Bern,Bob=2", "Bern,Bob=20", "Bern,Bob\x00=3")
		wantScan(t, r, "place", index.Query{Prefix: index.Key{"Bern", "Bob"}}, "Bern,Bob=2", "Bern,Bob=20")
		wantScan(t, r, "place", index.Query{Prefix: index.Key{"Bern"}, PartPrefix: "B"}, "Bern,Bob=2", "Bern,Bob=20", "Bern,Bob\x00=3")
		wantScan(t, r, "place", index.Query{PartPrefix: "B", Reverse: true, Limit: 2}, "Bern\xff,Dan=5", "Bern\x00,Cid=4")
		wantScan(t, r, "place", index.Query{PartPrefix: "B", Limit: 2}, "Basel,Ann=0", "Bern,Ann=1")
		wantScan(t, r, "place", index.Query{From: index.Key{"Bern", "Bob"}, To: index.Key{"Bern", "Bob\x00"}}, "Bern,Bob=2", "Bern,Bob=20")
		wantScan(t, r, "place", index.Query{From: index.Key{"Bern\x00"}}, "Bern\x00,Cid=4", "Bern\xff,Dan=5")
		wantScan(t, r, "place", index.Query{To: index.Key{"Bern"}}, ",=6", "Basel,Ann=0")
		wantScan(t, r, "place", index.Query{From: index.Key{"b"}, To: index.Key{"a"}})
		wantScan(t, r, "place", index.Query{From: index.Key{"b"}, To: index.Key{"a"}, Reverse: true})
		// A transaction reads at its start.
		_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			wantScan(t, x.In(tx), "place", index.Query{Prefix: index.Key{"Basel"}}, "Basel,Ann=0")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestPage: pages show the state of the first one, without gaps and in both orders, and a token is
// refused by another range.
func TestPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, x, c := newEnv(t)
		if _, _, err := x.Page(t.Context(), c, "place", index.Query{}, 3, ""); !errors.Is(err, index.ErrState) {
			t.Errorf("a page of an index that does not exist: %v", err)
		}
		create(t, x, c, "place")
		for i, at := range []string{"Basel", "Bern", "Bern", "Bern", "Bern", "Chur"} {
			mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{city: at, name: "Bob"})
		}
		bern := index.Query{Prefix: index.Key{"Bern"}, Limit: 1} // the limit does not count
		backward := index.Query{Prefix: index.Key{"Bern"}, Reverse: true}
		var tokens []string
		for _, tt := range []struct {
			query index.Query
			size  int
			want  string
		}{
			{bern, 1, "1 2 3 4"},
			{bern, 2, "1 2 3 4"},
			{bern, 3, "1 2 3 4"},
			{bern, 4, "1 2 3 4"},
			{backward, 1, "4 3 2 1"},
			{backward, 3, "4 3 2 1"},
			{index.Query{From: index.Key{"b"}, To: index.Key{"a"}}, 3, ""},
			{index.Query{From: index.Key{"b"}, To: index.Key{"a"}, Reverse: true}, 3, ""},
		} {
			var got []string
			for token, n := "", 0; n == 0 || token != ""; n++ {
				entries, next, err := x.Page(t.Context(), c, "place", tt.query, tt.size, token)
				if err != nil {
					t.Fatal(err)
				}
				if len(entries) > tt.size || next != "" && len(entries) < tt.size {
					t.Errorf("a page of %d entries, token %q; want %d", len(entries), next, tt.size)
				}
				for _, e := range entries {
					got = append(got, e.Row)
				}
				if token = next; token != "" {
					tokens = append(tokens, token)
				}
				mustSet(t, c, "new", map[txn.Column]string{city: "Bern", name: "Bob"})
			}
			mustSet(t, c, "new", map[txn.Column]string{city: "Chur"})
			if strings.Join(got, " ") != tt.want {
				t.Errorf("pages of %d with the rows %q, want %s", tt.size, got, tt.want)
			}
		}
		for _, token := range append(tokens, "x", "!", strings.Repeat("x", 40)) {
			for _, q := range []index.Query{{Prefix: index.Key{"Basel"}}, {Prefix: index.Key{"Chur"}, Reverse: true}, {From: index.Key{"b"}, To: index.Key{"a"}}} {
				if entries, _, err := x.Page(t.Context(), c, "place", q, 3, token); !errors.Is(err, txn.ErrInvalid) {
					t.Errorf("token %q with another range: %v, error %v", token, entries, err)
				}
			}
		}
		if _, _, err := x.Page(t.Context(), c, "place", bern, 0, ""); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("a page of no entries: %v", err)
		}
	})
}

// TestSerializable: of two serializable transactions that find no row with a key, one can insert
// it. Transactions that look for different keys do not conflict. Ranges are refused.
func TestSerializable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, x, c := newEnv(t)
		create(t, x, c, "email")
		// two commits what two transactions write that looked for keys at the same time.
		two := func(keys [2]string) (errs [2]error) {
			var both [2]*txn.Txn
			for i, key := range keys {
				tx, err := c.Begin(t.Context(), txn.Serializable())
				if err != nil {
					t.Fatal(err)
				}
				if row, ok, err := x.In(tx).Get(t.Context(), "email", key); ok || err != nil {
					t.Errorf("Get of %s: row %q, error %v", key, row, err)
				}
				tx.Table("users").Set(fmt.Sprint(key, i), "f", "name", []byte("x"))
				both[i] = tx
			}
			for i, tx := range both {
				_, errs[i] = tx.Commit(t.Context())
			}
			return errs
		}
		if errs := two([2]string{"a", "a"}); errs[0] != nil || !errors.Is(errs[1], txn.ErrConflict) {
			t.Errorf("the same key: %v, want one conflict", errs)
		}
		if errs := two([2]string{"b", "c"}); errs[0] != nil || errs[1] != nil {
			t.Errorf("different keys: %v, want none", errs)
		}
		tx, err := c.Begin(t.Context(), txn.Serializable())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		for _, err := range x.In(tx).Scan(t.Context(), "email", index.Query{}) {
			if !errors.Is(err, txn.ErrSerializableScan) {
				t.Errorf("Scan: %v, want ErrSerializableScan", err)
			}
		}
	})
}

func TestOrder(t *testing.T) {
	numbers := []int64{-1 << 63, -256, -1, 0, 1, 255, 256, 1<<63 - 1}
	for i := 1; i < len(numbers); i++ {
		if index.Int(numbers[i-1]) >= index.Int(numbers[i]) {
			t.Errorf("%d does not sort before %d", numbers[i-1], numbers[i])
		}
	}
	if at := time.Unix(0, 0); index.Time(at) >= index.Time(at.Add(1)) {
		t.Error("times do not sort")
	}
}

// TestRoundTrips: a unique insert is one transaction of two rows, with two reads at once.
func TestRoundTrips(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		create(t, x, c, "email", "place")
		faults := txntest.NewFaults(t)
		c = keeping(env, x, txn.Config{SchemaMaxAge: time.Hour}, faults.DialOptions()...)
		mustSet(t, c, "warm", map[txn.Column]string{email: "warm", city: "x", name: "y"})
		for _, tt := range []struct {
			name         string
			row          string
			cells        map[txn.Column]string
			reads, write int
		}{
			{"insert with a unique key", "1", map[txn.Column]string{email: "1"}, 2, 2},
			{"change of a unique key", "1", map[txn.Column]string{email: "2"}, 2, 3},
			{"insert with a secondary key", "1", map[txn.Column]string{city: "a", name: "b"}, 1, 2},
			{"change of one of two columns", "1", map[txn.Column]string{name: "c"}, 1, 3},
			{"the same value", "1", map[txn.Column]string{name: "c"}, 1, 1},
			{"nothing indexed", "1", map[txn.Column]string{{Family: "f", Qualifier: "other"}: "c"}, 0, 1},
		} {
			synctest.Wait()
			faults.Reset()
			mustSet(t, c, tt.row, tt.cells)
			synctest.Wait()
			n := faults.Count()
			if n[txntest.StepOracle] != 2 || n[txntest.StepRead] != tt.reads || n[txntest.StepPrewrite] != tt.write || n[txntest.StepCommit] != 1 {
				t.Errorf("%s: requests %v, want %d reads and %d prewrites", tt.name, n, tt.reads, tt.write)
			}
		}
		s := snapshot(t, c)
		for name, read := range map[string]func() error{
			"Get": func() error { _, _, err := x.At(s).Get(t.Context(), "email", "2"); return err },
			"Scan": func() error {
				for _, err := range x.At(s).Scan(t.Context(), "place", index.Query{}) {
					if err != nil {
						return err
					}
				}
				return nil
			},
		} {
			synctest.Wait()
			faults.Reset()
			if err := read(); err != nil {
				t.Error(err)
			}
			if n := faults.Count(); n[txntest.StepRead] != 1 || len(n) != 1 {
				t.Errorf("%s: requests %v, want one read", name, n)
			}
		}
	})
}
