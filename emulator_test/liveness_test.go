package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// While one commit wrote the client's token, others waited for it past their
// own contexts; closed by waiting for either in ensure (token.go).
func TestTokenKeepsNobodyWaiting(t *testing.T) {
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
				t.Errorf("commit: %v after %v; it is to do without a token after 5s", o.err, o.took)
			}
		}
	})
}

// One renewal of the token that hung made all live locks of its client dead;
// closed by giving a renewal up in time for the next (renewOnce, token.go).
func TestHungTokenRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{})
		mustSet(t, a, "1", "warm") // writes the token
		synctest.Wait()
		faults.On("renewal", step(txntest.StepToken), txntest.Hold, 1)
		advance(6 * time.Second)
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		s := takeSnapshot(t, env.Client)
		reader := inBackground(func() error { wantValue(t, s, "bob", "3"); return nil })
		synctest.Wait()
		slow.Release()
		if o := <-owner; o.err != nil {
			t.Errorf("commit of a client that is alive: %v", o.err)
		}
		<-reader
	})
}

// One heartbeat that hung let the primary lock expire; closed by giving it up
// in time for the next (heartbeat.go).
func TestHungHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, LockTTL: 9 * time.Second})
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		faults.OnStep(txntest.StepHeartbeat, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		advance(10 * time.Second)
		s := takeSnapshot(t, env.Client)
		reader := inBackground(func() error { wantValue(t, s, "bob", "3"); return nil })
		synctest.Wait()
		slow.Release()
		if o := <-owner; o.err != nil {
			t.Errorf("commit of a client that is alive: %v", o.err)
		}
		<-reader
	})
}

// A lock whose owner has no token is as good as any until its ttl is over: a
// missing token says nothing (stale, token.go).
func TestMissingToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{})
		mustSet(t, a, "1", "warm") // writes the token
		synctest.Wait()
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		m := bigtable.NewMutation()
		m.DeleteRow()
		if err := env.Bigtable.Open(txn.DefaultMetadataTable).Apply(t.Context(), "worker/"+a.Owner(), m); err != nil {
			t.Fatal(err)
		}
		s := takeSnapshot(t, env.Client)
		reader := inBackground(func() error { wantValue(t, s, "bob", "3"); return nil })
		synctest.Wait()
		slow.Release()
		if o := <-owner; o.err != nil {
			t.Errorf("commit of a client without a token: %v", o.err)
		}
		<-reader
	})
}
