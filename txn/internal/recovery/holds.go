package recovery

import (
	"context"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
)

// maxHold is how long an open transaction, or a snapshot taken with Hold, keeps the safe
// point below it. It may stay open for longer: reads work while their versions exist, and
// then fail with ErrTooOld.
const maxHold = 24 * time.Hour

// Holds are the transactions that a client has open, and its snapshots taken with Hold.
// The client publishes the oldest timestamp in its worker token, and collectors keep the
// safe point below it. Safety does not need that: what is not published in time fails with
// ErrTooOld.
type Holds struct {
	mu   sync.Mutex
	open map[*Hold]struct{}
}

// A Hold is one of them.
type Hold struct {
	ts    tso.Timestamp
	begun time.Time
	// forgettable says that nobody asked for the hold: it is an open transaction's. It becomes
	// false after the warning.
	forgettable bool
}

// longOpen is how long a transaction is open until the client warns: as long as the shortest
// retention of a garbage collection, so until then it holds nothing back.
const longOpen = 10 * time.Minute

func newHolds() *Holds { return &Holds{open: map[*Hold]struct{}{}} }

// Add holds ts until Remove. transaction says that it is for an open transaction.
func (h *Holds) Add(ts tso.Timestamp, transaction bool) *Hold {
	hold := &Hold{ts, time.Now(), transaction}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[hold] = struct{}{}
	return hold
}

// Remove ends a hold, if there is one.
func (h *Holds) Remove(hold *Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, hold)
}

// oldest returns the smallest timestamp that has been held for at most maxHold; 0 means
// none. since is when the first of these holds began.
func (h *Holds) oldest() (ts tso.Timestamp, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for hold := range h.open {
		if time.Since(hold.begun) > maxHold {
			continue
		}
		if ts == 0 || hold.ts < ts {
			ts = hold.ts
		}
		if since.IsZero() || hold.begun.Before(since) {
			since = hold.begun
		}
	}
	return ts, since
}

// Any reports whether the client has open transactions or snapshots taken with Hold.
func (h *Holds) Any() bool {
	ts, _ := h.oldest()
	return ts != 0
}

// takeLongOpen returns the transactions that have been open for long, each once.
func (h *Holds) takeLongOpen() (long []*Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for hold := range h.open {
		if hold.forgettable && time.Since(hold.begun) >= longOpen {
			hold.forgettable = false
			long = append(long, hold)
		}
	}
	return long
}

// Announce warns of transactions that have been open for long. It also starts the worker token of a client that has written nothing yet, but has held
// something for a third of the age that a safe point may have. A running token publishes
// holds whenever it is renewed.
func (h *Holds) Announce(ctx context.Context, t *Token) {
	for _, hold := range h.takeLongOpen() {
		t.resolver.Log.WarnContext(ctx, "a transaction has been open for long and holds garbage collection back; call Commit or Rollback", "start_ts", hold.ts, "age", time.Since(hold.begun).Round(time.Second))
	}
	ts, since := h.oldest()
	if ts != 0 && time.Since(since) >= gctime.SafePointMaxAge()/3 {
		t.Ensure(ctx)
	}
}
