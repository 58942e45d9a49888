package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// The interleavings of garbage collection are scripts (testdata/hazards, 08 to
// 10, 17 and 35 to 40). The tests here are about crashes, load and large tables.

const retention = 10 * time.Minute

func runGC(t *testing.T, c *txn.Client, cfg gc.Config) *gc.Report {
	t.Helper()
	if cfg.Retention == 0 {
		cfg.Retention = retention
	}
	r, err := gc.Run(t.Context(), c, cfg)
	if err != nil {
		t.Fatalf("garbage collection: %v (%+v)", err, r)
	}
	return r
}

// newGCEnv makes an Env whose clients write no tokens. These tests let hours pass, and
// renewing tokens would take most of their time.
func newGCEnv(t *testing.T) *txntest.Env {
	t.Helper()
	return txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
}

// closeNow ends the work that a killed client still attempts.
func closeNow(c *txn.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Close(ctx)
}

// contents reads every cell of a table at a timestamp.
func contents(t *testing.T, c *txn.Client, table string, ts tso.Timestamp) string {
	t.Helper()
	s := takeSnapshot(t, c, txn.At(ts))
	out := ""
	for r, err := range s.Table(table).ReadRows(t.Context(), nil) {
		if err != nil {
			t.Fatalf("reading at %d: %v", ts, err)
		}
		for _, family := range slices.Sorted(maps.Keys(r)) {
			for _, it := range r[family] {
				out += fmt.Sprintf("%s %s=%s@%d\n", it.Row, it.Column, it.Value, it.Timestamp)
			}
		}
	}
	return out
}

// garbage lists what a collection up to p must have removed: a second version at or
// below p in a column, data that no record names, marks and locks.
func garbage(t *testing.T, c *txn.Client, rows []string, p tso.Timestamp) (left []string) {
	t.Helper()
	for _, row := range rows {
		versions, err := admin.History(t.Context(), c, "a", row)
		if err != nil {
			t.Fatal(err)
		}
		records, named := map[txn.Column]int{}, map[txn.Column]map[tso.Timestamp]bool{}
		for _, v := range versions {
			col := v.Cell.Column()
			if named[col] == nil {
				named[col] = map[tso.Timestamp]bool{}
			}
			switch {
			case v.Kind == admin.VersionWrite || v.Kind == admin.VersionLock:
				named[col][v.StartTS] = true
			}
			if v.TS > p {
				continue
			}
			switch v.Kind {
			case admin.VersionWrite:
				if records[col]++; records[col] > 1 {
					left = append(left, fmt.Sprintf("%s: a version hidden at %d", v.Cell, v.TS))
				}
			case admin.VersionLock, admin.VersionLockOnly, admin.VersionRollback:
				left = append(left, fmt.Sprintf("%s: %s at %d", v.Cell, v.Kind, v.TS))
			}
		}
		for _, v := range versions {
			if v.Kind == admin.VersionData && v.TS <= p && !named[v.Cell.Column()][v.TS] {
				left = append(left, fmt.Sprintf("%s: data at %d", v.Cell, v.TS))
			}
		}
	}
	return left
}

// TestCollectionsKeepHistory runs random transactions, many of which die, and collects
// garbage now and then. Every state at or above the safe point reads as before, reads
// below it fail, and no garbage is left.
func TestCollectionsKeepHistory(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	seeds := 10
	if long.Reduced() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { keepHistory(t, uint64(seed)) })
		})
	}
}

func keepHistory(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 8))
	env := newGCEnv(t)
	env.CreateTable("a", "f", "g")
	rows := []string{"p", "q", "r", "s"}
	m := bigtable.NewMutation()
	m.Set("f", "plain", bigtable.Now(), []byte("plain"))
	if err := env.Bigtable.Open("a").Apply(t.Context(), "q", m); err != nil {
		t.Fatal(err)
	}
	before := map[tso.Timestamp]string{}
	collected := tso.Timestamp(0)
	for i := range 60 {
		c := env.Client
		var dying *txntest.Faults
		if rnd.IntN(3) == 0 {
			dying = txntest.NewFaults(t)
			step := []txntest.Step{txntest.StepPrewrite, txntest.StepCommit, txntest.StepSecondaries, txntest.StepAbort}[rnd.IntN(4)]
			action := []txntest.Action{txntest.Crash, txntest.DropResponse, txntest.Delay}[rnd.IntN(3)]
			dying.On(string(step), func(c txntest.Call) bool { return c.Step == step }, action, 1).Optional()
			c = env.NewClient(txn.Config{TokenTTL: -1, RPCTimeout: time.Second, LockTTL: 2 * time.Second}, dying.DialOptions()...)
		}
		tx := begin(t, c)
		for range 1 + rnd.IntN(4) {
			tbl, row, family, q := tx.Table("a"), rows[rnd.IntN(len(rows))], []string{"f", "g"}[rnd.IntN(2)], []string{"x", "plain"}[rnd.IntN(2)]
			switch rnd.IntN(5) {
			case 0:
				tbl.Delete(row, family, q)
			case 1:
				tbl.Lock(row, family, q)
			default:
				tbl.Set(row, family, q, []byte(fmt.Sprint("v", i)))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, _ = tx.Commit(ctx) // its locks are resolved below
		cancel()
		if dying != nil {
			dying.Kill()
			closeNow(c)
		}
		advance(time.Duration(rnd.IntN(120)) * time.Second)
		ts, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		before[ts] = contents(t, env.Client, "a", ts)
		if rnd.IntN(12) != 0 {
			continue
		}
		advance(time.Duration(rnd.IntN(15)) * time.Minute)
		cfg := gc.Config{Plain: rnd.IntN(2) == 0, FullEvery: time.Duration(rnd.IntN(2)) * time.Hour}
		r := runGC(t, env.NewClient(txn.Config{TokenTTL: -1}), cfg)
		advance(time.Minute) // until env.Client reads the safe point again
		collected = r.SafePoint
		for _, g := range garbage(t, env.Client, rows, collected) {
			if !r.Changes { // a run that follows changes may leave some
				t.Errorf("the collection up to %d left: %s", collected, g)
			}
		}
		for ts, want := range before {
			if ts < collected {
				if _, err := env.Client.Snapshot(t.Context(), txn.At(ts)); !errors.Is(err, txn.ErrTooOld) {
					t.Errorf("snapshot at %d below the safe point %d: %v", ts, collected, err)
				}
				delete(before, ts)
			} else if got := contents(t, env.Client, "a", ts); got != want {
				t.Errorf("at %d, after collecting up to %d:\n%swas:\n%s", ts, collected, got, want)
			}
		}
		env.Check()
	}
}

// stranded makes garbage in two tables: deletes, old versions, and stranded locks of
// three kinds of committed transactions.
func stranded(t *testing.T, env *txntest.Env) {
	t.Helper()
	env.CreateTable("a", "f")
	env.CreateTable("b", "f")
	for _, v := range []string{"1", "2", "3"} {
		mustSet(t, env.Client, v, "bob", "joe", "sue")
	}
	if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("a").Delete("sue", "f", "q")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	advance(retention)
	dying := txntest.NewFaults(t)
	c := env.NewClient(txn.Config{TokenTTL: -1}, dying.DialOptions()...)
	tx := beginSet(t, c, "4", "bob", "joe")
	tx.Table("b").Set("kim", "f", "q", []byte("4"))
	tx.Table("b").Lock("sue", "f", "q")
	lost := dying.On("secondaries", step(txntest.StepSecondaries), txntest.DropRequest, 0)
	if _, err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-lost.Fired()
	dying.Kill()
	closeNow(c)
	mustSet(t, env.Client, "5", "bob")
	advance(retention + time.Minute)
	mustSet(t, env.Client, "6", "bob")
}

// afterCollector are what other clients do after a collector died.
var afterCollector = []struct {
	name string
	run  func(*testing.T, *txntest.Env) *gc.Report
}{
	{"another collector", func(t *testing.T, env *txntest.Env) *gc.Report {
		return runGC(t, env.NewClient(txn.Config{TokenTTL: -1}), gc.Config{})
	}},
	{"an operator, then a collector", func(t *testing.T, env *txntest.Env) *gc.Report {
		c := env.NewClient(txn.Config{TokenTTL: -1})
		for _, table := range []string{"a", "b"} {
			if _, err := workload.ResolveAll(t.Context(), c, table); err != nil {
				t.Error(err)
			}
		}
		return runGC(t, c, gc.Config{})
	}},
	{"two collectors at once", func(t *testing.T, env *txntest.Env) *gc.Report {
		reports := make([]*gc.Report, 2)
		var running sync.WaitGroup
		for i := range reports {
			running.Go(func() {
				r, err := gc.Run(t.Context(), env.NewClient(txn.Config{TokenTTL: -1}), gc.Config{Retention: retention})
				var busy *gc.BusyError
				switch {
				case err == nil:
					reports[i] = r
				case !errors.As(err, &busy):
					t.Error(err)
				}
			})
		}
		running.Wait()
		var newest *gc.Report
		for _, r := range reports {
			switch {
			case newest == nil:
				newest = r
			case r != nil: // one ran after the other
				resumed := newest.Resumed || r.Resumed
				if r.SafePoint > newest.SafePoint {
					newest = r
				}
				newest.Resumed = resumed
			}
		}
		if newest == nil {
			t.Fatal("neither collector collected")
		}
		return newest
	}},
}

// TestCollectionKilledAtEveryRequest kills a collector before and after each of its
// requests. Another collection follows, and the result is the same.
func TestCollectionKilledAtEveryRequest(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	resumed := 0
	for i, after := range afterCollector {
		t.Run(after.name, func(t *testing.T) { resumed += collectorsKilled(t, 2*i, after.run) })
	}
	if resumed == 0 {
		t.Error("none of the killed runs was resumed")
	}
}

// collectorsKilled returns how many runs were resumed.
func collectorsKilled(t *testing.T, offset int, goOn func(*testing.T, *txntest.Env) *gc.Report) (resumed int) {
	// To die after a request was applied is mostly the same as to die before the next one.
	crashes, stride := 0, 2
	if long.Reduced() {
		stride = 24 // of each of the others another request; a run removes garbage with about ten requests
	} else {
		offset = 0
	}
	for i, action := range []txntest.Action{txntest.DropRequest, txntest.DropResponse} {
		for k, more := 1+offset+i*stride/2, true; more; k += stride {
			synctest.Test(t, func(t *testing.T) {
				var r *gc.Report
				r, more = collectKilledAt(t, action, k, goOn)
				crashes++
				if r.Resumed {
					resumed++
				}
			})
			if t.Failed() {
				t.Fatalf("killed at request %d: %v", k, action)
			}
		}
	}
	if resumed < 6/stride {
		t.Errorf("%d of the killed runs were resumed", resumed)
	}
	t.Logf("%d crashes, %d resumed", crashes, resumed)
	return resumed
}

// collectKilledAt kills a collector at its k-th request. It reports whether there was
// one.
func collectKilledAt(t *testing.T, action txntest.Action, k int, goOn func(*testing.T, *txntest.Env) *gc.Report) (r *gc.Report, fired bool) {
	env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
	stranded(t, env)
	faults := txntest.NewFaults(t)
	c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	for _, table := range []string{"a", "b"} {
		if err := c.CheckTable(t.Context(), table); err != nil {
			t.Fatal(err)
		}
	}
	var requests atomic.Int64
	rule := faults.On("kill", func(c txntest.Call) bool {
		if action == txntest.DropResponse && c.Method == "ReadRows" {
			return false // the same as a request that is not sent
		}
		requests.Add(1)
		return requests.Load() == int64(k)
	}, action, 1).Optional()
	ctx, cancel := context.WithCancel(t.Context())
	ended := inBackground(func() error { _, err := gc.Run(ctx, c, gc.Config{Retention: retention}); return err })
	select {
	case <-rule.Fired():
		fired = true
		faults.Kill() // all later requests
		synctest.Wait()
		cancel()
		<-ended
	case o := <-ended:
		if o.err != nil {
			t.Fatal(o.err)
		}
		faults.Kill()
	}
	cancel()
	closeNow(c)
	advance(time.Minute) // until the lease ends
	r = goOn(t, env)
	next := env.NewClient(txn.Config{TokenTTL: -1})
	if !r.Finished {
		t.Errorf("%+v", r)
	}
	now := takeSnapshot(t, next)
	wantValue(t, now, "bob", "6")
	wantValue(t, now, "joe", "4")
	wantValue(t, now, "sue", "")
	if v, _, err := now.Table("b").Get(t.Context(), "kim", "f", "q"); err != nil || string(v) != "4" {
		t.Errorf("kim: %q, %v", v, err)
	}
	wantValue(t, takeSnapshot(t, next, txn.At(r.SafePoint)), "bob", "5")
	for _, g := range garbage(t, next, []string{"bob", "joe", "sue"}, r.SafePoint) {
		t.Errorf("the collection left: %s", g)
	}
	return r, fired
}

// TestCollectionUnderLoad runs transfers, a long reader and collections at the same
// time. The sum is right in every snapshot at or above the safe point. A snapshot reads
// the same before and after a collection, and a held one until it is released.
func TestCollectionUnderLoad(t *testing.T) {
	long.Test(t, "hours of virtual time")
	long.NotUnderRace(t, "hours of virtual time")
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		const accounts, initial = 6, 100
		key := func(i int) string { return "acct" + strconv.Itoa(i) }
		opened, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for i := range accounts {
				tx.Table("a").Set(key(i), "f", "q", []byte(strconv.Itoa(initial)))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		sum := func(ctx context.Context, s *txn.Snapshot) (int, error) {
			total := 0
			for r, err := range s.Table("a").ReadRows(ctx, nil) {
				if err != nil {
					return 0, err
				}
				n, err := strconv.Atoi(string(r["f"][0].Value))
				if err != nil {
					return 0, err
				}
				total += n
			}
			return total, nil
		}
		var wg sync.WaitGroup
		var stop atomic.Bool
		var commits, crashes atomic.Int64
		for w := range 3 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(w), 1))
				c := env.NewClient(txn.Config{TokenTTL: -1, LockTTL: 5 * time.Second})
				var faults *txntest.Faults
				for !stop.Load() {
					if rnd.IntN(20) == 0 { // the client dies, and a new one replaces it
						if faults != nil {
							faults.Kill()
							crashes.Add(1)
						}
						faults = txntest.NewFaults(t)
						faults.On("lost", step(txntest.StepSecondaries), txntest.DropRequest, 0).Optional()
						c = env.NewClient(txn.Config{TokenTTL: -1, LockTTL: 5 * time.Second, RPCTimeout: time.Second}, faults.DialOptions()...)
					}
					from, to := rnd.IntN(accounts), rnd.IntN(accounts)
					if from == to {
						continue
					}
					_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
						for i, d := range map[int]int{from: -1, to: 1} {
							v, _, err := tx.Table("a").Get(ctx, key(i), "f", "q")
							if err != nil {
								return err
							}
							n, err := strconv.Atoi(string(v))
							if err != nil {
								return err
							}
							tx.Table("a").Set(key(i), "f", "q", []byte(strconv.Itoa(n+d)))
						}
						return nil
					})
					if err != nil {
						t.Error(err)
						return
					}
					commits.Add(1)
					advance(time.Duration(1+rnd.IntN(20_000)) * time.Millisecond)
				}
			})
		}
		holder := env.NewClient(txn.Config{})
		advance(12 * time.Minute)
		held := takeSnapshot(t, holder, txn.Hold())
		heldRows := contents(t, env.Client, "a", held.ReadTS())
		advance(time.Minute)
		collector := env.NewClient(txn.Config{TokenTTL: -1})
		var removed int64
		for round := range 6 {
			past, err := env.Client.Timestamp(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := contents(t, env.Client, "a", past)
			r := runGC(t, collector, gc.Config{})
			removed += r.Total.Versions
			if got := contents(t, env.Client, "a", past); got != want {
				t.Errorf("at %d, after collecting up to %d:\n%swas:\n%s", past, r.SafePoint, got, want)
			}
			if round >= 4 && r.SafePoint >= held.ReadTS() != (round > 4) {
				t.Errorf("round %d: safe point %d, snapshot held at %d", round, r.SafePoint, held.ReadTS())
			}
			if r.SafePoint < opened {
				t.Errorf("round %d: safe point %d", round, r.SafePoint)
			} else if total, err := sum(t.Context(), takeSnapshot(t, env.Client, txn.At(r.SafePoint))); err != nil || total != accounts*initial {
				t.Errorf("at the safe point: sum %d, %v", total, err)
			}
			if round < 5 {
				if got := contents(t, env.Client, "a", held.ReadTS()); got != heldRows {
					t.Errorf("round %d: the held snapshot reads\n%swas:\n%s", round, got, heldRows)
				}
			}
			if round == 4 {
				held.Release()
			}
			advance(3 * time.Minute)
			if total, err := sum(t.Context(), takeSnapshot(t, env.Client)); err != nil || total != accounts*initial {
				t.Errorf("sum %d, %v", total, err)
			}
		}
		stop.Store(true)
		wg.Wait()
		if total, err := sum(t.Context(), held); !errors.Is(err, txn.ErrTooOld) {
			t.Errorf("the released snapshot reads %d, %v", total, err)
		}
		if removed == 0 || commits.Load() < 100 || crashes.Load() == 0 {
			t.Errorf("%d versions removed, %d commits, %d crashes: nothing was tested", removed, commits.Load(), crashes.Load())
		}
	})
}
