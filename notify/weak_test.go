package notify_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestLateWeakNotification: a weak notification is on its way, below the timestamp of a
// check that finds an earlier one acknowledged. That check must not remove the late one,
// for which no observer has run.
func TestLateWeakNotification(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		of := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: time.Minute}, of.DialOptions()...)
		by := txntest.NewFaults(t)
		writer := env.NewClient(txn.Config{TokenTTL: time.Minute}, by.DialOptions()...)
		register(t, env.Client, input, "o", true)
		w := newWorker(t, c, notify.Config{NoHints: true, Finder: &notify.Scanner{MinInterval: 10 * time.Millisecond, MaxInterval: 20 * time.Millisecond}})
		var seen []int
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, _ txn.Cell) error {
			n := 0
			for _, err := range tx.Table("effects").ReadRows(ctx, nil) {
				if err != nil {
					return err
				}
				n++
			}
			seen = append(seen, n)
			return nil
		}, notify.Weak())
		clear := of.OnStep(txntest.StepClear, txntest.Hold)
		start(t, w)
		if err := notifyWeakly(t.Context(), env.Client, input, "doc", "first"); err != nil {
			t.Fatal(err)
		}
		<-clear.Fired() // the observer has run

		late := by.OnStep(txntest.StepNotify, txntest.Hold)
		committed := make(chan error, 1)
		go func() { committed <- notifyWeakly(t.Context(), writer, input, "doc", "second") }()
		<-late.Fired()    // with its commit_ts
		pass(time.Second) // the first notification is found again, and acknowledged
		late.Release()
		if err := <-committed; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		clear.Release()
		pass(time.Second)
		if len(seen) != 2 || seen[0] != 1 || seen[1] != 2 {
			t.Errorf("the observer has run, and seen %v transactions; want 1, then 2", seen)
		}
	})
}
