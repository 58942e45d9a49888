package scale

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// emptyRange measures what reads a range that holds nothing for longer than RPCTimeout:
// one tablet that takes one node 5 minutes.
func emptyRange(r *run) {
	const pure = 5 * time.Minute
	for _, tt := range []struct {
		what string
		do   func(ctx context.Context, w *world, c *txn.Client) error
	}{
		{"a user's scan for a rare column", func(ctx context.Context, w *world, c *txn.Client) error {
			s, err := c.Snapshot(ctx)
			if err != nil {
				return err
			}
			for _, err := range s.Table(tableName(0)).ReadRows(ctx, bigtable.PrefixRange(""), txn.Columns(txn.Column{Family: "f", Qualifier: "rare"})) {
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{"admin.Locks", func(ctx context.Context, _ *world, c *txn.Client) error {
			for _, err := range admin.Locks(ctx, c, tableName(0), nil) {
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{"gc.Run", func(ctx context.Context, _ *world, c *txn.Client) error {
			_, err := gc.Run(ctx, c, gc.Config{Retention: 10 * time.Minute})
			return err
		}},
		{"notify.Wait", func(ctx context.Context, _ *world, c *txn.Client) error {
			_, err := notify.Wait(ctx, c, notify.WaitConfig{})
			return err
		}},
		{"a sweep", func(ctx context.Context, w *world, c *txn.Client) error {
			// The last row's notification is at the end of the sweep.
			w.fillRow("ffffffffff")
			_, err := w.await(ctx, c, 1, notify.Config{NoHints: true})
			return err
		}},
		{"notify.Backfill", func(ctx context.Context, _ *world, c *txn.Client) error {
			_, err := notify.Backfill(ctx, c, notify.BackfillConfig{Table: tableName(0), Column: observedColumn})
			return err
		}},
		{"admin.PlanRepairs", func(ctx context.Context, _ *world, c *txn.Client) error {
			_, err := admin.PlanRepairs(ctx, c, tableName(0), nil, admin.RepairConfig{})
			return err
		}},
		{"admin.Check", func(ctx context.Context, _ *world, c *txn.Client) error {
			for v, err := range admin.Check(ctx, c, tableName(0), nil) {
				if err != nil {
					return err
				}
				return errors.New(v.String())
			}
			return nil
		}},
		{"admin.BulkLoad", func(ctx context.Context, _ *world, c *txn.Client) error {
			rows := func(yield func(admin.BulkRow, error) bool) {
				yield(admin.BulkRow{Row: "00000001", Cells: []admin.BulkCell{{Family: "f", Qualifier: "q", Value: []byte("v")}}}, nil)
			}
			_, err := admin.BulkLoad(ctx, c, tableName(0), iter.Seq2[admin.BulkRow, error](rows), admin.BulkConfig{Rows: bigtable.NewRange("0", "fffffffff")})
			return err
		}},
		{"doctor", func(ctx context.Context, w *world, _ *txn.Client) error {
			bt, btAdmin := w.env.Open(w.cluster.Client("doctor")...)
			d := &doctor.Deployment{Bigtable: bt, Admin: btAdmin, Emulator: true, Tables: []string{tableName(0)}, Rows: 100}
			end, err := d.Open(ctx)
			if err != nil {
				return err
			}
			defer end()
			var failed []string
			for _, result := range doctor.Run(ctx, d, doctor.All(), nil) {
				if result.State == doctor.Failed {
					failed = append(failed, result.Check+" ("+result.Detail+")")
				}
			}
			if failed != nil {
				return errors.New("failed checks: " + strings.Join(failed, ", "))
			}
			return nil
		}},
	} {
		w := r.world(1, 1, 220e6*pure.Seconds(), 1)
		w.fillRow("ffffffffff")
		w.observe(w.env.Client)
		c := w.client("operator", txn.Config{TokenTTL: time.Hour}, false)
		// gc.Run waits two minutes for clients, and reads for locks and for versions.
		ctx, cancel := context.WithTimeout(w.Context(), 6*pure)
		began := time.Now()
		err := tt.do(ctx, w, c)
		cancel()
		note := "passed " + bytesText(w.cluster.Sum(model.All).Bytes)
		if err != nil {
			note += "; " + err.Error()
		}
		took := time.Since(began)
		if err != nil {
			took = 6 * pure
		}
		r.atMost(tt.what, took.Seconds(), (4 * pure).Seconds(), "s", "%s", note)
	}
}

// fillRow commits a row without the model, before observers are known.
func (w *world) fillRow(row string) {
	w.Helper()
	if err := set(w.Context(), w.env.Client, tableName(0), row, "value"); err != nil {
		w.Fatal(err)
	}
}

// idleClients measures what clients cost that have committed once, and then do nothing.
func idleClients(r *run) {
	const minutes = 5
	for _, oracle := range []string{"direct", "served"} {
		w := r.directWorld(3, 1, 1)
		if oracle == "served" {
			w = r.world(3, 1, 0, 1)
		}
		for i, c := range w.clients(r.Clients, txn.Config{}, false) {
			if err := set(w.Context(), c, tableName(0), key(i), "v"); err != nil {
				w.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		w.cluster.Reset()
		time.Sleep(minutes * time.Minute)
		table, row, n := w.cluster.HottestRow()
		if strings.HasPrefix(row, "worker/") {
			row = "worker/…"
		}
		r.atMost("mutations of the hottest row, "+oracle+" oracle", float64(n)/(minutes*60), 5, "1/s", "%s of table %s", row, table)
		r.atMost("requests of an idle client, "+oracle+" oracle", float64(w.cluster.Sum(model.All).Requests)/minutes/float64(r.Clients), 2.05, "1/min", "%s", w.kinds())
	}
}

// schemaChecks measures how often clients with Config.Admin check tables that they all use.
func schemaChecks(r *run) {
	const minutes = 2
	w := r.world(10, r.Tables, 0, 1)
	all := w.clients(r.Clients, txn.Config{TokenTTL: time.Hour}, true)
	use := func() {
		done := make(chan error)
		for _, c := range all {
			go func() {
				s, err := c.Snapshot(w.Context(), txn.MaxStaleness(time.Hour))
				for i := 0; i < r.Tables && err == nil; i++ {
					time.Sleep(time.Duration(rand.Int64N(2 * int64(50*time.Second) / int64(r.Tables))))
					_, _, err = s.Table(tableName(i)).Get(w.Context(), key(i), "f", "q")
				}
				done <- err
			}()
		}
		for range all {
			if err := <-done; err != nil {
				w.Error(err)
			}
		}
	}
	use()
	w.cluster.Reset()
	began := time.Now()
	for range minutes {
		use()
	}
	took := time.Since(began).Seconds()
	checks := w.cluster.Sum(func(k model.Key) bool { return k.Method == "GetTable" })
	reads := w.cluster.Sum(kind("schema"))
	// One check a table and SchemaMaxAge, which is a minute.
	r.atMost("GetTable", float64(checks.Requests)/took, 1.2*float64(r.Tables)/60, "1/s", "%d clients use %d tables; reads of schema records: %.1f/s", r.Clients, r.Tables, float64(reads.Requests)/took)
}

// garbageCollection measures a run that reads everything, and one that follows it after little was
// overwritten.
func garbageCollection(r *run) {
	const nodes, overwritten = 30, 1000
	w := r.world(nodes, 1, r.Bytes, 500)
	writer := w.client("writer", txn.Config{}, false)
	collector := w.client("collector", txn.Config{TokenTTL: time.Hour}, false)
	cfg := gc.Config{Retention: 10 * time.Minute, FullEvery: 7 * 24 * time.Hour}
	w.fillBy(writer, tableName(0), overwritten)
	time.Sleep(20 * time.Minute)
	w.cluster.Reset()
	report, err := gc.Run(w.Context(), collector, cfg)
	points, scans := w.cluster.Busy()
	if err != nil || report.Changes {
		w.Errorf("the first run: %v, %+v; want one that reads every row", err, report)
	} else {
		r.atMost("time of a pass by one collector", report.Elapsed.Hours(), 24, "h", "%d nodes, %.0f s of node time; every 7 days", nodes, (points + scans).Seconds())
	}
	w.fillBy(writer, tableName(0), overwritten)
	time.Sleep(20 * time.Minute)
	w.cluster.Reset()
	began := time.Now()
	ctx, cancel := context.WithTimeout(w.Context(), 25*time.Hour)
	defer cancel()
	report, err = gc.Run(ctx, collector, cfg)
	took := time.Since(began)
	points, scans = w.cluster.Busy()
	note := ""
	if err != nil {
		note = "failed: " + err.Error()
	}
	n := int64(0)
	if report != nil {
		n = report.Total.Versions
	}
	// Proportional to what was overwritten: a generous second of a node for each 10 rows.
	r.atMost("node time for 1,000 overwritten rows", (points + scans).Seconds(), overwritten/10, "s", "%.1f TB, removed %d versions in %.0f s, %d requests, passed %s %s", r.Bytes/1e12, n, took.Seconds(), w.cluster.Sum(model.All).Requests, bytesText(w.cluster.Sum(model.All).Bytes), note)
	r.atLeast("versions removed", float64(n), overwritten, "versions", "")
	rows := 4 * r.Locks
	removed, took := r.collectors(1, rows, r.world(30, 1, 1000*float64(rows), 30))
	// Each commit overwrites a version.
	r.atLeast("versions removed by 1 collectors, of commits", float64(removed)/took.Seconds(), 10_000/4, "1/s", "%d versions in %.1f s after the wait for clients", removed, took.Seconds())
	// Each of 256 tablets takes a node 10 s to read.
	large := func() *world { return r.world(128, 1, 256*10*220e6, 256) }
	_, one := r.collectors(1, 1000, large())
	_, four := r.collectors(4, 1000, large())
	r.atLeast("pass by 1 collector, of one by 4", one.Seconds()/four.Seconds(), 3, "times", "0.6 TB in 256 tablets: %.0f s and %.0f s after the wait for clients", one.Seconds(), four.Seconds())
}

// collectors returns how many versions collectors remove of a table whose rows were all
// overwritten, and how long they take.
func (r *run) collectors(collectors, rows int, w *world) (int64, time.Duration) {
	w.fill(tableName(0), rows)
	w.fill(tableName(0), rows)
	time.Sleep(20 * time.Minute)
	var all errgroup.Group
	var removed atomic.Int64
	var mu sync.Mutex
	var fenced time.Time // since then no collector waits for clients
	for i := range collectors {
		c := w.client(fmt.Sprintf("collector-%d", i), txn.Config{TokenTTL: time.Hour}, false)
		all.Go(func() error {
			cfg := gc.Config{Retention: 10 * time.Minute, Progress: func(p gc.Progress) {
				mu.Lock()
				defer mu.Unlock()
				if p.Phase == gc.PhaseFence {
					fenced = time.Now().Add(p.Left)
				}
			}}
			for {
				report, err := gc.Run(w.Context(), c, cfg)
				if errors.As(err, new(*gc.BusyError)) {
					time.Sleep(time.Second) // another collector begins the run
					continue
				}
				if report != nil {
					removed.Add(report.Total.Versions)
				}
				return err
			}
		})
	}
	if err := all.Wait(); err != nil {
		w.Error(err)
	}
	return removed.Load(), time.Since(fenced)
}

// observedColumn is the column that observers of this package watch.
var observedColumn = txn.Column{Family: "f", Qualifier: "q"}

// observe registers the observer "o" of all tables with observers.
func (w *world) observe(c *txn.Client) {
	w.Helper()
	for i := range w.observed {
		if err := changes.RegisterObserver(w.Context(), c, tableName(i), observedColumn, "o", false); err != nil {
			w.Fatal(err)
		}
	}
}
