package demo

import (
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// The coordinator and its workers talk in lines of JSON: orders go to a
// worker's standard input, reports come from its standard output. The end of
// its input ends a worker. Nothing of the index goes this way: what there is to
// do a worker finds in the tables.

// An order tells a worker what to do.
type order struct {
	// Crash arms a crash: the worker stops at this point of the next run of an
	// observer that gets there.
	Crash crashPoint `json:"crash,omitempty"`
}

// A report has one of its fields set.
type report struct {
	Ready    *readyReport    `json:"ready,omitempty"`
	Stats    *stats          `json:"stats,omitempty"`
	Resolved *resolvedReport `json:"resolved,omitempty"`
	Stopped  *stoppedReport  `json:"stopped,omitempty"`
}

// readyReport: the worker begins to run observers.
type readyReport struct {
	Owner string `json:"owner"` // the token in its locks
}

// stats are what a worker has done so far.
type stats struct {
	Worker notify.Stats `json:"worker"`
	Txn    txn.Stats    `json:"txn"`
}

// resolvedReport: the worker settled a cell for another client's transaction.
type resolvedReport struct {
	Cell    string        `json:"cell"`
	StartTS tso.Timestamp `json:"start_ts"`
	Owner   string        `json:"owner"`
	State   txn.State     `json:"state"`
	At      time.Time     `json:"at"`
}

// stoppedReport: the worker reached the crash point and sends nothing to
// Bigtable any more.
type stoppedReport struct {
	Point crashPoint `json:"point"`
	At    time.Time  `json:"at"`
	Stats stats      `json:"stats"`
}
