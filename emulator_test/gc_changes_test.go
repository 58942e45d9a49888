package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// changesEnv makes an Env with table "a" whose collector has read every row, so that its next run
// follows changes. Its clients write tokens.
func changesEnv(t *testing.T) *txntest.Env {
	t.Helper()
	env := newGCEnv(t)
	env.CreateTable("a", "f")
	env.CreateTable("b", "f")
	advance(retention)
	if r := followChanges(t, env); r.Changes {
		t.Fatalf("the first run follows changes: %+v", r)
	}
	return env
}

// followChanges runs a collection that follows changes, after one that does not.
func followChanges(t *testing.T, env *txntest.Env) *gc.Report {
	t.Helper()
	r := runGC(t, env.Client, gc.Config{FullEvery: 24 * time.Hour})
	advance(time.Minute) // until other clients read the safe point again
	return r
}

// wantChanges runs a collection that follows changes, and compares what it removes.
func wantChanges(t *testing.T, env *txntest.Env, rows, versions int64) {
	t.Helper()
	r := followChanges(t, env)
	if !r.Changes || r.Total.Rows != rows || r.Total.Versions != versions || r.Total.Marks != 0 || r.Total.Deletes != 0 {
		t.Errorf("a run that follows changes: %+v; want %d rows read, %d versions removed, and no mark or newest delete", r, rows, versions)
	}
}

// A run that follows changes reads the rows that clients have overwritten, and no others. It
// leaves newest deletes, marks, and what nobody noted to the next run that reads every row.
func TestGCFollowsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{})
		for range 2 {
			for i := range 50 {
				mustSet(t, c, "old", fmt.Sprint("unnoted", i))
			}
		}
		advance(retention / 2)
		env.CreateTable("b", "f")
		// Only what is at or below the safe point goes, and here that is nothing yet.
		if r := followChanges(t, env); r.Changes || r.Total.Versions != 0 {
			t.Fatalf("the first run: %+v", r)
		}
		mustSet(t, c, "1", "bob", "joe") // two rows
		mustSet(t, c, "2", "bob", "joe")
		mustSet(t, c, "3", "bob")
		mustSet(t, c, "1", "sue")
		closing := env.NewClient(txn.Config{})
		mustSet(t, closing, "1", "ann")
		mustSet(t, closing, "2", "ann")
		if err := closing.Close(t.Context()); err != nil { // at once: it has not written its notes yet
			t.Fatal(err)
		}
		if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Delete("sue", "f", "q")
			tx.Table("a").Lock("sue", "f", "other")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		advance(30 * time.Second)
		if n := metadataRows(t, env, "changed/"); n == 0 {
			t.Error("no rows are noted")
		}
		advance(retention)
		wantChanges(t, env, 4, 5) // ann 1, bob 1 and 2, joe 1, sue 1
		wantChanges(t, env, 0, 0)
		if n := metadataRows(t, env, "changed/"); n > 0 {
			t.Errorf("%d notes are left", n)
		}
		s := takeSnapshot(t, c)
		wantValue(t, s, "bob", "3")
		wantValue(t, s, "joe", "2")
		if r := runGC(t, env.Client, gc.Config{}); r.Changes || r.Total.Versions != 50 || r.Total.Marks != 1 {
			t.Errorf("a run that reads every row removed %d versions and %d marks, want 50 and 1", r.Total.Versions, r.Total.Marks)
		}
		if n := metadataRows(t, env, "settled/"); n > 0 {
			t.Errorf("%d claims are left below what a run has resolved", n)
		}
		env.Check()
	})
}

// A run that follows changes keeps the write record of a transaction that may have locks left:
// they need it. One that reads every row, and resolves the locks, removes it.
func TestGCKeepsRecordsOfStrandedLocks(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	// In each case a client commits "lost" to bob and joe, and joe's lock stays.
	for _, tt := range []struct {
		name   string
		strand func(t *testing.T, env *txntest.Env)
	}{
		{"its client dies", func(t *testing.T, env *txntest.Env) {
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{}, faults.DialOptions()...)
			dies := faults.OnStep(txntest.StepSecondaries, txntest.Crash)
			mustSet(t, c, "lost", "bob", "joe")
			<-dies.Fired()
			faults.Kill()
		}},
		{"its client continues", func(t *testing.T, env *txntest.Env) {
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{BackgroundTimeout: time.Minute}, faults.DialOptions()...)
			faults.On("secondaries of joe", stepOn(txntest.StepSecondaries, "joe"), txntest.DropRequest, 0)
			mustSet(t, c, "lost", "bob", "joe")
			for i := range 10 {
				advance(20 * time.Second)
				mustSet(t, c, "other", fmt.Sprint("r", i), fmt.Sprint("s", i))
			}
			if err := c.Close(t.Context()); err != nil { // with its last claim
				t.Error(err)
			}
		}},
		{"its client does not know the outcome", func(t *testing.T, env *txntest.Env) {
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{}, faults.DialOptions()...)
			lost := faults.OnStep(txntest.StepCommit, txntest.DropResponse)
			silent := faults.On("reads of the outcome", stepOn(txntest.StepRead, "bob"), txntest.DropRequest, 0)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := tryUpdate(ctx, c, "lost", "bob", "joe"); err == nil {
				t.Error("the outcome is known")
			}
			<-lost.Fired()
			<-silent.Fired()
			advance(time.Minute)
			mustSet(t, c, "other", "r", "s")
			advance(time.Minute) // with the token, the client writes its claim
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}},
		{"its client writes no token", func(t *testing.T, env *txntest.Env) {
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
			dies := faults.OnStep(txntest.StepSecondaries, txntest.Crash)
			mustSet(t, c, "lost", "bob", "joe")
			<-dies.Fired()
			faults.Kill()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := changesEnv(t)
				other := env.NewClient(txn.Config{})
				mustSet(t, other, "first", "bob", "joe")
				advance(time.Minute)
				tt.strand(t, env)
				mustSet(t, other, "second", "bob") // its own record goes, and not that of "lost"
				mustSet(t, other, "third", "bob")
				advance(retention + time.Minute)
				r := followChanges(t, env)
				if !r.Changes || r.Total.Versions < 2 {
					t.Errorf("the run removed %d versions, want first and second of bob: %+v", r.Total.Versions, r)
				}
				wantValue(t, takeSnapshot(t, other), "joe", "lost")
				wantValue(t, takeSnapshot(t, other), "bob", "third")
				advance(retention + time.Minute)
				mustSet(t, other, "fourth", "bob")
				if r := runGC(t, env.Client, gc.Config{}); r.Total.Versions == 0 {
					t.Error("a run that reads every row removed no version of bob")
				}
				env.Check()
			})
		})
	}
}

// After an unknown outcome, a client soon claims again that its later commits have no locks left,
// whether the outcome is settled or not.
func TestGCFollowsChangesAfterAnUnknownOutcome(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	for _, tt := range []struct {
		name   string
		fault  txntest.Action
		settle func(t *testing.T, c, other *txn.Client, u *txn.UndeterminedError)
	}{
		{"committed", txntest.DropResponse, func(t *testing.T, c, _ *txn.Client, u *txn.UndeterminedError) {
			if s, err := c.Settle(t.Context(), u); err != nil || s.State != txn.StateCommitted {
				t.Errorf("settle: %v, %v", s.State, err)
			}
		}},
		{"rolled back", txntest.DropRequest, func(t *testing.T, c, other *txn.Client, u *txn.UndeterminedError) {
			wantValue(t, takeSnapshot(t, other), "bob", "first")
			if s, err := c.Settle(t.Context(), u); err != nil || s.State != txn.StateRolledBack {
				t.Errorf("settle: %v, %v", s.State, err)
			}
		}},
		{"never settled", txntest.DropRequest, func(*testing.T, *txn.Client, *txn.Client, *txn.UndeterminedError) {
			advance(2 * time.Minute)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := changesEnv(t)
				other := env.NewClient(txn.Config{})
				mustSet(t, other, "first", "bob", "joe")
				faults := txntest.NewFaults(t)
				c := env.NewClient(txn.Config{}, faults.DialOptions()...)
				lost := faults.On("commit", step(txntest.StepCommit), tt.fault, 1)
				silent := faults.On("read of the outcome", func(call txntest.Call) bool {
					select {
					case <-lost.Fired():
						return call.Step == txntest.StepRead
					default:
						return false
					}
				}, txntest.DropRequest, 1)
				ctx, cancel := context.WithCancel(t.Context())
				unknown := inBackground(func() error { return tryUpdate(ctx, c, "lost", "bob", "joe") })
				<-silent.Fired()
				cancel()
				var u *txn.UndeterminedError
				if got := <-unknown; !errors.As(got.err, &u) {
					t.Fatalf("update: %v, want an unknown outcome", got.err)
				}
				tt.settle(t, c, other, u)
				advance(time.Minute) // with the token, the client writes its claim
				for _, v := range []string{"1", "2"} {
					mustSet(t, c, v, "r", "s")
				}
				advance(retention + time.Minute)
				if r := followChanges(t, env); !r.Changes || r.Total.Versions < 2 || len(stored(t, env, "r")["f"]) != 1 || len(stored(t, env, "s")["f"]) != 1 {
					t.Errorf("the run left versions of r or s: %+v", r)
				}
				env.Check()
			})
		})
	}
}

// A duplicate of a prewrite arrives after the write record of its transaction was collected. It
// must lock nothing: the newer version that stays is at or above its start timestamp.
func TestGCOfChangesBeforeALatePrewrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := changesEnv(t)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{}, faults.DialOptions()...)
		late := faults.On("prewrite of joe", stepOn(txntest.StepPrewrite, "joe"), txntest.Echo, 1)
		mustSet(t, c, "1", "bob", "joe")
		<-late.Fired()
		mustSet(t, c, "2", "bob", "joe")
		advance(retention + time.Minute)
		wantChanges(t, env, 2, 2)
		late.Release()
		faults.Wait()
		wantNoLocks(t, c)
		wantValue(t, takeSnapshot(t, c), "joe", "2")
		env.Check()
	})
}

// A run that follows changes and is interrupted leaves the notes of what it has not collected.
func TestGCOfChangesIsInterrupted(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := changesEnv(t)
		c := env.NewClient(txn.Config{})
		mustSet(t, c, "1", "bob", "joe")
		mustSet(t, c, "2", "bob", "joe")
		advance(retention + time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		faults := txntest.NewFaults(t)
		dying := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		dies := faults.OnStep(txntest.StepCollect, txntest.Crash)
		ended := inBackground(func() error {
			_, err := gc.Run(ctx, dying, gc.Config{Retention: retention, FullEvery: 24 * time.Hour})
			return err
		})
		<-dies.Fired()
		cancel()
		if got := <-ended; got.err == nil {
			t.Error("the interrupted run returned no error")
		}
		if s, err := gc.ReadStatus(t.Context(), env.Client); err != nil || s.Run.Phase != gc.PhaseChanges {
			t.Errorf("phase %q, %v; want %q", s.Run.Phase, err, gc.PhaseChanges)
		}
		advance(time.Minute) // until the lease ends
		wantChanges(t, env, 2, 2)
		env.Check()
	})
}

// What clients note costs few requests: about one for 8,192 rows, and none while no collector
// reads them.
func TestNotesAreFew(t *testing.T) {
	long.Test(t, "10,000 rows, and days of virtual time")
	long.NotUnderRace(t, "one request after the other, and what it costs")
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		overwrite := func(commits int) {
			for range commits {
				if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					for i := range 100 {
						tx.Table("a").Set(fmt.Sprint("row", i), "f", "q", []byte("v"))
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			advance(time.Minute)
		}
		want := func(requests int) {
			t.Helper()
			if n := faults.Count()[txntest.StepChanged]; n != requests {
				t.Errorf("%d requests with changed rows, want %d", n, requests)
			}
		}
		overwrite(10)
		want(0)
		advance(retention)
		followChanges(t, env)
		overwrite(100) // 10,000 rows
		want(2)
		overwrite(0)
		want(2)
		overwrite(1)
		want(3)
		// Long after the last collection, clients stop.
		advance(4 * 24 * time.Hour)
		overwrite(1)
		want(3)
	})
}

// A client that cannot write its notes commits nevertheless, and forgets some of them.
func TestNotesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := changesEnv(t)
		c := env.NewClient(txn.Config{}, refuse(step(txntest.StepChanged))...)
		mustSet(t, c, "1", "bob", "joe")
		mustSet(t, c, "2", "bob", "joe")
		advance(retention + time.Minute)
		wantChanges(t, env, 0, 0)
		wantValue(t, takeSnapshot(t, c), "joe", "2")
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		advance(retention)
		if r := runGC(t, env.Client, gc.Config{}); r.Total.Versions != 2 {
			t.Errorf("a run that reads every row removed %d versions, want 2", r.Total.Versions)
		}
		env.Check()
	})
}

// One run collects the rows of many tables, each by itself. With -race, it shows what the tables
// share.
func TestGCFollowsChangesOfManyTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		const tables, rows = 12, 3
		for i := range tables {
			env.CreateTable(fmt.Sprintf("t%02d", i), "f")
		}
		advance(retention)
		if r := followChanges(t, env); r.Changes {
			t.Fatal("the first run does not read every row")
		}
		c := env.NewClient(txn.Config{})
		for n := range 2 {
			for i := range tables * rows {
				if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					tx.Table(fmt.Sprintf("t%02d", i/rows)).Set(fmt.Sprint("row", i%rows), "f", "q", []byte(fmt.Sprint(n)))
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		advance(30 * time.Second)
		advance(retention)
		if r := followChanges(t, env); !r.Changes || r.Total.Versions != rows*tables || len(r.Tables) != tables {
			t.Errorf("%+v, want a version of each of %d rows in %d tables", r, rows*tables, tables)
		}
	})
}
