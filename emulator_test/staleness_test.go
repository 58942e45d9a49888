package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// valueAt reads f:q of a row of table a; "absent" when there is none.
func valueAt(t *testing.T, v interface {
	Table(string) *txn.View
}, row string) string {
	t.Helper()
	b, ok, err := v.Table("a").Get(t.Context(), row, "f", "q")
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return "absent"
	}
	return string(b)
}

// putValue commits f:q of a row of table a.
func putValue(t *testing.T, c *txn.Client, row, value string, opts ...txn.TxnOption) tso.Timestamp {
	t.Helper()
	tx := begin(t, c, opts...)
	tx.Table("a").Set(row, "f", "q", []byte(value))
	ts, err := tx.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

// A read that may be stale costs one request and no question to the oracle; one
// that is not young enough asks, and both see what the client itself has
// committed.
func TestMaxStaleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
		putValue(t, env.Client, "r", "1")
		const d = 5 * time.Second
		asked := c.Stats().Timestamps
		// A question to the direct oracle is more than one request after others have
		// asked it.
		count := func(questions int64) {
			t.Helper()
			n := faults.Count()
			if n[txntest.StepRead] != 1 || questions == 0 && n[txntest.StepOracle] > 0 || c.Stats().Timestamps != asked+questions {
				t.Errorf("%v and %d questions to the oracle, want 1 read and %d", n, c.Stats().Timestamps-asked, questions)
			}
			faults.Reset()
			asked = c.Stats().Timestamps
		}

		if got := valueAt(t, takeSnapshot(t, c, txn.WithMaxStaleness(0)), "r"); got != "1" {
			t.Errorf("a snapshot that must not be stale shows %s", got)
		}
		count(1)
		putValue(t, env.Client, "r", "2") // by another client
		<-time.After(d - time.Second)
		stale := takeSnapshot(t, c, txn.WithMaxStaleness(d))
		if got := valueAt(t, stale, "r"); got != "1" {
			t.Errorf("a snapshot at an old timestamp shows %s, written since", got)
		}
		count(0)
		if n := c.Stats().ReusedTimestamps; n != 1 {
			t.Errorf("%d timestamps reused", n)
		}
		if got := valueAt(t, takeSnapshot(t, c, txn.WithMaxStaleness(time.Second)), "r"); got != "2" {
			t.Errorf("a snapshot that may be a second old shows %s", got)
		}
		count(1)

		// The client's own commits are seen, and time does not go back.
		last := stale.ReadTS()
		for _, v := range []string{"3", "4"} {
			committed := putValue(t, c, "r", v)
			asked = c.Stats().Timestamps
			faults.Reset()
			s := takeSnapshot(t, c, txn.WithMaxStaleness(d))
			if got := valueAt(t, s, "r"); got != v {
				t.Errorf("behind the client's own commit of %s, %s is read", v, got)
			}
			if s.ReadTS() < committed || s.ReadTS() < last {
				t.Errorf("read at %d, after %d and the commit at %d", s.ReadTS(), last, committed)
			}
			last = s.ReadTS()
			count(0)
		}
		// Old is old, whoever waits.
		<-time.After(d)
		putValue(t, env.Client, "r", "5")
		if got := valueAt(t, takeSnapshot(t, c, txn.WithMaxStaleness(d)), "r"); got != "5" {
			t.Errorf("a snapshot whose timestamp was %v old shows %s", d, got)
		}
	})
}

// The age of a timestamp counts from before it was asked for: what another client
// has committed while the answer was on its way may lie above it.
func TestStalenessFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
		putValue(t, env.Client, "r", "1")
		hold := faults.OnStep(txntest.StepOracle, txntest.HoldResponse)
		asked := make(chan error)
		go func() {
			_, err := c.Timestamp(t.Context())
			asked <- err
		}()
		<-hold.Fired()
		synctest.Wait()
		putValue(t, env.Client, "r", "2")
		<-time.After(4 * time.Second) // virtual: "2" was committed long ago
		hold.Release()
		if err := <-asked; err != nil {
			t.Fatal(err)
		}
		if got := valueAt(t, takeSnapshot(t, c, txn.WithMaxStaleness(3*time.Second)), "r"); got != "2" {
			t.Errorf("what was committed 4 s ago is missing in a snapshot that may be 3 s old: %s", got)
		}
		if got := c.Stats().ReusedTimestamps; got != 0 {
			t.Errorf("%d timestamps reused", got)
		}
	})
}

// A commit_ts whose commit is under way is no timestamp to read at: the read would
// wait for that commit.
func TestStalenessBelowOwnCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
		putValue(t, c, "r", "1")
		hold := faults.OnStep(txntest.StepCommit, txntest.Hold)
		done := make(chan error)
		tx := begin(t, c)
		tx.Table("a").Set("r", "f", "q", []byte("2"))
		go func() {
			_, err := tx.Commit(t.Context())
			done <- err
		}()
		<-hold.Fired()
		faults.Reset()
		if got := valueAt(t, takeSnapshot(t, c, txn.WithMaxStaleness(time.Second)), "r"); got != "1" {
			t.Errorf("%s is read before the commit", got)
		}
		if n := faults.Count()[txntest.StepRead]; n != 1 {
			t.Errorf("%d reads", n)
		}
		hold.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := valueAt(t, takeSnapshot(t, c, txn.WithMaxStaleness(time.Second)), "r"); got != "2" {
			t.Errorf("%s is read behind the commit", got)
		}
	})
}

// A snapshot below the safe point would be refused: the oracle is asked instead.
func TestStalenessAndSafePoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		putValue(t, c, "r", "1")
		<-time.After(time.Hour) // virtual
		putValue(t, env.Client, "r", "2")
		if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: 30 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		if got := valueAt(t, takeSnapshot(t, c, txn.WithMaxStaleness(24*time.Hour)), "r"); got != "2" {
			t.Errorf("read %s", got)
		}
		if got := c.Stats().ReusedTimestamps; got != 0 {
			t.Errorf("%d timestamps reused", got)
		}
		// Held, it is checked before anybody reads.
		s := takeSnapshot(t, env.Client, txn.WithMaxStaleness(time.Minute), txn.Hold())
		defer s.Release()
		if got := valueAt(t, s, "r"); got != "2" {
			t.Errorf("read %s", got)
		}
	})
}

func TestMaxStalenessRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		for _, opts := range [][]txn.SnapshotOption{
			{txn.WithMaxStaleness(-time.Second)},
			{txn.WithMaxStaleness(time.Second), txn.At(1e15)},
		} {
			if _, err := c.Snapshot(t.Context(), opts...); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("%v", err)
			}
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
