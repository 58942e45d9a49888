package gc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

const retention = 10 * time.Minute

// newTable makes an Env with table a.
func newTable(t *testing.T, opts ...txntest.Option) *txntest.Env {
	t.Helper()
	env := txntest.New(t, append(opts, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))...)
	env.CreateTable("a", "f")
	return env
}

// set commits one row.
func set(t *testing.T, c *txn.Client, row, value string) {
	t.Helper()
	if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("a").Set(row, "f", "q", []byte(value))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestNothingToCollect: a run with nothing to do changes nothing and says so: before the first retention has passed,
// and if its safe point is that of the last run. So does a plan.
func TestNothingToCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		nothing := func(r *gc.Report, err error, safePoint tso.Timestamp) {
			t.Helper()
			want := &gc.Report{DryRun: r.DryRun, SafePoint: safePoint, Previous: safePoint, Nothing: true, Finished: true, HeldBy: []gc.Hold{}, Tables: []gc.Counts{}}
			if d := cmp.Diff(want, r, cmpopts.IgnoreFields(gc.Report{}, "Now", "Elapsed")); d != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, d)
			}
			for _, call := range faults.Calls() {
				if call.Method == "CheckAndMutateRow" && call.Row == store.GCRowKey {
					t.Errorf("it changes row %q", call.Row)
				}
			}
		}
		long := gc.Config{Retention: 100 * 365 * 24 * time.Hour}
		r, err := gc.Run(t.Context(), c, long)
		nothing(r, err, 0)
		r, err = gc.Plan(t.Context(), c, long)
		nothing(r, err, 0)
		first, err := gc.Run(t.Context(), c, gc.Config{Retention: retention})
		if err != nil || first.Nothing || !first.Finished {
			t.Fatalf("%+v, %v", first, err)
		}
		faults.Reset()
		r, err = gc.Run(t.Context(), c, gc.Config{Retention: time.Hour})
		nothing(r, err, first.SafePoint)
	})
}

// TestRequestsForTheRecord: a run writes its record when it begins, at the begin of each phase, when it has taken parts,
// and when these are done. It reads the record once. Each change replaces the stored one. Besides taking, renewing and releasing
// the lease, it looks at it once.
func TestRequestsForTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		for _, row := range []string{"bob", "joe", "sue"} { // two seconds, so that no renewal is cut off
			set(t, env.Client, row, "1")
		}
		<-time.After(retention)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		if _, err := gc.Run(t.Context(), c, gc.Config{Retention: retention, Rate: 1}); err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, call := range faults.Calls() {
			if call.Row == store.GCRowKey && strings.Contains(fmt.Sprint(call.Request), "run_version") {
				got[call.Method]++
			} else if call.Row == "lock/gc" {
				got["lease, "+call.Method]++
			}
		}
		if d := cmp.Diff(map[string]int{"ReadRows": 1, "CheckAndMutateRow": 8, "lease, ReadRows": 15, "lease, CheckAndMutateRow": 14}, got); d != "" {
			t.Errorf("requests (-want +got):\n%s", d)
		}
		row, err := env.Bigtable.Open(format.DefaultMetadataTable).ReadRow(t.Context(), store.GCRowKey)
		if err != nil {
			t.Fatal(err)
		}
		stored := map[string][]bigtable.Timestamp{}
		for _, item := range row[store.DeployFamily] {
			stored[item.Column] = append(stored[item.Column], item.Timestamp)
		}
		if d := cmp.Diff(map[string][]bigtable.Timestamp{"meta:run": {0}, "meta:run_version": {0}, "meta:safe-point": {0}}, stored); d != "" {
			t.Errorf("stored (-want +got):\n%s", d)
		}
	})
}

// TestMissingTable: a run refuses if a table of the deployment does not exist, and names it. A plan reports it.
func TestMissingTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t, txntest.WithoutCheck())
		set(t, env.Client, "bob", "1")
		<-time.After(retention + time.Minute)
		if err := env.Admin.DeleteTable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		c := env.NewClient(txn.Config{TokenTTL: -1})
		if r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention}); err == nil || !strings.Contains(err.Error(), `table "a" has a schema record but does not exist`) || r.Finished {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err := gc.Plan(t.Context(), c, gc.Config{Retention: retention}); err != nil || !slices.Equal(r.Missing, []string{"a"}) || len(r.Tables) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestBusyCollector: while collection is excluded, or the client is closed, a run has no report.
func TestBusyCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		release := exclude(t, env)
		c := env.NewClient(txn.Config{TokenTTL: -1})
		var busy *gc.BusyError
		if r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention}); r != nil || !errors.As(err, &busy) || busy.Lost {
			t.Errorf("%+v, %v", r, err)
		}
		if _, _, err := gc.Exclude(t.Context(), c); !errors.As(err, &busy) {
			t.Errorf("excluded twice: %v", err)
		}
		release()
		refused := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if call.Row == "lock/gc" {
				return status.Error(codes.PermissionDenied, "on purpose")
			}
			return nil
		})...)
		if r, err := gc.Run(t.Context(), refused, gc.Config{Retention: retention}); r != nil || status.Code(err) != codes.PermissionDenied {
			t.Errorf("without the lease: %+v, %v", r, err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, do := range map[string]func(context.Context, *txn.Client, gc.Config) (*gc.Report, error){
			"run": gc.Run, "plan": gc.Plan, "status": func(ctx context.Context, c *txn.Client, _ gc.Config) (*gc.Report, error) {
				s, err := gc.ReadStatus(ctx, c)
				if s != nil {
					t.Errorf("status %+v", s)
				}
				return nil, err
			},
		} {
			if r, err := do(t.Context(), c, gc.Config{}); r != nil || !errors.Is(err, txn.ErrClosed) {
				t.Errorf("%s of a closed client: %+v, %v", name, r, err)
			}
		}
	})
}

// TestHelperWaits: a collector helps the one that has the lease, unless it is to restart or that run has ended. It waits
// while there is no part to take, and leads once the lease is free.
func TestHelperWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		release := exclude(t, env)
		s := readStatus(t, env)
		record := &recordpb.GarbageRun{FormatVersion: format.Version, Owner: s.Lease.Owner, SafePoint: int64(s.Now) - 1, StartedTs: int64(s.Now)}
		var busy *gc.BusyError
		for phase, restart := range map[recordpb.GarbageRun_Phase]bool{recordpb.GarbageRun_PHASE_DONE: false, recordpb.GarbageRun_PHASE_FENCE: true} {
			record.Phase = phase
			putRecord(t, env, store.GCRowKey, "run", record)
			if r, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention, Restart: restart}); r != nil || !errors.As(err, &busy) || busy.Holder != record.Owner {
				t.Errorf("%s, restart: %t: %+v, %v", phase, restart, r, err)
			}
		}
		for _, row := range []string{"bob", "joe", "sue"} {
			set(t, env.Client, row, "1")
		}
		for phase, parts := range map[recordpb.GarbageRun_Phase][]*recordpb.GarbageRun_Part{recordpb.GarbageRun_PHASE_FENCE: nil, recordpb.GarbageRun_PHASE_COLLECT: {{Id: 1}}} {
			record.Phase, record.Parts, record.Divided = phase, parts, parts != nil
			putRecord(t, env, store.GCRowKey, "run", record)
			ctx, cancel := context.WithTimeout(t.Context(), 13*time.Second)
			defer cancel()
			if r, err := gc.Run(ctx, env.Client, gc.Config{Retention: retention}); !errors.Is(err, context.DeadlineExceeded) || !r.Helped || r.Finished || (r.Total.Rows == 3) != (parts != nil) {
				t.Errorf("%v, its context has ended: %+v, %v", phase, r, err)
			}
		}
		// It leads a run of its own, without the rate of the other one.
		record.Phase, record.Parts, record.Divided, record.Rate = recordpb.GarbageRun_PHASE_FENCE, nil, false, 1
		putRecord(t, env, store.GCRowKey, "run", record)
		time.AfterFunc(time.Minute+time.Second, release)
		var pages []int64
		if r, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention, Rate: 1000, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseCollect {
				pages = append(pages, p.Total.Rows)
			}
		}}); err != nil || !r.Helped || !r.Finished || r.Elapsed != 2*time.Minute+65*time.Second || !slices.Equal(pages, []int64{3}) {
			t.Errorf("%+v, pages %v, %v", r, pages, err)
		}
	})
}

// TestHelperLeadsNothing: if a run has ended when its helper gets the lease, so has the helper. If there is another run
// by then, the helper ends with an error.
func TestHelperLeadsNothing(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			env := newTable(t)
			release := exclude(t, env)
			s := readStatus(t, env)
			record := &recordpb.GarbageRun{FormatVersion: format.Version, Owner: s.Lease.Owner, SafePoint: int64(s.Now) - 1, StartedTs: int64(s.Now), Phase: recordpb.GarbageRun_PHASE_FENCE}
			putRecord(t, env, store.GCRowKey, "run", record)
			began := time.Now()
			var once sync.Once
			c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
				if call.Row == "lock/gc" && time.Since(began) > 12*time.Second {
					once.Do(func() {
						if record.Phase = recordpb.GarbageRun_PHASE_DONE; replaced {
							record.Owner, record.StartedTs = "you", record.StartedTs+1
						}
						putRecord(t, env, store.GCRowKey, "run", record)
						release()
					})
				}
				return nil
			})...)
			r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention})
			var busy *gc.BusyError
			if r.Finished == replaced || !r.Helped || r.Elapsed > time.Minute || errors.As(err, &busy) != replaced || replaced && *busy != (gc.BusyError{Holder: "you", Lost: true}) || !replaced && err != nil {
				t.Errorf("replaced: %t: %+v, %v", replaced, r, err)
			}
		})
	}
}

// TestBlockedByManyLocks: a run waits for live locks up to LockWait, and then names the first hundred. The
// progress names the rows whose locks were read.
func TestBlockedByManyLocks(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		began, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const locks = 103 // in two parts
		lockRows(t, env, began, locks)
		<-time.After(retention + time.Minute)
		var mu sync.Mutex
		rows := map[string]bool{}
		cfg := gc.Config{Retention: retention, LockWait: 10 * time.Second, Progress: func(p gc.Progress) {
			mu.Lock()
			defer mu.Unlock()
			if p.Phase == gc.PhaseLocks {
				rows[p.Table+" "+p.Row] = true
			}
		}}
		start := time.Now()
		c := env.NewClient(txn.Config{TokenTTL: -1, Backoff: txn.Backoff{Min: 7 * time.Second, Max: 7 * time.Second}})
		r, err := gc.Run(t.Context(), c, cfg)
		var blocked *gc.BlockedError
		if !errors.As(err, &blocked) || blocked.Count != locks || len(blocked.Locks) != 100 || blocked.SafePoint != r.SafePoint || r.Locks != (gc.LockCounts{Live: locks}) {
			t.Fatalf("%+v, %v", r, err)
		}
		if took := time.Since(start) - 2*time.Minute; took != cfg.LockWait {
			t.Errorf("it waited for %v", took)
		}
		mu.Lock()
		if !rows["a "] || !rows["a row102"] || !rows["scratch "] {
			t.Errorf("progress %v", rows)
		}
		mu.Unlock()
	})
}

// TestLargePages: a page of large rows is at most one row larger than store.MaxPageBytes.
func TestLargePages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		for _, row := range []string{"a", "b", "c", "d"} {
			set(t, env.Client, row, strings.Repeat("x", store.MaxPageBytes/2+1))
		}
		<-time.After(retention + time.Minute)
		faults := txntest.NewFaults(t)
		var pages []int64
		if _, err := gc.Run(t.Context(), env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...), gc.Config{Retention: retention, Rate: 1000, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseCollect {
				pages = append(pages, p.Total.Rows)
			}
		}}); err != nil || !slices.Equal(pages, []int64{2, 4}) {
			t.Errorf("rows read: %v, %v", pages, err)
		}
	})
}

// TestLocksAreCounted: a run rolls the locks of ended transactions forward or back, and counts both.
func TestLocksAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		tx, err := env.Client.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx.Table("a").Set("bob", "f", "q", []byte("1"))
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		primary := txn.Cell{Table: "a", Row: "bob", Family: "f", Qualifier: "q"}
		for row, startTS := range map[string]tso.Timestamp{"forward": tx.StartTS(), "forward too": tx.StartTS(), "back": tx.StartTS() + 1} {
			cell, m := primary, bigtable.NewMutation()
			cell.Row = row
			l := &format.Lock{Cell: cell, Primary: cell, Kind: format.KindPut, StartTS: startTS, TTL: time.Second}
			if startTS == tx.StartTS() {
				l.Primary = primary
			}
			m.Set(format.LockFamily, cell.Column().Key(), startTS.Cell(), format.EncodeLock(l))
			m.Set("f", "q", startTS.Cell(), []byte("2"))
			if err := env.Bigtable.Open("a").Apply(t.Context(), row, m); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(retention + time.Minute)
		if r, err := gc.Plan(t.Context(), env.Client, gc.Config{Retention: retention}); err != nil || r.Locks != (gc.LockCounts{Found: 3}) {
			t.Errorf("plan: %+v, %v", r, err)
		}
		faults := txntest.NewFaults(t)
		var rows []string
		r, err := gc.Run(t.Context(), env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...), gc.Config{Retention: retention, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseLocks && p.Row != "" {
				rows = append(rows, p.Row)
			}
		}})
		if err != nil || r.Locks != (gc.LockCounts{Found: 3, RolledForward: 2, RolledBack: 1}) || r.Total.Rows < 3 {
			t.Errorf("%+v, %v", r, err)
		}
		reads := 0
		for _, call := range faults.Calls() {
			if call.Table == "a" && call.Method == "ReadRows" && call.Row == "" && !strings.Contains(fmt.Sprint(call.Request), format.MarkFamily) {
				reads++
			}
		}
		if slices.Sort(rows); reads != 2 || !slices.Equal(rows, []string{"forward", "forward too"}) { // the last row is a part
			t.Errorf("%d reads of locks, up to %q", reads, rows)
		}
	})
}

// TestPositionBetweenTables: a run that is interrupted at the end of a table has its position at the next one.
func TestPositionBetweenTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		env.CreateTable("b", "f")
		set(t, env.Client, "bob", "1")
		<-time.After(retention + time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		if r, err := gc.Run(ctx, env.Client, gc.Config{Retention: retention, Rate: 1000, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseCollect {
				cancel()
			}
		}}); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", r, err)
		}
		if run := storedRun(t, env); len(run.Parts) != 1 || run.Parts[0].Table != "b" || len(run.Parts[0].Row) != 0 {
			t.Errorf("the record is %v", run)
		}
	})
}
