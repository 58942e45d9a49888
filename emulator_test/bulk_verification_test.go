package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A column has three locks. The verification finds one of a dead transaction, and only then the one below
// it, of a transaction that is alive. That one has verified its rows before, and takes its commit_ts later.
func TestBulkVerificationBelowADeadLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newBulkEnv(t, txn.Config{TokenTTL: -1})
		rows := rowNames(3)
		oldest := beginSet(t, c, "oldest", append([]string{"p0"}, rows...)...)
		dying := txntest.NewFaults(t)
		dead := beginSet(t, env.NewClient(txn.Config{LockTTL: time.Second, TokenTTL: -1}, dying.DialOptions()...), "dead", append([]string{"p1"}, rows...)...)

		committing := faults.OnStep(txntest.StepOracle, txntest.Hold) // it has verified its rows by then
		first := commitInBackground(t.Context(), oldest)
		<-committing.Fired()
		synctest.Wait()
		verifying := dying.On("verification", stepOn(txntest.StepRead, rows[0]), txntest.Crash, 1)
		dies, cancel := context.WithCancel(t.Context())
		second := commitInBackground(dies, dead)
		<-verifying.Fired()
		dying.Kill()
		cancel()
		<-second
		advance(3 * time.Second) // the heartbeats of the oldest go on
		younger := beginSet(t, env.Client, "younger", append([]string{"p2"}, rows...)...)
		if n := len(stored(t, env, rows[1])["_lock"]); n != 2 {
			t.Fatalf("%d locks, want 2", n)
		}
		if _, err := younger.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
			t.Errorf("the youngest transaction, which started below the oldest one's commit_ts: %v", err)
		}
		committing.Release()
		if o := <-first; o.err != nil {
			t.Errorf("the oldest transaction: %v", o.err)
		}
		synctest.Wait()
		s := takeSnapshot(t, env.Client)
		for _, row := range rows {
			wantValue(t, s, row, "oldest")
		}
		wantNoLocks(t, env.Client)
	})
}

// The keys of a bulk prewrite do not fit into one read: the verification reads all of them.
func TestBulkVerificationOfManyLongKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := newBulkEnv(t, txn.Config{})
		var rows []string
		for i := range 400 {
			rows = append(rows, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 3000)))
		}
		for _, i := range []int{1, 200, 399} {
			tx := beginSet(t, c, "late", rows...)
			mustSet(t, env.Client, "other", rows[i])
			var conflict *txn.ConflictError
			if _, err := tx.Commit(t.Context()); !errors.As(err, &conflict) || conflict.Cell.Row != rows[i] {
				t.Errorf("row %d: %v", i, errors.Is(err, txn.ErrConflict))
			}
		}
		synctest.Wait()
		wantNoLocks(t, c)
	})
}
