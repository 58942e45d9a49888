package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// increment reads a cell and writes it again.
func increment(ctx context.Context, c *txn.Client, row string) error {
	_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		v, _, err := tx.Table(tableName(0)).Get(ctx, row, "f", "q")
		if err != nil {
			return err
		}
		var n int
		_, _ = fmt.Sscan(string(v), &n)
		tx.Table(tableName(0)).Set(row, "f", "q", fmt.Append(nil, n+1))
		return nil
	})
	return err
}

// oneCell is how many increments of one cell can follow each other in a second: the read, the
// prewrite and the commit take a round trip each, 5 ms and the tail, and the timestamps 1 ms each.
const oneCell = 1000 / (3*(5+tail*275) + 2)

// hotCell measures one client whose goroutines all increment one cell, and many clients.
func hotCell(r *run) {
	rate := func(clients, goroutines int, lasts time.Duration) (perSecond, requests float64, took []time.Duration, kinds string) {
		w := r.world(3, 1, 0, 1)
		ctx, cancel := context.WithTimeout(w.Context(), lasts+time.Minute)
		defer cancel()
		done, took := busy(w.clients(clients, txn.Config{}, false), goroutines, lasts, func(c *txn.Client, _ *rand.Rand) error {
			return increment(ctx, c, "hot")
		})
		return float64(total(done)) / lasts.Seconds(), float64(w.cluster.Sum(model.All).Requests) / float64(max(total(done), 1)), took, w.kinds()
	}
	for _, n := range []struct {
		what                string
		clients, goroutines int
		lasts               time.Duration
	}{{"of one client", 1, r.Busy, 4 * r.Each}, {"of many clients", r.Fight, 4, r.Each}} {
		perSecond, requests, took, kinds := rate(n.clients, n.goroutines, n.lasts)
		what := n.what
		r.atLeast("commits "+what, perSecond, .8*oneCell, "1/s", "0.8 of what round trips allow; %d clients with %d goroutines; p50 %.0f ms, p99 %.0f ms", n.clients, n.goroutines, quantile(took, .5), quantile(took, .99))
		r.atMost("requests a commit "+what, requests, 30, "requests", "%s", kinds)
	}
}

// hotKeys measures processes that increment ten cells.
func hotKeys(r *run) {
	const goroutines = 4
	last, fair := 0.0, 0.0
	note := ""
	for _, n := range []int{1, r.Fight / 4, r.Fight} {
		w := r.world(3, 1, 0, 1)
		ctx, cancel := context.WithTimeout(w.Context(), r.Each+time.Minute)
		done, took := busy(w.clients(n, txn.Config{}, false), goroutines, r.Each, func(c *txn.Client, rnd *rand.Rand) error {
			return increment(ctx, c, fmt.Sprint("hot", rnd.IntN(10)))
		})
		cancel()
		last = float64(total(done)) / r.Each.Seconds()
		fair = float64(slices.Min(done)) / float64(max(slices.Max(done), 1))
		note += fmt.Sprintf("%d processes: %.0f/s, p50 %.0f ms; ", n, last, quantile(took, .5))
	}
	r.atLeast("commits of most processes", last, .7*10*oneCell, "1/s", "0.7 of what round trips allow; %s", note)
	r.atLeast("slowest process, of the fastest", fair, 1.0/3, "1", "")
}

// largeTransaction measures the memory of a transaction's writes before its commit.
func largeTransaction(r *run) {
	w := r.world(3, 1, 0, 1)
	c := w.client("large", txn.Config{}, false)
	rows := 10 * r.Locks
	tx, err := c.Begin(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer tx.Rollback()
	before := heap()
	peak := before
	for i := range rows {
		tx.Table(tableName(0)).Set(key(i), "f", "q", []byte("a value"))
	}
	buffered := heap() - before
	done := make(chan error)
	began := time.Now()
	go func() {
		_, err := tx.Commit(w.Context())
		done <- err
	}()
	for i := 0; ; i++ {
		select {
		case err := <-done:
			if err != nil {
				w.Error(err)
			}
			r.atMost("buffered writes", buffered/float64(rows), 500, "bytes/row", "%d rows", rows)
			r.atMost("commit", time.Since(began).Seconds(), 60, "s", "%.0f MB of client and emulator together", (peak-before)/1e6)
			return
		case <-time.After(time.Second):
			peak = max(peak, heap())
		}
	}
}

// heap is the memory in use.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
