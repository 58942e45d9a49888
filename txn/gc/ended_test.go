package gc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// lockRows puts locks of live transactions that started at a time into rows of table a, until the test ends.
func lockRows(t *testing.T, env *txntest.Env, startTS tso.Timestamp, n int) {
	t.Helper()
	var rows []string
	var muts, unlock []*bigtable.Mutation
	for i := range n {
		cell, m := txn.Cell{Table: "a", Row: fmt.Sprintf("row%03d", i), Family: "f", Qualifier: "q"}, bigtable.NewMutation()
		m.Set(format.LockFamily, cell.Column().Key(), startTS.Cell(), format.EncodeLock(&format.Lock{Cell: cell, Primary: cell, Kind: format.KindPut, StartTS: startTS, TTL: 10 * time.Hour}))
		gone := bigtable.NewMutation()
		gone.DeleteRow()
		rows, muts, unlock = append(rows, cell.Row), append(muts, m), append(unlock, gone)
	}
	apply := func(muts []*bigtable.Mutation) {
		if errs, err := env.Bigtable.Open("a").ApplyBulk(context.WithoutCancel(t.Context()), rows, muts); errs != nil || err != nil {
			t.Error(errs, err)
		}
	}
	apply(muts)
	t.Cleanup(func() { apply(unlock) })
}

// TestWhereARunEnds: when its context ends, a run says what it was doing, and what it has waited for.
func TestWhereARunEnds(t *testing.T) {
	long.RacedAtNight(t)
	const locks = 103
	lease := func(c txntest.Call) bool { return c.Row == "lock/gc" }
	record := func(c txntest.Call) bool {
		return c.Method == "CheckAndMutateRow" && strings.Contains(fmt.Sprint(c.Request), "run_version")
	}
	read := func(c txntest.Call) bool { return c.Table == "a" && c.Method == "ReadRows" }
	removal := func(c txntest.Call) bool { return c.Step == txntest.StepCollect }
	for _, tt := range []struct {
		after      time.Duration
		cfg        gc.Config
		unanswered func(txntest.Call) bool
		locked     bool
		canceled   bool // it does not end at a deadline
		action     txntest.Action
		doing      string
		noReport   bool
	}{
		{time.Second, gc.Config{}, lease, false, false, txntest.Crash, "gc: taking the lease of garbage collection: ", true},
		{time.Minute, gc.Config{}, record, false, false, txntest.DropRequest, "gc: storing the position: ", false},
		{time.Minute, gc.Config{}, nil, false, false, 0, "gc: collecting garbage: waiting until every client uses the new safe point; nothing was removed: ", false},
		{2*time.Minute + 3*time.Second, gc.Config{LockWait: time.Hour, Rate: 1000}, nil, true, false, 0, "gc: collecting garbage: waiting for live transactions; nothing was removed: ", false},
		{3 * time.Minute, gc.Config{Rate: 0.001}, nil, false, false, 0, "gc: waiting for Config.Rate: ", false},
		{3 * time.Minute, gc.Config{Rate: 0.001}, nil, false, true, 0, "gc: collecting garbage: ", false},
		{3 * time.Minute, gc.Config{}, removal, false, false, txntest.Crash, "gc: collecting garbage: ", false},
		{3 * time.Minute, gc.Config{}, read, false, false, txntest.Crash, "gc: collecting garbage: ", false},
	} {
		t.Run(tt.doing, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newTable(t)
				for _, value := range []string{"1", "2"} {
					set(t, env.Client, "bob", value)
					set(t, env.Client, "joe", value)
				}
				now, err := env.Client.Timestamp(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if tt.locked {
					lockRows(t, env, now, locks)
				}
				<-time.After(retention + time.Minute)
				faults := txntest.NewFaults(t)
				if tt.unanswered != nil {
					faults.On("unanswered", tt.unanswered, tt.action, 0)
				}
				c := env.NewClient(txn.Config{TokenTTL: -1, Backoff: txn.Backoff{Min: time.Hour, Max: time.Hour}}, faults.DialOptions()...)
				ctx, cancel := context.WithTimeout(t.Context(), tt.after)
				ended := context.DeadlineExceeded
				if tt.canceled {
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(tt.after, cancel)
					ended = context.Canceled
				}
				defer cancel()
				tt.cfg.Retention = retention
				r, err := gc.Run(ctx, c, tt.cfg)
				if !errors.Is(err, ended) || !strings.HasPrefix(err.Error(), tt.doing+ended.Error()) || (r == nil) != tt.noReport || r != nil && r.Finished {
					t.Errorf("%+v, %v", r, err)
				}
				var blocked *gc.BlockedError
				if errors.As(err, &blocked) != tt.locked || tt.locked && (blocked.SafePoint != r.SafePoint || blocked.Count != locks || len(blocked.Locks) != 100) {
					t.Errorf("blocked by %+v", blocked)
				}
			})
		})
	}
}

// refusedCounters is a provider of metrics that refuses counters of garbage collection.
type refusedCounters struct{ noop.MeterProvider }

func (refusedCounters) Meter(string, ...metric.MeterOption) metric.Meter { return refusedMeter{} }

type refusedMeter struct{ noop.Meter }

func (refusedMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	if strings.HasPrefix(name, "percolator.gc.") {
		return nil, errors.New("on purpose")
	}
	return noop.Int64Counter{}, nil
}

// TestMetricsOfCollectionRefused: without its metrics, nothing of garbage collection begins.
func TestMetricsOfCollectionRefused(t *testing.T) {
	env := newTable(t)
	c := env.NewClient(txn.Config{TokenTTL: -1, MeterProvider: refusedCounters{}})
	for name, do := range map[string]func() error{
		"run":  func() error { _, err := gc.Run(t.Context(), c, gc.Config{}); return err },
		"plan": func() error { _, err := gc.Plan(t.Context(), c, gc.Config{}); return err },
		"exclude": func() error {
			_, _, err := gc.Exclude(t.Context(), c)
			return err
		},
	} {
		if err := do(); err == nil || !strings.HasPrefix(err.Error(), "gc: metrics: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReplacedRun: once another collector has replaced the record of a run, the run ends at its next change of the
// record, and names that collector. It leaves the other one's record as it is.
func TestReplacedRun(t *testing.T) {
	long.RacedAtNight(t)
	for _, resumed := range []bool{false, true} {
		for k, more := 1, true; more; k++ {
			synctest.Test(t, func(t *testing.T) {
				env := newTable(t)
				set(t, env.Client, "bob", "1")
				set(t, env.Client, "bob", "2")
				<-time.After(retention + time.Minute)
				now, err := env.Client.Timestamp(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				record := &recordpb.GarbageRun{FormatVersion: format.Version, Owner: "you", SafePoint: int64(now) - retention.Microseconds(), StartedTs: int64(now), Divided: true, Phase: recordpb.GarbageRun_PHASE_COLLECT, Parts: []*recordpb.GarbageRun_Part{{Id: 1}}}
				if resumed {
					putRecord(t, env, store.GCRowKey, "run", record)
				}
				var mu sync.Mutex
				n, phase := 0, recordpb.GarbageRun_PHASE_UNSPECIFIED
				c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
					mu.Lock()
					defer mu.Unlock()
					if call.Method != "CheckAndMutateRow" || call.Row != store.GCRowKey || !strings.Contains(fmt.Sprint(call.Request), "run_version") {
						return nil
					}
					if n++; n != k {
						return nil
					}
					// Another run in the same phase.
					other := storedRun(t, env)
					phase = other.Phase
					other.Owner, other.StartedTs, other.Parts, other.Collectors = "you", other.StartedTs+1, nil, nil
					putRecord(t, env, store.GCRowKey, "run", other)
					putVersion(t, env)
					return nil
				})...)
				r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention})
				mu.Lock()
				defer mu.Unlock()
				more = n >= k
				var busy *gc.BusyError
				if !more || k == 1 && !resumed { // a new run replaces any record
					if err != nil || !r.Finished || r.Resumed != resumed || k < 5 && !resumed && k > 1 {
						t.Errorf("change %d: %+v, %v", k, r, err)
					}
				} else if !errors.As(err, &busy) || *busy != (gc.BusyError{Holder: "you", Lost: true}) || r.Finished {
					t.Errorf("change %d, in phase %v: %+v, %v", k, phase, r, err)
				} else if s := storedRun(t, env); s.Owner != "you" || s.Phase != phase || len(s.Collectors) != 0 {
					t.Errorf("change %d: the record is %v", k, s)
				}
			})
		}
	}
}

// storedRun returns the record of the last run.
func storedRun(t *testing.T, env *txntest.Env) *recordpb.GarbageRun {
	t.Helper()
	row, err := env.Bigtable.Open(format.DefaultMetadataTable).ReadRow(t.Context(), store.GCRowKey)
	if err != nil {
		t.Error(err)
	}
	run := &recordpb.GarbageRun{}
	for _, item := range row[store.DeployFamily] {
		if item.Column == store.DeployFamily+":run" {
			if err := proto.Unmarshal(item.Value, run); err != nil {
				t.Error(err)
			}
		}
	}
	return run
}

// TestSafePointPublishedMeanwhile: a run collects at the safe point that another one has published, if that is later than its own.
func TestSafePointPublishedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		set(t, env.Client, "bob", "1")
		<-time.After(retention)
		set(t, env.Client, "bob", "2")
		later, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if call.Method == "CheckAndMutateRow" && call.Row == store.GCRowKey {
				once.Do(func() {
					putRecord(t, env, store.GCRowKey, "safe-point", &recordpb.SafePoint{FormatVersion: format.Version, Ts: int64(later), PublishedTs: int64(later), RetentionMicros: retention.Microseconds()})
				})
			}
			return nil
		})...)
		r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention})
		if err != nil || r.SafePoint != later || r.Total.Versions != 1 || storedRun(t, env).SafePoint != int64(later) {
			t.Errorf("%+v, %v; want the safe point %d", r, err, later)
		}
	})
}

// TestRefusedHelper: a collector that waits for its leader ends with the error of a request that is refused.
func TestRefusedHelper(t *testing.T) {
	for k, more := 1, true; more; k++ {
		synctest.Test(t, func(t *testing.T) {
			env := newTable(t)
			defer exclude(t, env)()
			s := readStatus(t, env)
			putRecord(t, env, store.GCRowKey, "run", &recordpb.GarbageRun{FormatVersion: format.Version, Owner: s.Lease.Owner, SafePoint: int64(s.Now) - 1, StartedTs: int64(s.Now), Phase: recordpb.GarbageRun_PHASE_FENCE})
			var mu sync.Mutex
			n := -1000
			var refused *txntest.Call
			c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
				mu.Lock()
				defer mu.Unlock()
				if call.Row == "lock/gc" || call.Row == "oracle" && n > 4 { // the lease is tried again
					return nil
				}
				if n++; n != k {
					return nil
				}
				refused = &call
				return status.Error(codes.PermissionDenied, "on purpose")
			})...)
			mu.Lock()
			n = 0
			mu.Unlock()
			ctx, cancel := context.WithTimeout(t.Context(), 13*time.Second)
			defer cancel()
			r, err := gc.Run(ctx, c, gc.Config{Retention: retention})
			mu.Lock()
			defer mu.Unlock()
			if more = refused != nil; more && (status.Code(err) != codes.PermissionDenied || r != nil && r.Finished) {
				t.Errorf("request %d, %s of row %q, was refused: %+v, %v", k, refused.Step, refused.Row, r, err)
			} else if !more && (!errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "gc: waiting for the collector that leads the run: ") || k < 7) {
				t.Errorf("%d requests: %v", k-1, err)
			}
		})
	}
}

// TestLostAnswers: a change of the record that Bigtable applied without an answer is not made again, and counts once. If the
// record cannot be read then, the run ends.
func TestLostAnswers(t *testing.T) {
	long.RacedAtNight(t)
	for k, more := int64(1), true; more; k++ {
		for _, refused := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				env := newTable(t)
				for _, value := range []string{"1", "2"} {
					set(t, env.Client, "bob", value)
				}
				<-time.After(retention + time.Minute)
				faults := txntest.NewFaults(t)
				var n atomic.Int64
				change := func(c txntest.Call) bool {
					return c.Method == "CheckAndMutateRow" && strings.Contains(fmt.Sprint(c.Request), "run_version")
				}
				faults.On("record", func(c txntest.Call) bool { return change(c) && n.Load() == k }, txntest.DropResponse, 1).Optional()
				c := env.NewClient(txn.Config{TokenTTL: -1}, append(txntest.Intercept(func(c txntest.Call) error {
					if change(c) {
						n.Add(1)
					} else if c.Row == store.GCRowKey && strings.Contains(fmt.Sprint(c.Request), "run_version") && refused && n.Load() == k {
						return status.Error(codes.PermissionDenied, "on purpose")
					}
					return nil
				}), faults.DialOptions()...)...)
				r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention, Rate: 1000})
				stored := storedRun(t, env)
				if more = n.Load() >= k; more && refused {
					if status.Code(err) != codes.PermissionDenied || r.Finished {
						t.Errorf("change %d: %+v, %v", k, r, err)
					}
				} else if err != nil || !r.Finished || n.Load() != 8 || stored.Rows != 1 || stored.Versions != 1 || stored.Cells != r.Total.Cells || stored.Bytes != r.Total.Bytes {
					t.Errorf("change %d: %+v, %v; record %v after %d changes", k, r, err, stored, n.Load())
				}
			})
		}
	}
}

// TestHelperOfTheNextPhase: a helper that the other collectors have left behind in a phase takes parts of the next one, although they have
// the numbers of those that it had.
func TestHelperOfTheNextPhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		defer exclude(t, env)()
		for _, row := range []string{"bob", "joe"} {
			set(t, env.Client, row, "1")
		}
		s := readStatus(t, env)
		lockRows(t, env, s.Now-2, 1)
		record := &recordpb.GarbageRun{FormatVersion: format.Version, Owner: s.Lease.Owner, SafePoint: int64(s.Now) - 1, StartedTs: int64(s.Now), Phase: recordpb.GarbageRun_PHASE_LOCKS, Divided: true, Parts: []*recordpb.GarbageRun_Part{{Id: 1}}}
		putRecord(t, env, store.GCRowKey, "run", record)
		time.AfterFunc(7*time.Second, func() {
			if other := storedRun(t, env); len(other.Parts) != 1 || other.Parts[0].Owner == "" {
				t.Errorf("the helper works on nothing: %v", other)
			}
			record.Phase = recordpb.GarbageRun_PHASE_COLLECT
			putRecord(t, env, store.GCRowKey, "run", record)
			putVersion(t, env)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 33*time.Second)
		defer cancel()
		r, err := gc.Run(ctx, env.Client, gc.Config{Retention: retention, LockWait: time.Hour})
		if !errors.Is(err, context.DeadlineExceeded) || !r.Helped || r.Total.Rows != 3 || r.Total.RowsSkipped != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// putVersion replaces the version of the record of a run.
func putVersion(t *testing.T, env *txntest.Env) {
	t.Helper()
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, "run_version", 0, []byte("yours"))
	if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), store.GCRowKey, m); err != nil {
		t.Error(err)
	}
}

// TestExcludedHelper: a collector that begins to share a run, or begins again, looks whether collection is excluded by then. It continues if
// nobody leads. Meanwhile each of two collectors reads half of the rate.
func TestExcludedHelper(t *testing.T) {
	for name, tt := range map[string]struct {
		change int  // of the record, in which the lease goes
		taken  bool // and another one takes it
		lost   bool
	}{"excluded": {1, true, false}, "excluded later": {2, true, true}, "nobody leads": {1, false, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newTable(t)
				release := exclude(t, env)
				for _, row := range []string{"bob", "joe", "sue"} {
					set(t, env.Client, row, "1")
				}
				s := readStatus(t, env)
				record := &recordpb.GarbageRun{FormatVersion: format.Version, Owner: s.Lease.Owner, SafePoint: int64(s.Now) - 1, StartedTs: int64(s.Now), Phase: recordpb.GarbageRun_PHASE_COLLECT, Rate: 2, Divided: true,
					Parts: []*recordpb.GarbageRun_Part{{Id: 1, EndTable: "b"}, {Id: 2, Table: "b", Owner: "another"}}, Collectors: []*recordpb.GarbageRun_Collector{{Owner: "another", ExpiresTs: int64(s.Now) + time.Hour.Microseconds()}}}
				putRecord(t, env, store.GCRowKey, "run", record)
				c := access.ResolverOf(env.Client)
				locks := tso.NewRowLocks(c.Metadata.API, c.Clock.Oracle, tso.RowLocksConfig{})
				var n atomic.Int64
				helper := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
					if call.Method != "CheckAndMutateRow" || call.Row != store.GCRowKey || n.Add(1) != int64(tt.change) {
						return nil
					}
					release()
					if tt.taken {
						if ok, _, err := locks.Acquire(t.Context(), "gc", "excluder", time.Minute); err != nil || !ok {
							t.Error(ok, err)
						}
					}
					if tt.lost { // the collector's time is up
						run := storedRun(t, env)
						run.Collectors = record.Collectors
						putRecord(t, env, store.GCRowKey, "run", run)
						putVersion(t, env)
					}
					return nil
				})...)
				ctx, cancel := context.WithTimeout(t.Context(), 13*time.Second)
				defer cancel()
				began, took := time.Now(), time.Duration(0)
				r, err := gc.Run(ctx, helper, gc.Config{Retention: retention, Progress: func(p gc.Progress) {
					if p.Phase == gc.PhaseCollect {
						took = time.Since(began)
					}
				}})
				var busy *gc.BusyError
				if errors.As(err, &busy) != tt.taken || tt.taken && (busy.Holder != "excluder" || busy.Lost != tt.lost) || !r.Helped || !tt.taken && (r.Total.Rows != 3 || took != time.Second) {
					t.Errorf("%+v, %v; rows after %v", r, err, took)
				}
				if tt.taken {
					if err := locks.Release(t.Context(), "gc", "excluder"); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// TestBlockedBesideOthers: a collector that waits for live locks fails only when no other collector works any more.
func TestBlockedBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		defer exclude(t, env)()
		s := readStatus(t, env)
		lockRows(t, env, s.Now-2, 1)
		putRecord(t, env, store.GCRowKey, "run", &recordpb.GarbageRun{FormatVersion: format.Version, Owner: s.Lease.Owner, SafePoint: int64(s.Now) - 1, StartedTs: int64(s.Now), Phase: recordpb.GarbageRun_PHASE_LOCKS, Divided: true,
			Parts: []*recordpb.GarbageRun_Part{{Id: 1, EndTable: "b"}, {Id: 2, Table: "b", Owner: "another"}}, Collectors: []*recordpb.GarbageRun_Collector{{Owner: "another", ExpiresTs: int64(s.Now) + time.Hour.Microseconds()}}})
		time.AfterFunc(20*time.Second, func() { // the other one ends
			run := storedRun(t, env)
			run.Parts = run.Parts[:1]
			putRecord(t, env, store.GCRowKey, "run", run)
			putVersion(t, env)
		})
		r, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention, LockWait: -1})
		var blocked *gc.BlockedError
		if !errors.As(err, &blocked) || blocked.Count != 1 || r.Elapsed < 20*time.Second || r.Elapsed > 26*time.Second {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestStatusOfRecords: what the records of a run and of clients say, but those that this release cannot read.
func TestStatusOfRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		now, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at := func(d time.Duration) int64 { return int64(now) + d.Microseconds() }
		run := &recordpb.GarbageRun{FormatVersion: format.Version, Owner: "you", Phase: recordpb.GarbageRun_PHASE_LOCKS, SafePoint: 7, StartedTs: 8,
			Parts:      []*recordpb.GarbageRun_Part{{Id: 1, Owner: "you", Table: "a", Row: []byte("m")}, {Id: 2, Owner: "you", Table: "b"}, {Id: 3}},
			Collectors: []*recordpb.GarbageRun_Collector{{Owner: "gone", ExpiresTs: at(0)}, {Owner: "you", ExpiresTs: at(time.Minute), Scans: 5}}}
		putRecord(t, env, store.GCRowKey, "run", run)
		for name, w := range map[string]*recordpb.WorkerToken{
			"a": {FormatVersion: format.Version, OldestTs: 20, ExpiresTs: at(time.Minute), Host: "host", Pid: 3}, "b": {FormatVersion: format.Version, OldestTs: 10, ExpiresTs: at(time.Minute)},
			"c": {FormatVersion: format.Version, ExpiresTs: at(time.Minute)}, "d": {FormatVersion: format.Version + 1, OldestTs: 5, ExpiresTs: at(time.Minute)},
		} {
			putRecord(t, env, recovery.TokenRowPrefix+name, recovery.TokenQualifier, w)
		}
		s := readStatus(t, env)
		want := gc.Status{Now: s.Now,
			Run:   gc.RunStatus{Phase: gc.PhaseLocks, SafePoint: 7, StartedTS: 8, Owner: "you", Parts: 3, Collectors: []gc.Collector{{Owner: "you", Parts: 2, Table: "a", Row: "m", Scans: 5}}},
			Holds: []gc.Hold{{Owner: "b", OldestTS: 10, ExpiresTS: tso.Timestamp(at(time.Minute))}, {Owner: "a", Host: "host", PID: 3, OldestTS: 20, ExpiresTS: tso.Timestamp(at(time.Minute))}}}
		if d := cmp.Diff(want, *s); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		damaged := append(format.Marshal(run), 0xff)
		run.FormatVersion++
		putRecord(t, env, store.GCRowKey, "run", run)
		if s, err := gc.ReadStatus(t.Context(), env.Client); err != nil || s.Run.Phase != gc.PhaseNone || s.Run.Owner != "" {
			t.Errorf("of another format: %+v, %v", s, err)
		}
		m := bigtable.NewMutation()
		m.Set(store.DeployFamily, "run", 0, damaged)
		if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), store.GCRowKey, m); err != nil {
			t.Fatal(err)
		}
		if s, err := gc.ReadStatus(t.Context(), env.Client); err != nil || s.Run.Phase != gc.PhaseNone {
			t.Errorf("damaged: %+v, %v", s, err)
		}
		m = bigtable.NewMutation()
		m.DeleteRow()
		for _, name := range []string{"a", "b", "c", "d"} {
			if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), recovery.TokenRowPrefix+name, m); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestHelperRemovesDeletes: a collector that only helps removes newest deletes up to the drained safe point, too.
func TestHelperRemovesDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTable(t)
		defer exclude(t, env)()
		set(t, env.Client, "bob", "1")
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Delete("bob", "f", "q")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		s := readStatus(t, env)
		safePoint := int64(s.Now) - 1
		putRecord(t, env, store.GCRowKey, "safe-point", &recordpb.SafePoint{FormatVersion: format.Version, Ts: safePoint, PublishedTs: safePoint, ResolvedTs: safePoint, DrainedTs: safePoint, RetentionMicros: retention.Microseconds()})
		putRecord(t, env, store.GCRowKey, "run", &recordpb.GarbageRun{FormatVersion: format.Version, Owner: s.Lease.Owner, SafePoint: safePoint, StartedTs: int64(s.Now), Phase: recordpb.GarbageRun_PHASE_COLLECT, Divided: true, Parts: []*recordpb.GarbageRun_Part{{Id: 1}}})
		ctx, cancel := context.WithTimeout(t.Context(), 13*time.Second)
		defer cancel()
		if r, err := gc.Run(ctx, env.NewClient(txn.Config{TokenTTL: -1}), gc.Config{Retention: retention}); !errors.Is(err, context.DeadlineExceeded) || r.Total.Deletes != 1 || r.Total.Versions != 2 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// exclude keeps collectors away until release is called.
func exclude(t *testing.T, env *txntest.Env) (release func()) {
	t.Helper()
	_, release, err := gc.Exclude(t.Context(), env.Client)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func readStatus(t *testing.T, env *txntest.Env) *gc.Status {
	t.Helper()
	s, err := gc.ReadStatus(t.Context(), env.Client)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
