package txn

import (
	"context"
	"fmt"
	"sync"

	"github.com/percolator-bigtable/percolator/tso"
)

// A State is what a transaction's primary cell says about its fate.
type State int8

// The states of a transaction.
const (
	// StateUnknown: the primary holds no trace of the transaction. Its prewrite
	// may still be on the way, or its owner has aborted it.
	StateUnknown State = iota
	// StateLocked: the primary lock is there; the transaction is undecided.
	StateLocked
	// StateCommitted is final.
	StateCommitted
	// StateRolledBack is final.
	StateRolledBack

	// stateChanged: what was read is out of date; never returned to a caller.
	stateChanged
)

// String returns unknown, locked, committed or rolled back.
func (s State) String() string {
	switch s {
	case StateUnknown:
		return "unknown"
	case StateLocked:
		return "locked"
	case StateCommitted:
		return "committed"
	case StateRolledBack:
		return "rolled back"
	}
	return fmt.Sprintf("state(%d)", int8(s))
}

// A Status is the fate of a transaction as its primary shows it.
type Status struct {
	State State
	// CommitTS is set in StateCommitted.
	CommitTS tso.Timestamp
	// Lock is the primary lock, set in StateLocked.
	Lock *Lock

	// primaryCleared: this client has replaced the primary lock by a marker.
	primaryCleared bool
	// lockGone: nothing tells the transaction's fate, but the lock that was met
	// is not there any more: its owner has aborted.
	lockGone bool
}

// undecided: the transaction's owner may be alive.
func (s Status) undecided() bool { return s.State == StateLocked || s.State == StateUnknown }

func (s Status) final() bool { return s.State == StateCommitted || s.State == StateRolledBack }

// Status reads the fate of the transaction that started at startTS from its
// primary cell, and changes nothing.
func (c *Client) Status(ctx context.Context, primary Cell, startTS tso.Timestamp) (Status, error) {
	t, err := c.table(ctx, primary.Table)
	if err != nil {
		return Status{}, err
	}
	return t.fate(ctx, primary, startTS)
}

// fate decides in the order record, marker, lock, nothing (design §4).
func (t *table) fate(ctx context.Context, primary Cell, startTS tso.Timestamp) (Status, error) {
	raw, err := t.readRow(ctx, primary.Row, fate(primary.Column(), startTS))
	if err != nil {
		return Status{}, err
	}
	var s Status
	for _, item := range raw[LockFamily] {
		s.State = StateLocked
		if s.Lock, err = decodeLock(primary, startTS, item.Value); err != nil {
			return Status{}, err
		}
	}
	for _, item := range raw[MarkFamily] {
		m, err := decodeMark(primary, tso.FromCell(item.Timestamp), item.Value)
		if err != nil {
			return Status{}, err
		}
		if m.startTS != startTS {
			continue
		}
		if m.kind == KindLock {
			return Status{State: StateCommitted, CommitTS: m.commitTS}, nil
		}
		s = Status{State: StateRolledBack}
	}
	for _, item := range raw[WriteFamily] {
		w, err := decodeWrite(primary, tso.FromCell(item.Timestamp), item.Value)
		if err != nil {
			return Status{}, err
		}
		if w.startTS == startTS {
			return Status{State: StateCommitted, CommitTS: w.commitTS}, nil
		}
	}
	return s, nil
}

// fateCache remembers settled transactions by start_ts, which no two
// transactions share, so that many locks of one dead transaction cost one look
// at its primary. Fates are final, so entries never go stale; the oldest make
// room.
type fateCache struct {
	mu    sync.Mutex
	fates map[tso.Timestamp]Status
	order []tso.Timestamp
	next  int
}

const fateCacheSize = 4096

func newFateCache() *fateCache { return &fateCache{fates: map[tso.Timestamp]Status{}} }

func (f *fateCache) get(startTS tso.Timestamp) (Status, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.fates[startTS]
	return s, ok
}

func (f *fateCache) put(startTS tso.Timestamp, s Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.fates[startTS]; ok || !s.final() {
		return
	}
	s.primaryCleared = false // it says something about one lock, once
	if len(f.order) < fateCacheSize {
		f.order = append(f.order, startTS)
	} else {
		delete(f.fates, f.order[f.next])
		f.order[f.next] = startTS
		f.next = (f.next + 1) % fateCacheSize
	}
	f.fates[startTS] = s
}
