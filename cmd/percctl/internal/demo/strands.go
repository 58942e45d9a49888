package demo

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// strands counts the locks that killed workers left behind, by the outcome of their
// transactions. A scan of the tables finds such locks, and the workers report each
// lock that they resolve. They also resolve locks of live workers, when a reader is
// faster than the commit of secondaries in the background; those do not count.
type strands struct {
	mu       sync.Mutex
	deaths   map[string]time.Time              // by owner
	found    map[string]map[lockID]format.Lock // by owner, after its death
	resolved map[string]map[lockID]resolution  // by owner
}

type lockID struct {
	cell    txn.Cell
	startTS tso.Timestamp
}

type resolution struct {
	state format.State
	at    time.Time
}

func newStrands() *strands {
	return &strands{
		deaths:   map[string]time.Time{},
		found:    map[string]map[lockID]format.Lock{},
		resolved: map[string]map[lockID]resolution{},
	}
}

// died records when a worker died.
func (s *strands) died(owner string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaths[owner] = at
}

// find finds the locks of a worker that died.
func (s *strands) find(ctx context.Context, client *txn.Client, owner string) error {
	locks := map[lockID]format.Lock{}
	for _, t := range index.Tables {
		for l, err := range admin.Locks(ctx, client, t.Name, nil) {
			if err != nil {
				return fmt.Errorf("finding the locks of a killed worker: %w", err)
			}
			if l.Owner == owner {
				locks[lockID{l.Cell, l.StartTS}] = l
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found[owner] = locks
	return nil
}

// onResolve is for admin.OnResolve of the coordinator's client.
func (s *strands) onResolve(r format.Resolution) {
	s.add(r.Lock.Owner, lockID{r.Lock.Cell, r.Lock.StartTS}, resolution{r.Status.State, time.Now()})
}

// reported takes a worker's report.
func (s *strands) reported(r *resolvedReport) error {
	cell, err := format.ParseCell(r.Cell)
	if err != nil {
		return err
	}
	s.add(r.Owner, lockID{cell, r.StartTS}, resolution{r.State, r.At})
	return nil
}

func (s *strands) add(owner string, id lockID, how resolution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resolved[owner] == nil {
		s.resolved[owner] = map[lockID]resolution{}
	}
	s.resolved[owner][id] = how
}

// count returns how many locks of dead workers were rolled forward and back. If a
// worker resolved a lock and was killed before it could report that, the outcome of
// the transaction decides. Call it when no lock is left.
func (s *strands) count(ctx context.Context, client *txn.Client) (forward, back int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner, died := range s.deaths {
		states := map[lockID]format.State{}
		for id, l := range s.found[owner] {
			status, err := admin.TransactionStatus(ctx, client, l.Primary, l.StartTS)
			if err != nil {
				return 0, 0, err
			}
			states[id] = status.State
		}
		for id, how := range s.resolved[owner] {
			if !how.at.Before(died) {
				states[id] = how.state
			}
		}
		for id, state := range states {
			switch state {
			case txn.StateCommitted:
				forward++
			case txn.StateRolledBack:
				back++
			case format.StateUnknown:
				// The last request of its owner arrived late and removed the lock.
			default:
				return 0, 0, fmt.Errorf("the lock on %s at %d is gone, and its transaction is still %v", id.cell, id.startTS, state)
			}
		}
	}
	return forward, back, nil
}
