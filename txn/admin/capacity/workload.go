// Package capacity computes what a workload of transactions needs of Cloud Bigtable:
// nodes, storage, round trips and cost. It does no I/O. percctl plan prints its plans.
//
//	plan, err := capacity.New(capacity.Workload{
//		Transactions: []capacity.Kind{{Name: "transfer", Rate: 2000, Reads: 2, Rows: 2}},
//	}, capacity.DefaultRates)
//
// workload.go describes a workload and what one transaction takes, rates.go what is
// documented of Bigtable and assumed beyond it, plan.go computes.
package capacity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"go.yaml.in/yaml/v3"
)

// A Workload is what a plan is made for.
type Workload struct {
	Transactions []Kind  `json:"transactions"`             // kinds of transactions
	Tables       []Table `json:"tables"`                   // tables and what they hold
	Retention    float64 `json:"retention_hours" unit:"h"` // how long garbage collection keeps old versions; defaults to 24
	// Interval is that of percctl gc run --watch. docs/gc.md recommends the default.
	Interval    float64 `json:"gc_interval_hours" unit:"h"` // time between two runs of garbage collection; defaults to 6
	Processes   int     `json:"processes"`                  // processes that run transactions, each with at most one request to the oracle at a time; defaults to 10
	Oracle      string  `json:"oracle"`                     // `direct` or `served`; defaults to `direct`
	RTT         float64 `json:"rtt_ms"`                     // time of a request to Bigtable; defaults to 5
	OracleRTT   float64 `json:"oracle_rtt_ms"`              // time of a request to a served oracle; defaults to 1
	Parallelism int     `json:"parallelism"`                // txn.Config.Parallelism; defaults to 64
	// Sweep is a day for a table with a journal. For one without it is the MinInterval of
	// notify.Scanner while there is something to find, and its MaxInterval in
	// quiet times.
	Sweep float64 `json:"sweep_interval_seconds"` // time between two sweeps of a table for notifications; defaults to 86,400
}

// A Kind is transactions of one kind.
type Kind struct {
	Name      string  `json:"name"`                  // name of the kind
	Rate      float64 `json:"per_second" unit:"1/s"` // commits, or snapshots of reads
	Reads     int     `json:"reads"`                 // read requests of rows by their keys, one after the other
	ReadRows  int     `json:"read_rows"`             // rows of each read request; defaults to 1
	ReadBytes float64 `json:"read_bytes"`            // length of the values of a row that is read or scanned; defaults to 100
	Scans     int     `json:"scans"`                 // reads of a range of rows, one after the other; they cost by bytes
	ScanRows  int     `json:"scan_rows"`             // rows of each scan; defaults to 100
	Rows      int     `json:"rows"`                  // rows written
	Cells     int     `json:"cells"`                 // cells written in each row; defaults to 1
	Bytes     float64 `json:"value_bytes"`           // length of a written value; defaults to 100
	Tables    int     `json:"tables"`                // tables of the written rows; defaults to 1
	Observed  int     `json:"observed"`              // written cells in observed columns, in the whole transaction
	Stale     bool    `json:"stale"`                 // whether reads may be stale (txn.MaxStaleness), and take no timestamp
	Hot       int     `json:"hot_rows"`              // number of rows of which every transaction writes one; defaults to 0: so many that transactions hardly conflict
}

// A Table is what a table holds.
type Table struct {
	Name     string  `json:"name"`             // name of the table
	Rows     float64 `json:"rows" unit:"rows"` // rows of the table
	Bytes    float64 `json:"row_bytes"`        // length of the newest values of a row, with keys and columns; defaults to 1000
	Cells    int     `json:"row_cells"`        // cells of a row; defaults to 1
	Observed bool    `json:"observed"`         // whether it has columns with observers
}

// Parse reads a workload as JSON or YAML. Unknown fields are an error.
func Parse(text []byte) (Workload, error) {
	var w Workload
	var any any
	if err := yaml.Unmarshal(text, &any); err != nil {
		return w, fmt.Errorf("the workload is neither JSON nor YAML: %w", err)
	}
	asJSON, err := json.Marshal(any)
	if err != nil {
		return w, fmt.Errorf("the workload: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return w, fmt.Errorf("the workload: %w", err)
	}
	return w, nil
}

// complete fills in what is 0 and means something else, and fails for what makes
// no sense.
func (w Workload) complete() (Workload, error) {
	setDefault(&w.Retention, 24)
	setDefault(&w.Interval, 6)
	setDefault(&w.Processes, 10)
	setDefault(&w.RTT, 5)
	setDefault(&w.OracleRTT, 1)
	setDefault(&w.Parallelism, 64)
	setDefault(&w.Sweep, 86_400)
	if w.Oracle == "" {
		w.Oracle = Direct
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if w.Oracle != Direct && w.Oracle != Served {
		wrong("oracle is %q; it has to be %s or %s", w.Oracle, Direct, Served)
	}
	if len(w.Transactions) == 0 {
		wrong("there are no transactions")
	}
	if w.Retention < 0 || w.Interval < 0 || w.Processes < 0 || w.RTT < 0 || w.OracleRTT < 0 || w.Parallelism < 0 || w.Sweep < 0 {
		wrong("retention_hours, gc_interval_hours, processes, rtt_ms, oracle_rtt_ms, parallelism and sweep_interval_seconds must not be negative")
	}
	kinds := make([]Kind, len(w.Transactions))
	for i, k := range w.Transactions {
		if k.Name == "" {
			k.Name = fmt.Sprintf("transaction %d", i+1)
		}
		if k.Rate < 0 || k.Reads < 0 || k.ReadRows < 0 || k.ReadBytes < 0 || k.Scans < 0 || k.ScanRows < 0 || k.Rows < 0 || k.Cells < 0 || k.Bytes < 0 || k.Tables < 0 || k.Observed < 0 || k.Hot < 0 {
			wrong("%s: nothing may be negative", k.Name)
		}
		if k.Reads == 0 && k.Scans == 0 && k.Rows == 0 {
			wrong("%s: it neither reads nor writes; set reads, scans or rows", k.Name)
		}
		if k.Stale && k.Rows > 0 {
			wrong("%s: it writes, so it cannot be stale", k.Name)
		}
		kinds[i] = k.complete()
		if kinds[i].Rows > 0 && kinds[i].Tables > kinds[i].Rows {
			wrong("%s: tables is %d, more than the rows it writes, which are %d", k.Name, k.Tables, k.Rows)
		}
		if k.Observed > kinds[i].Rows*kinds[i].Cells {
			wrong("%s: observed is %d, more than the cells it writes, which are %d", k.Name, k.Observed, kinds[i].Rows*kinds[i].Cells)
		}
	}
	w.Transactions = kinds
	tables := make([]Table, len(w.Tables))
	for i, t := range w.Tables {
		if t.Name == "" {
			t.Name = fmt.Sprintf("table %d", i+1)
		}
		if t.Rows < 0 || t.Bytes < 0 || t.Cells < 0 {
			wrong("%s: nothing may be negative", t.Name)
		}
		setDefault(&t.Bytes, 1000)
		setDefault(&t.Cells, 1)
		tables[i] = t
	}
	w.Tables = tables
	return w, errors.Join(errs...)
}

// Requests computes what one transaction takes; it is what is compared with
// counted runs.
func (w Workload) Requests(k Kind) KindPlan { return w.kind(k.complete(), DefaultRates) }

func (w Workload) kind(k Kind, r Rates) KindPlan {
	kp := KindPlan{Name: k.Name, PerSecond: k.Rate, Oracle: 1, Reads: k.Reads + k.Scans}
	if k.Stale {
		kp.Oracle = 0
	}
	trips := kp.Reads
	if k.Rows > 0 {
		kp.Oracle, kp.Prewrites, kp.Commits = 2, k.Rows, 1
		// Rows beside the primary's, one request a table. The primary's table has
		// one only if another row of it is written.
		kp.Secondary = k.Tables - 1
		if k.Rows > k.Tables {
			kp.Secondary++
		}
		trips += (kp.Prewrites+w.Parallelism-1)/w.Parallelism + 1
	}
	kp.Requests = kp.Oracle + kp.Reads + kp.Prewrites + kp.Commits + kp.Secondary
	kp.RoundTrips = trips + kp.Oracle
	kp.Bytes = w.bytes(k, kp)
	stamp, busy := w.RTT, r.Busy*w.RTT
	if w.Oracle == Served {
		stamp, busy = w.OracleRTT, r.Busy*w.OracleRTT
	}
	scans := float64(k.Scans) * k.scanned(r) / (r.Scan * mb) * 1000
	kp.Latency = float64(trips)*w.RTT + float64(kp.Oracle)*stamp + scans
	kp.BusyMS = float64(trips)*w.RTT + float64(kp.Oracle)*busy + scans
	if k.Rows > 0 && k.Hot > 0 {
		// Each transaction has to take its start_ts after the last one's
		// commit_ts, so they follow each other at best; and one that begins before
		// another has ended conflicts with it.
		kp.HotRate = k.Rate / float64(k.Hot)
		kp.HotLimit = 1000 / kp.Latency
		kp.Removed = min(kp.HotRate, kp.HotLimit) * float64(k.Cells) * removedCells * r.Compaction * 3600
		kp.RemovedMS = kp.Removed * r.Removed / (r.Scan * mb) * 1000
		kp.Conflicts = 1 - math.Exp(-kp.HotRate*kp.Latency/1000)
	}
	return kp
}

// Messages have these sizes, about, beside the values they carry.
const (
	stampBytes     = 150 // a question to the direct oracle; a served one's is a tenth
	readBytes      = 250 // a read and what it has of each row
	prewriteBytes  = 250 // of each cell
	commitBytes    = 200 // of the primary's row
	secondaryBytes = 100 // of each other row
)

// removedCells is how many removed cells a written one leaves: its lock, and the mark that
// removed the lock.
const removedCells = 2

// scanned is how many bytes Bigtable passes in a scan of newest versions.
func (k Kind) scanned(r Rates) float64 { return float64(k.ScanRows) * (k.ReadBytes + r.Cell) }

func (w Workload) bytes(k Kind, kp KindPlan) float64 {
	stamp := stampBytes
	if w.Oracle == Served {
		stamp /= 10
	}
	return float64(kp.Oracle*stamp) +
		float64(k.Reads)*(readBytes+float64(k.ReadRows)*(k.ReadBytes+readBytes/3)) +
		float64(k.Scans)*(readBytes+float64(k.ScanRows)*(k.ReadBytes+readBytes/3)) +
		float64(k.Rows*k.Cells)*(k.Bytes+prewriteBytes) +
		float64(kp.Commits*commitBytes) + float64(max(k.Rows-1, 0)*secondaryBytes)
}

func (k Kind) complete() Kind {
	setDefault(&k.ReadRows, 1)
	setDefault(&k.ReadBytes, 100)
	setDefault(&k.ScanRows, 100)
	setDefault(&k.Cells, 1)
	setDefault(&k.Bytes, 100)
	setDefault(&k.Tables, 1)
	return k
}

func setDefault[T int | float64](v *T, to T) {
	if *v == 0 {
		*v = to
	}
}

// The oracles.
const (
	Direct = "direct"
	Served = "served"
)
