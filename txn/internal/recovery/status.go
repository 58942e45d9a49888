package recovery

import (
	"context"
	"sync"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// ReadStatus reads a transaction's status from its primary cell. A write record or lock-only
// commit decides first, then a rollback marker, then the lock; without any of them, the
// state is unknown (design §4).
func ReadStatus(ctx context.Context, t *store.Table, primary format.Cell, startTS tso.Timestamp) (format.Status, error) {
	s, _, err := readStatus(ctx, t.ReadRow, primary, startTS)
	return s, err
}

// readStatus is ReadStatus with one try, if read is t.TryReadRow. locked reports whether the
// primary has the transaction's lock, whatever decides.
func readStatus(ctx context.Context, read ReadFunc, primary format.Cell, startTS tso.Timestamp) (s format.Status, locked bool, err error) {
	raw, err := read(ctx, primary.Row, store.OutcomeCells(primary.Column(), startTS))
	if err != nil {
		return format.Status{}, false, err
	}
	locked = len(raw[format.LockFamily]) > 0
	for _, item := range raw[format.LockFamily] {
		s.State = format.StateLocked
		if s.Lock, err = format.DecodeLock(primary, startTS, item.Value); err != nil {
			return format.Status{}, false, err
		}
	}
	for _, item := range raw[format.MarkFamily] {
		m, err := format.DecodeMark(primary, tso.FromCell(item.Timestamp), item.Value)
		if err != nil {
			return format.Status{}, false, err
		}
		if m.StartTS != startTS {
			continue
		}
		if m.Kind == format.KindLock {
			return format.Status{State: format.StateCommitted, CommitTS: m.CommitTS}, locked, nil
		}
		s = format.Status{State: format.StateRolledBack}
	}
	for _, item := range raw[format.WriteFamily] {
		w, err := format.DecodeWrite(primary, tso.FromCell(item.Timestamp), item.Value)
		if err != nil {
			return format.Status{}, false, err
		}
		if w.StartTS == startTS {
			return format.Status{State: format.StateCommitted, CommitTS: w.CommitTS}, locked, nil
		}
	}
	return s, locked, nil
}

// An OutcomeCache remembers final outcomes by start_ts. No two transactions share one, so
// all locks of a dead transaction cost one read of its primary. An outcome never changes,
// so entries never become wrong; the oldest make room for new ones.
type OutcomeCache struct {
	mu    sync.Mutex
	known map[tso.Timestamp]format.Status
	order []tso.Timestamp // a ring of the keys of known
	next  int             // index of the oldest key, once the ring is full
}

// outcomeCacheSize is how many outcomes a client remembers.
const outcomeCacheSize = 4096

func newOutcomeCache() *OutcomeCache { return &OutcomeCache{known: map[tso.Timestamp]format.Status{}} }

func (c *OutcomeCache) get(startTS tso.Timestamp) (format.Status, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.known[startTS]
	return s, ok
}

// Put remembers the status of a transaction, if it is final.
func (c *OutcomeCache) Put(startTS tso.Timestamp, s format.Status) {
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
