package demo

import (
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A crashPoint is a moment of an observer's run at which a worker is killed. The commit of the
// primary, which is the acknowledgment, decides the run: before it, another worker rolls the locks
// back and runs the observer again; after it, another worker rolls them forward.
type crashPoint string

const (
	// beforePrewrite: the observer has run, nothing is written.
	beforePrewrite crashPoint = "in an observer, before it wrote anything"
	// beforeCommit: every cell is locked, weak notifications are set, the primary is not committed.
	beforeCommit crashPoint = "before the commit of the primary"
	// afterCommit: the primary is committed, the secondaries are still locked.
	afterCommit crashPoint = "after the commit of the primary, before its secondaries"
	// beforeClear: the run is committed, the notification still there.
	beforeClear crashPoint = "after the commit, before the notification was removed"
)

var crashPoints = []crashPoint{beforePrewrite, afterCommit, beforeCommit, beforeClear}

// committed reports whether the run counts.
func (p crashPoint) committed() bool { return p == afterCommit || p == beforeClear }

// precedes reports whether a request is the first one that a worker killed at the
// point does not send.
func (p crashPoint) precedes(call txntest.Call) bool {
	switch step := txntest.Classify(call.Method, call.Request).Step; p {
	case beforePrewrite:
		return step == txntest.StepPrewrite
	case beforeCommit:
		return step == txntest.StepCommit
	case afterCommit:
		return step == txntest.StepSecondaries
	case beforeClear:
		return step == txntest.StepClear
	}
	return false
}

// A crasher is between a worker and Bigtable. Once armed, it waits for the request that the crash
// point names, and holds back this request and all later ones: for Bigtable, the worker is dead.
// Then it calls stopped, and the coordinator kills the process.
type crasher struct {
	stopped func(crashPoint, time.Time)

	mu    sync.Mutex
	armed crashPoint
	dead  bool
}

func (c *crasher) arm(p crashPoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = p
}

func (c *crasher) dialOptions() []grpc.DialOption {
	return txntest.ChooseFaults(c.choose).DialOptions()
}

// choose lets a request pass, or blocks its caller until the context ends.
func (c *crasher) choose(call txntest.Call) (txntest.Action, time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed != "" && !c.dead && c.armed.precedes(call) {
		c.dead = true
		c.stopped(c.armed, time.Now())
	}
	return txntest.Crash, 0, c.dead
}
