package notify_test

import (
	"context"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A givenFinder offers only what it is given.
type givenFinder struct {
	given chan changes.Notification
}

func newGivenFinder() *givenFinder {
	return &givenFinder{make(chan changes.Notification)}
}

func (f *givenFinder) Find(ctx context.Context, s notify.Search) error {
	for {
		select {
		case n := <-f.given:
			s.Offer(ctx, n, func() {})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestSoonestObserver: a worker checks a cell again when the first of its observers is due, in whatever order they
// run, although nothing finds the cell.
func TestSoonestObserver(t *testing.T) {
	for _, tt := range []struct{ a, b time.Duration }{{time.Hour, time.Minute}, {time.Minute, time.Hour}, {time.Minute, 0}, {0, time.Minute}} {
		virtual(t, func(t *testing.T, env *txntest.Env) {
			var all events
			w := newWorker(t, env.Client, notify.Config{Finder: newGivenFinder(), OnEvent: all.add})
			for id, d := range map[string]time.Duration{"a": tt.a, "b": tt.b} {
				handle(t, w, id, input, func(context.Context, *txn.Txn, txn.Cell) error {
					if d == 0 {
						return nil
					}
					return notify.Snooze(d)
				})
			}
			start(t, w)
			pass(time.Second)
			put(t, env.Client, input, "row", "v")
			pass(2*time.Minute + 30*time.Second)
			snoozed, _ := all.of(notify.Snoozed)
			n := map[string]int{}
			for _, e := range snoozed {
				n[e.Observer]++
			}
			for id, d := range map[string]time.Duration{"a": tt.a, "b": tt.b} {
				if want := map[time.Duration]int{0: 0, time.Minute: 3, time.Hour: 1}[d]; n[id] != want {
					t.Errorf("observers that snooze for %v and %v: %s ran %d times, want %d", tt.a, tt.b, id, n[id], want)
				}
			}
		})
	}
}
