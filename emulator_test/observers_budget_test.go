package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// offers is a Finder that finds the notifications that a test sends to it.
type offers chan changes.Notification

func (f offers) Find(ctx context.Context, s notify.Search) error {
	for {
		select {
		case n := <-f:
			s.Offer(ctx, n, func() {})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestRoundTripsOfObservers counts every request that one notification takes.
func TestRoundTripsOfObservers(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	cell := txn.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "in"}
	write := func(ctx context.Context, c *txn.Client) error {
		_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set(cell.Row, cell.Family, cell.Qualifier, []byte("v"))
			return nil
		})
		return err
	}
	writeAndNotify := func(ctx context.Context, c *txn.Client) error {
		_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("r", "f", "q", []byte("v"))
			tx.Table("a").Notify("hot", "f", "weak")
			return nil
		})
		return err
	}
	own := func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		v, _, err := tx.Table("a").Get(ctx, cell.Row, cell.Family, cell.Qualifier) // prefetched with the acknowledgment
		tx.Table("a").Set(cell.Row, "f", "out", v)
		return err
	}
	for _, tt := range []struct {
		name    string
		observe notify.ObserverFunc
		before  func(context.Context, *txn.Client) error // runs before the worker, and is not counted
		do      func(context.Context, *txn.Client) error
		found   bool // by the finder, not by a hint
		want    map[txntest.Step]int
	}{
		{"an observed write, and its observer's run, hinted", own, nil, write, false,
			map[txntest.Step]int{txntest.StepOracle: 2 + 2, txntest.StepRead: 1, txntest.StepPrewrite: 1 + 1, txntest.StepCommit: 1 + 1, txntest.StepClear: 1, txntest.StepJournal: 1, txntest.StepJournalClear: 1}},
		{"a run that writes another row", func(_ context.Context, tx *txn.Txn, _ txn.Cell) error {
			tx.Table("a").Set("other", "f", "out", nil)
			return nil
		}, nil, write, false,
			map[txntest.Step]int{txntest.StepOracle: 2 + 2, txntest.StepRead: 1, txntest.StepPrewrite: 1 + 2, txntest.StepCommit: 1 + 1, txntest.StepSecondaries: 1, txntest.StepClear: 1, txntest.StepJournal: 1, txntest.StepJournalClear: 1}},
		{"a run that was found", own, write, nil, true,
			map[txntest.Step]int{txntest.StepOracle: 2, txntest.StepRead: 1, txntest.StepPrewrite: 1, txntest.StepCommit: 1, txntest.StepClear: 1, txntest.StepJournalClear: 1}},
		{"a run that was found, under an advisory lock in the metadata table", own, write, nil, true,
			map[txntest.Step]int{txntest.StepOracle: 1 + 2, txntest.StepLock: 2 + 2, txntest.StepRead: 1, txntest.StepPrewrite: 1, txntest.StepCommit: 1, txntest.StepClear: 1, txntest.StepJournalClear: 1}},
		{"a weak notification", nil, nil, writeAndNotify, false,
			map[txntest.Step]int{txntest.StepOracle: 2, txntest.StepPrewrite: 1, txntest.StepNotify: 1, txntest.StepCommit: 1, txntest.StepJournal: 1}},
		{"a run that fails", func(context.Context, *txn.Txn, txn.Cell) error { return errors.New("broken") }, nil, write, false,
			map[txntest.Step]int{txntest.StepOracle: 2 + 1, txntest.StepRead: 1, txntest.StepPrewrite: 1, txntest.StepCommit: 1, txntest.StepFailure: 1, txntest.StepJournal: 2}},
		{"a read of acknowledgments", own, nil, func(ctx context.Context, c *txn.Client) error { return changes.Notify(ctx, c, cell) }, false,
			map[txntest.Step]int{txntest.StepOracle: 1 + 1, txntest.StepNotify: 1, txntest.StepRead: 1, txntest.StepClear: 1, txntest.StepJournal: 1, txntest.StepJournalClear: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c, faults := budgetEnv(t, txn.Config{TokenTTL: time.Hour})
				if err := changes.RegisterObserver(t.Context(), c, "a", txn.Column{Family: "f", Qualifier: "weak"}, "elsewhere", true); err != nil {
					t.Fatal(err)
				}
				found := make(offers)
				cfg := notify.Config{Finder: found, Backoff: txn.Backoff{Min: time.Hour, Max: time.Hour}}
				if tt.want[txntest.StepLock] > 0 {
					cfg.Locks = changes.AdvisoryLocks(c)
				}
				w, err := notify.NewWorker(c, cfg)
				if err != nil {
					t.Fatal(err)
				}
				observe := tt.observe
				if observe == nil {
					observe = own
				}
				if err := w.Handle("o", "a", txn.Column{Family: "f", Qualifier: "in"}, observe); err != nil {
					t.Fatal(err)
				}
				if err := changes.RegisterObserver(t.Context(), c, "a", cell.Column(), "o", false); err != nil {
					t.Fatal(err)
				}
				if tt.before != nil {
					if err := tt.before(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- w.Run(ctx) }()
				synctest.Wait()
				faults.Reset()
				if tt.do != nil {
					if err := tt.do(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				}
				if tt.found {
					found <- changes.Notification{Cell: cell}
				}
				synctest.Wait()
				if d := cmp.Diff(tt.want, faults.Count()); d != "" {
					t.Errorf("requests (-want +got):\n%s", d)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
