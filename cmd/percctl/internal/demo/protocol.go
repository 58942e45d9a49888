package demo

import (
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// The coordinator and its clients talk in lines of JSON: orders go to a
// client's standard input, reports come from its standard output. The end of
// its input ends a client.

// An order tells a client what to do.
type order struct {
	Document *documentOrder `json:"document,omitempty"`
	// Crash arms a crash: the client stops at this point of the next commit
	// that gets there.
	Crash crashPoint `json:"crash,omitempty"`
}

// A documentOrder is a document to process.
type documentOrder struct {
	ID   int    `json:"id"`
	Path []byte `json:"path"` // a file name need not be UTF-8
	Hash string `json:"hash"` // what the coordinator read
}

// A report has one of its fields set.
type report struct {
	Ready    *readyReport    `json:"ready,omitempty"`
	Done     *doneReport     `json:"done,omitempty"`
	Resolved *resolvedReport `json:"resolved,omitempty"`
	Stopped  *stoppedReport  `json:"stopped,omitempty"`
	Failed   *failedReport   `json:"failed,omitempty"`
}

// readyReport: the client waits for orders.
type readyReport struct {
	Owner string `json:"owner"` // the token in its locks
}

// doneReport: a document is in the tables.
type doneReport struct {
	ID int `json:"id"`
	// CommitTS is 0 when the document was there already.
	CommitTS tso.Timestamp `json:"commit_ts,omitempty"`
	Stats    txn.Stats     `json:"stats"` // of the client, so far
}

// resolvedReport: the client settled a cell for another client's transaction.
type resolvedReport struct {
	Cell    string        `json:"cell"`
	StartTS tso.Timestamp `json:"start_ts"`
	Owner   string        `json:"owner"`
	State   txn.State     `json:"state"`
	At      time.Time     `json:"at"`
}

// stoppedReport: the client reached the crash point and sends nothing to
// Bigtable any more.
type stoppedReport struct {
	Point crashPoint `json:"point"`
	At    time.Time  `json:"at"`
}

// failedReport: the client cannot go on.
type failedReport struct {
	Error string `json:"error"`
}
