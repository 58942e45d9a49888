package emulator_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// While one commit writes the client's token, another commit waits for it only until
// its own context ends. Before the fix it waited longer.
func TestTokenDoesNotDelayOtherCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: 5 * time.Second})
		faults.On("token", step(txntest.StepToken), txntest.Hold, 0)
		commit := func(row string, timeout time.Duration) <-chan outcome {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			t.Cleanup(cancel)
			ch := commitInBackground(ctx, beginSet(t, a, "3", row))
			synctest.Wait()
			return ch
		}
		first, hurried, third := commit("r1", time.Minute), commit("r2", time.Second), commit("r3", time.Minute)
		if o := <-hurried; !errors.Is(o.err, context.DeadlineExceeded) || errors.Is(o.err, txn.ErrUndetermined) || o.took != time.Second {
			t.Errorf("commit with a deadline of 1s: %v after %v", o.err, o.took)
		}
		for _, ch := range []<-chan outcome{first, third} {
			if o := <-ch; o.err != nil || o.took > 6*time.Second {
				t.Errorf("commit: %v after %v; want it to continue without a token after 5s", o.err, o.took)
			}
		}
	})
}

// A heldCommit is a transaction that writes 3 to bob and whose commit request waits.
type heldCommit struct {
	t    *testing.T
	hold *txntest.Rule
	done <-chan outcome
}

func holdCommit(t *testing.T, c *txn.Client, faults *txntest.Faults) heldCommit {
	t.Helper()
	hold := faults.OnStep(txntest.StepCommit, txntest.Hold)
	done := commitInBackground(t.Context(), beginSet(t, c, "3", "bob"))
	<-hold.Fired()
	return heldCommit{t, hold, done}
}

// wantAlive fails the test if a reader rolls the transaction back.
func (h heldCommit) wantAlive(env *txntest.Env) {
	h.t.Helper()
	s := takeSnapshot(h.t, env.Client)
	reader := inBackground(func() error { wantValue(h.t, s, "bob", "3"); return nil })
	synctest.Wait()
	h.hold.Release()
	if o := <-h.done; o.err != nil {
		h.t.Errorf("commit of a client that is alive: %v", o.err)
	}
	<-reader
}

// If one renewal of the token hangs, the client gives it up in time for the next one.
// Before the fix all of the client's live locks counted as dead.
func TestHungTokenRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{})
		mustSet(t, a, "1", "warm") // writes the token
		synctest.Wait()
		faults.On("renewal", step(txntest.StepToken), txntest.Hold, 1)
		advance(6 * time.Second)
		owner := holdCommit(t, a, faults)
		owner.wantAlive(env)
	})
}

// If the search for stale tokens hangs, the client gives it up in time to renew its own.
func TestHungSearchForStaleTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{})
		faults.On("search", func(c txntest.Call) bool {
			r, ok := c.Request.(*btpb.ReadRowsRequest)
			return ok && c.Table == format.DefaultMetadataTable && len(r.GetRows().GetRowKeys()) == 0
		}, txntest.Hold, 1)
		mustSet(t, a, "1", "warm") // writes the token
		advance(6 * time.Second)
		owner := holdCommit(t, a, faults)
		owner.wantAlive(env)
	})
}

// A snapshot with Hold waits for a renewal of the token that hangs, but not longer than its
// caller wants. Before the fix it waited with a mutex.
func TestHoldBesideHungRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := newFaultyClient(t, txn.Config{})
		mustSet(t, c, "1", "warm") // writes the token
		synctest.Wait()
		renewal := faults.OnStep(txntest.StepToken, txntest.Hold)
		<-renewal.Fired()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := c.Snapshot(ctx, txn.Hold()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 100*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		renewal.Release()
		takeSnapshot(t, c, txn.Hold()).Release()
	})
}

// A worker token that cannot be read proves nothing: the reader waits for the owner of the
// lock, and does not roll a live transaction back.
func TestUnreadableTokenProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{})
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		var refused atomic.Int64
		reader := env.NewClient(txn.Config{}, refuse(func(c txntest.Call) bool {
			token := c.Step == txntest.StepToken && c.Method == "ReadRows" && c.Row != ""
			if token {
				refused.Add(1)
			}
			return token
		})...)
		s := takeSnapshot(t, reader)
		read := inBackground(func() error { wantValue(t, s, "bob", "3"); return nil })
		advance(3 * time.Second)
		slow.Release()
		if o := <-owner; o.err != nil {
			t.Errorf("commit of a client that is alive: %v", o.err)
		}
		if o := <-read; o.took < 3*time.Second {
			t.Errorf("the read took %v; it must wait for the owner", o.took)
		}
		if refused.Load() == 0 {
			t.Error("the reader did not ask for the token")
		}
	})
}

// If one heartbeat hangs, the client gives it up in time for the next one. Before the
// fix the primary lock expired.
func TestHungHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, LockTTL: 9 * time.Second})
		faults.OnStep(txntest.StepHeartbeat, txntest.Hold)
		owner := holdCommit(t, a, faults)
		advance(10 * time.Second)
		owner.wantAlive(env)
	})
}

// A lock whose owner has no token is live until its ttl ends: a missing token says
// nothing about the owner.
func TestMissingToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{})
		mustSet(t, a, "1", "warm") // writes the token
		synctest.Wait()
		owner := holdCommit(t, a, faults)
		m := bigtable.NewMutation()
		m.DeleteRow()
		if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), "worker/"+admin.Owner(a), m); err != nil {
			t.Fatal(err)
		}
		owner.wantAlive(env)
	})
}
