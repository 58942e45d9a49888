package notify_test

import (
	"context"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// onDemand is a finder that offers what is there each time the test asks.
type onDemand chan chan bool

func (f onDemand) Find(ctx context.Context, s notify.Search) error {
	for {
		select {
		case taken := <-f:
			any := false
			for n, err := range changes.Notifications(ctx, s.Client, "docs", nil) {
				if err != nil {
					return err
				}
				any = s.Offer(ctx, n, func() {}) || any
			}
			taken <- any
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f onDemand) find() (taken bool) {
	answer := make(chan bool)
	f <- answer
	return <-answer
}

// refusesOnce are locks of which another worker has that of a row, once.
type refusesOnce struct {
	tso.Locks
	row     string
	refused atomic.Bool
}

func (l *refusesOnce) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, tso.Holder, error) {
	if strings.Contains(name, l.row) && !l.refused.Swap(true) {
		return false, tso.Holder{Owner: "another"}, nil
	}
	return l.Locks.Acquire(ctx, name, owner, ttl)
}

// TestStatsExactly: each outcome counts once, and so does each cell that the worker takes, leaves or
// clears. No counter counts anything else.
func TestStatsExactly(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		other := env.NewClient(txn.Config{TokenTTL: time.Minute})
		finder := make(onDemand)
		w := newWorker(t, env.Client, notify.Config{
			Finder: finder, Locks: &refusesOnce{Locks: tso.NewMemoryLocks(), row: "locked"}, Queue: 1,
			MaxAttempts: 2, ConflictAttempts: 2, Backoff: txn.Backoff{Min: time.Minute, Max: time.Minute},
		})
		attempts := map[string]int{} // one run at a time
		release := make(chan struct{})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			attempts[cell.Row]++
			first := attempts[cell.Row] == 1
			switch {
			case cell.Row == "drops":
				return notify.Drop()
			case cell.Row == "snoozes" && first:
				return notify.Snooze(time.Second)
			case cell.Row == "fails" && first, cell.Row == "parks":
				return errBroken
			case cell.Row == "conflicts" && first:
				tx.Table("docs").Lock("shared", "d", "out")
				put(t, other, output, "shared", "v")
			case cell.Row == "loses" && first:
				if _, err := other.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
					o, err := changes.Observe(ctx, tx, cell)
					if err == nil {
						changes.Acknowledge(tx, o, "o")
					}
					return err
				}); err != nil {
					return err
				}
			case cell.Row == "holds":
				<-release
			}
			effect(tx, cell)
			return nil
		}, notify.Concurrency(1))
		start(t, w)
		pass(0)
		set := func(c *txn.Client, rows ...string) func() {
			return func() {
				for _, row := range rows {
					put(t, c, input, row, "v")
				}
			}
		}
		find := func(c *txn.Client, rows ...string) func() {
			return func() {
				set(c, rows...)()
				if !finder.find() {
					t.Errorf("the worker did not take %v", rows)
				}
			}
		}
		for _, tt := range []struct {
			name string
			do   func()
			want notify.Stats // what it adds
		}{
			{"commits", set(env.Client, "commits"), notify.Stats{Runs: 1, Committed: 1, Hinted: 1, Cleared: 1}},
			{"drops", set(env.Client, "drops"), notify.Stats{Runs: 1, Dropped: 1, Hinted: 1, Cleared: 1}},
			{"snoozes", set(env.Client, "snoozes"), notify.Stats{Runs: 2, Snoozed: 1, Committed: 1, Hinted: 1, Cleared: 1}},
			{"fails", set(env.Client, "fails"), notify.Stats{Runs: 2, Failed: 1, Committed: 1, Hinted: 1, Cleared: 1}},
			{"parks", set(env.Client, "parks"), notify.Stats{Runs: 2, Failed: 1, Parked: 1, Hinted: 1, Cleared: 1}},
			{"loses", set(env.Client, "loses"), notify.Stats{Runs: 1, LostRaces: 1, Acknowledged: 1, Hinted: 1, Cleared: 1}},
			{"conflicts", set(env.Client, "conflicts"), notify.Stats{Runs: 2, Conflicts: 1, Committed: 1, Hinted: 1, Cleared: 1}},
			{"locked", set(env.Client, "locked"), notify.Stats{Runs: 1, Committed: 1, Locked: 1, Hinted: 1, Cleared: 1}},
			{"found", find(other, "found"), notify.Stats{Runs: 1, Committed: 1, Found: 1, Cleared: 1}},
			{"collapses", find(other, "twice", "twice", "twice"), notify.Stats{Runs: 1, Committed: 1, Collapsed: 2, Found: 1, Cleared: 1}},
			{"queue is full", func() {
				set(env.Client, "holds")()
				pass(0)
				set(env.Client, "waits", "lost")()
				close(release)
			}, notify.Stats{Runs: 2, Committed: 2, Hinted: 2, HintsDropped: 1, Cleared: 2}},
			{"found later", find(other), notify.Stats{Runs: 1, Committed: 1, Found: 1, Cleared: 1}},
		} {
			before := w.Stats()
			tt.do()
			pass(10 * time.Minute)
			if got := minus(w.Stats(), before); got != tt.want {
				t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
			}
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// minus returns what was counted between two Stats.
func minus(now, before notify.Stats) notify.Stats {
	n, b := reflect.ValueOf(&now).Elem(), reflect.ValueOf(before)
	for i := range n.NumField() {
		n.Field(i).SetInt(n.Field(i).Int() - b.Field(i).Int())
	}
	return now
}
