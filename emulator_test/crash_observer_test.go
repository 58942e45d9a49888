package emulator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// oneSweep is a Finder that sweeps once, so that a worker's requests always have the
// same numbers.
type oneSweep struct{ row string }

func (f oneSweep) Find(ctx context.Context, s notify.Search) error {
	for n, err := range changes.Notifications(ctx, s.Client, "left", bigtable.RowList{f.row}) {
		if err != nil {
			break
		}
		s.Offer(ctx, n, func() {})
	}
	<-ctx.Done()
	return ctx.Err()
}

// observing returns a worker. Its observer keeps in the same row a list of the changes
// that it ran for, and a copy in another table.
func observing(t *testing.T, c *txn.Client, of txn.Column, cfg notify.Config) *notify.Worker {
	t.Helper()
	cfg.NoHints = true
	w, err := notify.NewWorker(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = w.Handle("count", "left", of, notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		seen, _, err := tx.Table("left").Get(ctx, cell.Row, "f", "seen")
		if err != nil {
			return err
		}
		seen = fmt.Appendf(seen, "%d,", notify.TriggerOf(ctx).ChangeTS)
		tx.Table("left").Set(cell.Row, "f", "seen", seen)
		tx.Table("right").Set(cell.Row, "f", "seen", seen)
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestCrashOfObserver kills a worker before and after every request of an observer's
// run. Other workers take over. In the end the change was observed, with one committed
// effect in both tables.
func TestCrashOfObserver(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	in := txn.Column{Family: "f", Qualifier: "in"}
	for _, tc := range []struct {
		name    string
		of      txn.Column
		workers int
		resolve bool // an operator resolves the locks first
	}{
		{"another worker", in, 1, false},
		{"two workers at once", in, 2, false},
		{"an operator, then a worker", in, 1, true},
		{"another worker, of a prefix", txn.Pattern("f", "i"), 1, false},
		{"two workers at once, of a prefix", txn.Pattern("f", "i"), 2, false},
	} {
		t.Run(tc.name, func(t *testing.T) { observersKilled(t, tc.of, tc.workers, tc.resolve) })
	}
}

func observersKilled(t *testing.T, of txn.Column, workers int, resolve bool) {
	crashEnv(t, func(t *testing.T, env *txntest.Env, a, b *txn.Client) {
		if err := changes.RegisterObserver(t.Context(), a, "left", of, "count", false); err != nil {
			t.Fatal(err)
		}
		change := func(row string) string {
			ts, err := a.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("left").Set(row, "f", "in", []byte("v"))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return ts.String() + ","
		}
		work := func(row string) func(context.Context, *txn.Client) {
			return func(ctx context.Context, c *txn.Client) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				done := make(chan struct{}, 1)
				w := observing(t, c, of, notify.Config{Concurrency: 1, Finder: oneSweep{row}, DrainTimeout: time.Second, OnEvent: func(notify.Event) {
					select {
					case done <- struct{}{}:
					default:
					}
				}})
				ended := make(chan struct{})
				go func() { defer close(ended); _ = w.Run(ctx) }()
				select {
				case <-done:
					<-time.After(100 * time.Millisecond) // virtual time, for the notification to be removed
				case <-ctx.Done():
				}
				cancel()
				<-ended
			}
		}
		change("dry")
		steps := crash{t: t, env: env}.run(work("dry"))
		for _, s := range []txntest.Step{txntest.StepRead, txntest.StepPrewrite, txntest.StepCommit, txntest.StepSecondaries} {
			if !slices.Contains(steps, s) {
				t.Fatalf("the requests of a run are %v", steps)
			}
		}
		want := map[string]string{}
		for at := 1; at <= len(steps); at++ {
			for _, after := range []bool{false, true} {
				row := fmt.Sprintf("%02d-%v", at, after)
				want[row] = change(row)
				crash{t: t, env: env, at: at, after: after}.run(work(row))
			}
		}
		<-time.After(crashTTL + time.Second) // virtual
		if resolve {
			for _, table := range crashTables {
				if _, err := workload.ResolveAll(t.Context(), a, table); err != nil {
					t.Fatal(err)
				}
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, workers)
		for i := range workers {
			other := observing(t, []*txn.Client{b, a}[i], of, notify.Config{Finder: &notify.Scanner{MinInterval: 10 * time.Millisecond}})
			go func() { done <- other.Run(ctx) }()
		}
		if _, err := notify.Wait(ctx, a, notify.WaitConfig{}); err != nil {
			t.Fatal(err)
		}
		cancel()
		for range workers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		s, err := a.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for row, change := range want {
			for _, table := range crashTables {
				v, _, err := s.Table(table).Get(t.Context(), row, "f", "seen")
				if err != nil || string(v) != change {
					t.Errorf("worker dead at %s of %v: table %s has %q, %v; want the one change %q", row, steps, table, v, err, strings.TrimSuffix(change, ","))
				}
			}
		}
		t.Logf("%d crashes, at each of %v", len(want), steps)
	})
}

// TestCrashWithWeakNotification kills a client before and after each request of a
// transaction with a weak notification. If the transaction is committed, its
// notification exists: no other client could write it.
func TestCrashWithWeakNotification(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	crashEnv(t, func(t *testing.T, env *txntest.Env, a, b *txn.Client) {
		if err := changes.RegisterObserver(t.Context(), a, "right", txn.Column{Family: "f", Qualifier: "bell"}, "count", true); err != nil {
			t.Fatal(err)
		}
		ring := func(row string) func(context.Context, *txn.Client) {
			return func(ctx context.Context, c *txn.Client) {
				tx, err := c.Begin(ctx)
				if err != nil {
					return
				}
				tx.Table("left").Set(row, "f", "q", []byte("new"))
				tx.Table("right").Notify(row, "f", "bell")
				_, _ = tx.Commit(ctx)
			}
		}
		steps := crash{t: t, env: env}.run(ring("dry"))
		committed := 0
		for at := 1; at <= len(steps); at++ {
			for _, after := range []bool{false, true} {
				row := fmt.Sprintf("%02d-%v", at, after)
				crash{t: t, env: env, at: at, after: after}.run(ring(row))
				<-time.After(crashTTL + time.Second) // virtual
				s, err := b.Snapshot(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_, ok, err := s.Table("left").Get(t.Context(), row, "f", "q")
				if err != nil {
					t.Fatal(err)
				}
				rung := false
				for n, err := range changes.Notifications(t.Context(), b, "right", bigtable.RowList{row}) {
					if err != nil {
						t.Fatal(err)
					}
					rung = rung || len(n.Triggers) > 0
				}
				if ok && !rung {
					t.Errorf("killed at request %d of %v, after: %v: committed without its notification", at, steps, after)
				}
				if ok {
					committed++
				}
			}
		}
		if committed == 0 || committed == 2*len(steps) {
			t.Errorf("%d of %d are committed", committed, 2*len(steps))
		}
	})
}
