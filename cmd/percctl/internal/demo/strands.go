package demo

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/index"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// strands keeps account of the locks that killed workers left behind, and of
// what became of them: which of them were seen in the tables, and which were
// settled by others, who report each one. Locks of workers that are alive are
// settled by others too, when a reader is faster than the background commit;
// those were never stranded.
type strands struct {
	mu      sync.Mutex
	deaths  map[string]time.Time             // by owner
	found   map[string]map[lockID]txn.Lock   // by owner, after its death
	settled map[string]map[lockID]settlement // by owner
}

type lockID struct {
	cell    txn.Cell
	startTS tso.Timestamp
}

type settlement struct {
	state txn.State
	at    time.Time
}

func newStrands() *strands {
	return &strands{
		deaths:  map[string]time.Time{},
		found:   map[string]map[lockID]txn.Lock{},
		settled: map[string]map[lockID]settlement{},
	}
}

// died records when a worker stopped for ever.
func (s *strands) died(owner string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaths[owner] = at
}

// find looks for the locks of a worker that died.
func (s *strands) find(ctx context.Context, client *txn.Client, owner string) error {
	locks := map[lockID]txn.Lock{}
	for _, t := range index.Tables {
		for l, err := range admin.Locks(ctx, client, t.Name, nil) {
			if err != nil {
				return fmt.Errorf("looking for the locks of a killed worker: %w", err)
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

// resolved is the coordinator's own txn.Config.OnResolve.
func (s *strands) resolved(r txn.Resolution) {
	s.settle(r.Lock.Owner, lockID{r.Lock.Cell, r.Lock.StartTS}, settlement{r.Status.State, time.Now()})
}

// reported takes a worker's report.
func (s *strands) reported(r *resolvedReport) error {
	cell, err := format.ParseCell(r.Cell)
	if err != nil {
		return err
	}
	s.settle(r.Owner, lockID{cell, r.StartTS}, settlement{r.State, r.At})
	return nil
}

func (s *strands) settle(owner string, id lockID, how settlement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled[owner] == nil {
		s.settled[owner] = map[lockID]settlement{}
	}
	s.settled[owner][id] = how
}

// count returns how many locks of dead workers were rolled forward and back.
// A lock that was found, and settled by a worker that was killed before it
// could say so, is counted by its transaction's fate. It is called when no lock
// is left.
func (s *strands) count(ctx context.Context, client *txn.Client) (forward, back int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner, died := range s.deaths {
		states := map[lockID]txn.State{}
		for id, l := range s.found[owner] {
			status, err := admin.TransactionStatus(ctx, client, l.Primary, l.StartTS)
			if err != nil {
				return 0, 0, err
			}
			states[id] = status.State
		}
		for id, how := range s.settled[owner] {
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
			case txn.StateUnknown:
				// The last request of its owner arrived late and removed it.
			default:
				return 0, 0, fmt.Errorf("the lock on %s at %d is gone, and its transaction is still %v", id.cell, id.startTS, state)
			}
		}
	}
	return forward, back, nil
}
