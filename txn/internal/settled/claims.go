package settled

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Claims are what a client says about its transactions: "no transaction with my number that
// started at or below T has a lock left". A commit registers before its first prewrite. Its
// write record gets the client's number only if it started above T. From then on T stays below it
// until all its rows are answered. So a claim stays true, whenever it is stored and whatever
// happens to the client. A nil Claims numbers no record.
type Claims struct {
	mu      sync.Mutex
	number  uint64
	claimed tso.Timestamp // T
	newest  tso.Timestamp // start_ts of a commit that has registered
	open    map[tso.Timestamp]*Commit
}

// A Commit is a commit to several rows that has registered.
type Commit struct {
	claims    *Claims
	startTS   tso.Timestamp
	began     time.Time
	remaining atomic.Int64 // rows but the primary's that are not applied
}

// stuck is how long a commit may be unsettled. After that the client takes another number, so that
// only the claim of the old one stays where it is. Commits take seconds; but an unknown outcome,
// or a row that nobody can write, may stay for as long as the client runs.
const stuck = time.Hour

// NewClaims returns the claims of a new client.
func NewClaims() *Claims { return &Claims{number: newNumber(), open: map[tso.Timestamp]*Commit{}} }

// newNumber returns a random number. Two clients with the same one would make each other's claims
// wrong, so it has 63 bits.
func newNumber() uint64 { return rand.Uint64()>>1 | 1<<62 }

// Begin registers a commit to so many rows. The primary's write record gets settledBy.
func (c *Claims) Begin(startTS tso.Timestamp, rows int) (commit *Commit, settledBy uint64) {
	if rows == 1 {
		return nil, format.Alone
	}
	if c == nil {
		return nil, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if startTS <= c.claimed || c.open[startTS] != nil {
		return nil, 0
	}
	commit = &Commit{claims: c, startTS: startTS, began: time.Now()}
	commit.remaining.Store(int64(rows - 1))
	c.open[startTS] = commit
	c.newest = max(c.newest, startTS)
	return commit, c.number
}

// Ended says that the transaction did not commit, and never will.
func (k *Commit) Ended() {
	if k == nil {
		return
	}
	c := k.claims
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[k.startTS] == k {
		delete(c.open, k.startTS)
	}
}

// Applied says that a row that is not the primary's is committed, and that Bigtable has
// acknowledged it.
func (k *Commit) Applied() {
	if k != nil && k.remaining.Add(-1) == 0 {
		k.Ended()
	}
}

// Next returns what the client may claim now: its number and T. T is below held, the oldest
// open transaction, unless that is 0, because such a transaction may still commit.
func (c *Claims) Next(held tso.Timestamp) (number uint64, ts tso.Timestamp) {
	if c == nil {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ts = c.newest
	if held != 0 {
		ts = min(ts, held-1)
	}
	for _, k := range c.open {
		if time.Since(k.began) >= stuck {
			// What has this number and is still open stays unsettled.
			c.number, c.open = newNumber(), map[tso.Timestamp]*Commit{}
			return 0, 0
		}
		ts = min(ts, k.startTS-1)
	}
	c.claimed = max(c.claimed, ts)
	return c.number, c.claimed
}
