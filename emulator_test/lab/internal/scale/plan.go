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

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/capacity"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// plannedWorkloads are workloads for which percctl plan is compared with the model.
var plannedWorkloads = []capacity.Workload{
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "reads", Rate: 2000, Reads: 1}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "stale reads", Rate: 2000, Reads: 1, Stale: true}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "reads of 100 rows", Rate: 100, Reads: 1, ReadRows: 100}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "scans of 500 rows", Rate: 200, Scans: 1, ScanRows: 500}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "reads of 10 KB", Rate: 300, Reads: 1, ReadBytes: 10_240}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "writes", Rate: 1000, Rows: 1}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "writes of 10 columns", Rate: 300, Rows: 1, Cells: 10}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "writes of 10 rows", Rate: 100, Rows: 10}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "writes of 4 KB", Rate: 300, Rows: 1, Bytes: 4096}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "writes to two tables", Rate: 300, Rows: 2, Tables: 2}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "changes", Rate: 500, Reads: 1, Rows: 1}}},
	{Oracle: capacity.Served, Transactions: []capacity.Kind{{Name: "transfers", Rate: 500, Reads: 2, Rows: 2}}},
	{Oracle: capacity.Direct, Processes: 2, Transactions: []capacity.Kind{{Name: "transfers of 2 processes, direct oracle", Rate: 500, Reads: 2, Rows: 2}}},
	{Oracle: capacity.Direct, Processes: 10, Transactions: []capacity.Kind{{Name: "writes of 10 processes, direct oracle", Rate: 500, Rows: 1}}},
	{Oracle: capacity.Direct, Processes: 50, Transactions: []capacity.Kind{{Name: "reads of 50 processes, direct oracle", Rate: 300, Reads: 1}, {Name: "their writes", Rate: 30, Rows: 1}}},
}

// foreign are costs that differ from what percctl plan assumes.
var foreign = model.Costs{Read: 90 * time.Microsecond, Write: 55 * time.Microsecond, Conditional: 40 * time.Microsecond, Scan: 120e6}

// measured returns the rates of a cluster that one would give to percctl plan: how long rows of 1 KB
// and a scan keep the nodes busy.
func (r *run) measured() capacity.Rates {
	const n, bytes = 100, 120e6
	w := r.world(1, 1, bytes, 1)
	bt, _ := w.env.Open(w.cluster.Client("operator")...)
	table, ctx := bt.Open(tableName(0)), w.Context()
	each := func(f func(row string) error) float64 {
		before, beforeScans := w.cluster.Busy()
		for i := range n {
			if err := f(key(i)); err != nil {
				w.Fatal(err)
			}
		}
		after, afterScans := w.cluster.Busy()
		return (after - before + afterScans - beforeScans).Seconds() / n
	}
	set := bigtable.NewMutation()
	set.Set("f", "plain", 1000, make([]byte, 900)) // with keys and names: 1 KB
	write := each(func(row string) error { return table.Apply(ctx, row, set) })
	read := each(func(row string) error { _, err := table.ReadRow(ctx, row); return err })
	conditional := each(func(row string) error {
		return table.Apply(ctx, row, bigtable.NewCondMutation(bigtable.ColumnFilter("plain"), set, nil))
	})
	scan := each(func(string) error {
		return table.ReadRows(ctx, bigtable.PrefixRange(""), func(bigtable.Row) bool { return true })
	})
	rates := capacity.DefaultRates
	rates.Reads, rates.Writes, rates.Conditional, rates.Scan = 1/read, 1/write, (conditional-write)/read, bytes/1e6/scan
	return rates
}

// plan compares what percctl plan says of workloads with the model, whose costs it does not know but
// from measuring.
func plan(r *run) {
	r.costs = foreign
	rates := r.measured()
	for _, workload := range plannedWorkloads {
		p, err := capacity.New(workload, rates)
		if err != nil {
			r.Fatal(err)
		}
		var w *world
		if p.Workload.Oracle == capacity.Served {
			w = r.world(10, 2, plannedRows*250, 10) // as percctl plan reckons: values of 100 bytes and 150 more
		} else {
			w = r.directWorld(10, 2, 10)
		}
		if k := p.Workload.Transactions[0]; k.Scans > 0 || k.ReadBytes > 1024 {
			w.fillWith(w.env.Client, tableName(0), plannedRows, strings.Repeat("v", int(k.ReadBytes)))
		}
		clients := w.clients(p.Workload.Processes, txn.Config{}, false)
		w.play(p.Workload, clients, time.Second)
		w.cluster.Reset()
		took := w.play(p.Workload, clients, r.Each/2)
		points, scans := w.cluster.Busy()
		name := workload.Transactions[0].Name
		// Nobody collects garbage here.
		r.ratio(name+": busy nodes", (points+scans).Seconds()/(r.Each/2).Seconds(), p.CPUNodes-p.GCNodes)
		if p.Workload.Oracle == capacity.Direct {
			// The plan has the most that processes send.
			requests := float64(w.cluster.Sum(kind(string(txntest.StepOracle))).Requests) / (r.Each / 2).Seconds()
			r.atMost(name+": requests to the oracle, above the plan by", requests/p.OracleRequests-1, 0.25, "1", "%.3g, planned %.3g", requests, p.OracleRequests)
		}
		for i, k := range p.Transactions {
			slices.Sort(took[i])
			// The plan has the latency of a single transaction, and of one among many.
			got := quantile(took[i], .5)
			planned := k.Latency
			if math.Abs(got-k.BusyMS) < math.Abs(got-planned) {
				planned = k.BusyMS
			}
			r.ratio(k.Name+": p50", got, planned)
		}
	}
}

// plannedRows are the rows of a table that transactions scan.
const plannedRows = 1000

// ratio notes how far a measured number is from the planned one.
func (r *run) ratio(what string, measured, planned float64) {
	r.atMost(what+", off the plan by", math.Abs(measured/planned-1), 0.25, "1", "%.3g, planned %.3g", measured, planned)
}

// play runs the transactions of a workload at their rates, and returns how long those of each
// kind took.
func (w *world) play(workload capacity.Workload, clients []*txn.Client, lasts time.Duration) [][]time.Duration {
	w.Helper()
	took := make([][]time.Duration, len(workload.Transactions))
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, k := range workload.Transactions {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 2))
			value := strings.Repeat("v", int(k.Bytes))
			var own sync.WaitGroup
			for end := time.Now().Add(lasts); ; {
				time.Sleep(time.Duration(rnd.ExpFloat64() / k.Rate * float64(time.Second)))
				if !time.Now().Before(end) {
					break
				}
				c, first := clients[rnd.IntN(len(clients))], rnd.IntN(1<<30)
				if k.Scans > 0 || k.ReadBytes > 1024 {
					first %= plannedRows
				}
				own.Go(func() {
					began := time.Now()
					if err := transact(w.Context(), c, k, first, value); err != nil {
						w.Errorf("%s: %v", k.Name, err)
					}
					mu.Lock()
					defer mu.Unlock()
					took[i] = append(took[i], time.Since(began))
				})
			}
			own.Wait()
		})
	}
	all.Wait()
	return took
}

// transact runs one transaction of a kind.
func transact(ctx context.Context, c *txn.Client, k capacity.Kind, first int, value string) error {
	read := func(view *txn.View) error {
		for i := range k.Reads {
			var rows bigtable.RowList
			for j := range k.ReadRows {
				rows = append(rows, key(first+i*k.ReadRows+j))
			}
			for _, err := range view.ReadRows(ctx, rows) {
				if err != nil {
					return err
				}
			}
		}
		for i := range k.Scans {
			start := fmt.Sprintf("%08x", uint32(first+i)*2654435769>>1) // in the first half, so that it finds enough rows
			for _, err := range view.ReadRows(ctx, bigtable.InfiniteRange(start), txn.Limit(k.ScanRows)) {
				if err != nil {
					return err
				}
			}
		}
		return nil
	}
	if k.Rows == 0 {
		var opts []txn.SnapshotOption
		if k.Stale {
			opts = append(opts, txn.MaxStaleness(time.Minute))
		}
		s, err := c.Snapshot(ctx, opts...)
		if err != nil {
			return err
		}
		return read(s.Table(tableName(0)))
	}
	_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		if err := read(&tx.Table(tableName(0)).View); err != nil {
			return err
		}
		for i := range k.Rows {
			for j := range k.Cells {
				tx.Table(tableName(i%k.Tables)).Set(key(first+i), "f", fmt.Sprint("q", j), []byte(value))
			}
		}
		return nil
	})
	return err
}
