package emulator_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/admin"
)

// A commit whose outcome a client finds out later is one of its own too: a
// transaction that reads nothing began below it, at a timestamp that was asked for
// ahead, and ran into it; closed by counting what Settle has settled.
func TestStartAheadAboveSettledCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
		warmStarts(t, c)
		hold := faults.OnStep(txntest.StepCommit, txntest.HoldResponse)
		ctx, cancel := context.WithCancel(t.Context())
		tx := begin(t, c)
		tx.Table("a").Set("r", "f", "q", []byte("1"))
		done := commitInBackground(ctx, tx)
		<-hold.Fired()
		synctest.Wait()
		cancel()
		var unknown *txn.UndeterminedError
		if o := <-done; !errors.As(o.err, &unknown) {
			t.Fatalf("%v, want an unknown outcome", o.err)
		}
		hold.Release()
		s, err := c.Settle(t.Context(), unknown)
		if err != nil || s.State != txn.StateCommitted {
			t.Fatalf("%v, %v", s.State, err)
		}
		tx = begin(t, c, txn.WriteOnly())
		if tx.StartTS() <= s.CommitTS {
			t.Errorf("a transaction begins at %d, below what its client has settled at %d", tx.StartTS(), s.CommitTS)
		}
		tx.Table("a").Set("r", "f", "q", []byte("2"))
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A stuckOracle does not answer the question after the next, once it is armed.
type stuckOracle struct {
	tso.Oracle
	left  atomic.Int64
	stuck chan struct{}
}

func (o *stuckOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if o.left.Add(-1) == 0 {
		close(o.stuck)
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return o.Oracle.Timestamp(ctx)
}

// A question that was asked ahead and is not answered kept the transaction that was
// to have its timestamp waiting for up to Config.BackgroundTimeout, though an
// answer that late was never used; closed by asking again when it would be too old
// (Txn.begins).
func TestStartAheadThatIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		oracle := &stuckOracle{Oracle: env.Oracle(), stuck: make(chan struct{})}
		c := env.NewClient(txn.Config{TokenTTL: -1, Oracle: oracle, BackgroundTimeout: time.Hour})
		warmStarts(t, c)
		tx := begin(t, c, txn.WriteOnly())
		tx.Table("a").Set("r", "f", "q", []byte("1"))
		oracle.left.Store(2) // behind its commit_ts
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-oracle.stuck
		begun := time.Now()
		putValue(t, c, "r", "2", txn.WriteOnly())
		if d := time.Since(begun); d > time.Second {
			t.Errorf("a transaction waited %v for an answer that it could not use", d)
		}
	})
}

// The second attempt of an Update begins at a timestamp that was asked for ahead,
// and shows what another client has committed. The client did not count that
// timestamp among those that it knows, and a stale snapshot behind it went back
// to before that commit; closed by learning it (Txn.begins).
func TestStalenessBehindARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		enough := errors.New("enough")
		runs := 0
		_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			if runs++; runs == 1 {
				putValue(t, env.Client, "r", "1")
				tx.Table("a").Set("r", "f", "q", nil)
				return nil
			}
			b, _, err := tx.Table("a").Get(ctx, "r", "f", "q")
			if err != nil || string(b) != "1" {
				t.Errorf("the second attempt reads %q, %v", b, err)
			}
			return enough
		})
		if !errors.Is(err, enough) || c.Stats().AheadTimestamps != 1 {
			t.Fatalf("%v, %d timestamps asked for ahead", err, c.Stats().AheadTimestamps)
		}
		s := takeSnapshot(t, c, txn.WithMaxStaleness(time.Hour))
		if got := valueAt(t, s, "r"); got != "1" || c.Stats().ReusedTimestamps != 1 {
			t.Errorf("the client has seen 1, and then reads %s", got)
		}
	})
}

// A stale snapshot did not show what its client had loaded; closed by counting a
// load that has come to its end as a commit (Client.BulkLoad).
func TestStalenessBehindABulkLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		if _, err := admin.BulkLoad(t.Context(), c, "a", bulkRows(3), admin.BulkConfig{Idle: true}); err != nil {
			t.Fatal(err)
		}
		s := takeSnapshot(t, c, txn.WithMaxStaleness(time.Hour))
		if got := valueAt(t, s, "r0001"); got != "value 1" || c.Stats().ReusedTimestamps != 1 {
			t.Errorf("behind the load, %s is read", got)
		}
	})
}
