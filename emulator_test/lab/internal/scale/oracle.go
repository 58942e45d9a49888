package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// oracles measures how the latency of commits grows with busy processes, for both oracles.
func oracles(r *run) {
	const goroutines = 4
	for _, n := range []int{r.Oracle / 16, r.Oracle / 4, r.Oracle} {
		direct := 0.0
		for _, oracle := range []string{"direct", "served"} {
			w := r.directWorld(10, 1, 50)
			if oracle == "served" {
				w = r.world(10, 1, 0, 50)
			}
			clients := w.clients(n, txn.Config{}, false)
			var row atomic.Int64
			write := func(c *txn.Client, _ *rand.Rand) error {
				return set(w.Context(), c, tableName(0), key(int(row.Add(1))), "v")
			}
			busy(clients, goroutines, 2*time.Second, write)
			done, took := busy(clients, goroutines, r.Each/4, write)
			p50 := quantile(took, .5)
			if oracle == "direct" {
				direct = p50
				continue
			}
			r.atMost(fmt.Sprintf("p50 of %d processes, served oracle", n), p50, 20, "ms", "%.0f commits/s; with the direct oracle, p50 is %.0f ms", float64(total(done))/(r.Each/4).Seconds(), direct)
		}
	}
}

// directOracle measures the direct oracle with many busy processes, and how long a reader
// waits then for the lock of a dead client.
func directOracle(r *run) {
	const goroutines = 16
	w := r.directWorld(10, 1, 1)
	if err := set(w.Context(), w.client("dying", txn.Config{}, false), tableName(0), key(0), "v"); err != nil {
		w.Fatal(err)
	}
	var clients []*txn.Client
	var oracles []*tso.Direct
	for i := range r.Oracle {
		name := fmt.Sprintf("client-%03d", i)
		bt, _ := w.env.Open(w.cluster.Client(name)...)
		o := tso.NewDirect(bt.OpenTable(format.DefaultMetadataTable), tso.DirectConfig{})
		oracles = append(oracles, o)
		clients = append(clients, w.client(name, txn.Config{Oracle: o}, false))
	}
	// How far timestamps are behind the time at which a client asked for them.
	var mu sync.Mutex
	var behind time.Duration
	var measuring atomic.Bool
	var n atomic.Int64
	write := func(c *txn.Client, rnd *rand.Rand) error {
		asked := time.Now()
		tx, err := c.Begin(w.Context())
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if d := asked.Sub(tx.StartTS().Time()); measuring.Load() {
			mu.Lock()
			behind = max(behind, d)
			mu.Unlock()
		}
		tx.Table(tableName(0)).Set(key(1000+int(n.Add(1))), "f", "q", []byte("value"))
		_, err = tx.Commit(w.Context())
		return err
	}
	busy(clients, goroutines, 5*time.Second, write)
	w.strand(tableName(0), 1, 1)
	died := time.Now()
	var waited time.Duration
	reading := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
		defer cancel()
		s, err := clients[0].Snapshot(ctx)
		if err == nil {
			_, _, err = s.Table(tableName(0)).Get(ctx, key(1), "f", "q")
		}
		waited = time.Since(died)
		reading <- err
	}()
	var batches, rpcs uint64
	for _, o := range oracles {
		s := o.Stats()
		batches, rpcs = batches-s.Batches, rpcs-s.RPCs
	}
	measuring.Store(true)
	done, took := busy(clients, goroutines, r.Each, write)
	for _, o := range oracles {
		s := o.Stats()
		batches, rpcs = batches+s.Batches, rpcs+s.RPCs
	}
	behindAfter := behind
	err := <-reading
	note := ""
	if err != nil {
		note = err.Error()
	}
	r.atMost("behind the clock", ms(behindAfter), 100, "ms", "%d processes with %d goroutines, %.0f commits/s, p50 %.0f ms, p99 %.0f ms", len(clients), goroutines, float64(total(done))/r.Each.Seconds(), quantile(took, .5), quantile(took, .99))
	r.atMost("requests of a batch", float64(rpcs)/float64(batches), 1.05, "requests", "%d batches", batches)
	// The dead client's token is stale after 5 s, its lock expires after 10 s.
	r.atMost("wait for a dead client's lock", waited.Seconds(), 12, "s", "%s", note)
}
