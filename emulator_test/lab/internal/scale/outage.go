package scale

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// outage measures transactions that write two rows while tablets are away that they do
// not touch, and ten seconds in which the cluster refuses every request. Without an outage, 0.6 % of
// the transactions would have a late request, so no request is late here: what p99 says is the outage's.
func outage(r *run) {
	r.tail = 0
	const tablets, away = 10, 30 * time.Second
	rate := max(r.Rate/50, 100)
	splits := append([]string{""}, append(model.HexSplits("", tablets), "~")...)
	for _, tt := range []struct {
		what string
		// begin makes tablets unavailable, and reports those of its table one by one.
		begin func(w *world, out func(tablet int, d time.Duration))
		goal  float64 // of p99, in ms
	}{
		{"a tablet is away", func(w *world, out func(int, time.Duration)) {
			w.cluster.Away(tableName(0), splits[8], away)
			out(8, away)
		}, 100},
		{"the metadata table is away", func(w *world, _ func(int, time.Duration)) {
			w.cluster.Away(format.DefaultMetadataTable, "", away)
		}, 100},
		{"tablets move and split", func(w *world, out func(int, time.Duration)) {
			for i := range int(away / (3 * time.Second)) {
				w.cluster.Move(format.DefaultMetadataTable, "")
				if i%2 == 0 {
					w.cluster.Move(tableName(0), splits[i])
				} else {
					w.cluster.Split(tableName(0), splits[i]+"8")
				}
				out(i, time.Second)
				time.Sleep(3 * time.Second)
			}
		}, 300},
	} {
		w := r.world(10, 1, 1e9, tablets)
		w.serve()
		clients := w.clients(10, txn.Config{}, false)
		w.pairs(clients, rate, time.Second, nil)
		var mu sync.Mutex
		var outs []out
		began := time.Now()
		go tt.begin(w, func(tablet int, d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			outs = append(outs, out{splits[tablet], splits[tablet+1], time.Now(), time.Now().Add(d)})
		})
		took, failed := w.pairs(clients, rate, away+5*time.Second, func(rows [2]string, from, to time.Time) bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.ContainsFunc(outs, func(o out) bool {
				return from.Before(o.to) && to.After(o.from) && (o.has(rows[0]) || o.has(rows[1]))
			})
		})
		over := time.Since(began) - away - 5*time.Second
		r.atMost("p99 of bystanders while "+tt.what, quantile(took, .99), tt.goal, "ms", "p50 %.0f ms, p90 %.0f ms, p99.9 %.0f ms; %d transactions", quantile(took, .5), quantile(took, .9), quantile(took, .999), len(took))
		r.atMost("failed transactions while "+tt.what, float64(failed), 0, "transactions", "the last one ended %.1f s after the load", over.Seconds())
	}
	r.throttled()
}

// An out is a range of rows that is away for some time.
type out struct {
	start, end string
	from, to   time.Time
}

func (o out) has(row string) bool { return o.start <= row && row < o.end }

// pairs writes two rows at random times, each every ten seconds, and returns how long those transactions took for
// which hit is false, sorted, and how many of all failed.
func (w *world) pairs(clients []*txn.Client, rate float64, lasts time.Duration, hit func(rows [2]string, from, to time.Time) bool) (took []time.Duration, failed int) {
	w.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	rnd := rand.New(rand.NewPCG(1, 2))
	for end := time.Now().Add(lasts); ; {
		time.Sleep(time.Duration(rnd.ExpFloat64() / rate * float64(time.Second)))
		if !time.Now().Before(end) {
			break
		}
		c, rows := clients[rnd.IntN(len(clients))], [2]string{key(rnd.IntN(int(20 * rate))), key(rnd.IntN(int(20 * rate)))}
		all.Go(func() {
			began := time.Now()
			ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
			defer cancel()
			_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				for _, row := range rows {
					tx.Table(tableName(0)).Set(row, "f", "q", []byte("value"))
				}
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
				w.Logf("rows %v: %v", rows, err)
			}
			if hit == nil || !hit(rows, began, time.Now()) {
				took = append(took, time.Since(began))
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	return took, failed
}

// throttled measures ten seconds in which the cluster refuses every request.
func (r *run) throttled() {
	const throttled = 10 * time.Second
	w := r.world(10, 2, 1e9, 10)
	w.serve()
	clients := w.clients(10, txn.Config{}, false)
	for i, c := range clients {
		for n := range w.tables {
			if err := set(w.Context(), c, tableName(n), key(i), "v"); err != nil {
				w.Fatal(err)
			}
		}
	}
	w.cluster.Reset()
	w.cluster.Throttle(throttled, 3*time.Second)
	began := time.Now()
	l := w.load(clients, 100, throttled)
	over := time.Since(began) - throttled
	sum := w.cluster.Sum(model.All)
	r.atMost("until the last throttled transaction has ended", over.Seconds(), 10, "s", "after the throttling; %d of %d failed", l.failed, l.failed+l.committed)
	// Each transaction asks again after 3 s.
	r.atMost("refused requests of a throttled transaction", float64(sum.Refused)/float64(l.committed+l.failed), 5, "requests", "")
}
