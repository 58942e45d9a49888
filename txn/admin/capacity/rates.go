package capacity

// Rates are what Google documents about Cloud Bigtable, what the plan assumes beyond
// that, and prices. docs/performance.md names the sources.
type Rates struct {
	Reads   float64 `json:"reads_per_node" unit:"rows/s"`                 // rows that a node reads
	Writes  float64 `json:"writes_per_node" unit:"rows/s"`                // rows that a node writes
	Scan    float64 `json:"scan_mb_per_node" unit:"MB/s"`                 // data that a node scans
	CPU     float64 `json:"cpu_target" unit:"0 to 1"`                     // average CPU utilisation to plan nodes for
	Storage float64 `json:"storage_tib_per_node" unit:"TiB"`              // storage to plan for each node
	Node    float64 `json:"price_node_hour" unit:"USD per hour"`          // price of a node
	GiB     float64 `json:"price_gib_month" unit:"USD per GiB and month"` // price of SSD storage
	// Conditional is what a CheckAndMutateRow counts for beside its write: it
	// reads the row first, under the row's lock. No rate is documented.
	Conditional float64 `json:"conditional_reads" unit:"reads"` // reads that a CheckAndMutateRow counts for, in addition to its write; assumed
	// Cell is what a stored version takes beside its value, before compression: the
	// row's key, family, column and timestamp, twice, for the data and its write
	// record, and that record.
	Cell   float64 `json:"version_overhead_bytes"`               // stored bytes of a version in addition to its value, before compression; assumed
	Busy   float64 `json:"busy_oracle_trips" unit:"round trips"` // round trips that a timestamp takes if many callers ask: the rest of the request that is in flight, and its own
	HotRow float64 `json:"hot_row_mutations" unit:"1/s"`         // mutations that one row takes; assumed
	// Removed is what reading a removed cell costs, until Bigtable compacts. Each cell that a
	// transaction writes leaves two: its lock, and the mark that removed the lock.
	Removed    float64 `json:"removed_cell_bytes"`        // bytes that a read passes for each removed cell; assumed
	Compaction float64 `json:"compaction_hours" unit:"h"` // time until Bigtable drops a removed cell; assumed
}

// DefaultRates are those of SSD nodes at 1 KB a row, as documented on 2026-11-20,
// and list prices of us-central1.
var DefaultRates = Rates{
	Reads: 17_000, Writes: 14_000, Scan: 220, CPU: .7, Storage: 2.5, Node: .65, GiB: .17,
	Conditional: 1, Cell: 150, Busy: 1.5, HotRow: 1000,
	Removed: 100, Compaction: 24,
}

// hoursOfMonth is what a monthly cost is reckoned with.
const hoursOfMonth = 730
