package index_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

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

// TestBuildOnline: indexes are built, used, dropped and built again while clients write, in
// virtual time.
func TestBuildOnline(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		stop := writers(t, env, false)
		pause(t.Context(), 5*time.Second)
		rounds := 2
		if long.Reduced() {
			rounds = 1
		}
		for range rounds {
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
	long.RacedAtNight(t)
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
	long.RacedAtNight(t)
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
