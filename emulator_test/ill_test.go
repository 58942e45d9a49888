package emulator_test

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
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// While tablets are away, transactions that do not touch them take as long as before. Before, commits that
// waited for a tablet kept the locks of their other rows until LockTTL had passed, and a tenth of the
// bystanders took seconds. Those that touch a tablet wait for it, and do not fail. Few requests go there:
// when the clients find out, and two or three a second from each client after that.
func TestBystandersOfTabletsThatAreAway(t *testing.T) {
	long.Test(t, "ten clients, and figures with pauses by chance")
	long.NotUnderRace(t, "one request after the other, and what it costs")
	const (
		clients = 10
		pause   = 100 * time.Millisecond // between the transactions of a client
		load    = 30 * time.Second
		rows    = 1000
	)
	type stop = func(c *model.Cluster, table, row string, d time.Duration)
	unavailable, hanging := (*model.Cluster).Unavailable, (*model.Cluster).Away
	for name, tt := range map[string]struct {
		tablets int
		away    []int         // these tablets, in turn
		every   time.Duration // when the next one begins
		each    time.Duration
		stops   []stop
		most    int64 // requests without an answer
	}{
		"one of ten, unavailable":     {10, []int{5}, 0, load, []stop{unavailable}, 1500},
		"one of ten, hanging":         {10, []int{5}, 0, load, []stop{hanging}, 500},
		"one of ten, again and again": {10, []int{5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, 3 * time.Second, 2 * time.Second, []stop{unavailable, hanging}, 2400},
		"ten of 100, in turn":         {100, []int{10, 11, 25, 30, 47, 48, 63, 71, 88, 99}, 3 * time.Second, 6 * time.Second, []stop{unavailable, hanging}, 1300},
	} {
		if long.Reduced() && name != "one of ten, again and again" { // in both ways
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				splits := model.HexSplits("", tt.tablets)
				cluster := model.New(model.Config{Nodes: 10, Tables: map[string]model.Table{"a": {Bytes: 1e9, Splits: splits}}})
				env := txntest.New(t, txntest.WithoutTransport())
				env.CreateTable("a", "f")
				var mu sync.Mutex
				var bystanders, readers []time.Duration
				var touched, late int
				var all sync.WaitGroup
				isAway := func(k string) bool {
					i, found := slices.BinarySearch(splits, k)
					if found {
						i++
					}
					return slices.Contains(tt.away, i)
				}
				read := func(c *txn.Client, key string) {
					began := time.Now()
					s, err := c.Snapshot(t.Context())
					if err == nil {
						_, _, err = s.Table("a").Get(t.Context(), key, "f", "q")
					}
					took := time.Since(began)
					mu.Lock()
					defer mu.Unlock()
					if readers = append(readers, took); err != nil {
						t.Errorf("read of %s after %v: %v", key, took, err)
					}
				}
				run := func(c *txn.Client, keys [2]string) {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
					defer cancel()
					began := time.Now()
					_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
						for _, k := range keys {
							tx.Table("a").Set(k, "f", "q", []byte("v"))
						}
						return nil
					})
					took := time.Since(began)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Errorf("%v after %v: %v", keys, took, err)
					}
					if slices.ContainsFunc(keys[:], isAway) {
						touched++
						if took > time.Second {
							late++
						}
					} else {
						bystanders = append(bystanders, took)
					}
				}
				for i := range clients {
					c := env.NewClient(txn.Config{}, cluster.Client(fmt.Sprint(i))...)
					r := rand.New(rand.NewPCG(uint64(i), 1))
					key := func() string { return fmt.Sprintf("%08x", uint64(r.IntN(rows))<<32/rows) }
					all.Go(func() {
						advance(time.Duration(i) * pause / clients)
						for range load / pause {
							keys := [2]string{key(), key()}
							all.Go(func() { run(c, keys) })
							if k := key(); !isAway(k) {
								all.Go(func() { read(c, k) })
							}
							advance(pause)
						}
					})
				}
				for i, n := range tt.away {
					if i > 0 {
						advance(tt.every)
					}
					tt.stops[i%len(tt.stops)](cluster, "a", splits[n-1], tt.each)
				}
				all.Wait()
				n := cluster.Sum(model.All)
				for name, took := range map[string][]time.Duration{"transactions": bystanders, "reads": readers} {
					slices.Sort(took)
					at := func(p int) time.Duration { return took[(len(took)-1)*p/100] }
					t.Logf("%d bystanders, %s: p50 %v, p99 %v, at most %v", len(took), name, at(50), at(99), at(100))
					if p99 := at(99); p99 > 100*time.Millisecond {
						t.Errorf("p99 of %s beside the tablets: %v, want at most 100ms", name, p99)
					}
				}
				t.Logf("%d of %d others late; %d requests without an answer", late, touched, n.Refused+n.Expired)
				if late < touched/10 {
					t.Errorf("%d of %d transactions with a row of the tablets were late: they were not away", late, touched)
				}
				if n.Refused+n.Expired > tt.most {
					t.Errorf("%d requests without an answer, want at most %d", n.Refused+n.Expired, tt.most)
				}
			})
		})
	}
}

// 200 transactions of a client wait for a tablet. They hold no locks, and send few requests. A wait ends with
// its context, and when the client closes.
func TestManyWaitForATabletThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := model.New(model.Config{Nodes: 2, Tables: map[string]model.Table{"a": {Bytes: 1e9, Splits: []string{"m"}}}})
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		set := func(ctx context.Context, c *txn.Client, rows ...string) error {
			_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				for _, row := range rows {
					tx.Table("a").Set(row, "f", "q", []byte("v"))
				}
				return nil
			})
			return err
		}
		waits, other := env.NewClient(txn.Config{}, cluster.Client("waits")...), env.NewClient(txn.Config{}, cluster.Client("other")...)
		for _, c := range []*txn.Client{waits, other} {
			if err := set(t.Context(), c, "a", "z"); err != nil {
				t.Fatal(err)
			}
		}
		cluster.Away("a", "z", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		short, stop := context.WithCancel(ctx)
		defer stop()
		var canceled, closed sync.WaitGroup
		for i := range 100 {
			canceled.Go(func() {
				if err := set(short, waits, fmt.Sprint("b", i), fmt.Sprint("x", i)); !errors.Is(err, context.Canceled) {
					t.Errorf("after its context was canceled: %v", err)
				}
			})
			closed.Go(func() {
				if err := set(ctx, waits, fmt.Sprint("c", i), fmt.Sprint("y", i)); !errors.Is(err, txn.ErrClosed) {
					t.Errorf("after the client was closed: %v", err)
				}
			})
		}
		advance(10 * time.Second)
		of := func(k model.Key) bool { return k.Client == "waits" }
		sent := cluster.Sum(of)
		advance(time.Minute)
		if n := cluster.Sum(of); n.Expired-sent.Expired > 30 || n.Requests-sent.Requests > 60 || n.Expired == sent.Expired {
			t.Errorf("in a minute, %d requests, %d without an answer; want at most 60 and 30, and some", n.Requests-sent.Requests, n.Expired-sent.Expired)
		}
		began := time.Now()
		for i := range 100 {
			if err := set(t.Context(), other, fmt.Sprint("b", i), fmt.Sprint("c", i)); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("100 transactions with the other rows took %v", took)
		}
		began = time.Now()
		stop()
		canceled.Wait()
		if took := time.Since(began); took > 0 {
			t.Errorf("canceled transactions ended %v later", took)
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = waits.Close(soon) // it says what it gave up
		closed.Wait()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("transactions of a closed client ended %v later", took)
		}
	})
}
