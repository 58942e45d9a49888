package emulator_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestObserverElsewhere has two observers of one column in two workers. The second
// worker starts after the first one has run and stopped. The notification stays until
// both observers have seen the change.
func TestObserverElsewhere(t *testing.T) {
	crashEnv(t, func(t *testing.T, env *txntest.Env, a, b *txn.Client) {
		in := txn.Column{Family: "f", Qualifier: "in"}
		for _, id := range []string{"early", "late"} {
			if err := changes.RegisterObserver(t.Context(), a, "left", in, id, false); err != nil {
				t.Fatal(err)
			}
		}
		observe := func(c *txn.Client, id string) (stop func()) {
			w, err := notify.NewWorker(c, notify.Config{NoHints: true, Finder: &notify.Scanner{MinInterval: 10 * time.Millisecond, MaxInterval: 20 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			err = w.Handle(id, "left", txn.Column{Family: "f", Qualifier: "in"}, notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
				seen, _, err := tx.Table("left").Get(ctx, cell.Row, "f", id)
				tx.Table("left").Set(cell.Row, "f", id, append(seen, 'x'))
				return err
			}))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			return func() {
				<-time.After(time.Second) // virtual time, for many sweeps
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		if _, err := a.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("left").Set("doc", "f", "in", []byte("v"))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		observe(a, "early")()
		observe(b, "late")()
		if _, err := notify.Wait(t.Context(), a, notify.WaitConfig{}); err != nil {
			t.Fatal(err)
		}
		s, err := a.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"early", "late"} {
			if v, _, err := s.Table("left").Get(t.Context(), "doc", "f", id); err != nil || string(v) != "x" {
				t.Errorf("observer %s has %q, %v; want one run", id, v, err)
			}
		}
	})
}

// A repeating oracle always hands out the same timestamp.
type repeating struct {
	tso.Oracle
	stuck atomic.Int64
}

func (r *repeating) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if ts := r.stuck.Load(); ts != 0 {
		return tso.Timestamp(ts), nil
	}
	return r.Oracle.Timestamp(ctx)
}

// TestRepeatingOracle commits nothing at a commit_ts that is not above start_ts.
func TestRepeatingOracle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		oracle := &repeating{Oracle: env.Oracle()}
		c := env.NewClient(txn.Config{Oracle: oracle, TokenTTL: -1})
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx.Table("a").Set("r1", "f", "q", []byte("v"))
		tx.Table("a").Set("r2", "f", "q", []byte("v"))
		oracle.stuck.Store(int64(tx.StartTS()))
		ts, err := tx.Commit(t.Context())
		if err == nil || !strings.Contains(err.Error(), "backwards") {
			t.Errorf("committed at %d, started at %d: %v", ts, tx.StartTS(), err)
		}
		synctest.Wait()
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			t.Errorf("lock left: %v, %v", l, err)
		}
		s, err := env.Client.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v, ok, err := s.Table("a").Get(t.Context(), "r1", "f", "q"); ok || err != nil {
			t.Errorf("read %q, %v", v, err)
		}
	})
}

// TestWaitSeesLocks has a client that died after its commit point, before it committed
// a secondary in an observed cell. The change has no notify cell yet, only a lock. Wait
// must treat it as pending.
func TestWaitSeesLocks(t *testing.T) {
	crashEnv(t, func(t *testing.T, env *txntest.Env, a, _ *txn.Client) {
		if err := changes.RegisterObserver(t.Context(), a, "right", txn.Column{Family: "f", Qualifier: "in"}, "count", false); err != nil {
			t.Fatal(err)
		}
		change := func(ctx context.Context, c *txn.Client) {
			tx, err := c.Begin(ctx)
			if err != nil {
				return
			}
			tx.Table("left").Set("p", "f", "q", nil)
			tx.Table("right").Set("s", "f", "in", nil)
			_, _ = tx.Commit(ctx)
		}
		const secondaries = 7 // oracle, two prewrites, a journal entry, oracle, commit
		steps := crash{t: t, env: env, at: secondaries}.run(change)
		if last := steps[len(steps)-1]; last != txntest.StepSecondaries {
			t.Fatalf("the client died at %s of %v", last, steps)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*crashTTL)
		defer cancel()
		if ts, err := notify.Wait(ctx, a, notify.WaitConfig{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait returned %d, %v, although a change is pending", ts, err)
		}
	})
}
