// Package capacity is the arithmetic of percctl plan: what a workload of
// transactions needs of Cloud Bigtable. It does no I/O.
//
// workload.go describes a workload, rates.go what is documented of Bigtable and
// assumed beyond it, plan.go computes.
package capacity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// A Workload is what a plan is made for.
type Workload struct {
	Transactions []Kind  `json:"transactions"` // kinds of them
	Tables       []Table `json:"tables"`       // what they hold
	// Retention is how many hours garbage collection keeps versions.
	// Defaults to 24.
	Retention float64 `json:"retention_hours"` // how long garbage collection keeps versions
	// Processes that run transactions; each has at most one request to the oracle
	// under way.
	// Defaults to 10.
	Processes int `json:"processes"` // that run transactions
	// Oracle is direct or served.
	// Defaults to direct.
	Oracle string `json:"oracle"` // direct or served
	// RTT is how long a request to Bigtable takes, in milliseconds, and OracleRTT
	// one to a served oracle.
	// Default to 5 and 1.
	RTT       float64 `json:"rtt_ms"`        // of a request to Bigtable
	OracleRTT float64 `json:"oracle_rtt_ms"` // of a request to a served oracle
	// Parallelism is txn.Config.Parallelism.
	// Defaults to 64.
	Parallelism int `json:"parallelism"` // txn.Config.Parallelism
	// Sweep is how many seconds lie between two sweeps of a table for
	// notifications: notify.Scanner's MinInterval while there is something to
	// find without hints, MaxInterval in quiet times.
	// Defaults to 60.
	Sweep float64 `json:"sweep_interval_seconds"` // between two sweeps of a table for notifications
}

// A Kind is transactions of one kind.
type Kind struct {
	Name string  `json:"name"`       // of the kind or the table
	Rate float64 `json:"per_second"` // commits, or snapshots of reads
	// Reads are requests that follow each other, each of ReadRows rows.
	Reads     int     `json:"reads"`       // requests that follow each other
	ReadRows  int     `json:"read_rows"`   // rows in each of them; 0 is 1
	ReadBytes float64 `json:"read_bytes"`  // of values in a row; 0 is 100
	Rows      int     `json:"rows"`        // written
	Cells     int     `json:"cells"`       // written in each row; 0 is 1
	Bytes     float64 `json:"value_bytes"` // of a written value; 0 is 100
	Tables    int     `json:"tables"`      // that the written rows are in; 0 is 1
	Observed  int     `json:"observed"`    // written cells in observed columns, in the whole transaction
	// Stale reads take no timestamp of their own (txn.WithMaxStaleness).
	Stale bool `json:"stale"` // reads may be stale, and take no timestamp of their own
	// Hot is how many rows share the writes of one of the transaction's rows.
	// Defaults to 0: so many that transactions hardly meet.
	Hot int `json:"hot_rows"` // that one of the transaction's writes always goes to; 0: there are none
}

// A Table is what a table holds.
type Table struct {
	Name     string  `json:"name"`      // of the kind or the table
	Rows     float64 `json:"rows"`      // written by a transaction, or of the table
	Bytes    float64 `json:"row_bytes"` // of a row's newest values, with keys and columns; 0 is 1000
	Cells    int     `json:"row_cells"` // of a row; 0 is 1
	Observed bool    `json:"observed"`  // it has columns with observers
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
	setDefault(&w.Processes, 10)
	setDefault(&w.RTT, 5)
	setDefault(&w.OracleRTT, 1)
	setDefault(&w.Parallelism, 64)
	setDefault(&w.Sweep, 60)
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
	if w.Retention < 0 || w.Processes < 0 || w.RTT < 0 || w.OracleRTT < 0 || w.Parallelism < 0 || w.Sweep < 0 {
		wrong("retention_hours, processes, rtt_ms, oracle_rtt_ms, parallelism and sweep_interval_seconds must not be negative")
	}
	kinds := make([]Kind, len(w.Transactions))
	for i, k := range w.Transactions {
		if k.Name == "" {
			k.Name = fmt.Sprintf("transaction %d", i+1)
		}
		if k.Rate < 0 || k.Reads < 0 || k.ReadRows < 0 || k.ReadBytes < 0 || k.Rows < 0 || k.Cells < 0 || k.Bytes < 0 || k.Tables < 0 || k.Observed < 0 || k.Hot < 0 {
			wrong("%s: nothing may be negative", k.Name)
		}
		if k.Reads == 0 && k.Rows == 0 {
			wrong("%s: it neither reads nor writes; set reads or rows", k.Name)
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

func (k Kind) complete() Kind {
	setDefault(&k.ReadRows, 1)
	setDefault(&k.ReadBytes, 100)
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
