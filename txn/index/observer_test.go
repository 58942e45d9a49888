package index_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestObserver: what an observer writes is indexed, and garbage collection removes no entry that is
// needed.
func TestObserver(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		_, x, c := newEnv(t)
		create(t, x, c, "email", "place")
		w, err := notify.NewWorker(c, notify.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Handle("copy", "users", name, notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			v, _, err := tx.Table("users").Get(ctx, cell.Row, "f", "name")
			tx.Table("users").Set(cell.Row, "f", "city", append([]byte("city of "), v...))
			return err
		})); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		pause(ctx, 5*time.Second)
		mustSet(t, c, "1", map[txn.Column]string{name: "Bob"})
		mustSet(t, c, "1", map[txn.Column]string{name: "Bobby"})
		if _, err := notify.Wait(ctx, c, notify.WaitConfig{}); err != nil {
			t.Error(err)
		}
		wantScan(t, x.At(snapshot(t, c)), "place", index.Query{}, "city of Bobby,Bobby=1")
		wantCorrect(t, x, c, "place")
		for range 5 {
			mustSet(t, c, "1", map[txn.Column]string{name: "B", email: "a"})
			mustSet(t, c, "1", map[txn.Column]string{name: "C", email: "b"})
			mustSet(t, c, "1", map[txn.Column]string{name: "-", email: "-"})
			if _, err := notify.Wait(ctx, c, notify.WaitConfig{}); err != nil {
				t.Error(err)
			}
			pause(ctx, time.Hour)
			if _, err := gc.Run(ctx, c, gc.Config{Retention: 10 * time.Minute}); err != nil {
				t.Error(err)
			}
			wantCorrect(t, x, c, "place")
			wantCorrect(t, x, c, "email")
		}
		cancel()
		<-done
	})
}
