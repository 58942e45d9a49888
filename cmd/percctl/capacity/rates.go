package capacity

// Rates are what is documented of Cloud Bigtable, what is assumed beyond it, and
// what it costs. docs/performance.md names the pages.
type Rates struct {
	Reads   float64 `json:"reads_per_node"`       // rows a second
	Writes  float64 `json:"writes_per_node"`      // rows a second
	Scan    float64 `json:"scan_mb_per_node"`     // a second
	CPU     float64 `json:"cpu_target"`           // average CPU utilisation that nodes are planned for
	Storage float64 `json:"storage_tib_per_node"` // that nodes are planned for
	Node    float64 `json:"price_node_hour"`      // US dollars
	GiB     float64 `json:"price_gib_month"`      // US dollars, of SSD storage
	// Conditional is what a CheckAndMutateRow counts for beside its write: it
	// reads the row first, under the row's lock. No rate is documented.
	Conditional float64 `json:"conditional_reads"` // reads that a CheckAndMutateRow counts for, beside its write; assumed
	// Cell is what a stored version takes beside its value, before compression: the
	// row's key, family, column and timestamp, twice, for the data and its write
	// record, and that record.
	Cell   float64 `json:"version_overhead_bytes"` // stored of a version beside its value, before compression; assumed
	Busy   float64 `json:"busy_oracle_trips"`      // round trips that a timestamp takes when many ask: the rest of the request under way, and its own
	HotRow float64 `json:"hot_row_mutations"`      // a second that one row takes; assumed
}

// DefaultRates are those of SSD nodes at 1 KB a row, as documented on 2026-11-20,
// and list prices of us-central1.
var DefaultRates = Rates{
	Reads: 17_000, Writes: 14_000, Scan: 220, CPU: .7, Storage: 2.5, Node: .65, GiB: .17,
	Conditional: 1, Cell: 150, Busy: 1.5, HotRow: 1000,
}

// hoursOfMonth is what a monthly cost is reckoned with.
const hoursOfMonth = 730
