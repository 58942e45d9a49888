package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A request that Bigtable refuses for good is not repeated, at any step. Before the fix
// it was repeated until the context ended.
func TestRefusalsAreNotRepeated(t *testing.T) {
	for _, refused := range []txntest.Step{txntest.StepPrewrite, txntest.StepCommit, txntest.StepRollForward, txntest.StepRollPrimary} {
		t.Run(string(refused), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1}, refuse(step(refused))...)
				do, want := func(ctx context.Context) error { return tryUpdate(ctx, a, "3", "bob", "joe") }, ""
				read := func(ctx context.Context) error {
					_, _, err := takeSnapshot(t, a).Table("a").Get(ctx, "joe", "f", "q")
					return err
				}
				switch refused {
				case txntest.StepRollForward:
					leaveLocks(t, env, txntest.StepSecondaries)
					do, want = read, "9"
				case txntest.StepRollPrimary:
					leaveLocks(t, env, txntest.StepCommit)
					do = read
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				o := <-inBackground(func() error { return do(ctx) })
				if o.err == nil || errors.Is(o.err, txn.ErrUndetermined) || errors.Is(o.err, txn.ErrConflict) || o.took > time.Second {
					t.Errorf("%v after %v; want the refusal, at once", o.err, o.took)
				}
				// A commit sends the prewrites of its two rows at the same time.
				if n := faults.Count()[refused]; n != 1 && (refused != txntest.StepPrewrite || n != 2) {
					t.Errorf("%d requests, want one", n)
				}
				advance(time.Minute)
				wantValue(t, takeSnapshot(t, env.Client), "joe", want)
			})
		})
	}
}

// leaveLocks makes a client die before a step of a transaction that sets bob and joe,
// and waits until its locks have expired.
func leaveLocks(t *testing.T, env *txntest.Env, died txntest.Step) {
	t.Helper()
	faults := txntest.NewFaults(t)
	rule := faults.OnStep(died, txntest.Crash)
	victim := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	ctx, cancel := context.WithCancel(t.Context())
	owner := commitInBackground(ctx, beginSet(t, victim, "9", "bob", "joe"))
	<-rule.Fired()
	faults.Kill()
	cancel()
	<-owner
	advance(time.Minute)
}

// If one prewrite fails, Commit returns its error. Before the fix a prewrite that was
// not sent because of it could hide the error, for example a conflict, and Update gave
// up. The race lasted a few nanoseconds; the test tries often, and can still miss it.
func TestFailureAmongManyPrewrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, _ := newFaultyClient(t, txn.Config{TokenTTL: -1}, refuse(step(txntest.StepPrewrite))...)
		for range 2000 {
			if err := tryUpdate(t.Context(), a, "v", "bob", "joe"); status.Code(err) != codes.PermissionDenied {
				t.Fatalf("update: %v, want the refusal", err)
			}
		}
	})
}
