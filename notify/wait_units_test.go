package notify

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestChecksOfWait: a check reads the tables with observers, and all tables first if there are weak notifications. It
// reports each request that is refused.
func TestChecksOfWait(t *testing.T) {
	long.RacedAtNight(t)
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
		env.CreateTable("u", "f")
		observed(t, env.Client)
		check := func(when, want string) *changes.Unfinished {
			t.Helper()
			faults.Reset()
			asOf, left, err := (&waiter{client: c}).check(t.Context())
			if err != nil || asOf == 0 && left == nil {
				t.Errorf("%s: %d, %+v, %v", when, asOf, left, err)
			}
			reads := map[string]int{}
			for _, call := range faults.Calls() {
				if call.Step == txntest.StepRead {
					reads[call.Table]++
				}
			}
			if got := fmt.Sprint(reads); got != want {
				t.Errorf("%s: reads of %s, want %s", when, got, want)
			}
			return left
		}
		refused := func(when string) {
			t.Helper()
			for k := 1; ; k++ {
				var n atomic.Int64
				n.Store(-1000) // to make the client
				bare := env.NewClient(txn.Config{TokenTTL: -1, Oracle: env.Oracle()}, txntest.Intercept(func(call txntest.Call) error {
					if int(n.Add(1)) == k {
						return status.Error(codes.PermissionDenied, "refused on purpose")
					}
					return nil
				})...)
				n.Store(0)
				_, left, err := (&waiter{client: bare}).check(t.Context())
				if int(n.Load()) < k {
					if k < 4 {
						t.Errorf("%s: %d requests", when, k)
					}
					return
				}
				if status.Code(err) != codes.PermissionDenied || left != nil {
					t.Errorf("%s: request %d was refused: %+v, %v", when, k, left, err)
				}
			}
		}
		check("strong notifications", "map[t:1]")
		refused("strong notifications")
		weak := txn.Column{Family: "f", Qualifier: "weak"}
		if err := changes.RegisterObserver(t.Context(), env.Client, "t", weak, "w", true); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute) // longer than schemas are used
		check("weak notifications", "map[scratch:1 t:2 u:1]")
		refused("weak notifications")
		observed(t, env.Client, "r")
		if left := check("a change is pending", "map[scratch:1 t:1]"); left == nil || left.Cell != notificationOf("r").Cell || left.Lock != nil {
			t.Errorf("a change is pending: %+v", left)
		}
		dead := func(row string, step txntest.Step) {
			t.Helper()
			lost := txntest.NewFaults(t)
			dies := lost.OnStep(step, txntest.Crash)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := env.NewClient(txn.Config{TokenTTL: -1}, lost.DialOptions()...).Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				tx.Table("u").Set(row, "f", "primary", nil)
				tx.Table("t").Set(row, "f", "q", nil)
				return nil
			}); (err != nil) != (step == txntest.StepCommit) {
				t.Fatal(err)
			}
			<-dies.Fired()
			lost.Kill()
			<-time.After(time.Minute)
		}
		for _, tt := range []struct {
			step txntest.Step
			row  string // that is left
		}{{txntest.StepCommit, "r"}, {txntest.StepSecondaries, "b"}} {
			dead("b", tt.step)
			began := time.Now()
			_, left, err := (&waiter{client: c, next: time.Hour}).check(t.Context())
			if err != nil || left == nil || left.Cell != notificationOf(tt.row).Cell || left.Lock != nil || time.Since(began) > time.Minute {
				t.Errorf("a client died at its %s: %+v, %v after %v", tt.step, left, err, time.Since(began))
			}
		}
		dead("a", txntest.StepSecondaries)
		refused("a dead client has left a lock")
		silent := env.NewClient(txn.Config{TokenTTL: -1, Oracle: silentOracle{env.Oracle()}})
		if asOf, left, err := (&waiter{client: silent}).check(t.Context()); err == nil || asOf != 0 || left != nil {
			t.Errorf("the oracle does not answer: %d, %+v, %v", asOf, left, err)
		}
	})
}

// TestWaitEntersChanges: before a pause, Wait writes a journal entry of a change that no observer has run for, so that a
// worker finds it soon. It returns the error if it cannot.
func TestWaitEntersChanges(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
		observed(t, env.Client, "r")
		now, err := c.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w := &waiter{client: c, next: time.Second, cfg: WaitConfig{Backoff: txn.Backoff{Min: time.Second, Max: time.Second}}}
		for want, left := range []changes.Unfinished{{Lock: &format.Lock{}}, {}} {
			left.Cell, left.TS = notificationOf("r").Cell, now
			for _, ran := range []bool{true, false} {
				faults.Reset()
				left.Ran = ran
				if err := w.pause(t.Context(), left); err != nil {
					t.Error(err)
				}
				if n := faults.Count()[txntest.StepJournal]; n != want && !ran || ran && n != 0 {
					t.Errorf("locked: %t, ran: %t: %d requests with entries", left.Lock != nil, ran, n)
				}
			}
		}
		left := changes.Unfinished{Cell: notificationOf("new").Cell, TS: now}
		w.client = env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if call.Step == txntest.StepJournal {
				return status.Error(codes.PermissionDenied, "refused on purpose")
			}
			return nil
		})...)
		if err := w.pause(t.Context(), left); status.Code(err) != codes.PermissionDenied {
			t.Errorf("the entry is refused: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.pause(ended, left); !errors.Is(err, context.Canceled) {
			t.Errorf("its context has ended: %v", err)
		}
	})
}
