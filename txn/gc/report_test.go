package gc_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestReportExactly: the report and the progress of a run, and the status meanwhile and later, say
// exactly what the run has done.
func TestReportExactly(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("a", "f")
		env.CreateTable("b", "f")
		write := func(c *txn.Client, table string, rows int, value string) {
			for i := range rows {
				if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					if value == "" {
						tx.Table(table).Delete(fmt.Sprintf("row%d", i), "f", "q")
					} else {
						tx.Table(table).Set(fmt.Sprintf("row%d", i), "f", "q", []byte(value))
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		const retention = 10 * time.Minute
		plan := func() gc.Report {
			r, err := gc.Plan(t.Context(), env.Client, gc.Config{Retention: retention})
			if err != nil {
				t.Fatal(err)
			}
			return *r
		}
		if s, err := gc.ReadStatus(t.Context(), env.Client); err != nil || s.SafePoint != 0 || s.Run.Phase != gc.PhaseNone || len(s.Holds) != 0 || s.Now == 0 {
			t.Errorf("before the first run: %+v, %v", s, err)
		}
		write(env.Client, "a", 3, "one")
		write(env.Client, "a", 3, "two")
		write(env.Client, "a", 1, "three")
		write(env.Client, "b", 2, "one")
		write(env.Client, "b", 2, "")
		<-time.After(retention + time.Minute)
		counts := func(table string, rows, changed, versions, data int64) gc.Counts {
			return gc.Counts{Table: table, Rows: rows, RowsChanged: changed, Versions: versions, Data: data, Cells: versions + data}
		}
		tables := []gc.Counts{counts("a", 3, 3, 4, 4), counts("b", 2, 2, 2, 2), {Table: "scratch"}} // txntest makes the last one
		total := counts("", 5, 5, 6, 6)
		check := func(what string, got, want gc.Report) {
			t.Helper()
			if got.Total.Bytes == 0 || got.Total.Bytes != got.Tables[0].Bytes+got.Tables[1].Bytes {
				t.Errorf("%s: bytes %+v", what, got)
			}
			got.Total.Bytes = 0
			for i := range got.Tables {
				got.Tables[i].Bytes = 0
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", what, d)
			}
		}
		at := func(ts tso.Timestamp) tso.Timestamp { return ts.Add(-retention) }
		planned := plan()
		check("plan", planned, gc.Report{DryRun: true, SafePoint: at(planned.Now), Now: planned.Now, Finished: true, HeldBy: []gc.Hold{}, Tables: tables, Total: total, Elapsed: planned.Elapsed})

		var progress []string
		var during *gc.Status
		began := time.Now()
		r, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention, Rate: 1000, Progress: func(p gc.Progress) {
			if p.Phase == gc.PhaseFence {
				return
			}
			progress = append(progress, fmt.Sprintf("%s %s %s %d", p.Phase, p.Table, p.Row, p.Total.Rows))
			if during == nil && p.Phase == gc.PhaseCollect {
				var err error
				if during, err = gc.ReadStatus(t.Context(), env.Client); err != nil {
					t.Error(err)
				}
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); r.Elapsed != d || d < 2*time.Minute {
			t.Errorf("it took %v, and reports %v", d, r.Elapsed)
		}
		check("run", *r, gc.Report{SafePoint: at(r.Now), Now: r.Now, Finished: true, HeldBy: []gc.Hold{}, Tables: tables, Total: total, Elapsed: r.Elapsed})
		wantProgress := []string{"locks a  0", "locks b  0", "locks scratch  0", "collect a  3", "collect b  5"}
		if d := cmp.Diff(wantProgress, progress); d != "" {
			t.Errorf("progress (-want +got):\n%s", d)
		}

		owner := during.Run.Owner
		if owner == "" || during.Lease.Owner != owner || during.Lease.Left <= 0 {
			t.Errorf("led by %q, the lease is %+v", owner, during.Lease)
		}
		during.Lease = tso.Holder{}
		want := gc.Status{
			SafePoint: r.SafePoint, PublishedTS: r.Now, Retention: retention, Now: during.Now, Holds: []gc.Hold{},
			Run: gc.RunStatus{
				Phase: gc.PhaseCollect, SafePoint: r.SafePoint, StartedTS: r.Now, UpdatedTS: during.Run.UpdatedTS, Owner: owner,
				Parts: 1, Collectors: []gc.Collector{{Owner: owner, Parts: 1}},
			},
		}
		if d := cmp.Diff(want, *during); d != "" || during.Run.UpdatedTS <= r.Now || during.Now < during.Run.UpdatedTS {
			t.Errorf("during the run (-want +got):\n%s", d)
		}
		later := readStatus(t, env)
		want.Now, want.Run.UpdatedTS = later.Now, later.Run.UpdatedTS
		want.Run.Phase, want.Run.Parts, want.Run.Collectors = gc.PhaseDone, 0, nil
		want.Run.Rows, want.Run.Versions, want.Run.Cells, want.Run.Bytes = total.Rows, total.Versions, total.Cells, r.Total.Bytes
		if d := cmp.Diff(want, *later); d != "" {
			t.Errorf("after the run (-want +got):\n%s", d)
		}

		// A client with an open transaction holds the safe point back.
		holding := env.NewClient(txn.Config{TokenTTL: time.Minute})
		tx, err := holding.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(retention + time.Hour)
		held := plan()
		if len(held.HeldBy) != 1 || held.HeldBy[0].OldestTS > tx.StartTS() || held.SafePoint != held.HeldBy[0].OldestTS-1 || held.Previous != r.SafePoint {
			t.Errorf("held: %+v, started at %d", held, tx.StartTS())
		}
		s := readStatus(t, env)
		if d := cmp.Diff(held.HeldBy, s.Holds); d != "" || s.Holds[0].PID == 0 || s.Holds[0].Owner == "" || s.Holds[0].ExpiresTS < s.Now {
			t.Errorf("holds at %d: %+v, %s", s.Now, s.Holds, d)
		}
		tx.Rollback()
	})
}
