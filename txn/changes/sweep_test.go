package changes_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestFirstSweepIsStoredOnce: of a table that got its journal later, the first call stores when the first
// sweep begins. Later calls do not put it off.
func TestFirstSweepIsStoredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithoutJournal(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("docs", "d")
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "docs", Families: []string{"d"}}); err != nil {
			t.Fatal(err)
		}
		c := env.NewClient(txn.Config{TokenTTL: -1})
		calls := 0
		broken := errors.New("broken on purpose")
		look := func(err error) ([]changes.SweepPosition, error) {
			return changes.SweepPositions(t.Context(), c, func(context.Context) (time.Duration, error) {
				calls++
				return time.Hour, err
			}, "docs")
		}
		if all, err := look(broken); !errors.Is(err, broken) || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		first, err := look(nil)
		if err != nil || len(first) != 1 || first[0].Complete || first[0].Missed || first[0].DueTS-first[0].BegunTS < 3600e6 || calls != 2 {
			t.Fatalf("%+v, %v, %d calls", first, err, calls)
		}
		<-time.After(time.Minute)
		second, err := look(nil)
		if d := cmp.Diff(first, second, cmpopts.IgnoreUnexported(changes.SweepPosition{})); err != nil || d != "" || calls != 2 {
			t.Errorf("%v, %d calls (-first +second):\n%s", err, calls, d)
		}
		if all, err := changes.SweepPositions(t.Context(), c, nil); all != nil || err != nil {
			t.Errorf("without tables: %v, %v", all, err)
		}
	})
}

// TestMovedSweeps: workers move a sweep on, one at a time. At its end the next one begins. It has completed
// the table only if it has read each piece.
func TestMovedSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithoutJournal(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("docs", "d")
		env.CreateTable("other", "d")
		for _, table := range []string{"docs", "other"} {
			if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: table, Families: []string{"d"}}); err != nil {
				t.Fatal(err)
			}
		}
		c := env.NewClient(txn.Config{TokenTTL: -1})
		if _, err := c.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		look := func() changes.SweepPosition {
			t.Helper()
			all, err := changes.SweepPositions(t.Context(), c, nil, "other", "docs")
			if err != nil || len(all) != 2 || all[0].Table != "docs" || all[1].Table != "other" || all[1].Row != "" {
				t.Fatalf("%+v, %v", all, err)
			}
			return all[0]
		}
		is := func(when string, p changes.SweepPosition, want changes.SweepPosition) {
			t.Helper()
			want.Table = "docs"
			for _, got := range []changes.SweepPosition{p, look()} {
				if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(changes.SweepPosition{})); d != "" {
					t.Errorf("%s (-want +got):\n%s", when, d)
				}
			}
		}
		move := func(p changes.SweepPosition, row string, end, want bool) changes.SweepPosition {
			t.Helper()
			moved, ok, err := changes.MoveSweep(t.Context(), c, p, row, end, time.Minute)
			if ok != want || err != nil {
				t.Errorf("moved: %t, %v", ok, err)
			}
			return moved
		}
		start := look()
		begun := start.BegunTS
		is("before the first", start, changes.SweepPosition{DueTS: begun, BegunTS: begun})
		<-time.After(time.Second)
		middle := move(start, "m", false, true)
		is("in the middle", middle, changes.SweepPosition{Row: "m", DueTS: middle.BegunTS + 61e6, BegunTS: begun})
		if again := move(start, "z", false, false); again.Row != "" {
			t.Errorf("a second worker moved it to %q", again.Row)
		}
		middle.Missed = true
		middle = move(middle, "n", false, true)
		is("a piece was missed", middle, changes.SweepPosition{Row: "n", DueTS: begun + 61e6, BegunTS: begun, Missed: true})
		<-time.After(time.Second)
		end := move(middle, "", true, true)
		is("at the end, a piece was missed", end, changes.SweepPosition{DueTS: begun + 62e6, BegunTS: begun + 2e6})
		<-time.After(time.Second)
		end = move(end, "", true, true)
		is("at the end", end, changes.SweepPosition{DueTS: begun + 63e6, BegunTS: begun + 3e6, Complete: true})
		middle = move(end, "k", false, true)
		is("in the next one", middle, changes.SweepPosition{Row: "k", DueTS: begun + 63e6, BegunTS: begun + 3e6, Complete: true})
	})
}

// TestSweepYieldsRolledForward: a sweep resolves the expired locks of observed columns, and yields a change that it has rolled
// forward at once, as its notification will say it. It leaves live locks and those of
// other columns, and yields nothing of what it has rolled back.
func TestSweepYieldsRolledForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newObservedTable(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		tx, err := env.Client.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx.Table("t").Set("primary", "f", "other", []byte("v"))
		commitTS, err := tx.Commit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		primary := txn.Cell{Table: "t", Row: "primary", Family: "f", Qualifier: "other"}
		lock := func(row string, primary txn.Cell, startTS tso.Timestamp, ttl time.Duration) {
			t.Helper()
			cell := observedCell
			cell.Row = row
			m := bigtable.NewMutation()
			m.Set(format.LockFamily, cell.Column().Key(), startTS.Cell(), format.EncodeLock(&format.Lock{Cell: cell, Primary: primary, Kind: format.KindPut, StartTS: startTS, TTL: ttl, Observed: row != "unobserved", TraceParent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", Hops: 3}))
			m.Set("f", "q", startTS.Cell(), []byte("v"))
			if err := env.Bigtable.Open("t").Apply(t.Context(), row, m); err != nil {
				t.Fatal(err)
			}
		}
		lock("committed", primary, tx.StartTS(), time.Second)
		<-time.After(time.Minute)
		now, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cell := observedCell
		for _, row := range []string{"dead", "live", "unobserved"} {
			cell.Row = row
			lock(row, cell, now-30e6, map[string]time.Duration{"dead": time.Second, "live": time.Hour, "unobserved": time.Second}[row])
		}
		cell.Row = "committed"
		if err := changes.Enter(t.Context(), env.Client, now, cell); err != nil {
			t.Fatal(err)
		}
		want := []changes.Notification{{Cell: cell, Triggers: []format.NotifyCell{{TS: commitTS, TraceParent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", Hops: 3}}, Failures: map[string]format.Failure{}}}
		for range 2 { // the second time, there is a notification
			var got []changes.Notification
			for n, err := range changes.Sweep(t.Context(), env.Client, "t", nil) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, n)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		}
		for row, locks := range map[string]int{"committed": 0, "dead": 0, "live": 1, "unobserved": 1} {
			raw, err := env.Bigtable.Open("t").ReadRow(t.Context(), row)
			if err != nil || len(raw[format.LockFamily]) != locks {
				t.Errorf("%s: %v, %v", row, raw, err)
			}
		}
	})
}
