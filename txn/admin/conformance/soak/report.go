package soak

import (
	"fmt"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
)

// Assumption is what Run tests, as one more assumption of a conformance.Report.
var Assumption = conformance.Assumption{
	ID: "soak", Group: "Everything together", Class: conformance.Required,
	Title:  "Transactions and observers see nothing impossible while their clients fail.",
	Used:   "everything",
	Source: "the guarantees of this library, docs/guarantees.md",
	Breaks: "Transactions on this service are not isolated, or lose data.",
	Advice: "Do not use transactions on this service. Report it to this project with the output of -o json.",
}

// Result is the report as a result of a conformance.Report.
func (r *Report) Result() conformance.Result {
	result := conformance.Result{Assumption: Assumption, State: conformance.Kept, Requests: r.Requests, Bytes: r.Bytes, Seconds: r.Seconds}
	if !r.Safe {
		result.State, result.Detail = conformance.Broken, fmt.Sprintf("%d anomalies, the first: %s", len(r.Anomalies), r.Anomalies[0])
	}
	return result
}

// A Report is what Run found.
type Report struct {
	Tables       []string       `json:"tables"`                 // scratch tables, which are removed
	Safe         bool           `json:"safe"`                   // nothing impossible was seen
	Anomalies    []string       `json:"anomalies"`              // what transactions saw or left and no correct service allows
	Transactions int            `json:"transactions"`           // transactions that began
	Committed    int            `json:"committed"`              // transactions that committed
	Failed       int            `json:"failed"`                 // transactions that failed, mostly because of conflicts
	Unknown      int            `json:"unknown"`                // transactions whose client died or did not learn the outcome
	Observed     int64          `json:"observed"`               // committed runs of the observer
	Faults       map[string]int `json:"faults"`                 // faults of clients, by kind
	Requests     int            `json:"requests"`               // requests that were sent
	Bytes        int64          `json:"bytes" unit:"bytes"`     // size of all messages
	Seconds      float64        `json:"seconds" unit:"seconds"` // time of all parts
	Ratios       []Ratio        `json:"ratios"`                 // transactions compared with raw requests, without faults; empty if the service is not safe
}

// A Ratio compares transactions with the raw requests that do the same without a guarantee.
type Ratio struct {
	Name     string  `json:"name"`                 // what transactions do
	Raw      string  `json:"raw"`                  // the raw requests
	Callers  int     `json:"callers"`              // callers at the same time
	Count    int     `json:"count"`                // transactions that were measured
	Rate     float64 `json:"rate" unit:"1/s"`      // transactions in a second
	RawRate  float64 `json:"raw_rate" unit:"1/s"`  // raw operations in a second
	Ratio    float64 `json:"ratio" unit:"1"`       // rate divided by raw_rate
	P50      float64 `json:"p50_ms" unit:"ms"`     // median time of a transaction
	RawP50   float64 `json:"raw_p50_ms" unit:"ms"` // median time of a raw operation
	Slowdown float64 `json:"slowdown" unit:"1"`    // p50_ms divided by raw_p50_ms
	P99      float64 `json:"p99_ms" unit:"ms"`     // 99 of 100 transactions took at most this long
	RawP99   float64 `json:"raw_p99_ms" unit:"ms"` // 99 of 100 raw operations took at most this long
}
