package scale

// missed says why the small deployment is known to miss a goal. If that goal is met, its line goes.
var missed = map[string]string{
	"removed cells: hot cell with 100,000 removed locks":             "each read and each condition of a row passes all locks that were removed since Bigtable last compacted",
	"busy deployment: reads: p99 beside a pass, of that without":     "a pass has at least one scan under way, and each request to its node waits for a slice of 5 ms of it",
	"busy deployment: changes: p99 beside a pass, of that without":   "a pass has at least one scan under way, and each request to its node waits for a slice of 5 ms of it",
	"busy deployment: transfers: p95 beside a pass, of that without": "a pass has at least one scan under way, and each request to its node waits for a slice of 5 ms of it",
	"outage: p99 of bystanders while the metadata table is away":     "the oracle's server cannot renew its lease, and transactions wait until it can",
}
