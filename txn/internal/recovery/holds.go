package recovery

import (
	"context"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
)

// maxHold is how long an open transaction, or a snapshot taken with Hold, keeps
// garbage collection below it. After that it goes on as long as the versions are
// there, and then fails with ErrTooOld.
const maxHold = 24 * time.Hour

// Holds are the transactions, and the snapshots taken with Hold, that a client
// has open. The oldest of them is published in the client's worker token, and
// collectors keep the safe point below it. That is a courtesy: what is not
// published in time fails with ErrTooOld, and nothing goes wrong.
type Holds struct {
	mu   sync.Mutex
	open map[*Hold]struct{}
}

// A hold is one of them.
type Hold struct {
	ts    tso.Timestamp
	begun time.Time
}

func newHolds() *Holds { return &Holds{open: map[*Hold]struct{}{}} }

func (h *Holds) Add(ts tso.Timestamp) *Hold {
	n := &Hold{ts, time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[n] = struct{}{}
	return n
}

func (h *Holds) Remove(n *Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, n)
}

// oldest is the smallest timestamp that was held for no longer than maxHold; 0
// when there is none. since is when the first of all was added.
func (h *Holds) oldest() (ts tso.Timestamp, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := range h.open {
		if time.Since(n.begun) > maxHold {
			continue
		}
		if ts == 0 || n.ts < ts {
			ts = n.ts
		}
		if since.IsZero() || n.begun.Before(since) {
			since = n.begun
		}
	}
	return ts, since
}

// Announce starts the token of a client that has written nothing yet but keeps
// something open for long. A running token is renewed by itself.
func (h *Holds) Announce(ctx context.Context, t *Token) {
	ts, since := h.oldest()
	if ts != 0 && time.Since(since) >= gctime.SafePointMaxAge()/3 {
		t.Ensure(ctx)
	}
}
