package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
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

// A commit that Bigtable refuses leaves nothing. Before the fix its locks stayed, and readers
// waited for their ttl. If the request took effect although it was refused, nothing is lost.
func TestRefusedCommitIsRolledBack(t *testing.T) {
	for _, tookEffect := range []bool{false, true} {
		t.Run(fmt.Sprintf("took effect=%v", tookEffect), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refused := 0
				opt := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if txntest.Classify(method, req.(proto.Message)).Step != txntest.StepCommit {
						return invoke(ctx, method, req, reply, cc, opts...)
					}
					if refused++; tookEffect {
						if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
							return err
						}
					}
					return status.Error(codes.InvalidArgument, "injected: refused")
				})
				env, a, _ := newFaultyClient(t, txn.Config{TokenTTL: -1}, opt)
				err := tryUpdate(t.Context(), a, "1", "bob", "joe", "tom")
				if status.Code(err) != codes.InvalidArgument || errors.Is(err, txn.ErrUndetermined) || refused != 1 {
					t.Errorf("%d commits were sent; error %v", refused, err)
				}
				want := ""
				if tookEffect {
					want = "1"
				} else {
					wantNoLocks(t, env.Client)
				}
				began := time.Now()
				s := takeSnapshot(t, env.Client)
				for _, row := range []string{"bob", "joe", "tom"} {
					wantValue(t, s, row, want)
				}
				if waited := time.Since(began); waited > 0 {
					t.Errorf("a reader waited for %v", waited)
				}
			})
		})
	}
}

// If Bigtable refuses the rollback after a refused commit, Commit returns at once. Readers
// remove the locks after their ttl.
func TestRefusedRollBackIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1}, refuse(func(c txntest.Call) bool {
			return c.Step == txntest.StepCommit || c.Step == txntest.StepRollPrimary
		})...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		o := <-inBackground(func() error { return tryUpdate(ctx, a, "1", "bob", "joe") })
		if status.Code(o.err) != codes.PermissionDenied || errors.Is(o.err, txn.ErrUndetermined) || o.took > 0 {
			t.Errorf("%v after %v; want the refusal, at once", o.err, o.took)
		}
		if n := faults.Count(); n[txntest.StepCommit] != 1 || n[txntest.StepRollPrimary] != 1 || n[txntest.StepRollBackCell] != 0 {
			t.Errorf("requests: %v; want one commit, one rollback of the primary, and none of the other cell", n)
		}
		advance(time.Minute)
		wantValue(t, takeSnapshot(t, env.Client), "joe", "")
	})
}

// If Bigtable does not answer the rollback of a refused commit either, Commit returns when the
// locks have expired: from then on any reader rolls back.
func TestRefusedCommitBesideUnansweredRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second, LockTTL: 10 * time.Second}, refuse(step(txntest.StepCommit))...)
		faults.On("rollback", step(txntest.StepRollPrimary), txntest.Crash, 0)
		update := inBackground(func() error { return tryUpdate(t.Context(), a, "1", "bob", "joe") })
		advance(time.Minute)
		select {
		case o := <-update:
			if status.Code(o.err) != codes.PermissionDenied || o.took > 12*time.Second {
				t.Errorf("%v after %v", o.err, o.took)
			}
		default:
			t.Error("the update has not returned after a minute")
		}
		wantValue(t, takeSnapshot(t, env.Client), "bob", "")
	})
}

// leaveLocks makes a client die before a step of a transaction that sets bob and joe,
// and waits until its locks have expired.
func leaveLocks(t *testing.T, env *txntest.Env, died txntest.Step) {
	t.Helper()
	leaveLocksOn(t, env, txn.Config{TokenTTL: -1}, died, "bob", "joe")
	advance(time.Minute)
}

// leaveLocksOn makes a client die before a step of a transaction that sets rows.
func leaveLocksOn(t *testing.T, env *txntest.Env, cfg txn.Config, died txntest.Step, rows ...string) {
	t.Helper()
	faults := txntest.NewFaults(t)
	rule := faults.OnStep(died, txntest.Crash)
	victim := env.NewClient(cfg, faults.DialOptions()...)
	ctx, cancel := context.WithCancel(t.Context())
	owner := commitInBackground(ctx, beginSet(t, victim, "9", rows...))
	select {
	case <-rule.Fired():
	case o := <-owner:
		synctest.Wait() // secondaries are committed in the background
		select {
		case <-rule.Fired():
		default:
			t.Fatalf("the commit ended (%v) without a request of step %q", o.err, died)
		}
		owner <- o
	}
	faults.Kill()
	cancel()
	<-owner
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

// Rows of two tables that have the same key are two rows: the one that has the primary cell is
// committed first, wherever its table comes in the order of names.
func TestSameRowOfTwoTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		env.CreateTable("b", "f")
		for i, order := range [][]string{{"a", "b"}, {"b", "a"}} {
			tx := begin(t, c)
			for _, table := range order {
				tx.Table(table).Set("bob", "f", "q", []byte{byte('0' + i)})
			}
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			s := takeSnapshot(t, env.Client)
			for _, table := range order {
				if v, _, err := s.Table(table).Get(t.Context(), "bob", "f", "q"); err != nil || string(v) != string(rune('0'+i)) {
					t.Errorf("table %s: %q, %v", table, v, err)
				}
			}
		}
		if n := faults.Count(); n[txntest.StepPrewrite] != 4 || n[txntest.StepCommit] != 2 || n[txntest.StepSecondaries] != 2 {
			t.Errorf("requests: %v", n)
		}
	})
}

// A numberedOracle answers with the given timestamps, one after the other.
type numberedOracle struct{ answers []tso.Timestamp }

func (o *numberedOracle) Timestamp(context.Context) (tso.Timestamp, error) {
	ts := o.answers[0]
	o.answers = o.answers[1:]
	return ts, nil
}

// An oracle of the user's own that counts from 1, or that runs out, is refused. Data below
// tso.Min counts as older than every transaction. So before the fix a snapshot at 1 showed
// what was committed later.
func TestTimestampsOutOfRangeAreRefused(t *testing.T) {
	const good = 1795152600000000
	env := txntest.New(t, txntest.WithoutTransport())
	env.CreateTable("a", "f")
	for _, bad := range []tso.Timestamp{-1, 0, 1, tso.Min - 1, tso.Max + 1, math.MaxInt64} {
		c := env.NewClient(txn.Config{TokenTTL: -1, Oracle: &numberedOracle{[]tso.Timestamp{bad, bad, good, bad, tso.Min, tso.Max}}})
		_, snapshot := c.Snapshot(t.Context())
		_, begun := c.Begin(t.Context())
		tx := begin(t, c)
		set(tx, "1", "bob")
		_, commit := tx.Commit(t.Context())
		for _, err := range []error{snapshot, begun, commit} {
			if !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("the timestamp oracle answered %d", bad)) {
				t.Errorf("%d: %v", bad, err)
			}
		}
		// The bounds themselves are right. Nothing was committed.
		wantValue(t, takeSnapshot(t, c), "bob", "")
		wantValue(t, takeSnapshot(t, c), "bob", "")
	}
}
