package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
)

// A process is a worker as the coordinator sees it. Only the fleet's goroutine
// uses it.
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

// startProcess starts this program again as a worker. Its events end with
// exited.
func startProcess(number, slot int, at deployment, stderr io.Writer, events chan<- event) (p *process, err error) {
	p = &process{number: number, slot: slot}
	if p.Process, err = startChild(fmt.Sprint("worker", number), slot, stderr, append([]string{"worker"}, at.args()...)); err != nil {
		return nil, err
	}
	p.Each(func(line []byte) {
		var r report
		if json.Unmarshal(line, &r) != nil {
			p.Kill() // it does not talk like a worker
			return
		}
		events <- event{process: p, report: r}
	})
	go func() { events <- event{process: p, exited: true, err: p.Wait()} }()
	return p, nil
}

// startChild starts percctl demo args. The coordinator ends it, not a context.
func startChild(name string, slot int, stderr io.Writer, args []string) (*child.Process, error) {
	return child.Start(context.Background(), child.Config{Name: name, Args: append([]string{"demo"}, args...), Env: telemetry.ChildEnv(slot), Stderr: stderr})
}

// ready reports that the worker runs observers.
func (p *process) ready() bool { return p.owner != "" && p.stopped == nil }
