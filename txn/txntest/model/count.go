package model

// A Key names requests that are counted together.
type Key struct {
	Client string // as given to Client
	// Kind is a txntest.Step, or "scan" for a ReadRows of ranges, or the Method of requests
	// that no step describes.
	Kind   string
	Method string // CheckAndMutateRow, SampleRowKeys, GetTable, …
	Table  string
}

// A Count is how many requests of one kind a client sent.
type Count struct {
	Requests int64
	Rows     int64   // rows of an answer, or entries of a bulk mutation
	Cells    int64   // cells of an answer
	Bytes    float64 // nominal bytes that scans passed
	Refused  int64   // requests to a tablet that was unavailable, or that were throttled
	Expired  int64   // requests that the client ended first, by a deadline or otherwise
}

// All matches all counts.
func All(Key) bool { return true }
