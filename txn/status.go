package txn

import (
	"context"
	"sync"

	"github.com/percolator-bigtable/percolator/tso"
)

// readStatus reads a transaction's outcome from its primary cell, in the order record, marker, lock, nothing (design §4).
func readStatus(ctx context.Context, t *table, primary Cell, startTS tso.Timestamp) (Status, error) {
	raw, err := t.readRow(ctx, primary.Row, outcomeCells(primary.Column(), startTS))
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

// outcomeCache remembers settled transactions by start_ts, which no two
// transactions share, so that many locks of one dead transaction cost one look
// at its primary. Outcomes are final, so entries never go stale; the oldest make
// room.
type outcomeCache struct {
	mu    sync.Mutex
	known map[tso.Timestamp]Status
	order []tso.Timestamp
	next  int
}

const outcomeCacheSize = 4096

func newOutcomeCache() *outcomeCache { return &outcomeCache{known: map[tso.Timestamp]Status{}} }

func (c *outcomeCache) get(startTS tso.Timestamp) (Status, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.known[startTS]
	return s, ok
}

func (c *outcomeCache) put(startTS tso.Timestamp, s Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[startTS]; ok || !s.Final() {
		return
	}
	if len(c.order) < outcomeCacheSize {
		c.order = append(c.order, startTS)
	} else {
		delete(c.known, c.order[c.next])
		c.order[c.next] = startTS
		c.next = (c.next + 1) % outcomeCacheSize
	}
	c.known[startTS] = s
}
