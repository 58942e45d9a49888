package demo

import (
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A crashPoint is a moment of an observer's run at which a worker is killed. The
// commit of the primary, which is the acknowledgment, decides a run: what is left
// behind before it is rolled back and run again by another worker, and after it
// rolled forward.
type crashPoint string

const (
	// beforePrewrite: the observer has run, nothing is written.
	beforePrewrite crashPoint = "in an observer, before it wrote anything"
	// beforeCommit: every cell is locked, weak notifications are set, the primary
	// is not committed.
	beforeCommit crashPoint = "before the commit of the primary"
	// afterCommit: the primary is committed, the secondaries are still locked.
	afterCommit crashPoint = "after the commit of the primary, before its secondaries"
	// beforeClear: the run is committed, the notification still there.
	beforeClear crashPoint = "after the commit, before the notification was removed"
)

var crashPoints = []crashPoint{beforePrewrite, afterCommit, beforeCommit, beforeClear}

// committed reports whether the run counts.
func (p crashPoint) committed() bool { return p == afterCommit || p == beforeClear }

// meets reports whether a request is the first that a worker killed at the
// point does not send.
func (p crashPoint) meets(call txntest.Call) bool {
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

// A crasher sits between a worker and Bigtable. Once armed, it waits for the
// request that the crash point names and holds it back, and with it every
// request after it: as far as Bigtable can tell, the worker is dead. Then it
// calls stopped, and the coordinator kills the process for good.
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

// choose lets a request pass, or keeps its caller until the context ends.
func (c *crasher) choose(call txntest.Call) (txntest.Action, time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed != "" && !c.dead && c.armed.meets(call) {
		c.dead = true
		c.stopped(c.armed, time.Now())
	}
	return txntest.Crash, 0, c.dead
}
