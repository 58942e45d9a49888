package scale

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/capacity"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// observer returns an observer that writes another cell, and calls f in each run.
func observer(f func(row string)) notify.ObserverFunc {
	return func(_ context.Context, tx *txn.Txn, c txn.Cell) error {
		tx.Table(c.Table).Set(c.Row, "f", "seen", fmt.Append(nil, tx.StartTS()))
		f(c.Row)
		return nil
	}
}

// work runs a worker that observes these tables. stop waits until it has stopped.
func (w *world) work(c *txn.Client, cfg notify.Config, f func(row string)) (stop func()) {
	w.Helper()
	worker, err := notify.NewWorker(c, cfg)
	if err != nil {
		w.Fatal(err)
	}
	for i := range w.observed {
		if err := worker.Handle("o", tableName(i), observedColumn, observer(f)); err != nil {
			w.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error)
	go func() { done <- worker.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("Run: %v", err)
		}
	}
}

// await runs a worker until it has observed n changes, and returns how long that took.
func (w *world) await(ctx context.Context, c *txn.Client, n int, cfg notify.Config) (took time.Duration, err error) {
	w.Helper()
	var runs atomic.Int64
	enough := make(chan struct{})
	began := time.Now()
	stop := w.work(c, cfg, func(string) {
		if runs.Add(1) == int64(n) {
			close(enough)
		}
	})
	defer stop()
	select {
	case <-enough:
		return time.Since(began), nil
	case <-ctx.Done():
		return time.Since(began), errors.New("it found nothing in time")
	}
}

// idleFleet measures workers that have nothing to do.
func idleFleet(r *run) {
	const rests = time.Hour // long pauses follow long turns
	const nodes = 30
	rate := func(workers int, bytes float64, tablets int) (requests, counts, busy, start float64) {
		w := r.world(nodes, 1, bytes, tablets)
		w.observe(w.env.Client)
		var stops []func()
		for i := range workers {
			c := w.client(fmt.Sprintf("worker-%03d", i), txn.Config{}, false)
			stops = append(stops, w.work(c, notify.Config{}, func(string) {}))
		}
		time.Sleep(time.Minute)
		start = w.cluster.Sum(model.All).Bytes
		time.Sleep(4 * time.Minute) // until the interval between sweeps has grown
		w.cluster.Reset()
		time.Sleep(rests)
		// Writes of tokens are counted with idle clients. Each worker reads the token of another one:
		// it could be the only one left.
		sum := w.cluster.Sum(func(k model.Key) bool { return k.Kind != "token" })
		tokens := w.cluster.Sum(func(k model.Key) bool { return k.Kind == "token" && k.Method == "ReadRows" })
		_, scans := w.cluster.Busy()
		for _, stop := range stops {
			stop()
		}
		return float64(sum.Requests) / rests.Seconds(), float64(tokens.Requests) / rests.Seconds(), scans.Seconds() / rests.Seconds(), start
	}
	tablets := 100
	size := r.Bytes / 100
	few, fewCounts, fewBusy, _ := rate(max(r.Fleet/4, 1), size, tablets)
	many, counts, manyBusy, start := rate(r.Fleet, size, tablets)
	large, _, largeBusy, _ := rate(r.Fleet, 10*size, 10*tablets)
	r.atMost("requests of four times as many workers", many/few, 1.5, "1", "%d workers: %.1f/s, %d workers: %.1f/s", max(r.Fleet/4, 1), few, r.Fleet, many)
	r.atMost("reads of tokens", counts, 2, "1/s", "%d workers; %d workers: %.1f/s", r.Fleet, max(r.Fleet/4, 1), fewCounts)
	r.atMost("requests with a table of ten times the size", large/many, 1.2, "1", "%.1f/s", large)
	r.atMost("nodes busy with sweeps of the large table", largeBusy, 0.01*nodes, "nodes", "%s; %.2f with a tenth of it, %.2f with a quarter of the workers; %d nodes", bytesText(10*size), manyBusy, fewBusy, nodes)
	r.atMost("sweeps in the first minute", start/size, 2, "tables", "%d workers, %s passed", r.Fleet, bytesText(start))
}

// otherProcess measures how long a change of another process waits for its observer, and what the
// search costs.
func otherProcess(r *run) {
	for _, workers := range []int{2, r.Fleet} {
		for _, every := range []time.Duration{time.Minute, time.Second, 50 * time.Millisecond} {
			delays, idle, busy := r.delays(workers, every)
			what := fmt.Sprintf("%d workers, a change each %v", workers, every)
			r.atMost(what+": p50", quantile(delays, .5), 1000, "ms", "%.1f requests/s of idle workers, %.1f beside the changes", idle, busy)
			r.atMost(what+": p99", quantile(delays, .99), 5000, "ms", "")
		}
	}
	took, passed, _ := r.searches(4, 0, 0)
	r.atMost("found after", took.Seconds(), 60, "s", "%.0f TB, %d nodes", r.Bytes/1e12, lostNodes)
	r.atMost("scanned before, of the table", passed/r.Bytes/lostRests.Hours()*24, 2, "tables/day", "%s in %v without changes", bytesText(passed), lostRests)
	// Bigtable keeps removed entries of the journal until it compacts them. In the deployment, a
	// hundredth of the changes is observed.
	took, _, busy := r.searches(r.Fleet, r.Rate/100, 0)
	more, _, moreBusy := r.searches(r.Fleet, r.Rate/10, 0)
	all, _, allBusy := r.searches(r.Fleet, r.Rate, 0)
	threads, _, threadsBusy := r.searches(r.Fleet, r.Rate, 16)
	r.atMost("found after, behind a day of removed entries", took.Seconds(), 60, "s", "%d workers, %.0f observed cells/s", r.Fleet, r.Rate/100)
	r.atMost("nodes busy with reading them", busy, 1, "nodes", "")
	r.atMost("found after, behind ten times as many", more.Seconds(), 60, "s", "%.0f observed cells/s; %.0f/s: %.0f s, with 16 threads %.0f s", r.Rate/10, r.Rate, all.Seconds(), threads.Seconds())
	r.atMost("nodes busy with reading ten times as many", moreBusy, 2, "nodes", "%.0f/s: %.1f nodes, with 16 threads %.1f", r.Rate, allBusy, threadsBusy)
}

const (
	lostNodes = 30
	lostRests = 10 * time.Minute
)

// delays returns how long some changes of another process waited for the commits of their observers,
// and how many requests a second the workers sent before and meanwhile.
func (r *run) delays(workers int, every time.Duration) (sorted []time.Duration, idle, busy float64) {
	const changes, rest = 200, 10 * time.Minute
	w := r.world(10, 1, 1e9, 10)
	w.observe(w.env.Client)
	var mu sync.Mutex
	var stops []func()
	for i := range workers {
		c := w.client(fmt.Sprintf("worker-%03d", i), txn.Config{}, false)
		stops = append(stops, w.work(c, notify.Config{OnEvent: func(e notify.Event) {
			if e.Outcome == notify.Committed {
				mu.Lock()
				defer mu.Unlock()
				sorted = append(sorted, e.CommitTS.Time().Sub(e.ChangeTS.Time()))
			}
		}}, func(string) {}))
	}
	writer := w.client("writer", txn.Config{}, false)
	rate := func(f func()) float64 {
		w.cluster.Reset()
		began := time.Now()
		f()
		sum := w.cluster.Sum(func(k model.Key) bool { return k.Client != "writer" })
		return float64(sum.Requests) / time.Since(began).Seconds()
	}
	time.Sleep(rest)
	idle = rate(func() { time.Sleep(rest) })
	var all sync.WaitGroup
	busy = rate(func() {
		for i := range changes {
			time.Sleep(time.Duration(rand.ExpFloat64() * float64(every)))
			all.Go(func() {
				if err := set(w.Context(), writer, tableName(0), key(i), "changed"); err != nil {
					w.Error(err)
				}
			})
		}
	})
	all.Wait()
	time.Sleep(time.Minute)
	for _, stop := range stops {
		stop()
	}
	if len(sorted) != changes {
		w.Errorf("%d of %d changes were observed", len(sorted), changes)
	}
	slices.Sort(sorted)
	return sorted, idle, busy
}

// searches returns the longest time of some changes of another process, the bytes that idle workers
// read before, and how many nodes they kept busy with the metadata table. The journal has perSecond removed entries of 150
// bytes for each second of a day, in tablets of a gigabyte (assumed). threads are those of each
// worker's scanner; 0: the default.
func (r *run) searches(workers int, perSecond float64, threads int) (longest time.Duration, passed, busy float64) {
	table := sha256.Sum256([]byte(tableName(0)))
	prefix := fmt.Sprintf("journal/%x", table[:4]) // docs/storage-format.md
	bytes := perSecond * 86_400 * 150
	tablets := int(bytes/1e9) + 1
	splits := append(model.HexSplits(prefix+"/", tablets), prefix+"/", prefix+"0")
	slices.Sort(splits)
	w := r.worldWith(served{tso.NewLocal(tso.LocalConfig{})}, lostNodes, 1, r.Bytes, 1000, map[string]model.Table{
		format.DefaultMetadataTable: {Bytes: bytes / float64(tablets) * float64(tablets+2), Splits: splits}, // with one before and one after the journal
	})
	w.observe(w.env.Client)
	found := make(chan string, 1000) // several workers may run for a change, and one of them commits
	var stops []func()
	for i := range workers {
		c := w.client(fmt.Sprintf("worker-%03d", i), txn.Config{}, false)
		stops = append(stops, w.work(c, notify.Config{Finder: &notify.Scanner{Threads: threads}}, func(row string) { found <- row }))
	}
	time.Sleep(lostRests)
	passed = w.cluster.Sum(model.All).Bytes
	w.cluster.Reset()
	time.Sleep(lostRests)
	read := w.cluster.Sum(func(k model.Key) bool { return k.Table == format.DefaultMetadataTable }).Bytes
	// Another process commits.
	writer := w.client("writer", txn.Config{}, false)
	for i := range 10 {
		time.Sleep(rand.N(4 * time.Minute))
		if err := set(w.Context(), writer, tableName(0), key(i), "changed"); err != nil {
			w.Fatal(err)
		}
		began := time.Now()
		late := time.After(6 * time.Hour)
		for row := ""; row != key(i); {
			select {
			case row = <-found:
			case <-late:
				row = key(i)
			}
		}
		longest = max(longest, time.Since(began))
	}
	for _, stop := range stops {
		stop()
	}
	return longest, passed, read / (capacity.DefaultRates.Scan * 1e6) / lostRests.Seconds()
}

// slowObserver measures how an observer that takes a second delays another one of the same
// worker.
func slowObserver(r *run) {
	const changes, every = 200, 50 * time.Millisecond
	p50 := func(slow bool) float64 {
		w := r.world(3, 2, 0, 1)
		c := w.client("worker", txn.Config{}, false)
		worker, err := notify.NewWorker(c, notify.Config{})
		if err != nil {
			w.Fatal(err)
		}
		took := make(chan time.Duration, changes)
		if err := worker.Handle("fast", tableName(0), observedColumn, observer(func(row string) {
			var at int64
			_, _ = fmt.Sscan(row, &at)
			took <- time.Since(time.Unix(0, at))
		})); err != nil {
			w.Fatal(err)
		}
		if err := worker.Handle("slow", tableName(1), observedColumn, notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			tx.Table(cell.Table).Set(cell.Row, "f", "seen", nil)
			return nil
		})); err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.Context())
		done := make(chan error)
		go func() { done <- worker.Run(ctx) }()
		time.Sleep(2 * time.Minute)
		for i := range changes {
			go func() {
				if slow {
					_ = set(ctx, c, tableName(1), key(i), "v")
				}
			}()
			go func() { _ = set(ctx, c, tableName(0), fmt.Sprint(time.Now().UnixNano()), "v") }()
			time.Sleep(every)
		}
		var all []time.Duration
		for range changes {
			select {
			case d := <-took:
				all = append(all, d)
			case <-time.After(5 * time.Minute):
				all = append(all, 5*time.Minute)
			}
		}
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
		slices.Sort(all)
		return quantile(all, .5)
	}
	alone := p50(false)
	beside := p50(true)
	r.atMost("p50 of the fast one beside it", beside/alone, 2, "1", "%.0f ms alone, %.0f ms beside the slow one", alone, beside)
}

// moreWorkers measures how fast workers work a backlog off, without its first and last tenth: workers begin
// within a second.
func moreWorkers(r *run) {
	const changes = 8000
	rate := func(workers int) (perSecond, inVain float64) {
		w := r.world(10, 1, 10e9, 20)
		w.observe(w.env.Client)
		w.fill(tableName(0), changes)
		var mu sync.Mutex
		var first, last time.Time
		var runs, looks, taken int
		enough := make(chan struct{})
		var stops []func()
		for i := range workers {
			c := w.client(fmt.Sprintf("worker-%03d", i), txn.Config{}, false)
			stops = append(stops, w.work(c, notify.Config{NoHints: true, OnEvent: func(e notify.Event) {
				mu.Lock()
				defer mu.Unlock()
				looks++
				if e.Outcome != notify.Committed {
					return
				}
				taken++
				switch runs++; runs {
				case changes / 10:
					first = time.Now()
				case changes * 9 / 10:
					last = time.Now()
				case changes:
					close(enough)
				}
			}}, func(string) {}))
		}
		select {
		case <-enough:
		case <-time.After(10 * time.Minute):
		}
		for _, stop := range stops {
			stop()
		}
		return changes * 8 / 10 / last.Sub(first).Seconds(), 1 - float64(taken)/float64(max(looks, 1))
	}
	two, vain2 := rate(2)
	eight, vain8 := rate(8)
	// A worker runs 16 observers at a time. A run reads, locks and commits, with 5 ms each and two
	// timestamps.
	const possible = 8 * 16 * 1000 / 17
	r.atLeast("rate of 8 workers", eight, .5*possible, "1/s", "half of what round trips allow; 2 workers: %.0f/s", two)
	r.atMost("looks of 8 workers that found nothing to do", vain8, 0.1, "of all looks", "2 workers: %.2f", vain2)
}
