package scale

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// deployment measures the whole deployment under its load, with a server of the oracle and
// workers that observe a hundredth of the changes.
func deployment(r *run) {
	const nodes = 30
	w := r.world(nodes, r.Tables, r.Bytes/float64(r.Tables), 50)
	w.observed = max(r.Tables/100, 1)
	w.observe(w.env.Client)
	w.serve()
	clients := w.clients(r.Clients, txn.Config{}, false)
	var mu sync.Mutex
	var delays []time.Duration
	var stops []func()
	for i := range r.Workers {
		c := w.client(fmt.Sprintf("worker-%03d", i), txn.Config{}, false)
		stops = append(stops, w.work(c, notify.Config{OnEvent: func(e notify.Event) {
			if e.Outcome == notify.Committed {
				mu.Lock()
				defer mu.Unlock()
				delays = append(delays, e.CommitTS.Time().Sub(e.ChangeTS.Time()))
			}
		}}, func(string) {}))
	}
	time.Sleep(2 * time.Minute) // until clients know the observers, and the first sweeps ended
	w.cluster.Reset()
	l := w.load(clients, r.Rate, r.Load)
	sum := w.cluster.Sum(model.All)
	points, scans := w.cluster.Busy()
	time.Sleep(time.Minute)
	for _, stop := range stops {
		stop()
	}
	slices.Sort(delays)
	first, second := l.halves()
	lasted := r.Load.Seconds()
	r.atLeast("commits", float64(l.committed)/lasted, 0.95*r.Rate, "1/s", "%d clients, %d workers, %d tables, %.0f TB, %v; p50 %.0f ms; %d failed; %.1f requests a commit", r.Clients, r.Workers, r.Tables, r.Bytes/1e12, r.Load, quantile(second, .5), l.failed, float64(sum.Requests)/float64(l.committed))
	r.atMost("p99", quantile(second, .99), 100, "ms", "")
	r.atMost("p99.9", quantile(second, .999), latest(3), "ms", "twice what round trips allow a commit of two rows, and 500 ms for a late request")
	r.atMost("p50 of the second half, of the first", quantile(second, .5)/quantile(first, .5), 1.1, "1", "")
	r.atLeast("observed changes", float64(len(delays))/float64(max(l.observed, 1)), 0.98, "1", "%d changes; delay p50 %.0f ms, p99 %.0f ms", l.observed, quantile(delays, .5), quantile(delays, .99))
	r.atMost("nodes busy with scans", scans.Seconds()/lasted, 0.1*nodes, "nodes", "%d nodes; %.1f busy with the rest: %s", nodes, points.Seconds()/lasted, w.kinds())
}

// steadyHours measures whether hours at a hundredth of the rate stay as they are, with
// observers and garbage collection.
func steadyHours(r *run) {
	w := r.world(30, 2, 1e9, 10)
	w.rows = 10 // so that the tables, and the emulator's memory, stay as they are
	w.observe(w.env.Client)
	w.serve()
	clients := w.clients(r.Clients, txn.Config{}, false)
	var seen atomic.Int64
	var stops []func()
	for i := range r.Workers {
		c := w.client(fmt.Sprintf("worker-%03d", i), txn.Config{}, false)
		stops = append(stops, w.work(c, notify.Config{}, func(string) { seen.Add(1) }))
	}
	collector := w.client("collector", txn.Config{}, false)
	ctx, cancel := context.WithCancel(w.Context())
	collected := make(chan error)
	var removed int64
	go func() {
		for {
			select {
			case <-ctx.Done():
				collected <- nil
				return
			case <-time.After(5 * time.Minute):
			}
			report, err := gc.Run(ctx, collector, gc.Config{Retention: 10 * time.Minute, FullEvery: 7 * 24 * time.Hour})
			if err != nil && ctx.Err() == nil {
				collected <- err
				return
			}
			if report != nil {
				removed += report.Total.Versions
			}
		}
	}()
	time.Sleep(time.Minute) // until clients know the observers
	heapBefore, before := heap(), w.cluster.Counts()
	l := w.load(clients, r.Rate/100, r.Steady)
	after, lasted := w.cluster.Counts(), r.Steady
	time.Sleep(time.Minute)
	for _, stop := range stops {
		stop()
	}
	cancel()
	if err := <-collected; err != nil {
		w.Error(err)
	}
	second, last := l.halves()
	r.atMost("p50 of the second half, of the first", quantile(last, .5)/quantile(second, .5), 1.1, "1", "%v at %.0f commits/s: %.1f ms", r.Steady, r.Rate/100, quantile(last, .5))
	r.atMost("p99 of the second half, of the first", quantile(last, .99)/quantile(second, .99), 1.5, "1", "%.1f ms", quantile(last, .99))
	r.atMost("requests of the last tenth, of the second", l.requests[len(l.requests)-1]/l.requests[1], 1.2, "1", "%s", w.kinds())
	r.atLeast("changes observed", float64(seen.Load()), float64(l.committed), "changes", "the heap grew by %.0f MB, with the emulator", (heap()-heapBefore)/1e6)
	var own, tokens model.Count // requests that clients send whatever they commit; rows that workers read
	for k, n := range after {
		switch {
		case strings.HasPrefix(k.Client, "worker-") && k.Kind == "token" && k.Method == "ReadRows":
			tokens.Rows += n.Rows - before[k].Rows
		case strings.HasPrefix(k.Client, "client-") && slices.Contains([]string{"token", "safe point", "schema", "changed"}, k.Kind):
			own.Requests += n.Requests - before[k].Requests
		}
	}
	// At most: two tokens for each of 12 commits, the safe point and a note of changes every 10 s, schemas of two
	// tables every minute.
	r.atMost("requests of a client beside its transactions", float64(own.Requests)/lasted.Minutes()/float64(r.Clients), 50, "1/min", "each commits %.0f times", r.Rate/100*60/float64(r.Clients))
	// Workers count each other.
	r.atMost("tokens that workers read", float64(tokens.Rows)/lasted.Seconds(), 2*float64(r.Clients+r.Workers), "1/s", "%d clients, %d workers", r.Clients, r.Workers)
	// Each transaction and each run of its observer overwrites versions. The last 30 minutes are left out.
	r.atLeast("versions collected, of commits", float64(removed)/float64(l.committed), max(0, 1-30/lasted.Minutes()), "1", "%d versions; retention 10m, a run every 5m", removed)
}

// A loaded is what a load did; took and requests are of each tenth of the time.
type loaded struct {
	mu                sync.Mutex
	committed, failed int
	observed          int // changes that observers should see, without those of one cell that follow each other
	took              [10][]time.Duration
	requests          [10]float64
}

// halves returns how long transactions of the first half took, and of the second, both sorted. It
// leaves the first tenth out, because tables are opened there.
func (l *loaded) halves() (first, second []time.Duration) {
	first, second = slices.Concat(l.took[1:5]...), slices.Concat(l.took[5:]...)
	slices.Sort(first)
	slices.Sort(second)
	return first, second
}

// load lets each client write one or two cells of random tables at random times: random rows, or
// w.rows rows of its own in turn.
func (w *world) load(clients []*txn.Client, rate float64, lasts time.Duration) *loaded {
	w.Helper()
	l := &loaded{}
	var all sync.WaitGroup
	pause := float64(len(clients)) / rate // seconds between transactions of a client
	start := time.Now()
	for i, c := range clients {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			var own sync.WaitGroup
			turn := 0
			for {
				time.Sleep(time.Duration(rnd.ExpFloat64() * pause * float64(time.Second)))
				at := time.Since(start)
				if at >= lasts {
					break
				}
				n, row, more := rnd.IntN(w.tables), key(rnd.IntN(1<<30)), rnd.IntN(10) == 0
				if w.rows > 0 {
					row = key(i + turn%w.rows*len(clients))
				}
				turn++
				table := tableName(n)
				own.Go(func() {
					began := time.Now()
					_, err := c.Update(w.Context(), func(_ context.Context, tx *txn.Txn) error {
						tx.Table(table).Set(row, "f", "q", []byte("value"))
						if more {
							tx.Table(table).Set(row+"'", "f", "other", []byte("value"))
						}
						return nil
					})
					if err != nil && !errors.Is(err, txn.ErrConflict) {
						w.Error(err)
					}
					l.mu.Lock()
					defer l.mu.Unlock()
					if err != nil {
						l.failed++
						return
					}
					l.committed++
					if n < w.observed {
						l.observed++
					}
					tenth := int(10 * at / lasts)
					l.took[tenth] = append(l.took[tenth], time.Since(began))
				})
			}
			own.Wait()
		})
	}
	before := 0.0
	for i := range l.requests {
		time.Sleep(lasts / 10)
		now := float64(w.cluster.Sum(model.All).Requests)
		l.requests[i], before = now-before, now
	}
	all.Wait()
	for i := range l.took {
		slices.Sort(l.took[i])
	}
	return l
}
