package notify_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// observe is every observer of a history. It leaves a row of effects for each run that
// commits.
func (s *simulation) observe(id string) notify.ObserverFunc {
	return func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		value, ok, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
		if err != nil {
			return err
		}
		seen, previous := seenValue(value, ok), "unasked"
		if id != "w" && s.intn(2) == 0 {
			switch value, ok, err := notify.Previous(ctx, tx); {
			case errors.Is(err, txn.ErrTooOld):
				s.count("previous values that are too old")
			case err != nil:
				return err
			default:
				previous = seenValue(value, ok)
			}
		}
		if !s.ended.Load() { // later it succeeds
			if s.intn(100) < s.mix.failing[id] {
				s.count("failed runs")
				return errBroken
			}
			switch s.intn(15) {
			case 0:
				return notify.Snooze(s.upTo(3 * time.Second))
			case 1:
				s.mu.Lock()
				defer s.mu.Unlock()
				p := promise{id, cell}
				if s.drops[p] == nil {
					s.drops[p] = map[tso.Timestamp]string{}
				}
				s.drops[p][tx.StartTS()] = seen
				return notify.Drop()
			case 2:
				select {
				case <-time.After(s.upTo(2 * time.Second)):
				case <-ctx.Done():
				}
			}
		}
		trigger := notify.TriggerOf(ctx)
		change := trigger.ChangeTS
		tx.Table("effects").Set(fmt.Sprintf("%s/%s/%d/%d", id, cell, change, tx.StartTS()), "e", "x", fmt.Appendf(nil, "%s %s %s %d %d %s %d %s", id, cell.Row, cell.Qualifier, change, tx.StartTS(), seen, trigger.Acks[id], previous))
		switch {
		case id == "a":
			tx.Table("docs").Set(cell.Row, "d", "mid", nil)
		case id == "b" && s.intn(2) == 0:
			tx.Table("docs").Notify(cell.Row, "d", "hot")
		}
		return nil
	}
}

// seenValue formats what an observer has seen.
func seenValue(value []byte, ok bool) string { return fmt.Sprintf("%v,%s", ok, value) }

// A repeater is a finder that offers some notifications again later, when another worker
// may have handled them.
type repeater struct {
	notify.Scanner
	s *simulation
}

func (r *repeater) Find(ctx context.Context, search notify.Search) error {
	var late sync.WaitGroup
	defer late.Wait()
	offer := search.Offer
	search.Offer = func(ctx context.Context, n changes.Notification, contended func()) bool {
		for range r.s.intn(3) {
			pause := r.s.upTo(5 * time.Second)
			late.Go(func() {
				select {
				case <-time.After(pause):
					offer(ctx, n, func() {})
				case <-ctx.Done():
				}
			})
		}
		return offer(ctx, n, contended)
	}
	return r.Scanner.Find(ctx, search)
}

func (s *simulation) work(ctx context.Context, c *txn.Client) {
	cfg := notify.Config{
		MaxAttempts: 1 + s.intn(2), Backoff: txn.Backoff{Min: 100 * time.Millisecond, Max: 3 * time.Second},
		NoHints: s.intn(3) == 0, Timeout: 5 * time.Second, DrainTimeout: 5 * time.Second, ConflictAttempts: 3,
		OnEvent: s.event,
	}
	if s.intn(s.mix.repeats) == 0 {
		cfg.Finder = &repeater{s: s}
	}
	var ids []string
	for _, id := range observerIDs {
		// From here on the observer is owed something. Run registers it too, nobody knows when.
		if s.intn(4) > 0 && s.exists(watched[id]) && s.register(ctx, id) == nil {
			ids = append(ids, id)
		}
	}
	s.run(ctx, c, cfg, ids)
}

func (s *simulation) event(e notify.Event) {
	s.tell("%s of %v for %s: change %d, start %d, commit %d (error: %v)", e.Outcome, e.Cell, e.Observer, e.ChangeTS, e.StartTS, e.CommitTS, e.Err)
}

func (s *simulation) exists(c column) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.table != adopted.table || s.adopted
}

// run runs a worker with the observers until ctx ends.
func (s *simulation) run(ctx context.Context, c *txn.Client, cfg notify.Config, ids []string) {
	w := newWorker(s.t, c, cfg)
	for _, id := range ids {
		var opts []notify.HandleOption
		if id == "w" {
			opts = append(opts, notify.Weak())
		}
		if !s.ended.Load() && s.intn(2) == 0 {
			// Time passes between the reads of one check.
			opts = append(opts, notify.RateLimit(0.4, 1))
		}
		handle(s.t, w, id, watched[id], s.observe(id), opts...)
	}
	for len(ids) > 0 && ctx.Err() == nil {
		_ = w.Run(ctx) // it may find no schema record, or an observer that does not stop in time
	}
}
