package shop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var secret = []byte("0123456789abcdef")

// TestShop: customers repeat requests until one succeeds, while the processes that serve them
// die. Each request places one order, nobody pays twice, addresses are unique, and the lists
// are complete.
func TestShop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const people, requests, balance, price = 4, 10, 1000, 7
		env := txntest.New(t, txntest.Embedded())
		for table, families := range Tables {
			env.CreateTable(table, families...)
		}
		steady, err := New(env.Client, secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := steady.SetUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		placed, killed := map[string]string{}, 0
		// serve calls f in a process of its own, which may die at any request.
		serve := func(rnd *rand.Rand, f func(context.Context, *Service) error) error {
			faults := txntest.NewFaults(t)
			client := env.NewClient(txn.Config{LockTTL: time.Second, TokenTTL: -1, SyncSecondaries: true}, faults.DialOptions()...)
			s, err := New(client, secret)
			if err != nil {
				return err
			}
			n, at := 0, 1+rnd.IntN(60)
			action := []txntest.Action{txntest.Crash, txntest.HoldResponse}[rnd.IntN(2)]
			rule := faults.On("death", func(txntest.Call) bool { n++; return n == at }, action, 1).Optional()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- f(ctx, s) }()
			select {
			case <-rule.Fired():
				faults.Kill()
				cancel()
				<-done
				mu.Lock()
				killed++
				mu.Unlock()
				return errors.New("the process has died")
			case err := <-done:
				return err
			}
		}
		var all sync.WaitGroup
		for i := range people {
			rnd := rand.New(rand.NewPCG(18, uint64(i)))
			all.Go(func() {
				me := fmt.Sprint("customer", i)
				for serve(rnd, func(ctx context.Context, s *Service) error {
					// Two customers want each address.
					err := s.Register(ctx, Customer{ID: me, Email: fmt.Sprint("address", i/2), Balance: balance})
					if errors.Is(err, index.ErrUnique) {
						err = s.Register(ctx, Customer{ID: me, Email: me, Balance: balance})
					}
					return err
				}) != nil {
					if c, ok, err := customers.At(now(t, env.Client)).Get(t.Context(), me); err != nil {
						t.Error(err)
						return
					} else if ok && c.ID == me {
						break // the process died after the commit
					}
				}
				for r := range requests {
					id := fmt.Sprint(me, "-", r)
					var o Order
					for serve(rnd, func(ctx context.Context, s *Service) (err error) {
						o, err = s.Place(ctx, id, me, price)
						return err
					}) != nil {
					}
					mu.Lock()
					placed[id] = o.ID
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if killed < 20 {
			t.Errorf("only %d processes died", killed)
		}
		for _, name := range []string{"customers-by-email", "orders-by-customer"} {
			if err := steady.indexes.Verify(t.Context(), env.Client, name, func(p index.Problem) { t.Error(p) }); err != nil {
				t.Error(err)
			}
		}
		for i := range people {
			me := fmt.Sprint("customer", i)
			var want, got []string
			for id, order := range placed {
				if len(id) > len(me) && id[:len(me)] == me {
					want = append(want, order)
				}
			}
			for token, first := "", true; first || token != ""; first = false {
				var ids []string
				if ids, token, err = steady.Orders(t.Context(), me, 3, token); err != nil {
					t.Fatal(err)
				}
				got = append(got, ids...)
			}
			slices.Sort(want)
			slices.Sort(got)
			if len(want) != requests || !slices.Equal(got, want) {
				t.Errorf("%s has the orders %q, was told %q", me, got, want)
			}
			c, _, err := customers.At(now(t, env.Client)).Get(t.Context(), me)
			if err != nil || c.Balance != balance-requests*price {
				t.Errorf("%s has a balance of %d, error %v", me, c.Balance, err)
			}
		}
		if _, err := steady.Place(t.Context(), "too much", "customer0", balance); !errors.Is(err, ErrBalance) {
			t.Errorf("an order that is too expensive: %v", err)
		}
	})
}

func now(t *testing.T, c *txn.Client) *txn.Snapshot {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Error(err)
	}
	return s
}

// TestRequests counts what each call of the service sends.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		for table, families := range Tables {
			env.CreateTable(table, families...)
		}
		faults := txntest.NewFaults(t)
		s, err := New(env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour}, faults.DialOptions()...), secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		register := func(id string) func() error {
			return func() error { return s.Register(t.Context(), Customer{ID: id, Email: id, Balance: 100}) }
		}
		place := func(id string) func() error {
			return func() error { _, err := s.Place(t.Context(), id, "ann", 1); return err }
		}
		list := func() error { _, _, err := s.Orders(t.Context(), "ann", 10, ""); return err }
		for _, f := range []func() error{register("ann"), place("1"), list} { // opens the tables
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
		for _, tt := range []struct {
			name                  string
			call                  func() error
			oracle, reads, writes int
		}{
			{"Register", register("bob"), 2, 3, 2},
			{"Place", place("2"), 2, 4, 4},
			{"Place again", place("2"), 1, 1, 0},
			{"Orders", list, 1, 2, 0},
		} {
			synctest.Wait()
			faults.Reset()
			if err := tt.call(); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			synctest.Wait()
			n := faults.Count()
			if n[txntest.StepOracle] != tt.oracle || n[txntest.StepRead] != tt.reads || n[txntest.StepPrewrite] != tt.writes {
				t.Errorf("%s: requests %v, want %d to the oracle, %d reads and %d prewrites", tt.name, n, tt.oracle, tt.reads, tt.writes)
			}
		}
	})
}
