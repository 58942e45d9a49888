package notify_test

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// onDemand is a finder that offers what is there each time the test asks.
type onDemand struct {
	asked     chan chan bool
	contended atomic.Int64 // how often the worker said that another one works there
}

func (f *onDemand) Find(ctx context.Context, s notify.Search) error {
	for {
		select {
		case taken := <-f.asked:
			any := false
			for n, err := range changes.Notifications(ctx, s.Client, "docs", nil) {
				if err != nil {
					return err
				}
				any = s.Offer(ctx, n, func() { f.contended.Add(1) }) || any
			}
			taken <- any
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *onDemand) find() (taken bool) {
	answer := make(chan bool)
	f.asked <- answer
	return <-answer
}

// freeLocks are locks that no other worker holds.
type freeLocks struct{}

func (freeLocks) Acquire(_ context.Context, _, owner string, ttl time.Duration) (bool, tso.Holder, error) {
	return true, tso.Holder{Owner: owner, Left: ttl}, nil
}
func (freeLocks) Release(context.Context, string, string) error { return nil }

// refusesOnce are locks of which another worker has that of each row named locked, once.
type refusesOnce struct {
	freeLocks
	refused sync.Map
}

func (l *refusesOnce) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, tso.Holder, error) {
	if strings.Contains(name, "locked") {
		if _, again := l.refused.LoadOrStore(name, true); !again {
			return false, tso.Holder{Owner: "another"}, nil
		}
	}
	return l.freeLocks.Acquire(ctx, name, owner, ttl)
}

// TestStatsExactly: each outcome counts once, and so does each cell that the worker takes, leaves or
// clears. No counter counts anything else.
func TestStatsExactly(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		other := env.NewClient(txn.Config{TokenTTL: time.Minute})
		finder := &onDemand{asked: make(chan chan bool)}
		w := newWorker(t, env.Client, notify.Config{
			Finder: finder, Locks: &refusesOnce{}, Queue: 1,
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
				if err := acknowledge(ctx, other, cell); err != nil {
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
			name      string
			do        func()
			want      notify.Stats // what it adds
			contended int64
		}{
			{"commits", set(env.Client, "commits"), notify.Stats{Runs: 1, Committed: 1, Hinted: 1, Cleared: 1}, 0},
			{"drops", set(env.Client, "drops"), notify.Stats{Runs: 1, Dropped: 1, Hinted: 1, Cleared: 1}, 0},
			{"snoozes", set(env.Client, "snoozes"), notify.Stats{Runs: 2, Snoozed: 1, Committed: 1, Hinted: 1, Cleared: 1}, 0},
			{"fails", set(env.Client, "fails"), notify.Stats{Runs: 2, Failed: 1, Committed: 1, Hinted: 1, Cleared: 1}, 0},
			{"parks", set(env.Client, "parks"), notify.Stats{Runs: 2, Failed: 1, Parked: 1, Hinted: 1, Cleared: 1}, 0},
			{"loses", set(env.Client, "loses"), notify.Stats{Runs: 1, LostRaces: 1, Acknowledged: 1, Hinted: 1, Cleared: 1}, 0},
			{"conflicts", set(env.Client, "conflicts"), notify.Stats{Runs: 2, Conflicts: 1, Committed: 1, Hinted: 1, Cleared: 1}, 0},
			{"locked", set(env.Client, "locked"), notify.Stats{Runs: 1, Committed: 1, Locked: 1, Hinted: 1, Cleared: 1}, 0},
			{"found", find(other, "found"), notify.Stats{Runs: 1, Committed: 1, Found: 1, Cleared: 1}, 0},
			{"collapses", find(other, "twice", "twice", "twice"), notify.Stats{Runs: 1, Committed: 1, Collapsed: 2, Found: 1, Cleared: 1}, 0},
			{"found, locked", find(other, "locked too"), notify.Stats{Locked: 1, Found: 1}, 1},
			{"found, not locked any more", find(other), notify.Stats{Runs: 1, Committed: 1, Found: 1, Cleared: 1}, 0},
			{"found, acknowledged elsewhere", func() {
				put(t, other, input, "elsewhere", "v")
				if err := acknowledge(t.Context(), other, txn.Cell{Table: "docs", Row: "elsewhere", Family: "d", Qualifier: "in"}); err != nil {
					t.Error(err)
				}
				find(other)()
			}, notify.Stats{Acknowledged: 1, Found: 1, Cleared: 1}, 1},
			{"queue is full", func() {
				set(env.Client, "holds")()
				pass(0)
				set(env.Client, "waits", "lost")()
				close(release)
			}, notify.Stats{Runs: 2, Committed: 2, Hinted: 2, HintsDropped: 1, Cleared: 2}, 0},
			{"found later", find(other), notify.Stats{Runs: 1, Committed: 1, Found: 1, Cleared: 1}, 0},
		} {
			before, contended := w.Stats(), finder.contended.Load()
			tt.do()
			pass(10 * time.Minute)
			if got, n := minus(w.Stats(), before), finder.contended.Load()-contended; got != tt.want || n != tt.contended {
				t.Errorf("%s: %+v, want %+v; contended %d times, want %d", tt.name, got, tt.want, n, tt.contended)
			}
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// acknowledge acknowledges a change of a cell, as a run of another worker does.
func acknowledge(ctx context.Context, c *txn.Client, cell txn.Cell) error {
	_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		o, err := changes.Observe(ctx, tx, cell)
		if err == nil {
			changes.Acknowledge(tx, o, "o")
		}
		return err
	})
	return err
}

// minus returns what was counted between two Stats.
func minus(now, before notify.Stats) notify.Stats {
	n, b := reflect.ValueOf(&now).Elem(), reflect.ValueOf(before)
	for i := range n.NumField() {
		n.Field(i).SetInt(n.Field(i).Int() - b.Field(i).Int())
	}
	return now
}
