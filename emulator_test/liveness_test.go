package emulator_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
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
	tx := beginSet(t, c, "3", "bob")
	tx.Table("a").Set("bob", "f", "before the primary", nil)
	done := commitInBackground(t.Context(), tx)
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
		renewal := faults.On("renewal", step(txntest.StepToken), txntest.Hold, 1)
		owner := holdCommit(t, a, faults)
		advance(6 * time.Second)
		<-renewal.Fired()
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
		owner := holdCommit(t, a, faults)
		advance(6 * time.Second)
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

// A client that could not write its token is alive until its lock's ttl ends.
func TestLockWithoutToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{})
		token := faults.OnStep(txntest.StepToken, txntest.Crash)
		owner := holdCommit(t, a, faults)
		<-token.Fired()
		owner.wantAlive(env)
	})
}

// The lock of a dead owner without a worker token ends within a minute, whatever its LockTTL. Before the fix it
// blocked others for LockTTL, 24 h. A living owner keeps it.
func TestLongLockWithoutToken(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	for name, arm := range map[string]func(*txntest.Faults) txn.Config{
		"without a token":   func(*txntest.Faults) txn.Config { return txn.Config{TokenTTL: -1} },
		"token not written": func(f *txntest.Faults) txn.Config { f.OnStep(txntest.StepToken, txntest.Crash); return txn.Config{} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.CreateTable("a", "f")
				mustSet(t, env.Client, "1", "bob")
				faults := txntest.NewFaults(t)
				cfg := arm(faults)
				cfg.LockTTL, cfg.RPCTimeout = 24*time.Hour, 100*time.Hour
				slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
				ctx, die := context.WithCancel(t.Context())
				defer die()
				ended := commitInBackground(ctx, beginSet(t, env.NewClient(cfg, faults.DialOptions()...), "2", "bob"))
				<-slow.Fired()
				s := takeSnapshot(t, env.Client)
				advance(10 * time.Minute)
				for _, alive := range []bool{true, false} {
					if !alive {
						faults.Kill()
						die()
						<-ended
					}
					ctx, cancel := context.WithTimeout(t.Context(), 61*time.Second)
					v, _, err := s.Table("a").Get(ctx, "bob", "f", "q")
					cancel()
					if alive && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("beside a living owner: %q, %v; want that the read waits", v, err)
					} else if !alive && (string(v) != "1" || err != nil) {
						t.Errorf("after the owner died: %q, %v", v, err)
					}
				}
			})
		})
	}
}

// The token of a client that died is removed after an hour, and that of a closed client at once.
// From then on nobody waits for its locks. Before the fix they blocked others for their ttl.
func TestRemovedToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, _, _ := newFaultyClient(t, txn.Config{})
		leaveLocksOn(t, env, txn.Config{LockTTL: 24 * time.Hour}, txntest.StepCommit, "bob", "joe")
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil {
				t.Fatal(err)
			}
			m := bigtable.NewMutation()
			m.DeleteRow()
			if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), "worker/"+l.Owner, m); err != nil {
				t.Fatal(err)
			}
			if s, err := admin.ReadOwner(t.Context(), env.Client, l.Owner, l.StartTS); err != nil || s.State != admin.OwnerEnded {
				t.Errorf("the owner of %v: %+v, %v", l.Cell, s, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, ok, err := takeSnapshot(t, env.Client).Table("a").Get(ctx, "joe", "f", "q"); ok || err != nil {
			t.Errorf("the read waited: %t, %v", ok, err)
		}
	})
}

// TestCommitDuringAHeartbeat: a commit does not wait for a heartbeat that hangs, and none follows.
func TestCommitDuringAHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, LockTTL: 10 * time.Second})
		commit := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob", "joe"))
		<-commit.Fired()
		hung := faults.OnStep(txntest.StepHeartbeat, txntest.Hold)
		<-hung.Fired()
		synctest.Wait()
		began := time.Now()
		commit.Release()
		if o := <-owner; o.err != nil || time.Since(began) != 0 {
			t.Errorf("commit: %v, %v after its answer", o.err, time.Since(began))
		}
		advance(time.Minute)
		if n := faults.Count()[txntest.StepHeartbeat]; n != 1 {
			t.Errorf("%d heartbeats, want one", n)
		}
	})
}

// After the commit point there is no lock to extend, although the commit may still take long.
func TestNoHeartbeatAfterTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, SyncSecondaries: true})
		slow := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob", "joe"))
		<-slow.Fired()
		advance(8 * time.Second)
		slow.Release()
		if o := <-owner; o.err != nil || o.took != 8*time.Second {
			t.Errorf("commit: %v after %v, want 8s", o.err, o.took)
		}
		if n := faults.Count()[txntest.StepHeartbeat]; n != 0 {
			t.Errorf("%d heartbeats, want none", n)
		}
	})
}

// If a client cannot write its token, a snapshot with Hold fails until the client tries again
// and succeeds: nothing would renew the token.
func TestHoldWithoutAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := newFaultyClient(t, txn.Config{TokenTTL: 5 * time.Second})
		faults.OnStep(txntest.StepToken, txntest.Crash)
		for range 2 {
			if _, err := c.Snapshot(t.Context(), txn.Hold()); err == nil || !strings.Contains(err.Error(), "try again in 5s") {
				t.Errorf("a snapshot without a token: %v", err)
			}
		}
		if n := faults.Count()[txntest.StepToken]; n != 1 {
			t.Errorf("the token was sent %d times, want once", n)
		}
		advance(5 * time.Second)
		takeSnapshot(t, c, txn.Hold()).Release()
	})
}

// A worker announces its observers with the first write of the client's token. If that fails,
// the worker runs nevertheless, and the client tries again later.
func TestAnnounceWritesTheTokenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newFaultyClient(t, txn.Config{TokenTTL: 5 * time.Second})
		if err := changes.Announce(t.Context(), c, []string{"o"}); err != nil {
			t.Fatal(err)
		}
		workers, err := admin.Workers(t.Context(), env.Client)
		if err != nil || len(workers) != 1 || len(workers[0].Observers) != 1 {
			t.Errorf("workers: %+v, %v; want one with its observer", workers, err)
		}
		written := 0
		for _, call := range faults.Calls() {
			if call.Step == txntest.StepToken && call.Method == "MutateRows" {
				written++
			}
		}
		if written != 1 {
			t.Errorf("the token was written %d times, want once", written)
		}

		broken := env.NewClient(txn.Config{TokenTTL: 5 * time.Second}, refuse(step(txntest.StepToken))...)
		if err := changes.Announce(t.Context(), broken, []string{"o"}); err != nil {
			t.Errorf("a client that cannot write its token: %v", err)
		}
	})
}

// Close removes the token only when its renewal has ended. Otherwise a renewal that comes late
// would write the token again, and the client would look alive.
func TestCloseWaitsForTheRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		renewal, release := make(chan struct{}), make(chan struct{})
		var tokens atomic.Int32
		c := env.NewClient(txn.Config{}, txntest.Intercept(func(call txntest.Call) error {
			if call.Step == txntest.StepToken && call.Row != "" {
				if tokens.Add(1) == 2 {
					close(renewal)
					<-release
				}
			}
			return nil
		})...)
		mustSet(t, c, "1", "bob")
		<-renewal
		closed := inBackground(func() error { return c.Close(t.Context()) })
		synctest.Wait()
		if n := tokens.Load(); n != 2 {
			t.Errorf("%d writes of the token before its renewal has ended, want 2", n)
		}
		close(release)
		if o := <-closed; o.err != nil {
			t.Error(o.err)
		}
		if n := tokens.Load(); n != 3 {
			t.Errorf("%d writes of the token, want three: with the removal", n)
		}
		if workers, err := admin.Workers(t.Context(), env.Client); err != nil || len(workers) > 0 {
			t.Errorf("left: %v, %v", workers, err)
		}
	})
}

// Close waits for the first write of the token, which no commit waits for any more, and
// removes the token. Nothing writes it again.
func TestCloseWaitsForTheFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newFaultyClient(t, txn.Config{TokenTTL: time.Minute})
		first := faults.OnStep(txntest.StepToken, txntest.Hold)
		ctx, cancel := context.WithCancel(t.Context())
		commit := commitInBackground(ctx, beginSet(t, c, "1", "bob"))
		<-first.Fired()
		cancel()
		if o := <-commit; !errors.Is(o.err, context.Canceled) {
			t.Errorf("commit: %v", o.err)
		}
		closed := inBackground(func() error { return c.Close(t.Context()) })
		synctest.Wait()
		first.Release()
		if o := <-closed; o.err != nil {
			t.Error(o.err)
		}
		advance(time.Hour)
		if n := faults.Count()[txntest.StepToken]; n != 2 {
			t.Errorf("%d requests for the token, want its write and its removal", n)
		}
		if workers, err := admin.Workers(t.Context(), env.Client); err != nil || len(workers) > 0 {
			t.Errorf("left: %v, %v", workers, err)
		}
	})
}

// A client removes the tokens of clients that died long ago, all of them, and its own when it
// closes.
func TestTokensAreRemoved(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		owners := func() (names []string) {
			workers, err := admin.Workers(t.Context(), env.Client)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range workers {
				names = append(names, w.Owner)
			}
			return names
		}
		for range 3 {
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...)
			mustSet(t, c, "1", "bob")
			synctest.Wait()
			faults.Kill()
		}
		if n := len(owners()); n != 3 {
			t.Errorf("%d tokens, want three", n)
		}
		advance(2 * time.Hour)
		c := env.NewClient(txn.Config{})
		mustSet(t, c, "2", "bob")
		synctest.Wait()
		if got := owners(); len(got) != 1 || got[0] != admin.Owner(c) {
			t.Errorf("tokens %q, want only %q", got, admin.Owner(c))
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := owners(); len(got) != 0 {
			t.Errorf("tokens %q after Close", got)
		}
	})
}

// An idle client costs at most two requests a minute, and none of the oracle. Its token stays
// fresh. Before the fix it took a timestamp and wrote its token 36 times a minute, and read the
// safe point six times. When it commits again, its token is short again, so other clients notice
// soon if it dies.
func TestIdleClient(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		const minutes, ttl = 10, 5 * time.Second
		env, c, faults := newFaultyClient(t, txn.Config{TokenTTL: ttl})
		token := func() (left time.Duration) {
			workers, err := admin.Workers(t.Context(), env.Client)
			if err != nil || len(workers) != 1 || workers[0].State != admin.OwnerFresh {
				t.Fatalf("workers: %+v, %v; want one that is alive", workers, err)
			}
			return time.Until(workers[0].ExpiresTS.Time())
		}
		mustSet(t, c, "1", "bob")
		advance(time.Minute)
		faults.Reset()
		asked := c.Stats().Timestamps
		for range minutes * 60 {
			advance(time.Second)
			token()
		}
		if n := len(faults.Calls()); n == 0 || n > 2*minutes {
			t.Errorf("%d requests in %d minutes", n, minutes)
		}
		if n := c.Stats().Timestamps - asked; n > 0 {
			t.Errorf("%d timestamps", n)
		}
		owner := holdCommit(t, c, faults)
		synctest.Wait()
		if left := token(); left > ttl+time.Millisecond {
			t.Errorf("a client that commits has a token for %v, want at most %v", left, ttl)
		}
		advance(15 * time.Second)
		if left := token(); left > ttl+time.Millisecond {
			t.Errorf("a client whose commit takes long has a token for %v, want at most %v", left, ttl)
		}
		owner.hold.Release()
		if o := <-owner.done; o.err != nil {
			t.Error(o.err)
		}
	})
}

// A client writes its token as often as its transactions need it: three times in TokenTTL if it
// always commits, and at most twice for a commit now and then. Before the fix it was three times in TokenTTL
// until TokenTTL after the last commit. If the client dies after a commit began, its token soon goes stale.
func TestTokenWrites(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	const ttl = 5 * time.Second
	for _, tt := range []struct {
		every   time.Duration // between commits
		minutes int
		most    int // writes a minute
	}{
		{time.Second, 1, 37},
		{2 * time.Second, 2, 31},
		{5 * time.Second, 3, 25},   // before the fix: 36
		{10 * time.Second, 10, 13}, // before the fix: 24
	} {
		t.Run(tt.every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := newFaultyClient(t, txn.Config{TokenTTL: ttl})
				mustSet(t, c, "1", "bob") // writes the token
				advance(time.Minute)
				faults.Reset()
				for began := time.Now(); time.Since(began) < time.Duration(tt.minutes)*time.Minute; advance(tt.every) {
					mustSet(t, c, "1", "bob")
					synctest.Wait()
					workers, err := admin.Workers(t.Context(), env.Client)
					if err != nil || len(workers) != 1 {
						t.Fatalf("workers: %+v, %v", workers, err)
					}
					if left := time.Until(workers[0].ExpiresTS.Time()); left < 2*ttl/3 || left > ttl+time.Millisecond {
						t.Errorf("after %v the token of a client that commits lasts for %v, want at most %v", time.Since(began), left, ttl)
					}
				}
				if n := faults.Count()[txntest.StepToken]; n > tt.minutes*tt.most || n < tt.minutes {
					t.Errorf("%d writes of the token in %d minutes, want at most %d", n, tt.minutes, tt.minutes*tt.most)
				}
			})
		})
	}
}
