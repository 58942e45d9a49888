package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// Update runs a function again, once, if its transaction became too old because the
// process was suspended.
func TestUpdateRetriesTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "1", "bob")
		collector := env.NewClient(txn.Config{TokenTTL: -1})
		runs := 0
		sleepy := func(times int) error {
			runs = 0
			_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
				if runs++; runs <= times {
					advance(retention + time.Minute)
					runGC(t, collector, gc.Config{})
				}
				tx.Table("a").Set("bob", "f", "q", []byte("2"))
				return nil
			})
			return err
		}
		if err := sleepy(1); err != nil || runs != 2 {
			t.Errorf("slept once: %v after %d runs", err, runs)
		}
		err := sleepy(10)
		var old *txn.TooOldError
		if !errors.As(err, &old) || runs != 2 || !old.Write || old.TS > old.SafePoint {
			t.Errorf("slept every time: %v after %d runs", err, runs)
		}
		// ErrTooOld of another snapshot is no reason to run the function again.
		runs = 0
		_, err = env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			runs++
			_, err := env.Client.Snapshot(ctx, txn.At(old.TS))
			return err
		})
		if !errors.Is(err, txn.ErrTooOld) || runs != 1 {
			t.Errorf("an old snapshot in the function: %v after %d runs", err, runs)
		}
	})
}

// A client that cannot read the safe point stops before a collector could collect by a
// new one, and continues when it can read it again. A client that trusted an old safe
// point would read and commit without end.
func TestUnreadableSafePointStopsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour}, faults.DialOptions()...)
		mustSet(t, c, "1", "bob")
		var blind atomic.Bool
		blind.Store(true)
		faults.On("blind", func(c txntest.Call) bool { return blind.Load() && c.Step == txntest.StepSafePoint }, txntest.DropRequest, 0)
		advance(25 * time.Second)
		mustSet(t, c, "2", "bob")
		advance(15 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begun := begin(t, c)
		set(begun, "3", "bob")
		_, err := begun.Commit(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "last read 45s ago") {
			t.Errorf("commit: %v", err)
		}
		snap := takeSnapshot(t, c)
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if v, _, err := snap.Table("a").Get(ctx, "bob", "f", "q"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("read: %q, %v", v, err)
		}
		blind.Store(false)
		mustSet(t, c, "4", "bob")
	})
}

// A plan changes nothing, and says what the collection will do.
func TestPlanOfCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		env.CreateTable("b", "f")
		for i := range 5 {
			mustSet(t, env.Client, fmt.Sprint("value", i), "bob", "joe")
		}
		mustSet(t, env.Client, "1", "sue")
		tx := begin(t, env.Client)
		tx.Table("a").Delete("sue", "f", "q")
		tx.Table("b").Lock("kim", "f", "q")
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		advance(retention + time.Minute)
		runGC(t, env.Client, gc.Config{})
		for _, v := range []string{"more", "and more"} {
			mustSet(t, env.Client, v, "bob", "joe")
		}
		tx = begin(t, env.Client)
		tx.Table("b").Lock("kim", "f", "q")
		set(tx, "2", "bob")
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		advance(retention + time.Minute)
		mustSet(t, env.Client, "late", "bob")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		plan, err := gc.Plan(t.Context(), c, gc.Config{Retention: retention})
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range faults.Calls() {
			if call.Step != txntest.StepOracle && call.Method != "ReadRows" && call.Method != "SampleRowKeys" && call.Method != "GetTable" {
				t.Errorf("the plan sent %v to row %s of table %s", call.Method, call.Row, call.Table)
			}
		}
		run := runGC(t, c, gc.Config{})
		want := gc.Counts{Rows: 4, RowsChanged: 4, Versions: 6, Deletes: 1, Marks: 1, Data: 5, Cells: 12, Bytes: plan.Total.Bytes}
		if d := cmp.Diff(want, plan.Total); d != "" || plan.Total.Bytes < 8*int64(len("value0")) {
			t.Errorf("plan (-want +got):\n%s", d)
		}
		if d := cmp.Diff(plan.Tables, run.Tables); d != "" {
			t.Errorf("run (-plan +run):\n%s", d)
		}
		if !plan.DryRun || run.DryRun || !run.Finished || run.Previous == 0 {
			t.Errorf("plan %+v\nrun %+v", plan, run)
		}
		st, err := gc.ReadStatus(t.Context(), c)
		if err != nil || st.SafePoint != run.SafePoint || st.Run.Phase != gc.PhaseDone || st.Run.Versions != 6 || st.Lease.Owner != "" {
			t.Errorf("status %+v, %v", st, err)
		}
		if p, err := gc.SafePoint(t.Context(), c); err != nil || p != run.SafePoint {
			t.Errorf("safe point %d, %v", p, err)
		}
	})
}

// A collection keeps to its rate and reports its progress. After an interruption the
// next one continues where it stopped.
func TestCollectionRateAndInterruption(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		var rows []string
		for i := range 300 {
			rows = append(rows, fmt.Sprintf("row%03d", i))
		}
		mustSet(t, env.Client, "1", rows...)
		mustSet(t, env.Client, "2", rows...)
		advance(retention + time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		var phases []gc.Phase
		var collecting time.Time
		r, err := gc.Run(ctx, env.Client, gc.Config{Retention: retention, Rate: 20, Progress: func(p gc.Progress) {
			if n := len(phases); n == 0 || phases[n-1] != p.Phase {
				phases = append(phases, p.Phase)
				collecting = time.Now()
			}
			if p.Phase == gc.PhaseCollect && p.Total.Rows == 100 {
				cancel()
			}
			if p.Total.Rows%20 != 0 {
				t.Errorf("a page ends after %d rows, want pages of a second's rows", p.Total.Rows)
			}
		}})
		if !errors.Is(err, context.Canceled) || r == nil || r.Finished || r.Total.Rows != 100 || r.Total.Versions != 100 {
			t.Errorf("interrupted collection: %+v, %v", r, err)
		}
		if d := cmp.Diff([]gc.Phase{gc.PhaseFence, gc.PhaseLocks, gc.PhaseCollect}, phases); d != "" {
			t.Errorf("phases (-want +got):\n%s", d)
		}
		if took := time.Since(collecting); took < 3*time.Second || took > 6*time.Second {
			t.Errorf("100 rows at 20 a second took %v", took)
		}
		st, err := gc.ReadStatus(t.Context(), env.Client)
		if err != nil || st.Run.Phase != gc.PhaseCollect || st.Run.Row != "row099" || st.Lease.Owner != "" {
			t.Errorf("status %+v, %v", st, err)
		}
		begun := time.Now()
		r = runGC(t, env.Client, gc.Config{})
		if !r.Resumed || r.SafePoint != st.SafePoint || r.Total.Rows != 200 || time.Since(begun) > time.Second {
			t.Errorf("resumed after %v: %+v", time.Since(begun), r)
		}
		st, err = gc.ReadStatus(t.Context(), env.Client)
		if err != nil || st.Run.Phase != gc.PhaseDone || st.Run.Versions != 300 {
			t.Errorf("status %+v, %v", st, err)
		}
		plan, err := gc.Plan(t.Context(), env.Client, gc.Config{Retention: retention, Rate: 0.5})
		if err != nil || plan.Total.Rows != 300 || plan.Elapsed != 2*299*time.Second {
			t.Errorf("300 rows, one every two seconds: %+v, %v", plan, err)
		}
		if r = runGC(t, env.Client, gc.Config{Restart: true}); r.Resumed || r.Total.Cells != 0 || r.Total.Rows != 300 {
			t.Errorf("the next collection has to begin at the first row: %+v", r)
		}
	})
}

// A collection reads the tablets of a table concurrently. Here the first row is at the end of its
// tablet, so it is collected last. If the collection is interrupted before that, the next one
// continues there, although all later tablets are collected. Before, a table of 16 tablets took
// 16 times as long.
func TestCollectionOfManyTablets(t *testing.T) {
	long.Test(t, "many tablets")
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		const tablets = 16
		perTablet := 20 * time.Second // of a node's work
		cluster := model.New(model.Config{Nodes: tablets, Tables: map[string]model.Table{"a": {Bytes: tablets * 220e6 * perTablet.Seconds(), Splits: model.HexSplits("", tablets)}}})
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		var rows []string
		for i := range tablets {
			rows = append(rows, fmt.Sprintf("%x8000000", i))
		}
		mustSet(t, env.Client, "1", rows...)
		mustSet(t, env.Client, "2", rows...)
		advance(retention + time.Minute)
		c := env.NewClient(txn.Config{TokenTTL: -1}, cluster.Client("collector")...)
		ctx, cancel := context.WithCancel(t.Context())
		r, err := gc.Run(ctx, c, gc.Config{Retention: retention, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseCollect && p.Total.Rows == tablets-1 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) || r == nil || r.Finished || r.Total.Versions != tablets-1 {
			t.Errorf("interrupted collection: %+v, %v", r, err)
		}
		// 2 minutes for the fence; a scan of a tablet takes longer than a request, and repeats some.
		if r.Elapsed > 2*time.Minute+8*perTablet {
			t.Errorf("it took %v", r.Elapsed)
		}
		st, err := gc.ReadStatus(t.Context(), env.Client)
		if err != nil || st.Run.Phase != gc.PhaseCollect || st.Run.Row >= rows[0] {
			t.Errorf("status %+v, %v; want a position before the first row", st, err)
		}
		if r = runGC(t, c, gc.Config{}); !r.Resumed || !r.Finished || r.Total.Versions != 1 {
			t.Errorf("resumed: %+v", r)
		}
		for _, g := range garbage(t, env.Client, rows, r.SafePoint) {
			t.Errorf("left: %s", g)
		}
	})
}

// A collector that does not renew its lease in time stops when it finds another
// collector's lease.
func TestCollectorLosesItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "1", "bob")
		mustSet(t, env.Client, "2", "bob")
		advance(retention + time.Minute)
		faults := txntest.NewFaults(t)
		slow := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		var stuck atomic.Bool
		stuck.Store(true)
		faults.On("lease", func(c txntest.Call) bool { return stuck.Load() && c.Row == "lock/gc" && c.N > 8 }, txntest.DropRequest, 0)
		ended := inBackground(func() error {
			_, err := gc.Run(t.Context(), slow, gc.Config{Retention: retention})
			return err
		})
		advance(45 * time.Second)
		other := inBackground(func() error {
			_, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention})
			return err
		})
		advance(time.Second)
		stuck.Store(false)
		o := <-ended
		var busy *gc.BusyError
		if !errors.As(o.err, &busy) || !busy.Lost || o.took > time.Minute {
			t.Errorf("%v after %v", o.err, o.took)
		}
		if o := <-other; o.err != nil {
			t.Error(o.err)
		}
	})
}

// A collection refuses a bad configuration, and a client without a token cannot hold a
// snapshot.
func TestCollectionRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		for name, cfg := range map[string]gc.Config{"retention": {Retention: time.Minute}, "rate": {Rate: -1}} {
			if _, err := gc.Run(t.Context(), env.Client, cfg); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := gc.Plan(t.Context(), env.Client, cfg); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := env.Client.Snapshot(t.Context(), txn.Hold()); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("hold without a token: %v", err)
		}
		// In a new deployment nothing is older than the retention.
		if r := runGC(t, env.Client, gc.Config{}); r.Total.Cells != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// A client refuses a safe point of a later format.
func TestSafePointOfAnotherFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		m := bigtable.NewMutation()
		m.Set("meta", "safe-point", 0, []byte{8, 9, 16, 1}) // format_version 9, ts 1
		if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), "gc", m); err != nil {
			t.Fatal(err)
		}
		if _, err := txn.NewClient(t.Context(), env.Bigtable, txn.Config{}); !errors.Is(err, txn.ErrFormatVersion) {
			t.Errorf("%v, want ErrFormatVersion", err)
		}
		m = bigtable.NewMutation()
		m.DeleteRow()
		if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), "gc", m); err != nil {
			t.Fatal(err)
		}
	})
}

// The safe point never goes back: not with a longer retention, not if a collector
// publishes late, and not in a client that reads a restored row.
func TestSafePointNeverGoesBack(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "1", "bob")
		advance(3 * retention)
		first := runGC(t, env.Client, gc.Config{})
		if r := runGC(t, env.Client, gc.Config{Retention: 2 * retention}); r.SafePoint != first.SafePoint || !r.Nothing {
			t.Errorf("with a longer retention: %+v, before %d", r, first.SafePoint)
		}
		// Its publication arrives after that of a higher safe point.
		faults := txntest.NewFaults(t)
		late := env.NewClient(txn.Config{TokenTTL: -1, RPCTimeout: time.Hour}, faults.DialOptions()...)
		publishes := func(c txntest.Call) bool { return c.Row == "gc" && c.Method == "CheckAndMutateRow" }
		held := faults.On("publish", publishes, txntest.Hold, 1)
		advance(5 * time.Minute)
		ended := inBackground(func() error {
			_, err := gc.Run(t.Context(), late, gc.Config{Retention: retention})
			return err
		})
		<-held.Fired()
		faults.On("lease", func(c txntest.Call) bool { return c.Row == "lock/gc" }, txntest.DropRequest, 0)
		advance(time.Minute)
		second := runGC(t, env.Client, gc.Config{})
		held.Release()
		<-ended
		st, err := gc.ReadStatus(t.Context(), env.Client)
		if err != nil || st.SafePoint != second.SafePoint || second.SafePoint <= first.SafePoint {
			t.Errorf("published %d after %d and %d, %v", st.SafePoint, first.SafePoint, second.SafePoint, err)
		}
		m := bigtable.NewMutation()
		m.DeleteRow()
		if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), "gc", m); err != nil {
			t.Fatal(err)
		}
		advance(time.Minute)
		if p, err := gc.SafePoint(t.Context(), env.Client); err != nil || p != second.SafePoint {
			t.Errorf("safe point %d after the row was lost, %v", p, err)
		}
	})
}

// A request that commits secondaries ends within a minute, whatever RPCTimeout is. The
// fence depends on it.
func TestUnconditionalRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: 24 * time.Hour, BackgroundTimeout: 24 * time.Hour})
		hung := faults.On("secondaries", step(txntest.StepSecondaries), txntest.Hold, 2)
		mustSet(t, c, "1", "bob", "joe")
		<-hung.Fired() // the first request has a shorter timeout
		advance(3 * time.Second)
		if n := faults.Count()[txntest.StepSecondaries]; n != 2 {
			t.Errorf("%d requests within three seconds", n)
		}
		advance(58 * time.Second)
		if n := faults.Count()[txntest.StepSecondaries]; n != 2 {
			t.Errorf("%d requests within a minute", n)
		}
		advance(4 * time.Second)
		if n := faults.Count()[txntest.StepSecondaries]; n != 3 {
			t.Errorf("%d requests after a minute, want one more", n)
		}
	})
}

// A collection that cannot resolve a lock, or cannot remove garbage, says so and goes no
// further. If it continued, the record of the primary could go before the lock of a secondary,
// and the committed change of the secondary would be lost.
func TestRefusedCollection(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for _, refused := range []txntest.Step{txntest.StepRollForward, txntest.StepCollect} {
		t.Run(string(refused), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, collector, faults := newFaultyClient(t, txn.Config{}, append(refuse(step(refused)), unsampled())...)
				mustSet(t, env.Client, "0", "bob", "joe")
				leaveLocks(t, env, txntest.StepSecondaries) // bob is committed, joe is locked
				mustSet(t, env.Client, "10", "bob")
				advance(3 * time.Hour)
				for range 2 { // the second run begins anew, or resumes
					r, err := gc.Run(t.Context(), collector, gc.Config{Retention: time.Hour})
					if status.Code(err) != codes.PermissionDenied || r.Finished {
						t.Errorf("%+v, %v; want the refusal", r, err)
					}
				}
				if n := faults.Count()[refused]; n != 2 {
					t.Errorf("%d requests were refused, want 2", n)
				}
				if n := faults.Count()[txntest.StepCollect]; refused == txntest.StepRollForward && n != 0 {
					t.Errorf("%d removals with an unresolved lock", n)
				}
				wantValue(t, takeSnapshot(t, env.Client), "joe", "9")
			})
		})
	}
}

// A collection whose context ends while it waits for a live transaction names the locks, however many
// parts the tables have.
func TestCollectionEndsWhileItWaits(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	times := 5 // which part of it notices the end first differs
	if long.Reduced() {
		times = 1
	}
	for range times {
		synctest.Test(t, func(t *testing.T) {
			env, victim, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Hour})
			slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
			owner := commitInBackground(t.Context(), beginSet(t, victim, "9", "bob"))
			<-slow.Fired()
			advance(11 * time.Minute)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			r, err := gc.Run(ctx, env.Client, gc.Config{Retention: 10 * time.Minute, LockWait: time.Hour})
			var blocked *gc.BlockedError
			if !errors.As(err, &blocked) || blocked.Count != 1 || !errors.Is(err, context.DeadlineExceeded) || r.Finished {
				t.Errorf("%+v, %v; want the lock and the end of the context", r, err)
			}
			slow.Release()
			<-owner
		})
	}
}

// A collection waits for a live transaction at most LockWait, and continues when its lock
// has ended. Meanwhile it reads only the tables again that have live locks.
func TestCollectionWaitsForLock(t *testing.T) {
	long.Test(t, "hours of virtual time")
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env, victim, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Hour})
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		ctx, cancel := context.WithCancel(t.Context())
		// Two locks of one row, which the collector judges at the same time. In two tablets, it could
		// find one alive, and remove it a moment later when it finds the other one expired.
		tx := beginSet(t, victim, "9", "bob")
		tx.Table("a").Set("bob", "f", "other", []byte("9"))
		owner := commitInBackground(ctx, tx)
		<-slow.Fired()
		env.CreateTable("b", "f")
		advance(11 * time.Minute)
		r, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: 10 * time.Minute, LockWait: -1})
		var blocked *gc.BlockedError
		if !errors.As(err, &blocked) || blocked.Count != 2 || len(blocked.Locks) != 2 || r.Locks.Live != 2 {
			t.Errorf("%+v, %v; want two live locks", r, err)
		}
		began := time.Now()
		time.AfterFunc(15*time.Minute, func() {
			faults.Kill()
			cancel()
		})
		looks := map[string]int{}
		r, err = gc.Run(t.Context(), env.Client, gc.Config{Retention: 10 * time.Minute, LockWait: time.Hour, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseLocks && p.Row == "" {
				looks[p.Table]++
			}
		}})
		if took := time.Since(began); err != nil || !r.Finished || r.Locks.RolledBack != 2 || r.Locks.Live != 0 || took < 12*time.Minute || took > 25*time.Minute || r.Elapsed != took {
			t.Errorf("%+v, %v after %v; want it to wait until the locks have expired", r, err, took)
		}
		<-owner
		if looks["a"] < 3 || looks["b"] != 1 {
			t.Errorf("tables read: %v", looks)
		}
	})
}

// A collection that finds a damaged lock removes nothing: the lock may be one that has to
// be resolved first.
func TestCollectionStopsAtDamagedLock(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck())
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "1", "bob", "joe")
		mustSet(t, env.Client, "2", "bob")
		m := bigtable.NewMutation()
		m.Set(format.LockFamily, "f:q", stored(t, env, "joe")["f"][0].Timestamp+1000, []byte("\xff"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), "joe", m); err != nil {
			t.Fatal(err)
		}
		advance(3 * time.Hour)
		r, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: time.Hour})
		if !errors.Is(err, txn.ErrCorrupt) || r.Finished {
			t.Errorf("%+v, %v; want the damage", r, err)
		}
		if n := len(stored(t, env, "bob")["f"]); n != 2 {
			t.Errorf("bob has %d versions, want 2", n)
		}
	})
}

// A table that was made while the fence lasts belongs to the run: a transaction from below
// the safe point may still commit to it, and the run has to resolve the locks there. If it
// did not, a lock there would count as late, and the transaction would lose a cell.
func TestTableMadeDuringTheFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		dies := faults.OnStep(txntest.StepSecondaries, txntest.Crash)
		old := begin(t, c)
		advance(retention + time.Minute + 3*time.Second) // the client has just read the old safe point
		report := runGC(t, env.Client, gc.Config{Progress: func(p gc.Progress) {
			if p.Phase != gc.PhaseFence || old == nil {
				return
			}
			env.CreateTable("z", "f")
			set(old, "1", "bob")
			old.Table("z").Set("joe", "f", "q", []byte("2"))
			if _, err := old.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-dies.Fired()
			faults.Kill()
			old = nil
		}})
		if report.Locks.RolledForward != 1 {
			t.Errorf("locks: %+v, want one rolled forward", report.Locks)
		}
		if v, _, err := takeSnapshot(t, env.Client).Table("z").Get(t.Context(), "joe", "f", "q"); string(v) != "2" || err != nil {
			t.Errorf("the other table has %q, %v", v, err)
		}
		closeNow(c)
	})
}

// A row with data that no record and no lock names stays whole: the record was lost, and another cell
// can prove it also below the safe point. Once it is repaired, the row is collected.
func TestCollectionKeepsUnnamedData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{TokenTTL: -1, SyncSecondaries: true})
		for _, v := range []string{"1", "2"} {
			mustSet(t, c, v, "joe", "bob")
		}
		older := stored(t, env, "bob")[format.WriteFamily][1]
		loseRecord(t, env, "bob")
		put(t, env, "bob", format.WriteFamily, "f:q", older.Timestamp, older.Value)
		advance(retention + time.Minute)
		damaged := fmt.Sprint(stored(t, env, "bob"))
		want := []gc.SkippedRow{{Table: "a", Row: "bob", Reason: gc.SkippedUnnamed}}
		r := runGC(t, c, gc.Config{})
		if !r.Finished || r.Total.Versions != 1 || r.Total.RowsSkipped != 1 || !slices.Equal(r.Skipped, want) {
			t.Errorf("%+v; want joe to be collected, and bob to be skipped", r)
		}
		if left := fmt.Sprint(stored(t, env, "bob")); left != damaged {
			t.Errorf("left: %v, want %v", left, damaged)
		}
		if s, err := gc.ReadStatus(t.Context(), c); err != nil || !slices.Equal(s.Run.Skipped, want) {
			t.Errorf("%+v, %v", s, err)
		}
		p := planRepairs(t, c)
		if wantPlan(t, p, []string{"a/bob/f:q lost record"}, nil); len(p.Repairs) == 1 {
			wantCheck(t, c, p.Repairs[0], true)
			apply(t, c, p.Repairs[0], true)
		}
		wantValue(t, takeSnapshot(t, c), "bob", "2")
		if r := runGC(t, c, gc.Config{Restart: true}); r.Total.RowsSkipped != 0 || len(stored(t, env, "bob")["f"]) != 1 {
			t.Errorf("after the repair: %+v, left %v", r, stored(t, env, "bob"))
		}
	})
}

// A plain write comes after a collector read a deleted row, and before it removes the delete.
// The collector reads the row again and keeps the delete, which hides the write. If it sent what it
// had found at first, the plain data would be visible.
func TestPlainWriteDuringCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "1", "bob")
		tx := begin(t, env.Client)
		tx.Table("a").Delete("bob", "f", "q")
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		advance(retention + time.Minute)
		runGC(t, env.Client, gc.Config{}) // from now on the delete drains
		advance(retention + time.Minute)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		held := faults.OnStep(txntest.StepCollectRow, txntest.Hold)
		var r *gc.Report
		collected := inBackground(func() (err error) {
			r, err = gc.Run(t.Context(), c, gc.Config{Retention: retention})
			return err
		})
		<-held.Fired()
		m := bigtable.NewMutation()
		m.Set("f", "q", 1000, []byte("plain"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), "bob", m); err != nil {
			t.Fatal(err)
		}
		held.Release()
		if o := <-collected; o.err != nil || r.Total.Cells != 0 || r.Total.RowsSkipped != 0 || !r.Finished {
			t.Errorf("%+v, %v; want nothing to be removed", r, o.err)
		}
		wantValue(t, takeSnapshot(t, env.Client), "bob", "")
		if r := runGC(t, env.Client, gc.Config{Plain: true, Restart: true}); r.Total.Deletes != 1 || r.Total.Plain != 1 || stored(t, env, "bob") != nil {
			t.Errorf("with Plain: %+v, left: %v", r, stored(t, env, "bob"))
		}
	})
}

// TestErasure follows docs/adoption.md: a deleted value is gone from Bigtable after a
// collection with Plain, also what plain writers had written before the adoption. Without Plain
// their values stay.
func TestErasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		for ts, value := range map[bigtable.Timestamp]string{1000: "secret 1", 2000: "secret 2"} {
			m := bigtable.NewMutation()
			m.Set("f", "q", ts, []byte(value))
			if err := env.Bigtable.Open("a").Apply(t.Context(), "bob", m); err != nil {
				t.Fatal(err)
			}
		}
		mustSet(t, env.Client, "secret 3", "bob")
		dead := begin(t, env.NewClient(txn.Config{TokenTTL: -1}))
		tx := begin(t, env.Client)
		if err := tx.Table("a").DeleteRow(t.Context(), "bob"); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		dead.Table("a").Set("bob", "f", "q", []byte("secret 4")) // conflicts
		if _, err := dead.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
			t.Fatal(err)
		}
		left := func() (secrets []string) {
			for family, cells := range stored(t, env, "bob") {
				for _, c := range cells {
					if strings.HasPrefix(string(c.Value), "secret") {
						secrets = append(secrets, family+" "+string(c.Value))
					}
				}
			}
			slices.Sort(secrets)
			return secrets
		}
		advance(retention + time.Minute)
		runGC(t, env.Client, gc.Config{})
		if got := left(); !slices.Equal(got, []string{"f secret 1", "f secret 2"}) {
			t.Errorf("after a collection: %q", got)
		}
		runGC(t, env.Client, gc.Config{Plain: true, Restart: true})
		if got := left(); len(got) > 0 {
			t.Errorf("after a collection with Plain: %q", got)
		}
		wantValue(t, takeSnapshot(t, env.Client), "bob", "")
	})
}
