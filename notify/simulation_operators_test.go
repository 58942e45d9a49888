package notify_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// register registers an observer or removes it. It uses a client without faults: what a
// late request changes cannot be promised.
func (s *simulation) register(ctx context.Context, id string) error {
	s.registry <- struct{}{}
	defer func() { <-s.registry }()
	col := watched[id]
	if err := changes.RegisterObserver(ctx, s.env.Client, col.table, col.Column, id, id == "w"); err != nil {
		return err
	}
	s.tell("registered %s", id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since[id].IsZero() {
		s.since[id] = time.Now()
	}
	return nil
}

func (s *simulation) unregister(ctx context.Context, id string) error {
	s.registry <- struct{}{}
	defer func() { <-s.registry }()
	s.mu.Lock()
	delete(s.since, id)
	s.mu.Unlock()
	s.tell("removing %s", id)
	_, err := changes.UnregisterObserver(ctx, s.env.Client, watched[id].table, id)
	return err
}

// adopt makes the table with plain values transactional.
func (s *simulation) adopt(ctx context.Context) error {
	s.registry <- struct{}{}
	defer func() { <-s.registry }()
	cfg := admin.AdoptConfig{Table: adopted.table, Instance: fmt.Sprintf("projects/%s/instances/%s", s.env.Project, s.env.Instance)}
	plan, err := admin.PlanAdoption(ctx, s.env.Admin, s.env.Bigtable, cfg)
	if err == nil {
		err = admin.Adopt(ctx, s.env.Admin, s.env.Bigtable, cfg, plan)
	}
	if err == nil {
		s.mu.Lock()
		s.adopted = true
		s.mu.Unlock()
	}
	return err
}

func (s *simulation) letters(ctx context.Context, c *txn.Client) (all []changes.DeadLetter) {
	for d, err := range changes.DeadLetters(ctx, c) {
		if err == nil {
			all = append(all, d)
		}
	}
	return all
}

// operate does what operators do.
func (s *simulation) operate(ctx context.Context, c *txn.Client) {
	for s.next(ctx, s.mix.operates) {
		octx, cancel := context.WithTimeout(ctx, time.Minute)
		id := observerIDs[s.intn(len(observerIDs))]
		cell := cellIn(columnsOf(id)[s.intn(len(columnsOf(id)))], s.row())
		var err error
		what := ""
		switch s.action() {
		case 0:
			what, err = "backfills", s.backfill(octx, c, watched[id])
		case 1:
			what, err = "notifications", s.notify(octx, c, cell)
		case 2:
			what, err = "parks", s.park(octx, c, id, cell)
		case 3:
			for _, d := range s.letters(octx, c) {
				if s.intn(2) == 0 {
					what, err = "drops", s.drop(octx, c, d)
				}
			}
		case 4:
			if !s.exists(adopted) {
				what, err = "adoptions", s.adopt(octx)
			}
		case 5:
			if s.intn(4) == 0 {
				what, err = "removals", s.unregister(octx, id)
			}
		case 6:
			if s.exists(watched[id]) {
				what, err = "registrations", s.register(octx, id)
			}
		default:
			for _, d := range s.letters(octx, c) {
				if s.intn(2) == 0 {
					what, err = "replays", s.replay(octx, c, d)
				}
			}
		}
		cancel()
		if err == nil && what != "" {
			s.count(what)
		}
	}
}

// action draws what an operator does.
func (s *simulation) action() int {
	total := 0
	for _, n := range s.mix.actions {
		total += n
	}
	n := s.intn(max(total, 1))
	for i, weight := range s.mix.actions {
		if n -= weight; n < 0 {
			return i
		}
	}
	return 0
}

// ask makes a request for a notification. If it succeeds, the observer has to run.
func (s *simulation) ask(ctx context.Context, r request, f func() error) (err error) {
	r.began = time.Now()
	if r.ts, err = s.oracle.Timestamp(ctx); err != nil {
		return err
	}
	err = f()
	s.tell("asked %+v (error: %v)", r, err)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
	return nil
}

func (s *simulation) backfill(ctx context.Context, c *txn.Client, col column) error {
	return s.ask(ctx, request{of: col}, func() error {
		_, err := notify.Backfill(ctx, c, notify.BackfillConfig{Table: col.table, Column: col.Column})
		return err
	})
}

func (s *simulation) notify(ctx context.Context, c *txn.Client, cell txn.Cell) error {
	return s.ask(ctx, request{cell: cell}, func() error { return changes.Notify(ctx, c, cell) })
}

func (s *simulation) replay(ctx context.Context, c *txn.Client, d changes.DeadLetter) error {
	return s.ask(ctx, request{cell: d.Cell, observer: d.Observer, change: d.ChangeTS}, func() error { return changes.Replay(ctx, c, d) })
}

func (s *simulation) drop(ctx context.Context, c *txn.Client, d changes.DeadLetter) error {
	s.mu.Lock()
	p := promise{d.Observer, d.Cell}
	s.dropped[p] = request{began: time.Now(), change: max(s.dropped[p].change, d.ChangeTS)}
	s.mu.Unlock()
	s.tell("dropping %+v", d)
	return changes.Drop(ctx, c, d)
}

// park makes a dead letter of a pending change, as operators do.
func (s *simulation) park(ctx context.Context, c *txn.Client, id string, cell txn.Cell) error {
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	seen, err := changes.Observe(ctx, tx, cell)
	if err != nil || !seen.Pending(id) || !slices.Contains(seen.Observers, id) {
		return err
	}
	s.tell("parking %v of %s, seen at %d", cell, id, seen.StartTS)
	if err := changes.Park(ctx, c, changes.DeadLetter{Cell: cell, Observer: id, ChangeTS: seen.ChangeTS, FirstTS: seen.StartTS}); err != nil {
		return err
	}
	return changes.SetFailure(ctx, c, cell, id, format.Failure{ChangeTS: seen.ChangeTS, NotBefore: format.Never, FirstTS: seen.StartTS, LastTS: seen.StartTS})
}
