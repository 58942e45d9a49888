package emulator_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// After an unknown outcome, Update does not run its function again, although its
// context has not ended: that could apply the changes twice. And a refusal that follows
// an unknown outcome does not make it a failure.
func TestUndeterminedIsNotRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Bool
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1}, refuse(func(c txntest.Call) bool {
			if c.Step == txntest.StepCommit {
				sent.Store(true)
			}
			return c.Step == txntest.StepRead && sent.Load()
		})...)
		faults.OnStep(txntest.StepCommit, txntest.DropResponse)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		runs := 0
		_, err := a.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			runs++
			set(tx, "3", "bob", "joe")
			return nil
		})
		var u *txn.UndeterminedError
		if !errors.As(err, &u) || runs != 1 || ctx.Err() != nil {
			t.Fatalf("update: %v after %d runs, want an UndeterminedError after one, at once", err, runs)
		}
		if s, err := env.Client.Settle(t.Context(), u); err != nil || s.State != txn.StateCommitted {
			t.Errorf("settle: %v, %v", s.State, err)
		}
		wantValue(t, takeSnapshot(t, env.Client), "joe", "3")
	})
}

// If the context ends before the commit request is sent, the outcome is not unknown:
// the client checks the context at the last moment.
func TestContextEndsBeforeTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		ctx, cancel := context.WithCancel(t.Context())
		faults := txntest.NewFaults(t)
		oracle := &cancellingOracle{Oracle: env.Oracle(), after: 2, cancel: cancel}
		a := env.NewClient(txn.Config{TokenTTL: -1, Oracle: oracle}, faults.DialOptions()...)
		err := tryUpdate(ctx, a, "3", "bob", "joe")
		if !errors.Is(err, context.Canceled) || errors.Is(err, txn.ErrUndetermined) {
			t.Errorf("update: %v, want the context's error alone", err)
		}
		if n := faults.Count()[txntest.StepCommit]; n != 0 {
			t.Errorf("%d commit requests were sent, want none", n)
		}
		synctest.Wait()
		wantNoLocks(t, env.Client)
	})
}

// A cancellingOracle cancels the caller's context after a number of timestamps.
type cancellingOracle struct {
	tso.Oracle
	after  int
	cancel context.CancelFunc
}

func (o *cancellingOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	ts, err := o.Oracle.Timestamp(ctx)
	if o.after--; o.after == 0 {
		o.cancel()
	}
	return ts, err
}

// If Settle cannot find out the outcome, it returns an UndeterminedError again. Before
// the fix its caller took the outcome as known.
func TestSettleThatCannotFindOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		for _, lost := range []txntest.Step{txntest.StepSchema, txntest.StepRead, txntest.StepCommit} {
			u := undetermined(t, env, "bob-"+string(lost))
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
			faults.On(string(lost), step(lost), txntest.DropRequest, 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := c.Settle(ctx, u)
			cancel()
			var again *txn.UndeterminedError
			if !errors.As(err, &again) || again.Primary != u.Primary || again.StartTS != u.StartTS || again.CommitTS != u.CommitTS {
				t.Errorf("settle without %s: %v, want an UndeterminedError with the same facts", lost, err)
			}
			if s, err := env.Client.Settle(t.Context(), u); err != nil || s.State != txn.StateCommitted {
				t.Errorf("settle: %v, %v", s.State, err)
			}
		}
	})
}

// undetermined makes a commit whose requests are lost until its context ends, and
// returns its error.
func undetermined(t *testing.T, env *txntest.Env, row string) *txn.UndeterminedError {
	t.Helper()
	faults := txntest.NewFaults(t)
	faults.On("commit", step(txntest.StepCommit), txntest.DropRequest, 0)
	c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var u *txn.UndeterminedError
	if err := tryUpdate(ctx, c, "3", row); !errors.As(err, &u) {
		t.Fatalf("update: %v, want an UndeterminedError", err)
	}
	return u
}

// The answer to a commit is lost, and Bigtable refuses the next one. The first one may still
// take effect, so the outcome is unknown. It would be wrong to report the refusal.
func TestRefusalAfterALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		env, a, _ := newFaultyClient(t, txn.Config{TokenTTL: -1}, txntest.Intercept(func(c txntest.Call) error {
			if c.Step != txntest.StepCommit {
				return nil
			}
			if sent++; sent == 1 {
				return status.Error(codes.Unavailable, "injected: lost")
			}
			return status.Error(codes.PermissionDenied, "injected: refused")
		})...)
		if err := tryUpdate(t.Context(), a, "1", "bob", "joe"); !errors.Is(err, txn.ErrUndetermined) || sent != 2 {
			t.Errorf("%d commits were sent: %v, want an unknown outcome", sent, err)
		}
		advance(time.Minute)
		s := takeSnapshot(t, env.Client)
		wantValue(t, s, "bob", "")
		wantValue(t, s, "joe", "")
	})
}

// If Bigtable refuses the commit that Settle sends, Settle says so: the lock is still there,
// and the outcome is open.
func TestSettleIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		u := undetermined(t, env, "bob")
		c := env.NewClient(txn.Config{TokenTTL: -1}, refuse(step(txntest.StepCommit))...)
		if _, err := c.Settle(t.Context(), u); !errors.Is(err, txn.ErrUndetermined) || status.Code(errors.Unwrap(err)) != codes.PermissionDenied {
			t.Errorf("settle: %v, want an UndeterminedError with the refusal", err)
		}
		for _, bad := range []*txn.UndeterminedError{nil, {Primary: u.Primary, StartTS: u.StartTS, CommitTS: u.StartTS}, {Primary: u.Primary, CommitTS: u.CommitTS}, {StartTS: u.StartTS, CommitTS: u.CommitTS}} {
			if _, err := env.Client.Settle(t.Context(), bad); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("settle %+v: %v", bad, err)
			}
		}
		if s, err := env.Client.Settle(t.Context(), u); err != nil || s.State != txn.StateCommitted {
			t.Errorf("settle: %v, %v", s.State, err)
		}
	})
}

// TestSettleWithin: with the option, a commit whose context ends gets an outcome all the same.
func TestSettleWithin(t *testing.T) {
	// run updates bob and joe with a deadline of a second, and returns after it.
	run := func(t *testing.T, a *txn.Client, opts ...txn.TxnOption) (runs int, ts tso.Timestamp, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ts, err = a.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			runs++
			set(tx, "3", "bob", "joe")
			return nil
		}, opts...)
		return runs, ts, err
	}
	for _, action := range []txntest.Action{txntest.HoldResponse, txntest.Crash} {
		t.Run("commit with "+action.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
				faults.OnStep(txntest.StepCommit, action)
				runs, ts, err := run(t, a, txn.SettleWithin(time.Minute))
				if err != nil || runs != 1 || ts == 0 {
					t.Fatalf("update: %v after %d runs at %d, want success", err, runs, ts)
				}
				synctest.Wait()
				wantNoLocks(t, env.Client) // the secondaries are committed too
				wantValue(t, takeSnapshot(t, env.Client, txn.At(ts)), "joe", "3")
				wantValue(t, takeSnapshot(t, env.Client, txn.At(ts-1)), "joe", "")
				if n := a.Stats().Undetermined; n != 0 {
					t.Errorf("%d outcomes are counted as unknown", n)
				}
			})
		})
	}
	t.Run("without the option", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
			faults.OnStep(txntest.StepCommit, txntest.HoldResponse)
			if _, _, err := run(t, a); !errors.Is(err, txn.ErrUndetermined) {
				t.Errorf("update: %v, want an unknown outcome", err)
			}
		})
	})
	t.Run("not enough time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
			faults.OnStep(txntest.StepCommit, txntest.Crash)
			faults.OnStep(txntest.StepRead, txntest.Hold)
			begun := time.Now()
			_, _, err := run(t, a, txn.SettleWithin(3*time.Second))
			if !errors.Is(err, txn.ErrUndetermined) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 4*time.Second {
				t.Errorf("update: %v after %v, want an unknown outcome after 4s", err, time.Since(begun))
			}
		})
	})
	t.Run("rolled back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
			faults.OnStep(txntest.StepCommit, txntest.Crash)
			settling := faults.OnStep(txntest.StepRead, txntest.Hold)
			done := inBackground(func() error {
				runs, _, err := run(t, a, txn.SettleWithin(time.Minute))
				if runs != 1 {
					t.Errorf("%d runs", runs)
				}
				return err
			})
			<-settling.Fired()
			mustSet(t, env.Client, "9", "bob", "joe") // rolls the transaction back after its ttl
			settling.Release()
			if err := (<-done).err; !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, txn.ErrUndetermined) {
				t.Errorf("update: %v, want the context's error and a known outcome", err)
			}
			wantValue(t, takeSnapshot(t, env.Client), "bob", "9")
			wantValue(t, takeSnapshot(t, env.Client), "joe", "9")
		})
	})
	t.Run("rolled back, then again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			reads, refused := 0, 0
			env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1}, refuse(func(c txntest.Call) bool {
				if c.Step != txntest.StepRead || refused > 0 {
					return false
				}
				refused++ // the context has not ended, and the outcome is unknown
				return true
			})...)
			faults.OnStep(txntest.StepCommit, txntest.DropRequest)
			settling := faults.On("read to settle", func(c txntest.Call) bool {
				if c.Step == txntest.StepRead {
					reads++
				}
				return reads == 2
			}, txntest.Hold, 1)
			runs := 0
			done := inBackground(func() error {
				_, err := a.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					runs++
					set(tx, "3", "bob", "joe")
					return nil
				}, txn.SettleWithin(time.Minute))
				return err
			})
			<-settling.Fired()
			mustSet(t, env.Client, "9", "bob", "joe")
			settling.Release()
			if err := (<-done).err; err != nil || runs != 2 || refused != 1 {
				t.Errorf("update: %v after %d runs, want success after two", err, runs)
			}
			wantValue(t, takeSnapshot(t, env.Client), "joe", "3")
		})
	})
	t.Run("negative", func(t *testing.T) {
		_, a, _ := newFaultyClient(t, txn.Config{TokenTTL: -1})
		if _, _, err := run(t, a, txn.SettleWithin(-1)); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("update: %v, want ErrInvalid", err)
		}
	})
}
