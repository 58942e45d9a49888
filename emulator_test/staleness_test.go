package emulator_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// valueAt reads f:q of a row of table a; "absent" if it does not exist.
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

// A read that may be stale takes one request, and none to the oracle. If the client's
// timestamp is too old, it asks the oracle. In both cases the read sees the client's
// own commits.
func TestMaxStaleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
		putValue(t, env.Client, "r", "1")
		const d = 5 * time.Second
		asked := c.Stats().Timestamps
		// A direct oracle sends more than one request after other clients have used
		// its row.
		count := func(questions int64) {
			t.Helper()
			n := faults.Count()
			if n[txntest.StepRead] != 1 || questions == 0 && n[txntest.StepOracle] > 0 || c.Stats().Timestamps != asked+questions {
				t.Errorf("%v and %d requests to the oracle, want 1 read and %d", n, c.Stats().Timestamps-asked, questions)
			}
			faults.Reset()
			asked = c.Stats().Timestamps
		}

		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(0)), "r"); got != "1" {
			t.Errorf("a snapshot that must not be stale shows %s", got)
		}
		count(1)
		putValue(t, env.Client, "r", "2") // by another client
		<-time.After(d - time.Second)
		stale := takeSnapshot(t, c, txn.MaxStaleness(d))
		if got := valueAt(t, stale, "r"); got != "1" {
			t.Errorf("a snapshot at an old timestamp shows %s, which is newer", got)
		}
		count(0)
		if n := c.Stats().ReusedTimestamps; n != 1 {
			t.Errorf("%d timestamps reused", n)
		}
		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(time.Second)), "r"); got != "2" {
			t.Errorf("a snapshot that may be a second old shows %s", got)
		}
		count(1)

		// The client sees its own commits, and its time does not go back.
		last := stale.ReadTS()
		for _, v := range []string{"3", "4"} {
			committed := putValue(t, c, "r", v)
			asked = c.Stats().Timestamps
			faults.Reset()
			s := takeSnapshot(t, c, txn.MaxStaleness(d))
			if got := valueAt(t, s, "r"); got != v {
				t.Errorf("after the client's own commit of %s, it reads %s", v, got)
			}
			if s.ReadTS() < committed || s.ReadTS() < last {
				t.Errorf("read at %d, after %d and the commit at %d", s.ReadTS(), last, committed)
			}
			last = s.ReadTS()
			count(0)
		}
		// A timestamp also ages while the client waits.
		<-time.After(d)
		putValue(t, env.Client, "r", "5")
		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(d)), "r"); got != "5" {
			t.Errorf("a snapshot whose timestamp was %v old shows %s", d, got)
		}
	})
}

// The age of a timestamp counts from before its request: commits of other clients may
// be above it while its answer is under way.
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
		<-time.After(4 * time.Second) // virtual time: "2" was committed long ago
		hold.Release()
		if err := <-asked; err != nil {
			t.Fatal(err)
		}
		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(3*time.Second)), "r"); got != "2" {
			t.Errorf("a snapshot that may be 3 s old shows %s, and misses a commit from 4 s ago", got)
		}
		if got := c.Stats().ReusedTimestamps; got != 0 {
			t.Errorf("%d timestamps reused", got)
		}
	})
}

// A client does not reuse a commit_ts for reads while the commit is under way: the
// reads would wait for it.
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
		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(time.Second)), "r"); got != "1" {
			t.Errorf("the client reads %s before the commit", got)
		}
		if n := faults.Count()[txntest.StepRead]; n != 1 {
			t.Errorf("%d reads", n)
		}
		hold.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(time.Second)), "r"); got != "2" {
			t.Errorf("the client reads %s after the commit", got)
		}
	})
}

// A timestamp below the safe point cannot be reused; the client asks the oracle
// instead.
func TestStalenessAndSafePoint(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		putValue(t, c, "r", "1")
		<-time.After(time.Hour) // virtual
		putValue(t, env.Client, "r", "2")
		if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: 30 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(24*time.Hour)), "r"); got != "2" {
			t.Errorf("read %s", got)
		}
		if got := c.Stats().ReusedTimestamps; got != 0 {
			t.Errorf("%d timestamps reused", got)
		}
		// With Hold, the timestamp is checked before the first read.
		s := takeSnapshot(t, env.Client, txn.MaxStaleness(time.Minute), txn.Hold())
		defer s.Release()
		if got := valueAt(t, s, "r"); got != "2" {
			t.Errorf("read %s", got)
		}
	})
}

// A bad staleness is refused.
func TestMaxStalenessRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		for _, opts := range [][]txn.SnapshotOption{
			{txn.MaxStaleness(-time.Second)},
			{txn.MaxStaleness(time.Second), txn.At(1e15)},
		} {
			if _, err := c.Snapshot(t.Context(), opts...); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("%v", err)
			}
		}
	})
}

// A client's timestamps do not go back: a stale snapshot is not older than a transaction
// that began before.
func TestStalenessBehindAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		tx := begin(t, c)
		defer tx.Rollback()
		before := c.Stats()
		s := takeSnapshot(t, c, txn.MaxStaleness(time.Hour))
		if s.ReadTS() < tx.StartTS() || c.Stats().ReusedTimestamps != before.ReusedTimestamps+1 {
			t.Errorf("a stale snapshot at %d after a transaction began at %d; %+v", s.ReadTS(), tx.StartTS(), c.Stats())
		}
	})
}

// A stale snapshot shows what its client has loaded: the end of a bulk load counts as a
// commit. Before the fix it did not.
func TestStalenessBehindABulkLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		if _, err := admin.BulkLoad(t.Context(), c, "a", bulkRows(3), admin.BulkConfig{Idle: true}); err != nil {
			t.Fatal(err)
		}
		s := takeSnapshot(t, c, txn.MaxStaleness(time.Hour))
		if got := valueAt(t, s, "r0001"); got != "value 1" || c.Stats().ReusedTimestamps != 1 {
			t.Errorf("after the load the client reads %s", got)
		}
	})
}

// A reader passed the lock of a transaction, so its commit takes another commit_ts. Until
// that commit is known, no stale snapshot of the same client may show the state of that
// timestamp: it would not contain the commit.
func TestStaleSnapshotDuringPassedCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "old", "row")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{PassLocks: true}, faults.DialOptions()...)
		first := faults.OnStep(txntest.StepCommit, txntest.Hold)
		tx := begin(t, c)
		set(tx, "new", "row")
		var committed tso.Timestamp
		done := inBackground(func() (err error) { committed, err = tx.Commit(t.Context()); return err })
		<-first.Fired()
		reader := env.NewClient(txn.Config{PassLocks: true})
		if got := valueAt(t, takeSnapshot(t, reader), "row"); got != "old" || reader.Stats().Raises != 1 {
			t.Fatalf("the reader saw %q and raised the minimum %d times", got, reader.Stats().Raises)
		}
		second := faults.OnStep(txntest.StepCommit, txntest.Hold)
		first.Release()
		<-second.Fired()
		stale := takeSnapshot(t, c, txn.MaxStaleness(time.Hour))
		if got := valueAt(t, stale, "row"); got != "old" {
			t.Errorf("during the commit, the stale snapshot saw %q", got)
		}
		second.Release()
		if o := <-done; o.err != nil {
			t.Fatal(o.err)
		}
		if stale.ReadTS() >= committed {
			t.Errorf("the stale snapshot shows the state at %d, without the commit at %d", stale.ReadTS(), committed)
		}
		if got := valueAt(t, takeSnapshot(t, c, txn.MaxStaleness(time.Hour)), "row"); got != "new" {
			t.Errorf("after the commit, a stale snapshot saw %q", got)
		}
	})
}

// No stale snapshot of a client that loads rows shows the state of the load's commit_ts
// before the load is complete.
func TestStaleSnapshotDuringBulkLoad(t *testing.T) {
	t.Parallel()
	env := newBulk(t)
	started := false
	_, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(1), admin.BulkConfig{Started: func(_, commitTS tso.Timestamp) {
		started = true
		if s := takeSnapshot(t, env.Client, txn.MaxStaleness(time.Hour)); s.ReadTS() >= commitTS {
			t.Errorf("a stale snapshot shows the state at %d, and the load commits at %d", s.ReadTS(), commitTS)
		}
	}})
	if err != nil || !started {
		t.Fatal(err, started)
	}
	wantValue(t, takeSnapshot(t, env.Client, txn.MaxStaleness(time.Hour)), "r0000", "value 0")
}
