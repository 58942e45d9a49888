package emulator_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

var visits = notify.Counter{Table: "docs", Family: "d", Qualifier: "visits", Shards: 4}

func newCounter(t *testing.T, c *txn.Client, cfg notify.Config) *notify.Worker {
	t.Helper()
	w, err := notify.NewWorker(c, cfg)
	if err == nil {
		err = w.Handle("fold", visits.Table, visits.Column(), visits)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Several clients add to counters while workers that fold the additions die at random
// requests. Every snapshot is exact: here the sum over all keys is always 0. In the end
// each addition counts once, and all of them are folded.
func TestCounter(t *testing.T) {
	const adders, adds, keys = 6, 15, 3
	folds, seeds := 0, uint64(6)
	if long.Reduced() {
		seeds = 2
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			env := newObserved(t)
			if err := changes.RegisterObserver(t.Context(), env.Client, "docs", txn.Column{Family: "d", Qualifier: "visits.added"}, "fold", false); err != nil {
				t.Fatal(err)
			}
			want := make([]int64, keys)
			var mu sync.Mutex
			var g sync.WaitGroup
			key := func(i int) string { return fmt.Sprint("page", i) }
			for a := range adders {
				g.Go(func() {
					rnd := rand.New(rand.NewPCG(seed, uint64(a)))
					c := env.NewClient(txn.Config{TokenTTL: -1}, slow(time.Duration(1+rnd.IntN(10))*time.Millisecond)...)
					for range adds {
						from, to, n := rnd.IntN(keys), rnd.IntN(keys), rnd.Int64N(100)
						_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
							if err := visits.Add(ctx, tx, key(from), -n); err != nil {
								return err
							}
							return visits.Add(ctx, tx, key(to), n)
						})
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						want[from] -= n
						want[to] += n
						mu.Unlock()
						sum := int64(0)
						s := takeSnapshot(t, c)
						for i := range keys {
							got, err := visits.Read(t.Context(), s.Table("docs"), key(i))
							if err != nil {
								t.Error(err)
							}
							sum += got
						}
						if sum != 0 {
							t.Errorf("the sum over all keys is %d at %d, want 0", sum, s.ReadTS())
						}
					}
				})
			}
			added := make(chan struct{})
			go func() { g.Wait(); close(added) }()
			rnd := rand.New(rand.NewPCG(seed, 99))
			for died := 0; died < 4; died++ {
				faults := txntest.NewFaults(t)
				n, k := 0, 1+rnd.IntN(40)
				action := []txntest.Action{txntest.Crash, txntest.HoldResponse}[rnd.IntN(2)]
				dies := faults.On("the k-th request", func(c txntest.Call) bool {
					if onData(c) {
						n++
					}
					return onData(c) && n == k
				}, action, 1).Optional()
				victim := env.NewClient(txn.Config{TokenTTL: -1, LockTTL: 100 * time.Millisecond}, faults.DialOptions()...)
				w := newCounter(t, victim, notify.Config{DrainTimeout: time.Millisecond})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- w.Run(ctx) }()
				select {
				case <-dies.Fired():
				case <-time.After(5 * time.Second):
				}
				faults.Kill()
				cancel()
				<-done
			}
			<-added
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- newCounter(t, env.Client, notify.Config{}).Run(ctx) }()
			asOf, err := notify.Wait(t.Context(), env.Client, notify.WaitConfig{})
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			s := takeSnapshot(t, env.Client, txn.At(asOf))
			for i := range keys {
				got, err := visits.Read(t.Context(), s.Table("docs"), key(i))
				if err != nil || got != want[i] {
					t.Errorf("seed %d: %s is %d, %v; want %d", seed, key(i), got, err, want[i])
				}
				v, ok, err := s.Table("docs").Get(t.Context(), key(i), "d", "visits")
				if err != nil || !ok || int64(bigEndian(v)) != want[i] {
					t.Errorf("seed %d: of %s, %d is folded, %v; want %d", seed, key(i), int64(bigEndian(v)), err, want[i])
				}
				versions, err := admin.History(t.Context(), env.Client, "docs", key(i))
				if err != nil {
					t.Fatal(err)
				}
				folds += len(versions)
			}
			// A worker, even a killed one, tries for ten seconds to settle its last
			// commit.
			<-time.After(time.Minute) // virtual time
		})
	}
	if folds == 0 {
		t.Error("nothing was folded")
	}
}

func bigEndian(b []byte) (n uint64) {
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return n
}
