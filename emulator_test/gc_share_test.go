package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// A shared is a table of many tablets, each of which takes a node 10 s to read, with one row that
// was overwritten.
type shared struct {
	env     *txntest.Env
	cluster *model.Cluster
	rows    []string
}

const tabletTime = 10 * time.Second

func newShared(t *testing.T, tablets int) *shared {
	t.Helper()
	s := &shared{env: newGCEnv(t)}
	s.cluster = model.New(model.Config{Nodes: tablets, Tables: map[string]model.Table{"a": {Bytes: float64(tablets) * 220e6 * tabletTime.Seconds(), Splits: model.HexSplits("", tablets)}}})
	s.env.CreateTable("a", "f")
	for i := range tablets {
		s.rows = append(s.rows, fmt.Sprintf("%08x", uint64(i)<<32/uint64(tablets)+1<<20))
	}
	for _, v := range []string{"1", "2"} {
		for rows := range slices.Chunk(s.rows, 64) {
			mustSet(t, s.env.Client, v, rows...)
		}
	}
	advance(retention + time.Minute)
	return s
}

// A sharer is one of several collectors.
type sharer struct {
	faults *txntest.Faults
	cancel context.CancelFunc
	ended  <-chan outcome
	report *gc.Report
}

// collect runs a collector that waits while another one begins a run. It calls progress with what
// it does.
func (s *shared) collect(t *testing.T, cfg gc.Config, progress func(*sharer, gc.Progress)) *sharer {
	t.Helper()
	k := &sharer{faults: txntest.NewFaults(t)}
	var ctx context.Context
	ctx, k.cancel = context.WithCancel(t.Context())
	c := s.env.NewClient(txn.Config{TokenTTL: -1}, append(k.faults.DialOptions(), s.cluster.Client("collector")...)...)
	cfg.Retention = retention
	cfg.Progress = func(p gc.Progress) { progress(k, p) }
	k.ended = inBackground(func() error {
		for {
			r, err := gc.Run(ctx, c, cfg)
			var busy *gc.BusyError
			if !errors.As(err, &busy) || busy.Lost {
				k.report = r
				return err
			}
			advance(time.Second)
		}
	})
	return k
}

// Collectors share each phase of a run, and what one has taken that dies goes to the others: also
// if it led the run.
func TestCollectorsShareARun(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	tests := []struct {
		name       string
		collectors int
		dies       int      // which of them; the first one leads
		in         gc.Phase // when
	}{
		{"two collectors", 2, -1, ""},
		{"the second of two dies", 2, 1, gc.PhaseCollect},
		{"the first of two dies", 2, 0, gc.PhaseCollect},
		{"five collectors", 5, -1, ""},
		{"the third of five dies", 5, 2, gc.PhaseCollect},
		{"the first of five dies before it has resolved its locks", 5, 0, gc.PhaseLocks},
	}
	if long.Reduced() {
		tests = tests[5:]
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const tablets = 32
				s := newShared(t, tablets)
				var once sync.Once
				var all []*sharer
				for i := range tt.collectors {
					all = append(all, s.collect(t, gc.Config{}, func(k *sharer, p gc.Progress) {
						if i == tt.dies && p.Phase == tt.in && (p.Phase == gc.PhaseLocks || p.Total.Rows > 0) {
							once.Do(k.faults.Kill)
						}
					}))
					advance(time.Second)
				}
				var rows, versions int64
				var last *gc.Report
				for i, k := range all {
					if i == tt.dies {
						continue
					}
					if o := <-k.ended; o.err != nil || !k.report.Finished {
						t.Errorf("collector %d: %v, %+v", i, o.err, k.report)
						continue
					}
					if last != nil && last.SafePoint != k.report.SafePoint {
						t.Errorf("collector %d has safe point %d, another one %d", i, k.report.SafePoint, last.SafePoint)
					}
					last = k.report
					rows, versions = rows+last.Total.Rows, versions+last.Total.Versions
					if last.Total.Versions == 0 || last.Helped != (i > 0) {
						t.Errorf("collector %d: %+v", i, last)
					}
				}
				if tt.dies >= 0 {
					k := all[tt.dies]
					k.cancel()
					if o := <-k.ended; o.err == nil {
						t.Error("the collector that died returned no error")
					}
					rows, versions = rows+k.report.Total.Rows, versions+k.report.Total.Versions
				}
				if versions < tablets || tt.dies < 0 && (rows != tablets || versions != tablets) {
					t.Errorf("%d rows read, %d versions removed; want %d", rows, versions, tablets)
				}
				for _, g := range garbage(t, s.env.Client, s.rows, last.SafePoint) {
					t.Errorf("left: %s", g)
				}
				st, err := gc.ReadStatus(t.Context(), s.env.Client)
				if err != nil || st.Run.Phase != gc.PhaseDone || st.Lease.Owner != "" || len(st.Run.Collectors) != 0 {
					t.Errorf("status %+v, %v", st, err)
				}
				s.env.Check()
			})
		})
	}
}

// Collectors share the notes of a run that follows changes, and each changed row is collected, also
// if one of them dies.
func TestCollectorsShareNotes(t *testing.T) {
	long.Test(t, "hours of virtual time")
	for _, tt := range []struct {
		name string
		dies int
	}{{"both live", -1}, {"the first dies", 0}, {"the second dies", 1}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := changesEnv(t)
				s := &shared{env: env, cluster: model.New(model.Config{RoundTrip: time.Second})}
				const writers, turns = 4, 24 // each writes a note in each turn
				var clients []*txn.Client
				for range writers {
					clients = append(clients, env.NewClient(txn.Config{}))
				}
				for turn := range turns {
					for i, c := range clients {
						row := fmt.Sprintf("r%02d-%02d", i, turn)
						s.rows = append(s.rows, row)
						mustSet(t, c, "1", row)
						mustSet(t, c, "2", row)
					}
					advance(30 * time.Second)
				}
				if n := metadataRows(t, env, "changed/"); n < 64 {
					t.Fatalf("%d notes, want enough for several parts", n)
				}
				advance(retention)
				var helped atomic.Bool
				var died sync.Once
				dead := make(chan struct{})
				var all []*sharer
				for i := range 2 {
					all = append(all, s.collect(t, gc.Config{FullEvery: 24 * time.Hour}, func(k *sharer, p gc.Progress) {
						if p.Phase != gc.PhaseChanges {
							return
						}
						if i == 1 && !helped.Swap(true) {
							if st, err := gc.ReadStatus(t.Context(), env.Client); err != nil || len(st.Run.Collectors) != 2 || st.Run.Parts < 4 {
								t.Errorf("status %+v, %v; want two collectors, and several parts", st, err)
							}
						}
						if i == tt.dies {
							died.Do(func() {
								k.faults.Kill()
								close(dead)
							})
						}
					}))
					advance(time.Second)
				}
				var versions int64
				for i, k := range all {
					if i == tt.dies {
						<-dead
						k.cancel()
					}
					o := <-k.ended
					if (o.err == nil && k.report.Finished) == (i == tt.dies) || !k.report.Changes || k.report.Total.Versions == 0 && i != tt.dies {
						t.Errorf("collector %d: %v, %+v", i, o.err, k.report)
					}
					versions += k.report.Total.Versions
				}
				if want := int64(len(s.rows)); versions < want || tt.dies < 0 && versions != want {
					t.Errorf("%d versions removed, want %d", versions, want)
				}
				for _, g := range garbage(t, env.Client, s.rows, all[0].report.SafePoint) {
					t.Errorf("left: %s", g)
				}
				if n := metadataRows(t, env, "changed/"); n > 0 {
					t.Errorf("%d notes are left", n)
				}
				env.Check()
			})
		})
	}
}

// A collector that Bigtable refuses a request ends with this error, and another one does its part.
func TestRefusedCollectorOfASharedRun(t *testing.T) {
	long.Test(t, "hours of virtual time")
	long.NotUnderRace(t, "one fault after the other")
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t, 32)
		first := s.collect(t, gc.Config{}, func(*sharer, gc.Progress) {})
		advance(time.Second)
		c := s.env.NewClient(txn.Config{TokenTTL: -1}, append(refuse(func(c txntest.Call) bool { return c.Table == "a" }), s.cluster.Client("refused")...)...)
		r, err := gc.Run(t.Context(), c, gc.Config{Retention: retention})
		for errors.As(err, new(*gc.BusyError)) {
			advance(time.Second)
			r, err = gc.Run(t.Context(), c, gc.Config{Retention: retention})
		}
		if status.Code(err) != codes.PermissionDenied || !r.Helped {
			t.Errorf("%v, %+v", err, r)
		}
		if o := <-first.ended; o.err != nil || first.report.Total.Versions != 32 {
			t.Errorf("%v, %+v", o.err, first.report)
		}
		s.env.Check()
	})
}

// Requests for the record of a run, and for the lease, are lost, doubled, late, or applied with an error, of
// the collector that leads or of the other one.
func TestRequestsOfASharedRun(t *testing.T) {
	long.Test(t, "one request after the other of a collection of hours")
	long.NotUnderRace(t, "one request after the other, and what it costs")
	n := 0
	for _, action := range []txntest.Action{txntest.DropRequest, txntest.DropResponse, txntest.Duplicate, txntest.Echo, txntest.Delay} {
		for of := range 2 {
			if n++; long.Reduced() && n%5 != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%v/%d", action, of), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newShared(t, 32)
					var all []*sharer
					for range 2 {
						all = append(all, s.collect(t, gc.Config{}, func(*sharer, gc.Progress) {}))
						advance(time.Second)
					}
					k := 0
					rule := all[of].faults.On("record", func(c txntest.Call) bool {
						if c.Step != txntest.StepSafePoint || c.Method != "CheckAndMutateRow" {
							return false
						}
						k++
						return k%3 == 0
					}, action, 5)
					for i, k := range all {
						if o := <-k.ended; o.err != nil || !k.report.Finished {
							t.Errorf("collector %d: %v, %+v", i, o.err, k.report)
						}
					}
					<-rule.Fired()
					rule.Release()
					for _, g := range garbage(t, s.env.Client, s.rows, all[0].report.SafePoint) {
						t.Errorf("left: %s", g)
					}
					s.env.Check()
				})
			})
		}
	}
}

// Four collectors take at most a third of the time of one to remove versions, and at most half of it
// to resolve locks, in a table that has enough tablets. Those that wait for the end of the fence
// come to the locks up to 15 s later.
func TestFourCollectorsAreFaster(t *testing.T) {
	long.Test(t, "128 tablets")
	long.NotUnderRace(t, "one request after the other, and what it costs")
	type times struct{ locks, collect time.Duration }
	took := map[int]times{}
	for _, collectors := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			const tablets = 128
			s := newShared(t, tablets)
			began := map[gc.Phase]time.Time{} // of the collector that leads
			var all []*sharer
			for i := range collectors {
				all = append(all, s.collect(t, gc.Config{}, func(_ *sharer, p gc.Progress) {
					if i == 0 && began[p.Phase].IsZero() {
						began[p.Phase] = time.Now()
					}
				}))
				advance(time.Second)
			}
			var versions int64
			for i, k := range all {
				if o := <-k.ended; o.err != nil {
					t.Fatal(o.err)
				}
				if i == 0 {
					collect := began[gc.PhaseCollect]
					took[collectors] = times{collect.Sub(began[gc.PhaseLocks]), time.Since(collect)}
				}
				versions += k.report.Total.Versions
			}
			if versions != tablets {
				t.Errorf("%d collectors removed %d versions, want %d", collectors, versions, tablets)
			}
		})
	}
	t.Logf("1 collector: %v, 4 collectors: %v", took[1], took[4])
	if one, four := took[1], took[4]; four.collect <= 0 || one.locks < 2*four.locks || one.collect < 3*four.collect {
		t.Errorf("1 collector took %v, 4 collectors %v", one, four)
	}
}

// The status says which collector works on what. What excludes collectors waits for all of them,
// also for one that has no lease.
func TestStatusAndExclusionOfCollectors(t *testing.T) {
	long.Test(t, "hours of virtual time")
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t, 64)
		first := s.collect(t, gc.Config{}, func(*sharer, gc.Progress) {})
		advance(time.Second)
		second := s.collect(t, gc.Config{}, func(*sharer, gc.Progress) {})
		advance(2*time.Minute + 10*time.Second)
		st, err := gc.ReadStatus(t.Context(), s.env.Client)
		if err != nil || st.Run.Phase != gc.PhaseLocks || st.Run.Parts == 0 || len(st.Run.Collectors) != 2 || st.Run.Collectors[0].Parts+st.Run.Collectors[1].Parts != 32 || st.Run.Collectors[1].Table != "a" {
			t.Errorf("status %+v, %v; want two collectors with 16 parts each", st, err)
		}
		first.faults.Kill()
		advance(35 * time.Second) // until its lease ends
		if st, err = gc.ReadStatus(t.Context(), s.env.Client); err != nil || st.Lease.Owner != "" || len(st.Run.Collectors) != 1 {
			t.Errorf("status %+v, %v; want no lease and one collector", st, err)
		}
		if _, release, err := gc.Exclude(t.Context(), s.env.Client); !errors.As(err, new(*gc.BusyError)) {
			t.Errorf("excluded beside a collector: %v", err)
			release()
		}
		first.cancel()
		<-first.ended
		if o := <-second.ended; o.err != nil || !second.report.Finished {
			t.Errorf("%v, %+v", o.err, second.report)
		}
		_, release, err := gc.Exclude(t.Context(), s.env.Client)
		if err != nil {
			t.Fatal(err)
		}
		release()
		s.env.Check()
	})
}

// A collector that finds garbage collection excluded removes nothing, although the record names a
// run that it could share.
func TestCollectorLeavesAnExcludedRun(t *testing.T) {
	long.Test(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t, 32)
		first := s.collect(t, gc.Config{}, func(k *sharer, p gc.Progress) {
			if p.Phase == gc.PhaseCollect {
				k.faults.Kill()
			}
		})
		advance(6 * time.Minute)
		_, release, err := gc.Exclude(t.Context(), s.env.Client)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := gc.Run(t.Context(), s.env.NewClient(txn.Config{TokenTTL: -1}), gc.Config{Retention: retention}); !errors.As(err, new(*gc.BusyError)) {
			t.Errorf("%+v, %v; want a BusyError", r, err)
		}
		release()
		first.cancel()
		<-first.ended
		if r := runGC(t, s.env.Client, gc.Config{}); !r.Resumed || !r.Finished {
			t.Errorf("%+v", r)
		}
		s.env.Check()
	})
}

// The first collector cannot reach the record of the run, nor the lease, when it has resolved the locks. Another
// one leads, and divides the tables otherwise. When the first one reaches the record again, it begins no
// phase: its parts have the numbers of other rows.
func TestReplacedLeaderBeginsNoPhase(t *testing.T) {
	long.Test(t, "hours of virtual time")
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t, 32)
		resolved := func(c txntest.Call) bool {
			r, ok := c.Request.(*btpb.CheckAndMutateRowRequest)
			return ok && c.Row == "gc" && string(r.TrueMutations[0].GetSetCell().GetColumnQualifier()) == "safe-point"
		}
		var once sync.Once
		var apart, leads, together atomic.Bool
		first := s.collect(t, gc.Config{}, func(k *sharer, p gc.Progress) {
			if p.Phase != gc.PhaseLocks {
				return
			}
			once.Do(func() {
				k.faults.On("lease", func(c txntest.Call) bool { return c.Row == "lock/gc" }, txntest.DropRequest, 0)
				k.faults.On("record", func(c txntest.Call) bool {
					was := apart.Load()
					apart.Store(was || resolved(c))
					return was && !together.Load() && c.Row == "gc"
				}, txntest.DropRequest, 0)
			})
		})
		first.faults.On("tablets", func(c txntest.Call) bool { return c.Method == "SampleRowKeys" }, txntest.DropRequest, 0)
		advance(time.Second)
		second := s.collect(t, gc.Config{}, func(*sharer, gc.Progress) {})
		second.faults.On("collects", func(c txntest.Call) bool {
			leads.Store(leads.Load() || c.Method == "SampleRowKeys")
			together.Store(together.Load() || leads.Load() && c.Table == "a" && c.Method == "ReadRows")
			return false
		}, txntest.DropRequest, 0).Optional()
		if o := <-second.ended; o.err != nil || !second.report.Finished {
			t.Errorf("the second collector: %v, %+v", o.err, second.report)
		}
		if o := <-first.ended; !errors.As(o.err, new(*gc.BusyError)) || !together.Load() {
			t.Errorf("the first collector, which has reached the record again (%v): %v", together.Load(), o.err)
		}
		for _, g := range garbage(t, s.env.Client, s.rows, second.report.SafePoint) {
			t.Errorf("left: %s", g)
		}
		s.env.Check()
	})
}
