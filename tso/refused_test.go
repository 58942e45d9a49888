package tso_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// An operation on the oracle's row or on locks returns what it did.
type operation struct {
	name string
	// before prepares the row: in direct mode unless it does more.
	before func(e *tsotest.Emulator)
	call   func(ctx context.Context, e *tsotest.Emulator) (any, error)
	want   any
	// again: a failure that passes is tried again. settles: after a write without an answer, the
	// operation finds out whether it was applied.
	again, settles bool
}

func operations() []operation {
	served := func(e *tsotest.Emulator) { e.SetMode(tso.ModeServed) }
	// leaderDied: nobody has released the lease, so it lasts for some time.
	leaderDied := func(e *tsotest.Emulator) {
		served(e)
		r := row.Open(e.Table("percolator"), "", "", 0)
		s, err := r.Read(e.T.Context())
		if err != nil {
			e.T.Fatal(err)
		}
		s.Served.Released, s.Served.LeaseUs = false, time.Second.Microseconds()
		if ok, err := r.Swap(e.T.Context(), s.Lease, format.Lease{Epoch: s.Lease.Epoch + 1, Nonce: 1}, s.Served); !ok || err != nil {
			e.T.Fatal(ok, err)
		}
		e.Counted()
	}
	mode := func(m tso.Mode) func(context.Context, *tsotest.Emulator) (any, error) {
		return func(ctx context.Context, e *tsotest.Emulator) (any, error) {
			return tso.SetMode(ctx, e.Table("percolator"), tso.RowConfig{}, m)
		}
	}
	advance := func(ctx context.Context, e *tsotest.Emulator) (any, error) {
		return tso.Advance(ctx, e.Table("percolator"), tso.RowConfig{}, tso.FromTime(time.Now().Add(time.Hour)))
	}
	timestamp := func(ctx context.Context, e *tsotest.Emulator) (any, error) {
		ts, err := e.Direct(tso.DirectConfig{}).Timestamp(ctx)
		return ts > tso.FromTime(time.Now().Add(-time.Second)), err
	}
	heldBy := func(owner string) func(e *tsotest.Emulator) {
		return func(e *tsotest.Emulator) {
			if ok, _, err := rowLocks(e.T, e).Acquire(e.T.Context(), "l", owner, time.Minute); !ok || err != nil {
				e.T.Fatal(ok, err)
			}
		}
	}
	expired := func(e *tsotest.Emulator) {
		heldBy("y")(e)
		tsotest.Advance(2 * time.Minute)
	}
	locks := func(f func(ctx context.Context, l *tso.RowLocks) (any, error)) func(context.Context, *tsotest.Emulator) (any, error) {
		return func(ctx context.Context, e *tsotest.Emulator) (any, error) { return f(ctx, rowLocks(e.T, e)) }
	}
	acquire := locks(func(ctx context.Context, l *tso.RowLocks) (any, error) {
		ok, by, err := l.Acquire(ctx, "l", "x", time.Minute)
		return fmt.Sprintf("%t %s", ok, by.Owner), err
	})
	release := locks(func(ctx context.Context, l *tso.RowLocks) (any, error) {
		err := l.Release(ctx, "l", "x")
		return err == nil, err
	})
	holder := locks(func(ctx context.Context, l *tso.RowLocks) (any, error) {
		by, err := l.Holder(ctx, "l")
		return by.Owner, err
	})
	sweep := locks(func(ctx context.Context, l *tso.RowLocks) (any, error) { return l.Sweep(ctx, time.Second) })
	return []operation{
		{name: "first timestamp", before: (*tsotest.Emulator).DeleteRow, call: timestamp, want: true, again: true},
		{name: "timestamp", call: timestamp, want: true, again: true},
		{name: "row", call: func(ctx context.Context, e *tsotest.Emulator) (any, error) {
			s, err := tso.ReadRow(ctx, e.Table("percolator"), tso.RowConfig{})
			return s.Mode, err
		}, want: tso.ModeDirect},
		{name: "to served", call: mode(tso.ModeServed), want: true, settles: true},
		{name: "to direct", before: served, call: mode(tso.ModeDirect), want: true, settles: true},
		{name: "first mode is served", before: (*tsotest.Emulator).DeleteRow, call: mode(tso.ModeServed), want: true, settles: true},
		{name: "first mode is direct", before: (*tsotest.Emulator).DeleteRow, call: mode(tso.ModeDirect), want: true},
		{name: "is served", before: served, call: mode(tso.ModeServed), want: false},
		{name: "advance", call: advance, want: true, settles: true},
		{name: "advance nothing", before: (*tsotest.Emulator).DeleteRow, call: advance, want: true, settles: true},
		{name: "advance in served mode", before: served, call: advance, want: true, settles: true},
		{name: "to direct after a leader died", before: leaderDied, call: mode(tso.ModeDirect), want: true, settles: true},
		{name: "advance after a leader died", before: leaderDied, call: advance, want: true, settles: true},
		{name: "take a lock", call: acquire, want: "true x", settles: true},
		{name: "take an expired lock", before: expired, call: acquire, want: "true x", settles: true},
		{name: "take a held lock", before: heldBy("y"), call: acquire, want: "false y"},
		{name: "renew a lock", before: heldBy("x"), call: acquire, want: "true x", settles: true},
		{name: "release a lock", before: heldBy("x"), call: release, want: true},
		{name: "release another's lock", before: heldBy("y"), call: release, want: true},
		{name: "holder", before: heldBy("y"), call: holder, want: "y"},
		{name: "holder of an expired lock", before: expired, call: holder, want: ""},
		{name: "sweep", before: expired, call: sweep, want: 1},
	}
}

// failures are what happens to one request of an operation.
var failures = []struct {
	name    string
	code    codes.Code
	applied bool // the request takes effect, and the answer is lost
	leaves  bool // the caller's context ends
}{
	{"refused", codes.PermissionDenied, false, false},
	{"lost", codes.Unavailable, false, false},
	{"not answered", codes.Unavailable, true, false},
	{"left", codes.Unavailable, false, true},
}

// TestOperationsFailAtEveryRequest fails one request of each operation, each in turn. The operation
// returns that, and says of nothing that it was done. Called again, it does what it does without the
// failure. If only the answer was lost, an operation that can find out does, and reports the truth. A
// caller who leaves gets the error of its context, and costs no further request.
func TestOperationsFailAtEveryRequest(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			more := true
			for k := 1; more && !t.Failed(); k++ {
				for i := range failures {
					tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) { more = failOne(t, e, op, k, i) })
				}
				if !more && k == 1 {
					t.Error("it sent no request")
				}
			}
		})
	}
}

func failOne(t *testing.T, e *tsotest.Emulator, op operation, k, i int) (fired bool) {
	if _, err := e.Direct(tso.DirectConfig{}).Timestamp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if op.before != nil {
		op.before(e)
	}
	state := func() string {
		s, err := tso.ReadRow(t.Context(), e.Table("percolator"), tso.RowConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%+v", s)
	}
	fail, before := failures[i], state()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var n atomic.Int64
	wrote := false
	e.On(func(request context.Context, method string, call func() (any, error)) (any, error) {
		if n.Add(1) != int64(k) {
			return call()
		}
		fired, wrote = true, method != tsotest.ReadRows
		if fail.applied {
			_, _ = call()
		}
		if fail.leaves {
			leave()
			<-request.Done() // the client knows
		}
		return nil, status.Error(fail.code, "injected")
	})
	got, err := op.call(ctx, e)
	synctest.Wait()
	e.On(nil)
	passes := fail.code == codes.Unavailable && !fail.leaves && (op.again || fail.applied && op.settles && wrote)
	done := err == nil && got == op.want
	switch {
	case (!fired || passes) && !done:
		t.Errorf("request %d, %s: %v, %v; want %v", k, fail.name, got, err, op.want)
	case !fired || passes:
		return fired
	case fail.leaves:
		if !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled || n.Load() != int64(k) {
			t.Errorf("the caller left at request %d: %v, %v, after %d requests", k, got, err, n.Load())
		}
	case fail.code == codes.Unavailable && done: // tried again
		return true
	case status.Code(err) != fail.code:
		t.Errorf("request %d, %s: %v, %v", k, fail.name, got, err)
	}
	if err != nil && got == op.want && got != false && got != "" {
		t.Errorf("request %d, %s, and the result is %v", k, fail.name, got)
	}
	if got, err := op.call(t.Context(), e); err != nil || !(fail.applied && wrote) && got != op.want && state() == before {
		t.Errorf("again after request %d, %s: %v, %v; want %v", k, fail.name, got, err, op.want)
	}
	return fired
}

// TestModeBesideAnotherClient: another client takes a timestamp, or advances the oracle, before one
// request of a change of the mode, each in turn. If SetMode reports a change, the mode is the new one;
// otherwise the row is as the other client left it, and SetMode says so.
func TestModeBesideAnotherClient(t *testing.T) {
	for _, mode := range []tso.Mode{tso.ModeServed, tso.ModeDirect} {
		for k, more := 1, true; more && !t.Failed(); k++ {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				if _, err := e.Direct(tso.DirectConfig{}).Timestamp(t.Context()); err != nil {
					t.Fatal(err)
				}
				if mode == tso.ModeDirect {
					e.SetMode(tso.ModeServed)
				}
				n, inside := 0, false
				e.On(func(_ context.Context, _ string, call func() (any, error)) (any, error) {
					if inside {
						return call()
					}
					if n++; n == k {
						inside = true
						if _, err := tso.Advance(t.Context(), e.Table("percolator"), tso.RowConfig{}, tso.FromTime(time.Now().Add(time.Hour))); err != nil {
							t.Error(err)
						}
						inside = false
					}
					return call()
				})
				changed, err := tso.SetMode(t.Context(), e.Table("percolator"), tso.RowConfig{}, mode)
				e.On(nil)
				more = n >= k
				s, readErr := tso.ReadRow(t.Context(), e.Table("percolator"), tso.RowConfig{})
				if readErr != nil || changed != (s.Mode == mode) || changed == (err != nil) {
					t.Errorf("to %s, request %d: %t, %v; the mode is %s, %v", mode, k, changed, err, s.Mode, readErr)
				}
			})
		}
	}
}

// TestModeWhileAServerTakesOver: a server takes a released lease just before the change to direct mode. The
// mode stays, and the error names the server.
func TestModeWhileAServerTakesOver(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		e.SetMode(tso.ModeServed)
		r := row.Open(e.Table("percolator"), "", "", 0)
		s, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		e.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
			if method == tsotest.CheckAndMutate {
				once.Do(func() {
					e.On(nil)
					s.Served.Released, s.Served.LeaseUs, s.Served.Leader, s.Served.Address = false, time.Second.Microseconds(), "a", "a:1"
					if ok, err := r.Swap(t.Context(), s.Lease, format.Lease{Epoch: s.Lease.Epoch + 1, Nonce: 1}, s.Served); !ok || err != nil {
						t.Error(ok, err)
					}
				})
			}
			return call()
		})
		changed, err := tso.SetMode(t.Context(), e.Table("percolator"), tso.RowConfig{}, tso.ModeDirect)
		var leads *tso.LeaderError
		if changed || !errors.As(err, &leads) || leads.Leader != "a" || leads.Address != "a:1" {
			t.Errorf("%t, %v", changed, err)
		}
		if s := e.State(); s.Mode != tso.ModeServed || s.Leader != "a" {
			t.Errorf("%+v", s)
		}
	})
}
