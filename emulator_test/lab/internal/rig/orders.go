package rig

import (
	"errors"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/notify"
)

// An Order is a line of JSON that a worker process reads. It answers each with a line
// of JSON.
type Order struct {
	// Do is run, load, status, stop, batch or measure.
	Do    string
	Run   RunOrder
	Load  LoadOrder
	Batch BatchOrder
	Task  Task
}

// A RunOrder starts a worker with one observer.
type RunOrder struct {
	Observer    string // copy or cluster
	Hints       bool
	Locks       bool // advisory locks in the metadata table
	NoTeleport  bool
	Work        time.Duration // how long a run works in addition to its requests
	MinInterval time.Duration // of the scanner
	MaxInterval time.Duration
}

// An Answer is the reply of a worker process. Only answers to stop contain lists.
type Answer struct {
	Error     string
	Committed int // runs
	Loaded    int
	Done      []done
	Loads     []Loaded
	Worker    notify.Stats
	Scanner   notify.ScannerStats
	RPCs      rpcs
	// Useful is the time in runs that committed, Wasted in runs that did not, and
	// Idle in visits to cells without a pending change.
	Useful, Wasted, Idle time.Duration
	Batches              []Batch
	Measured             Measured
}

// done says when an observer's run for a row committed, by the machine's clock.
type done struct {
	Row string
	At  int64 // Unix nanoseconds
}

// add adds the answer of another worker.
func (a *Answer) add(b Answer) {
	a.Committed += b.Committed
	a.Loaded += b.Loaded
	a.Done = append(a.Done, b.Done...)
	a.Loads = append(a.Loads, b.Loads...)
	a.RPCs.add(b.RPCs)
	a.Useful += b.Useful
	a.Wasted += b.Wasted
	a.Idle += b.Idle
	a.Scanner.Sweeps += b.Scanner.Sweeps
	a.Scanner.Pieces += b.Scanner.Pieces
	a.Scanner.Teleports += b.Scanner.Teleports
	for _, n := range []struct{ to, from *int64 }{
		{&a.Worker.Runs, &b.Worker.Runs}, {&a.Worker.Committed, &b.Worker.Committed}, {&a.Worker.Failed, &b.Worker.Failed},
		{&a.Worker.Conflicts, &b.Worker.Conflicts}, {&a.Worker.LostRaces, &b.Worker.LostRaces}, {&a.Worker.Acknowledged, &b.Worker.Acknowledged},
		{&a.Worker.Locked, &b.Worker.Locked}, {&a.Worker.Found, &b.Worker.Found}, {&a.Worker.Hinted, &b.Worker.Hinted},
		{&a.Worker.HintsDropped, &b.Worker.HintsDropped}, {&a.Worker.Cleared, &b.Worker.Cleared},
	} {
		*n.to += *n.from
	}
}

// Ask sends a worker an order and reads its answer.
func Ask(p *child.Process, o Order) (Answer, error) {
	var a Answer
	err := p.Ask(o, &a)
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}
