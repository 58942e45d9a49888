package settled

import (
	"crypto/rand"
	"encoding/binary"
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
	number  uint64        // 0: not drawn yet
	claimed tso.Timestamp // T
	newest  tso.Timestamp // start_ts of a commit that has registered
	open    map[tso.Timestamp]*Commit
}

// A Commit is a commit to several rows that has registered.
type Commit struct {
	claims    *Claims
	startTS   tso.Timestamp
	stuckAt   time.Time    // when it has been unsettled for too long
	unknown   bool         // its Commit could not say whether it took effect
	remaining atomic.Int64 // rows but the primary's that are not applied
}

// stuck is how long a commit may be unsettled. After that the client takes another number, so that
// only the claim of the old one stays where it is. Commits take seconds; but a row that nobody can
// write may stay for as long as the client runs. An unknown outcome has less time, unknownFor:
// the application may settle it at once, or never.
const (
	stuck      = time.Hour
	unknownFor = time.Minute
)

// NewClaims returns the claims of a new client.
func NewClaims() *Claims { return &Claims{open: map[tso.Timestamp]*Commit{}} }

// newNumber returns a random number. Two clients with the same one would make each other's claims
// wrong, so it has 63 bits. The operating system draws it: a generator in this process's memory
// would continue alike in each copy of the process.
func newNumber() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return binary.BigEndian.Uint64(b[:])>>1 | 1<<62
}

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
	if c.number == 0 { // as late as possible, see newNumber
		c.number = newNumber()
	}
	commit = &Commit{claims: c, startTS: startTS, stuckAt: time.Now().Add(stuck)}
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

// Unknown says that the outcome is unknown. From then on Settled may say it.
func (k *Commit) Unknown() {
	if k == nil {
		return
	}
	k.claims.mu.Lock()
	defer k.claims.mu.Unlock()
	k.unknown, k.stuckAt = true, time.Now().Add(unknownFor)
}

// Settled says the outcome of a commit that was unknown before. If it took effect, other clients
// roll its locks forward, and nobody says when the last one is gone. So the client takes another
// number.
func (c *Claims) Settled(startTS tso.Timestamp, committed bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch k := c.open[startTS]; {
	case k == nil || !k.unknown:
	case committed:
		k.stuckAt = time.Time{}
	default:
		delete(c.open, startTS) // there is no write record, and there will be none
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
	if c.number == 0 {
		return 0, 0
	}
	ts = c.newest
	if held != 0 {
		ts = min(ts, held-1)
	}
	for _, k := range c.open {
		if !time.Now().Before(k.stuckAt) {
			// What has this number and is still open stays unsettled.
			c.number, c.open = 0, map[tso.Timestamp]*Commit{}
			return 0, 0
		}
		ts = min(ts, k.startTS-1)
	}
	c.claimed = max(c.claimed, ts)
	return c.number, c.claimed
}
