package workload

import (
	"math/rand/v2"
	"sync"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// The kinds of faults that a Chaos makes. An error never says whether the
// request was applied.
const (
	FaultDropRequest  = "drop-request"  // Unavailable, not sent
	FaultDropResponse = "drop-response" // sent and applied, then Unavailable
	FaultDuplicate    = "duplicate"     // sent twice
	FaultDelay        = "delay"         // DeadlineExceeded at once, sent later
	FaultLateCopy     = "late-copy"     // sent, and sent again later
	FaultSlow         = "slow"          // sent later; the caller waits for it
	FaultCut          = "cut-stream"    // a streamed answer ends early
	FaultPartial      = "partial-bulk"  // a part of a bulk mutation is not sent
)

var actions = map[string]txntest.Action{
	FaultDropRequest: txntest.DropRequest, FaultDropResponse: txntest.DropResponse, FaultDuplicate: txntest.Duplicate,
	FaultDelay: txntest.Delay, FaultLateCopy: txntest.Echo, FaultSlow: txntest.Hold, FaultCut: txntest.CutStream, FaultPartial: txntest.Partial,
}

// A Chaos makes a share of a client's requests fail. A seed chooses them. Pass
// DialOptions to the client's connection.
type Chaos struct {
	// Share is how many of the requests get a fault, from 0 to 1.
	Share float64
	// Longest is the longest pause of FaultDelay, FaultLateCopy and FaultSlow.
	Longest time.Duration
	// Late, if set, is the longest pause of the first two for a request: how late it
	// may be applied (docs/guarantees.md).
	Late func(txntest.Call) time.Duration

	faults *txntest.Faults

	mu    sync.Mutex
	rnd   *rand.Rand
	fired map[string]int
	off   bool
}

// NewChaos returns a Chaos. The seed makes its choices.
func NewChaos(seed uint64, share float64, longest time.Duration) *Chaos {
	c := &Chaos{Share: share, Longest: longest, rnd: rand.New(rand.NewPCG(seed, 2)), fired: map[string]int{}}
	c.faults = txntest.ChooseFaults(c.choose)
	return c
}

// Fired returns how many faults of each kind there were since the last call.
func (c *Chaos) Fired() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	fired := c.fired
	c.fired = map[string]int{}
	return fired
}

// Heal ends the faults and waits for the requests that were delayed.
func (c *Chaos) Heal() {
	c.mu.Lock()
	c.off = true
	c.mu.Unlock()
	c.faults.Wait()
}

// DialOptions returns the interceptors.
func (c *Chaos) DialOptions() []grpc.DialOption { return c.faults.DialOptions() }

// choose picks one of the faults that fit a request, or none.
func (c *Chaos) choose(call txntest.Call) (txntest.Action, time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off || c.rnd.Float64() >= c.Share {
		return 0, 0, false
	}
	var kinds []string
	switch call.Request.(type) {
	case *btpb.ReadRowsRequest, *btpb.SampleRowKeysRequest:
		kinds = []string{FaultDropRequest, FaultSlow, FaultCut}
	case *btpb.MutateRowsRequest:
		kinds = []string{FaultDropRequest, FaultDropResponse, FaultDuplicate, FaultDelay, FaultLateCopy, FaultSlow, FaultPartial}
	default:
		kinds = []string{FaultDropRequest, FaultDropResponse, FaultDuplicate, FaultDelay, FaultLateCopy, FaultSlow}
	}
	kind := kinds[c.rnd.IntN(len(kinds))]
	c.fired[kind]++
	pause := c.Longest
	if c.Late != nil && (kind == FaultDelay || kind == FaultLateCopy) {
		pause = c.Late(txntest.Classify(call.Method, call.Request))
	}
	return actions[kind], time.Duration(c.rnd.Int64N(int64(pause)) + 1), true
}
