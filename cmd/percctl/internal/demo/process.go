package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A process is a worker as the coordinator sees it. Only the fleet's goroutine uses it.
type process struct {
	*child.Process
	number int
	slot   int // among the children of the coordinator

	owner   string // its token; empty until it is ready
	stats   stats
	stopped *stoppedReport // set once it reached its crash point
}

// An event is a report of a worker, or its end.
type event struct {
	process *process
	report  report
	exited  bool
	err     error // of an exited worker
}

// startProcess starts this program again as a worker, the number-th one. Its last event is exited.
func startProcess(number, slot int, at deployment, stderr io.Writer, events chan<- event) (p *process, err error) {
	p = &process{number: number, slot: slot}
	// The coordinator ends it, not a context.
	if p.Process, err = child.Start(context.Background(), child.Config{
		Name: fmt.Sprint("worker", number), Args: append([]string{"demo", "worker"}, at.args()...), Env: telemetry.ChildEnv(slot), Stderr: stderr,
	}); err != nil {
		return nil, err
	}
	p.Each(func(line []byte) {
		var r report
		if json.Unmarshal(line, &r) != nil {
			p.Kill() // this is not a worker
			return
		}
		events <- event{process: p, report: r}
	})
	go func() { events <- event{process: p, exited: true, err: p.Wait()} }()
	return p, nil
}

// ready reports that the worker runs observers.
func (p *process) ready() bool { return p.owner != "" && p.stopped == nil }

// The coordinator and its workers exchange lines of JSON: orders go to a worker's
// standard input, reports come from its standard output. The end of its input ends a
// worker. A worker finds its work in the tables: neither orders nor reports name it.

// An order is for a worker.
type order struct {
	// Crash has the worker stop at this point of the next run of an observer that reaches it.
	Crash crashPoint `json:"crash,omitempty"`
}

// A report has one of its fields set.
type report struct {
	Ready    *readyReport    `json:"ready,omitempty"`
	Stats    *stats          `json:"stats,omitempty"`
	Resolved *resolvedReport `json:"resolved,omitempty"`
	Stopped  *stoppedReport  `json:"stopped,omitempty"`
}

// A readyReport says that the worker begins to run observers.
type readyReport struct {
	Owner string `json:"owner"` // the token in its locks
}

// stats are what a worker has done so far.
type stats struct {
	Worker notify.Stats `json:"worker"`
	Txn    txn.Stats    `json:"txn"`
}

// A resolvedReport says that the worker resolved a lock of another client.
type resolvedReport struct {
	Cell    string        `json:"cell"`
	StartTS tso.Timestamp `json:"start_ts"`
	Owner   string        `json:"owner"`
	State   format.State  `json:"state"`
	At      time.Time     `json:"at"`
}

// A stoppedReport says that the worker has reached the crash point, and sends nothing
// to Bigtable any more.
type stoppedReport struct {
	Point crashPoint `json:"point"`
	At    time.Time  `json:"at"`
	Stats stats      `json:"stats"`
}
