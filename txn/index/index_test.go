package index_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/page"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var (
	email = txn.Column{Family: "f", Qualifier: "email"}
	city  = txn.Column{Family: "f", Qualifier: "city"}
	name  = txn.Column{Family: "f", Qualifier: "name"}
	words = txn.Column{Family: "f", Qualifier: "words"}
)

// declared are the indexes of the tests.
func declared() []index.Index {
	return []index.Index{
		{Name: "email", Table: "users", Columns: []txn.Column{email}, Unique: true},
		{Name: "place", Table: "users", Columns: []txn.Column{city, name}},
		{Name: "words", Table: "users", Columns: []txn.Column{words}, Keys: func(_ string, v index.Values) (keys []index.Key) {
			for _, w := range strings.Fields(string(v[words])) {
				keys = append(keys, index.Key{w})
			}
			return keys
		}},
	}
}

func newIndexes(t *testing.T, indexes ...index.Index) *index.Indexes {
	t.Helper()
	return mustNew(t, "indexes", "e", indexes...)
}

func mustNew(t *testing.T, table, family string, indexes ...index.Index) *index.Indexes {
	t.Helper()
	x, err := index.New(table, family, indexes...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// keeping returns a client that maintains indexes.
func keeping(env *txntest.Env, x *index.Indexes, cfg txn.Config, dial ...grpc.DialOption) *txn.Client {
	c := env.NewClient(cfg, dial...)
	x.Keep(c)
	return c
}

// newEnv makes the tables, and a client with the indexes that are declared.
func newEnv(t *testing.T) (*txntest.Env, *index.Indexes, *txn.Client) {
	t.Helper()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("users", "f")
	env.CreateTable("indexes", "e", "other")
	x := newIndexes(t, declared()...)
	return env, x, keeping(env, x, txn.Config{})
}

func create(t *testing.T, x *index.Indexes, c *txn.Client, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := x.Create(t.Context(), c, name, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// set writes cells of a row; "-" deletes.
func set(ctx context.Context, c *txn.Client, row string, cells map[txn.Column]string, opts ...txn.TxnOption) error {
	_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for col, v := range cells {
			if v == "-" {
				tx.Table("users").Delete(row, col.Family, col.Qualifier)
			} else {
				tx.Table("users").Set(row, col.Family, col.Qualifier, []byte(v))
			}
		}
		return nil
	}, opts...)
	return err
}

func mustSet(t *testing.T, c *txn.Client, row string, cells map[txn.Column]string) {
	t.Helper()
	if err := set(t.Context(), c, row, cells); err != nil {
		t.Fatal(err)
	}
}

func snapshot(t *testing.T, c *txn.Client) *txn.Snapshot {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// scan returns entries as KEY,KEY=ROW.
func scan(t *testing.T, r index.Reader, name string, q index.Query) (all []string) {
	t.Helper()
	for e, err := range r.Scan(t.Context(), name, q) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.Join(e.Key, ",")+"="+e.Row)
	}
	return all
}

func wantScan(t *testing.T, r index.Reader, name string, q index.Query, want ...string) {
	t.Helper()
	if got := scan(t, r, name, q); !slices.Equal(got, want) {
		t.Errorf("index %s, %+v: %q, want %q", name, q, got, want)
	}
}

// wantCorrect verifies an index.
func wantCorrect(t *testing.T, x *index.Indexes, c *txn.Client, name string) {
	t.Helper()
	if err := x.Verify(t.Context(), c, name, func(p index.Problem) { t.Error(p) }); err != nil {
		t.Error(err)
	}
}

func TestMaintain(t *testing.T) {
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
		pages, err := page.New(c, []byte("0123456789abcdef"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for token, n := "", 0; n == 0 || token != ""; n++ {
			var entries []index.Entry
			entries, token, err = x.Page(t.Context(), c, pages, "place", index.Query{Prefix: index.Key{"Bern"}}, "", 3, token)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				got = append(got, e.Row)
			}
			mustSet(t, c, fmt.Sprint("new", n), map[txn.Column]string{city: "Bern", name: "Z"})
		}
		if !slices.Equal(got, []string{"1", "2", "20", "3"}) {
			t.Errorf("pages of rows %q", got)
		}
		// A transaction reads at its start.
		_, err = c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			wantScan(t, x.In(tx), "place", index.Query{Prefix: index.Key{"Basel"}}, "Basel,Ann=0")
			return nil
		})
		if err != nil {
			t.Fatal(err)
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

// writers change random rows of a table through several clients until stop is called. Each
// notices states at another time.
func writers(t *testing.T, env *txntest.Env, duplicates bool) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 4 {
		x := newIndexes(t, declared()...)
		c := keeping(env, x, txn.Config{PassLocks: i%2 == 0})
		rnd := rand.New(rand.NewPCG(1, uint64(i)))
		all.Go(func() {
			for ctx.Err() == nil {
				row := fmt.Sprint(rnd.IntN(40))
				cells := map[txn.Column]string{}
				for _, col := range []txn.Column{city, name, words} {
					switch rnd.IntN(4) {
					case 0:
						cells[col] = "-"
					case 1:
						cells[col] = fmt.Sprint(rnd.IntN(3), " ", rnd.IntN(3))
					}
				}
				switch n := 1000; rnd.IntN(4) {
				case 0:
					cells[email] = "-"
				case 1:
					if duplicates {
						n = 60
					}
					cells[email] = fmt.Sprint(rnd.IntN(n))
				}
				if len(cells) == 0 {
					continue
				}
				// A transaction may be slow between its start and its commit.
				_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
					for col, v := range cells {
						if v == "-" {
							tx.Table("users").Delete(row, col.Family, col.Qualifier)
						} else {
							tx.Table("users").Set(row, col.Family, col.Qualifier, []byte(v))
						}
					}
					pause(ctx, time.Duration(rnd.IntN(300))*time.Millisecond)
					return nil
				})
				if err != nil && ctx.Err() == nil && !errors.Is(err, index.ErrUnique) {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// pause lets virtual time pass.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// TestBuildOnline: indexes are built, used, dropped and built again while clients write, in
// virtual time.
func TestBuildOnline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		stop := writers(t, env, false)
		pause(t.Context(), 5*time.Second)
		for range 2 {
			for _, name := range []string{"place", "words", "email"} {
				if err := x.Create(t.Context(), c, name, nil); err != nil {
					if !errors.Is(err, index.ErrUnique) {
						t.Fatal(err)
					}
					// The writers did not know of uniqueness before.
					if err := x.Drop(t.Context(), c, name); err != nil {
						t.Fatal(err)
					}
					continue
				}
				wantCorrect(t, x, c, name)
			}
			pause(t.Context(), 20*time.Second)
			for _, name := range []string{"place", "words"} {
				wantCorrect(t, x, c, name)
				if err := x.Drop(t.Context(), c, name); err != nil {
					t.Fatal(err)
				}
				for row, err := range snapshot(t, c).Table("indexes").ReadRows(t.Context(), jobs.Prefix(name+"/").Rows()) {
					t.Errorf("Drop left %q, error %v", row.Key(), err)
				}
			}
		}
		stop()
	})
}

// TestUniqueUnderLoad: clients fight for keys of a unique index.
func TestUniqueUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		create(t, x, c, "email", "place")
		stop := writers(t, env, true)
		pause(t.Context(), 30*time.Second)
		wantCorrect(t, x, c, "email")
		stop()
		wantCorrect(t, x, c, "email")
		wantCorrect(t, x, c, "place")
	})
}

// TestLateWriter: a transaction that knows an old state cannot commit after the wait of Create,
// whatever its client's clock says.
func TestLateWriter(t *testing.T) {
	for _, known := range []index.State{index.Absent, index.DeleteOnly} {
		t.Run("knows "+string(known), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testLateWriter(t, known) }) })
	}
}

func testLateWriter(t *testing.T, known index.State) {
	env, x, c := newEnv(t)
	faults := txntest.NewFaults(t)
	late := keeping(env, newIndexes(t, declared()...), txn.Config{LockTTL: time.Hour}, faults.DialOptions()...)
	created := make(chan error, 1)
	begin := func() { created <- x.Create(t.Context(), c, "place", nil) }
	if known == index.DeleteOnly {
		go begin()
		pause(t.Context(), time.Second)
		if s, err := x.State(t.Context(), c, "place"); s != known || err != nil {
			t.Fatalf("state %q, error %v", s, err)
		}
	}
	mustSet(t, late, "0", map[txn.Column]string{city: "Bern", name: "Bob"}) // it reads the state
	held := faults.On("prewrite", func(call txntest.Call) bool { return call.Step == txntest.StepPrewrite && call.Row == "late" }, txntest.Hold, 1)
	done := make(chan error, 1)
	runs := 0
	go func() {
		_, err := late.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			runs++
			tx.Table("users").Set("late", "f", "city", []byte("Bern"))
			tx.Table("users").Set("late", "f", "name", []byte("Late"))
			return nil
		})
		done <- err
	}()
	<-held.Fired()
	if known == index.Absent {
		go begin()
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	held.Release()
	if err := <-done; err != nil || runs != 2 {
		t.Errorf("the late transaction: %v after %d runs, want success after two", err, runs)
	}
	wantScan(t, x.At(snapshot(t, c)), "place", index.Query{}, "Bern,Bob=0", "Bern,Late=late")
	wantCorrect(t, x, c, "place")
}

// TestStatesDiffer: while an index is created and dropped, clients with fresh states and clients
// with states of 4 s ago change the same row in turn.
func TestStatesDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		var clients []*txn.Client
		tick := func() {
			n := len(clients)
			fresh := keeping(env, newIndexes(t, declared()...), txn.Config{})
			clients = append(clients, fresh)
			mustSet(t, fresh, "0", map[txn.Column]string{{Family: "f", Qualifier: "other"}: "x"}) // reads the states
			mustSet(t, fresh, "1", map[txn.Column]string{email: fmt.Sprint("fresh", n), words: fmt.Sprint("fresh", n)})
			mustSet(t, fresh, "2", map[txn.Column]string{email: fmt.Sprint("2fresh", n)})
			if n >= 4 {
				mustSet(t, clients[n-4], "1", map[txn.Column]string{email: fmt.Sprint("old", n), words: fmt.Sprint("old", n)})
				mustSet(t, clients[n-4], "2", map[txn.Column]string{email: "-"})
			}
			pause(t.Context(), time.Second)
		}
		for _, call := range []func() error{
			func() error { return x.Create(t.Context(), c, "email", nil) },
			func() error { return x.Create(t.Context(), c, "words", nil) },
			func() error { return x.Drop(t.Context(), c, "email") },
			func() error { return x.Create(t.Context(), c, "email", nil) },
		} {
			for range 5 {
				tick()
			}
			done := make(chan error, 1)
			go func() { done <- call() }()
			for len(done) == 0 {
				tick()
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"email", "words"} {
				if s, err := x.State(t.Context(), c, name); err != nil {
					t.Fatal(err)
				} else if s == index.Ready {
					wantCorrect(t, x, c, name)
				}
			}
		}
	})
}

// TestTwoAtOnce: two processes create, and then drop, an index at the same time.
func TestTwoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		for i := range 30 {
			mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{email: fmt.Sprint(i)})
		}
		both := func(f func(*txn.Client) error) {
			t.Helper()
			var all sync.WaitGroup
			for range 2 {
				c := env.NewClient(txn.Config{})
				all.Go(func() {
					if err := f(c); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		both(func(c *txn.Client) error { return x.Create(t.Context(), c, "email", nil) })
		wantCorrect(t, x, c, "email")
		both(func(c *txn.Client) error { return x.Drop(t.Context(), c, "email") })
		wantRows(t, c)
	})
}

// wantRows checks which rows the table of entries has.
func wantRows(t *testing.T, c *txn.Client, want ...string) {
	t.Helper()
	for row, err := range snapshot(t, c).Table("indexes").ReadRows(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if len(want) == 0 || row.Key() != want[0] {
			t.Errorf("row %q is left, want %q", row.Key(), want)
			continue
		}
		want = want[1:]
	}
	if len(want) > 0 {
		t.Errorf("rows %q are missing", want)
	}
}

// TestDuplicates: Create names two rows with one key. After one of them changes, it continues.
func TestDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, x, c := newEnv(t)
		for i := range 20 {
			mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{email: fmt.Sprint(i)})
		}
		mustSet(t, c, "7twice", map[txn.Column]string{email: "7"})
		err := x.Create(t.Context(), c, "email", nil)
		var taken *index.UniqueError
		if !errors.As(err, &taken) || !slices.Contains([]string{taken.Row, taken.Other}, "7") || !slices.Contains([]string{taken.Row, taken.Other}, "7twice") {
			t.Fatalf("Create: %v", err)
		}
		if s, err := x.State(t.Context(), c, "email"); s != index.Building || err != nil {
			t.Errorf("state %q, error %v", s, err)
		}
		if _, _, err := x.At(snapshot(t, c)).Get(t.Context(), "email", "7"); !errors.Is(err, index.ErrState) {
			t.Errorf("Get while it is being built: %v", err)
		}
		// One of the two has the entry, at the latest after it was written twice. The other one
		// changes, and the entry stays.
		entry := func() string {
			row, _, err := snapshot(t, c).Table("indexes").Get(t.Context(), "email/7\x00\x01", "e", "row")
			if err != nil {
				t.Fatal(err)
			}
			return string(row)
		}
		one, other := "7", "7twice"
		if entry() == other {
			one, other = other, one
		}
		mustSet(t, c, one, map[txn.Column]string{email: "another"})
		mustSet(t, c, one, map[txn.Column]string{email: "7"})
		mustSet(t, c, other, map[txn.Column]string{email: "eight"})
		if got := entry(); got != one {
			t.Errorf("the entry is of row %q, want %q", got, one)
		}
		create(t, x, c, "email")
		wantCorrect(t, x, c, "email")
		if row, _, err := x.At(snapshot(t, c)).Get(t.Context(), "email", "7"); row != one || err != nil {
			t.Errorf("Get: %q, error %v", row, err)
		}
	})
}

// TestCrash: Create and Drop die at each of their requests, while the index is in use. Another
// process finishes them.
func TestCrash(t *testing.T) {
	for _, call := range []string{"create", "drop"} {
		t.Run(call, func(t *testing.T) {
			total := 0
			run := func(t *testing.T, at int, action txntest.Action) {
				env, x, c := newEnv(t)
				for i := range 5 {
					mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{email: fmt.Sprint(i)})
				}
				f := x.Create
				if call == "drop" {
					create(t, x, c, "email")
					f = func(ctx context.Context, c *txn.Client, name string, _ func(jobs.Status)) error {
						return x.Drop(ctx, c, name)
					}
				}
				faults := txntest.NewFaults(t)
				dying := env.NewClient(txn.Config{LockTTL: 2 * time.Second, TokenTTL: -1, SyncSecondaries: true, SchemaMaxAge: time.Hour}, faults.DialOptions()...)
				n := 0
				rule := faults.On(fmt.Sprint("request ", at), func(txntest.Call) bool { n++; return n == at }, action, 1).Optional()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan struct{})
				go func() { defer close(done); _ = f(ctx, dying, "email", nil) }()
				select {
				case <-rule.Fired():
					synctest.Wait()
					faults.Kill()
					cancel()
					<-done
				case <-done:
					total = n
				}
				mustSet(t, c, "3", map[txn.Column]string{email: "33"})
				if err := f(t.Context(), c, "email", nil); err != nil {
					t.Fatalf("request %d, %v: %v", at, action, err)
				}
				mustSet(t, c, "4", map[txn.Column]string{email: "44"})
				if call == "create" {
					wantScan(t, x.At(snapshot(t, c)), "email", index.Query{}, "0=0", "1=1", "2=2", "33=3", "44=4")
					wantCorrect(t, x, c, "email")
					wantRows(t, c, "!state/email", "email/0\x00\x01", "email/1\x00\x01", "email/2\x00\x01", "email/33\x00\x01", "email/44\x00\x01")
					return
				}
				wantRows(t, c)
			}
			synctest.Test(t, func(t *testing.T) { run(t, 0, txntest.Crash) })
			if total < 20 {
				t.Errorf("only %d requests", total)
			}
			for at := 1; at <= total; at++ {
				for _, action := range []txntest.Action{txntest.Crash, txntest.HoldResponse} {
					synctest.Test(t, func(t *testing.T) { run(t, at, action) })
				}
			}
		})
	}
}

// TestCrashedWriter: a client dies at each request of a commit that changes keys. Whatever took
// effect, the indexes agree with the table.
func TestCrashedWriter(t *testing.T) {
	total, committed := 0, 0
	run := func(t *testing.T, at int, action txntest.Action) {
		env, x, c := newEnv(t)
		create(t, x, c, "email", "place")
		mustSet(t, c, "1", map[txn.Column]string{email: "old", city: "Bern", name: "Bob"})
		faults := txntest.NewFaults(t)
		dying := keeping(env, x, txn.Config{LockTTL: 2 * time.Second, TokenTTL: -1, SyncSecondaries: true, SchemaMaxAge: time.Hour}, faults.DialOptions()...)
		n := 0
		rule := faults.On(fmt.Sprint("request ", at), func(txntest.Call) bool { n++; return n == at }, action, 1).Optional()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = set(ctx, dying, "1", map[txn.Column]string{email: "new", city: "Basel"})
		}()
		select {
		case <-rule.Fired():
			synctest.Wait()
			faults.Kill()
			cancel()
			<-done
		case <-done:
			total = n
		}
		row, ok, err := snapshot(t, c).Table("users").Get(t.Context(), "1", "f", "email")
		if err != nil || !ok {
			t.Fatalf("request %d, %v: the row is gone, error %v", at, action, err)
		}
		want := "Bern,Bob=1"
		if string(row) == "new" {
			want = "Basel,Bob=1"
			committed++
		}
		wantScan(t, x.At(snapshot(t, c)), "email", index.Query{}, string(row)+"=1")
		wantScan(t, x.At(snapshot(t, c)), "place", index.Query{}, want)
		mustSet(t, c, "2", map[txn.Column]string{email: map[string]string{"old": "new", "new": "old"}[string(row)]})
		wantCorrect(t, x, c, "email")
		wantCorrect(t, x, c, "place")
	}
	synctest.Test(t, func(t *testing.T) { run(t, 0, txntest.Crash) })
	if total < 8 {
		t.Errorf("only %d requests", total)
	}
	for at := 1; at <= total; at++ {
		for _, action := range []txntest.Action{txntest.Crash, txntest.HoldResponse} {
			synctest.Test(t, func(t *testing.T) { run(t, at, action) })
		}
	}
	if committed < 3 || committed > total {
		t.Errorf("%d commits of %d crashes took effect", committed, 2*total)
	}
}

// TestVerify finds damage that was planted by hand.
func TestVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		plain := env.NewClient(txn.Config{})
		plain.BeforeCommit(func(context.Context, *txn.Txn) error { return nil }, "indexes/e") // and does nothing
		create(t, x, c, "email", "place", "words")
		entry := func(tx *txn.Txn, key, row string) { tx.Table("indexes").Set(key, "e", "row", []byte(row)) }
		for i, tt := range []struct {
			name, index string
			damage      func(tx *txn.Txn)
			want        []string // of the problems
		}{
			{"entry removed", "email", func(tx *txn.Txn) { tx.Table("indexes").Delete("email/bob@x\x00\x01", "e", "row") }, []string{"missing"}},
			{"entry about another row", "email", func(tx *txn.Txn) { entry(tx, "email/bob@x\x00\x01", "2") }, []string{"orphan", "wrong"}},
			{"entry about no row", "email", func(tx *txn.Txn) { entry(tx, "email/no@x\x00\x01", "9") }, []string{"orphan"}},
			{"entry with another key", "email", func(tx *txn.Txn) { entry(tx, "email/no@x\x00\x01", "1") }, []string{"orphan"}},
			{"entry without an end", "email", func(tx *txn.Txn) { entry(tx, "email/no@x", "1") }, []string{"damaged"}},
			{"entry with an empty row", "email", func(tx *txn.Txn) { entry(tx, "email/no@x\x00\x01", "") }, []string{"damaged"}},
			{"entry of a secondary index with another row", "place", func(tx *txn.Txn) { entry(tx, "place/Bern\x00\x01Bob\x00\x011\x00\x01", "2") }, []string{"damaged", "wrong"}},
			{"entry of a secondary index removed", "place", func(tx *txn.Txn) { tx.Table("indexes").Delete("place/Bern\x00\x01Bob\x00\x011\x00\x01", "e", "row") }, []string{"missing"}},
			{"entry of a secondary index that nobody has", "words", func(tx *txn.Txn) { entry(tx, "words/z\x00\x011\x00\x01", "1") }, []string{"orphan"}},
			{"row changed without the index", "words", func(tx *txn.Txn) { tx.Table("users").Set("1", "f", "words", []byte("a")) }, []string{"orphan"}},
			{"row added without the index", "words", func(tx *txn.Txn) { tx.Table("users").Set("9", "f", "words", []byte("a")) }, []string{"missing"}},
			{"row deleted without the index", "place", func(tx *txn.Txn) { tx.Table("users").Delete("1", "f", "name") }, []string{"orphan"}},
			{"duplicate without the index", "email", func(tx *txn.Txn) { tx.Table("users").Set("2", "f", "email", []byte("bob@x")) }, []string{"orphan", "wrong"}},
		} {
			// Repair what the last one damaged.
			if i > 0 {
				for _, name := range []string{"email", "place", "words"} {
					if err := x.Drop(t.Context(), c, name); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, row := range []string{"1", "2", "9"} {
				if _, err := plain.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return tx.Table("users").DeleteRow(ctx, row) }); err != nil {
					t.Fatal(err)
				}
			}
			mustSet(t, plain, "1", map[txn.Column]string{email: "bob@x", city: "Bern", name: "Bob", words: "a b"})
			mustSet(t, plain, "2", map[txn.Column]string{email: "ann@x"})
			if i == 0 {
				for _, name := range []string{"email", "place", "words"} {
					if err := x.Drop(t.Context(), c, name); err != nil {
						t.Fatal(err)
					}
				}
			}
			create(t, x, c, "email", "place", "words")
			wantCorrect(t, x, c, tt.index)
			if _, err := plain.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error { tt.damage(tx); return nil }); err != nil {
				t.Fatal(err)
			}
			found := map[string]bool{}
			if err := x.Verify(t.Context(), c, tt.index, func(p index.Problem) {
				found[p.What] = true
				if p.Index != tt.index || p.String() == "" {
					t.Errorf("%s: %v", tt.name, p)
				}
			}); err != nil {
				t.Error(err)
			}
			if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, tt.want) {
				t.Errorf("%s: found %q, want %q", tt.name, got, tt.want)
			}
		}
	})
}

// TestRoundTrips: a unique insert is one transaction of two rows, with two reads at once.
func TestRoundTrips(t *testing.T) {
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

// TestOtherDefinition: a process that knows an index differently, or does not have its function,
// does not write its columns, and does not read it.
func TestOtherDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		create(t, x, c, "place", "words")
		changed := declared()
		changed[1].Columns = []txn.Column{name, city}
		other := newIndexes(t, changed...)
		if err := set(t.Context(), keeping(env, other, txn.Config{}), "1", map[txn.Column]string{name: "x"}); !errors.Is(err, index.ErrDefinition) || !strings.Contains(err.Error(), "place") {
			t.Errorf("other columns: %v, want ErrDefinition", err)
		}
		unaware := keeping(env, newIndexes(t), txn.Config{})
		if err := set(t.Context(), unaware, "1", map[txn.Column]string{words: "x"}); !errors.Is(err, index.ErrDefinition) || !strings.Contains(err.Error(), "words") {
			t.Errorf("without the function: %v, want ErrDefinition", err)
		}
		mustSet(t, unaware, "1", map[txn.Column]string{email: "x"}) // not a column of an index
		if err := other.Create(t.Context(), c, "place", nil); !errors.Is(err, index.ErrDefinition) {
			t.Errorf("Create: %v", err)
		}
		for _, err := range other.At(snapshot(t, c)).Scan(t.Context(), "place", index.Query{}) {
			if !errors.Is(err, index.ErrDefinition) {
				t.Errorf("Scan: %v", err)
			}
		}
		if err := newIndexes(t).Drop(t.Context(), c, "place"); err != nil {
			t.Errorf("Drop of an index that New does not know: %v", err)
		}
	})
}

// TestUndeclared: a process maintains indexes of columns that only others declare.
func TestUndeclared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		create(t, x, c, "place", "email")
		undeclared := keeping(env, newIndexes(t), txn.Config{})
		mustSet(t, undeclared, "1", map[txn.Column]string{city: "Bern", name: "Bob", email: "bob@x"})
		mustSet(t, undeclared, "1", map[txn.Column]string{city: "Basel"})
		wantScan(t, x.At(snapshot(t, c)), "place", index.Query{}, "Basel,Bob=1")
		if err := set(t.Context(), undeclared, "2", map[txn.Column]string{email: "bob@x"}); !errors.Is(err, index.ErrUnique) {
			t.Errorf("a second row with the key: %v", err)
		}
		wantCorrect(t, x, c, "place")
		wantCorrect(t, x, c, "email")
	})
}

// TestWithoutKeep: a client that does not keep indexes cannot write their columns while they
// exist, in transactions and bulk loads.
func TestWithoutKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		for i, keeps := range []*txn.Client{env.NewClient(txn.Config{}), keeping(env, mustNew(t, "indexes", "other"), txn.Config{})} {
			try := func() error {
				return set(t.Context(), keeps, fmt.Sprint(i), map[txn.Column]string{city: "Bern", name: "Bob"})
			}
			load := func() error {
				_, err := admin.BulkLoad(t.Context(), keeps, "users", func(yield func(admin.BulkRow, error) bool) {
					yield(admin.BulkRow{Row: "z", Cells: []admin.BulkCell{{Family: "f", Qualifier: "name", Value: []byte("x")}}}, nil)
				}, admin.BulkConfig{Rows: bigtable.NewRange("z", "zz")})
				return err
			}
			if err := try(); err != nil {
				t.Errorf("client %d, before: %v", i, err)
			}
			create(t, x, c, "place")
			pause(t.Context(), time.Minute) // Config.SchemaMaxAge
			for what, f := range map[string]func() error{"transaction": try, "bulk load": load} {
				if err := f(); !errors.Is(err, txn.ErrSchema) || !strings.Contains(err.Error(), "index place") || !strings.Contains(err.Error(), "indexes/e") {
					t.Errorf("client %d, %s: %v, want ErrSchema", i, what, err)
				}
			}
			mustSet(t, keeps, "1", map[txn.Column]string{email: "x"}) // not a column of an index
			wantCorrect(t, x, c, "place")
			if err := x.Drop(t.Context(), c, "place"); err != nil {
				t.Fatal(err)
			}
			pause(t.Context(), time.Minute)
			if err := try(); err != nil {
				t.Errorf("client %d, afterwards: %v", i, err)
			}
			if left, err := changes.Indexes(t.Context(), c, "users"); len(left) > 0 || err != nil {
				t.Errorf("Drop leaves %v, error %v", left, err)
			}
		}
	})
}

func TestBadArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		good := declared()[0]
		for want, change := range map[string]func(*index.Index){
			"letters":             func(i *index.Index) { i.Name = "a/b" },
			"Table has":           func(i *index.Index) { i.Table = "indexes" },
			"Columns":             func(i *index.Index) { i.Columns = nil },
			"named twice":         func(i *index.Index) { i.Columns = []txn.Column{email, email} },
			"empty column family": func(i *index.Index) { i.Columns = []txn.Column{{}} },
		} {
			bad := good
			change(&bad)
			if _, err := index.New("indexes", "e", bad); !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
		}
		if _, err := index.New("indexes", "e", good, good); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("two indexes of a name: %v", err)
		}
		for _, f := range []func() error{
			func() error { _, err := index.New("", "e"); return err },
			func() error { _, err := index.New("indexes", ""); return err },
			func() error { return x.Create(t.Context(), c, "no", nil) },
			func() error { return x.Drop(t.Context(), c, "a/b") },
			func() error { return x.Verify(t.Context(), c, "no", nil) },
			func() error { _, _, err := x.At(snapshot(t, c)).Get(t.Context(), "place", "x"); return err },
			func() error { _, _, err := x.At(snapshot(t, c)).Get(t.Context(), "no", "x"); return err },
			func() error {
				for _, err := range x.At(snapshot(t, c)).Scan(t.Context(), "place", index.Query{Limit: -1}) {
					return err
				}
				return nil
			},
		} {
			if err := f(); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("error %v, want ErrInvalid", err)
			}
		}
		for _, f := range []func() error{
			func() error { return x.Verify(t.Context(), c, "email", nil) },
			func() error { _, _, err := x.At(snapshot(t, c)).Get(t.Context(), "email", "x"); return err },
			func() error {
				for _, err := range x.At(snapshot(t, c)).Scan(t.Context(), "place", index.Query{Reverse: true}) {
					return err
				}
				return nil
			},
		} {
			if err := f(); !errors.Is(err, index.ErrState) {
				t.Errorf("an index that does not exist: %v", err)
			}
		}
		if err := x.Drop(t.Context(), c, "email"); err != nil {
			t.Errorf("Drop of an index that does not exist: %v", err)
		}
		create(t, x, c, "email", "words")
		if err := set(t.Context(), c, "1", map[txn.Column]string{email: strings.Repeat("x", 5000)}); !errors.Is(err, txn.ErrLimit) || !strings.Contains(err.Error(), "email") {
			t.Errorf("a key that is too long: %v", err)
		}
		if err := set(t.Context(), c, "1", map[txn.Column]string{words: strings.Repeat("x ", 1001)}); !errors.Is(err, txn.ErrLimit) {
			t.Errorf("too many keys: %v", err)
		}
		if err := set(t.Context(), c, "1", map[txn.Column]string{email: "x"}, txn.WriteOnly()); err != nil {
			t.Errorf("a transaction that is WriteOnly: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := set(ctx, c, "1", map[txn.Column]string{email: "y"}); !errors.Is(err, context.Canceled) {
			t.Errorf("an ended context: %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := x.Create(ctx, c, "place", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Create with a deadline: %v", err)
		}
		wantCorrect(t, x, c, "email")
		_ = env
	})
}

// TestDropDuringBuild: Drop stops a build under way in another process, and leaves nothing.
func TestDropDuringBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		for i := range 5 {
			mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{email: fmt.Sprint(i)})
		}
		faults := txntest.NewFaults(t)
		building := env.NewClient(txn.Config{}, faults.DialOptions()...)
		held := faults.On("read of the rows", func(call txntest.Call) bool {
			return call.Step == txntest.StepRead && call.Table == "users"
		}, txntest.Hold, 1)
		done := make(chan error, 1)
		go func() { done <- x.Create(t.Context(), building, "email", nil) }()
		<-held.Fired()
		// Drop removes the entries and the record. Before it removes the progress of the
		// build, which would stop it too, the build continues.
		dropFaults := txntest.NewFaults(t)
		dropping := env.NewClient(txn.Config{}, dropFaults.DialOptions()...)
		commits := 0
		swept := dropFaults.On("read of the progress", func(call txntest.Call) bool {
			if call.Step == txntest.StepCommit && call.Row == "!state/email" {
				commits++
			}
			return commits == 2 && call.Step == txntest.StepRead
		}, txntest.Hold, 1)
		dropped := make(chan error, 1)
		go func() { dropped <- x.Drop(t.Context(), dropping, "email") }()
		<-swept.Fired()
		held.Release()
		if err := <-done; err == nil {
			t.Error("Create succeeds, although the index was dropped")
		}
		swept.Release()
		if err := <-dropped; err != nil {
			t.Fatal(err)
		}
		s := snapshot(t, c)
		for row, err := range s.Table("indexes").ReadRows(t.Context(), jobs.Prefix("email/").Rows()) {
			t.Errorf("Drop left %q, error %v", row.Key(), err)
		}
		if _, _, err := x.At(s).Get(t.Context(), "email", "1"); !errors.Is(err, index.ErrState) {
			t.Errorf("Get: %v", err)
		}
		create(t, x, c, "email")
		wantCorrect(t, x, c, "email")
	})
}
