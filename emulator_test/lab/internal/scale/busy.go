package scale

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/capacity"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// latest is the goal for the p99.9 of transactions with so many requests to Bigtable, one after the
// other, in ms: twice their round trips, and one late request.
func latest(requests int) float64 { return 2*(5*float64(requests)+2) + 500 }

// usual is the goal for their p99. If more than one of a hundred transactions has a late request,
// the goal is twice the quantile of those.
func usual(requests int) float64 {
	ms := 5*float64(requests) + 2
	if late := late(requests); late > .01 {
		ms += 50 + 450*(1-.01/late)
	}
	return 2 * ms
}

// late is the share of transactions with so many requests of which one or more are late.
func late(requests int) float64 { return 1 - math.Pow(1-tail, float64(requests)) }

// busyDeployment measures a deployment whose nodes are busy for 60 % of the time, without and
// beside a run of garbage collection that reads every row.
func busyDeployment(r *run) {
	nodes := max(2, int(r.Rate/1000))
	workload := capacity.Workload{Oracle: capacity.Served, Processes: 10, Transactions: []capacity.Kind{
		{Name: "reads", Rate: 4, Reads: 1},
		{Name: "changes", Rate: 2, Reads: 1, Rows: 1},
		{Name: "transfers", Rate: 1, Reads: 2, Rows: 3},
	}}
	p, err := capacity.New(workload, capacity.DefaultRates)
	if err != nil {
		r.Fatal(err)
	}
	for i := range workload.Transactions {
		workload.Transactions[i].Rate *= .6 * float64(nodes) / (p.CPUNodes - p.IdleNodes - p.GCNodes)
	}
	p, err = capacity.New(workload, capacity.DefaultRates)
	if err != nil {
		r.Fatal(err)
	}
	lasts := r.Each * 2 / 5
	w := r.world(nodes, 2, float64(nodes)*220e6*3600, 10*nodes) // an hour of each node for each table
	clients := w.clients(p.Workload.Processes, txn.Config{}, false)
	w.play(p.Workload, clients, time.Second)
	var calm []float64
	measure := func(what string) {
		w.cluster.Reset()
		began := time.Now()
		took := w.play(p.Workload, clients, lasts)
		time := float64(nodes) * time.Since(began).Seconds()
		points, scans := w.cluster.Busy()
		for i, k := range p.Transactions {
			slices.Sort(took[i])
			note := fmt.Sprintf("%.0f/s, p50 %.0f ms; %.0f %% of %d nodes busy with rows, %.0f %% with scans", k.PerSecond, quantile(took[i], .5), 100*points.Seconds()/time, nodes, 100*scans.Seconds()/time)
			requests := k.Reads + k.Prewrites + k.Commits
			q := .99
			if late(requests) > .01 {
				q = .95 // p99 is that of the transactions with a late request
			}
			compared := quantile(took[i], q)
			if what == "" {
				calm = append(calm, compared)
				r.atMost(k.Name+": p99", quantile(took[i], .99), usual(requests), "ms", "twice what round trips allow; %s", note)
				r.atMost(k.Name+": p99.9", quantile(took[i], .999), latest(requests), "ms", "twice what round trips allow, and 500 ms for a late request")
				continue
			}
			r.atMost(fmt.Sprintf("%s: p%.0f %s, of that without", k.Name, 100*q, what), compared/calm[0], 1.5, "1", "%.0f ms; %s", compared, note)
			calm = calm[1:]
		}
	}
	measure("")
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	reads, done := make(chan struct{}), make(chan error)
	collector := w.client("collector", txn.Config{TokenTTL: time.Hour}, false)
	go func() {
		var once sync.Once
		_, err := gc.Run(ctx, collector, gc.Config{Retention: 10 * time.Minute, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseLocks {
				once.Do(func() { close(reads) })
			}
		}})
		done <- err
	}()
	select {
	case <-reads:
	case err := <-done:
		w.Fatal(err)
	}
	measure("beside a pass")
	cancel()
	<-done
}

// removedCells measures a cell with 100,000 removed locks: that is what half an hour of commits
// leaves until Bigtable compacts.
func removedCells(r *run) {
	w := r.world(3, 1, 0, 1)
	w.cluster.Removed(tableName(0), "hot", format.LockFamily, txn.Column{Family: "f", Qualifier: "q"}.Key(), 100_000)
	ctx, cancel := context.WithTimeout(w.Context(), r.Each+time.Minute)
	defer cancel()
	done, took := busy([]*txn.Client{w.client("hot", txn.Config{}, false)}, 4, r.Each, func(c *txn.Client, _ *rand.Rand) error {
		return increment(ctx, c, "hot")
	})
	r.atLeast("hot cell with 100,000 removed locks", float64(total(done))/r.Each.Seconds(), .8*oneCell, "1/s", "0.8 of what round trips allow; p50 %.0f ms", quantile(took, .5))
}

// largeRow measures garbage collection if one row is larger than what Bigtable returns of a row.
func largeRow(r *run) {
	const rows = 100
	w := r.worldWith(served{tso.NewLocal(tso.LocalConfig{})}, 3, 3, 0, 1, nil, txntest.WithMaxRow(1<<20))
	collector := w.client("collector", txn.Config{TokenTTL: time.Hour}, false)
	cfg := gc.Config{Retention: 10 * time.Minute, FullEvery: 7 * 24 * time.Hour}
	if _, err := gc.Run(w.Context(), collector, cfg); err != nil {
		w.Fatal(err)
	}
	writer := w.client("writer", txn.Config{}, false)
	for range 2 {
		for i := range w.tables {
			w.fillBy(writer, tableName(i), rows)
		}
	}
	for range 12 {
		if err := set(w.Context(), writer, tableName(1), key(rows/2), strings.Repeat("v", 100<<10)); err != nil {
			w.Fatal(err)
		}
	}
	written := time.Now()
	removed := int64(0)
	var failed error
	for range 3 {
		time.Sleep(20 * time.Minute)
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Hour)
		report, err := gc.Run(ctx, collector, cfg)
		cancel()
		if report != nil {
			removed += report.Total.Versions
		}
		if err != nil {
			failed = err
		}
	}
	safe, err := gc.SafePoint(w.Context(), collector)
	if err != nil {
		w.Fatal(err)
	}
	r.atLeast("versions removed beside it", float64(removed), float64(3*rows-1), "versions", "%v", failed)
	r.atLeast("the safe point, after what was written", safe.Time().Sub(written).Minutes(), 45, "min", "the last of three runs began an hour after it; retention 10m")
}
