package tso_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

func rowLocks(t *testing.T, e *tsotest.Emulator) *tso.RowLocks {
	t.Helper()
	return tso.NewRowLocks(e.Table("percolator"), e.Direct(tso.DirectConfig{}), tso.RowLocksConfig{})
}

func TestLocks(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		l := rowLocks(t, e)
		ctx := t.Context()
		acquire := func(name, owner string, want bool, holder string) {
			t.Helper()
			ok, by, err := l.Acquire(ctx, name, owner, 10*time.Second)
			if err != nil || ok != want || by.Owner != holder || by.Left <= 0 || by.Left > 10*time.Second {
				t.Errorf("Acquire(%q, %q): %t, %v, %v", name, owner, ok, by, err)
			}
		}
		holder := func(name, want string) {
			t.Helper()
			by, err := l.Holder(ctx, name)
			if err != nil || by.Owner != want || (want == "") != (by.Left == 0) || by.Left < 0 || by.Left > 10*time.Second {
				t.Errorf("Holder(%q): %v, %v", name, by, err)
			}
		}
		holder("row/1", "")
		acquire("row/1", "x", true, "x")
		acquire("row/1", "y", false, "x")
		acquire("row/2", "y", true, "y")
		holder("row/1", "x")
		tsotest.Advance(8 * time.Second)
		acquire("row/1", "x", true, "x") // renewed
		tsotest.Advance(8 * time.Second)
		acquire("row/1", "y", false, "x")
		holder("row/2", "") // ran out
		tsotest.Advance(3 * time.Second)
		acquire("row/1", "y", true, "y")
		if err := l.Release(ctx, "row/1", "x"); err != nil { // not its own any more
			t.Error(err)
		}
		holder("row/1", "y")
		if err := l.Release(ctx, "row/1", "y"); err != nil {
			t.Error(err)
		}
		holder("row/1", "")
		acquire("any bytes \x00\xff/", "\x01", true, "\x01")
		x, y := strings.Repeat("x", 2<<10), strings.Repeat("y", 2<<10)
		for _, tt := range []struct {
			name, owner string
			ttl         time.Duration
			says        string
		}{
			{x, y, 10 * time.Minute, ""}, {"", "x", 1, "lock name of 0 bytes"}, {x + "x", "x", 1, "lock name of 2049 bytes"}, {"x", "", 1, "lock owner of 0 bytes"},
			{"x", y + "y", 1, "lock owner of 2049 bytes"}, {"x", "x", 0, "lock ttl of 0s"}, {"x", "x", 10*time.Minute + 1, "lock ttl of 10m0.000000001s"},
		} {
			if _, _, err := l.Acquire(ctx, tt.name, tt.owner, tt.ttl); (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%d, %d, %v: %v, want %q", len(tt.name), len(tt.owner), tt.ttl, err, tt.says)
			}
		}
		if err := l.Release(ctx, "", "x"); err == nil {
			t.Error("released a lock without a name")
		}
		if _, err := l.Holder(ctx, ""); err == nil {
			t.Error("a lock without a name has a holder")
		}
	})
}

// TestLocksAfterTheirContext: a call whose context has ended changes nothing, and says so.
func TestLocksAfterTheirContext(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		l := rowLocks(t, e)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		isEnded := func(err error) bool { return errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled }
		if ok, by, err := l.Acquire(ended, "l", "x", time.Minute); ok || by != (tso.Holder{}) || !isEnded(err) {
			t.Errorf("acquire: %t, %v, %v", ok, by, err)
		}
		if by, err := l.Holder(t.Context(), "l"); by.Owner != "" || err != nil {
			t.Errorf("the lock is held by %v, %v", by, err)
		}
		if _, err := l.Holder(ended, "l"); !isEnded(err) {
			t.Errorf("holder: %v", err)
		}
		if err := l.Release(ended, "l", "x"); !isEnded(err) {
			t.Errorf("release: %v", err)
		}
	})
}

func TestLocksOneWinner(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		l := rowLocks(t, e)
		for round := range 5 {
			var won atomic.Int32
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					ok, _, err := l.Acquire(t.Context(), fmt.Sprint("r", round), fmt.Sprint("o", i), time.Minute)
					if err != nil {
						t.Error(err)
					}
					if ok {
						won.Add(1)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Errorf("%d winners", won.Load())
			}
		}
	})
}

func TestRowLocksFaults(t *testing.T) {
	for _, fault := range tsotest.Faults {
		t.Run(fault.Name, func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				l := rowLocks(t, e)
				if _, _, err := l.Acquire(t.Context(), "warm", "x", time.Second); err != nil {
					t.Fatal(err)
				}
				fired := 0
				e.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
					// The oracle compares and sets too: leave its request alone.
					if m == tsotest.CheckAndMutate {
						fired++
						if fired == 2 {
							return fault.Do(call)
						}
					}
					return call()
				})
				ok, by, err := l.Acquire(t.Context(), "l", "x", time.Minute)
				if err != nil || !ok || by.Owner != "x" || fired < 2 {
					t.Errorf("%t, %v, %v, fired %d", ok, by, err, fired)
				}
				if ok, by, err := l.Acquire(t.Context(), "l", "y", time.Minute); err != nil || ok || by.Owner != "x" {
					t.Errorf("another: %t, %v, %v", ok, by, err)
				}
			})
		})
	}
}

func TestRowLocksSweep(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		l := rowLocks(t, e)
		for i := range 5 {
			if _, _, err := l.Acquire(t.Context(), fmt.Sprint(i), "x", time.Duration(i+1)*time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		tsotest.Advance(3*time.Minute + 30*time.Second)
		if n, err := l.Sweep(t.Context(), time.Minute); err != nil || n != 2 {
			t.Errorf("swept %d, %v", n, err)
		}
		if by, err := l.Holder(t.Context(), "4"); err != nil || by.Owner != "x" {
			t.Error(by, err)
		}
		e.On(func(context.Context, string, func() (any, error)) (any, error) {
			return nil, status.Error(codes.PermissionDenied, "no")
		})
		if _, err := l.Sweep(t.Context(), 0); err == nil {
			t.Error("no error")
		}
	})
}

// askedOracle counts how often it is asked, and may fail.
type askedOracle struct {
	asked int
	err   error
}

func (o *askedOracle) Timestamp(context.Context) (tso.Timestamp, error) {
	o.asked++
	if o.err != nil {
		return 0, o.err
	}
	return tsotest.Now(), nil
}

// TestRowLocksRequests: with which requests and timestamps row locks answer, also while other clients change
// the lock, and if requests fail.
func TestRowLocksRequests(t *testing.T) {
	long.RacedAtNight(t)
	cell := func(version byte, owner string, left time.Duration) []byte {
		return append(binary.BigEndian.AppendUint64([]byte{version}, uint64(tsotest.Now())+uint64(left.Microseconds())), owner...)
	}
	acquire := func(ctx context.Context, l *tso.RowLocks) (string, error) {
		ok, by, err := l.Acquire(ctx, "l", "x", time.Minute)
		return fmt.Sprint(ok, by.Owner, by.Left), err
	}
	release := func(ctx context.Context, l *tso.RowLocks) (string, error) { return "", l.Release(ctx, "l", "x") }
	holder := func(ctx context.Context, l *tso.RowLocks) (string, error) {
		by, err := l.Holder(ctx, "l")
		return fmt.Sprint(by.Owner, by.Left), err
	}
	sweep := func(ctx context.Context, l *tso.RowLocks) (string, error) {
		n, err := l.Sweep(ctx, time.Second)
		return fmt.Sprint(n), err
	}
	stopped := errors.New("the oracle is stopped")
	for _, tt := range []struct {
		name    string
		call    func(context.Context, *tso.RowLocks) (string, error)
		owner   string        // of the lock, if there is one
		left    time.Duration // until it expires
		version byte          // of its cell, if not 1
		taken   time.Duration // before each write another client takes the lock for this long
		lost    int           // the first writes are lost
		late    bool          // only their answers are
		fails   int           // the n-th read is refused
		oracle  error
		want    string
		errs    []string
		rpcs    string
		asked   int
	}{
		{name: "take", call: acquire, want: "truex1m0s", rpcs: "ReadRows:1 CheckAndMutateRow:1", asked: 1},
		{name: "take an unknown format", call: acquire, owner: "y", left: time.Hour, version: 2, want: "truex1m0s", rpcs: "ReadRows:1 CheckAndMutateRow:1", asked: 1},
		{name: "take another's", call: acquire, owner: "y", left: time.Hour, want: "falsey1h0m0s", rpcs: "ReadRows:1", asked: 1},
		{name: "take what other clients take", call: acquire, taken: -1, want: "false0s", errs: []string{"during each of 3 attempts"}, rpcs: "ReadRows:3 CheckAndMutateRow:3", asked: 1},
		{name: "take, and another is first", call: acquire, taken: time.Second, want: "falsey11s", rpcs: "ReadRows:2 CheckAndMutateRow:1", asked: 1},
		{name: "take, and a write is lost", call: acquire, lost: 1, want: "truex1m0s", rpcs: "ReadRows:2 CheckAndMutateRow:2", asked: 1},
		{name: "take, and an answer is lost", call: acquire, lost: 1, late: true, want: "truex1m0s", rpcs: "ReadRows:2 CheckAndMutateRow:2", asked: 1},
		{name: "take, and all writes are lost", call: acquire, lost: 3, want: "false0s", errs: []string{"write is lost"}, rpcs: "ReadRows:3 CheckAndMutateRow:3", asked: 1},
		{name: "take, and a write is lost, and a read", call: acquire, lost: 1, fails: 2, want: "false0s", errs: []string{"write is lost", "read is refused"}, rpcs: "ReadRows:2 CheckAndMutateRow:1", asked: 1},
		{name: "take without an oracle", call: acquire, oracle: stopped, want: "false0s", errs: []string{"stopped"}, asked: 1},
		{name: "release", call: release, owner: "x", left: time.Hour, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "release another's", call: release, owner: "y", left: time.Hour, rpcs: "ReadRows:1"},
		{name: "release none", call: release, rpcs: "ReadRows:1"},
		{name: "release, and a read fails", call: release, owner: "x", left: time.Hour, fails: 1, errs: []string{"read is refused"}, rpcs: "ReadRows:1"},
		{name: "holder", call: holder, owner: "y", left: time.Hour, want: "y1h0m0s", rpcs: "ReadRows:1", asked: 1},
		{name: "no holder", call: holder, want: "0s", rpcs: "ReadRows:1"},
		{name: "holder of an unknown format", call: holder, owner: "y", left: time.Hour, version: 2, want: "0s", rpcs: "ReadRows:1", asked: 1},
		{name: "holder without an oracle", call: holder, owner: "y", left: time.Hour, oracle: stopped, want: "0s", errs: []string{"stopped"}, rpcs: "ReadRows:1", asked: 1},
		{name: "holder, and a read fails", call: holder, owner: "y", left: time.Hour, fails: 1, want: "0s", errs: []string{"read is refused"}, rpcs: "ReadRows:1"},
		{name: "sweep", call: sweep, owner: "y", left: -time.Second, want: "1", rpcs: "ReadRows:1 CheckAndMutateRow:1", asked: 1},
		{name: "sweep too early", call: sweep, owner: "y", left: -time.Second + time.Microsecond, want: "0", rpcs: "ReadRows:1", asked: 1},
		{name: "sweep what another takes", call: sweep, owner: "y", left: -time.Minute, taken: time.Hour, want: "0", rpcs: "ReadRows:1 CheckAndMutateRow:1", asked: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				table, oracle := e.Table("percolator"), &askedOracle{err: tt.oracle}
				inside := false
				set := func(value []byte) {
					inside = true
					defer func() { inside = false }()
					m := bigtable.NewMutation()
					m.Set("tso", "lock", format.CellServed, value)
					if err := table.Apply(t.Context(), "lock/l", m); err != nil {
						t.Error(err)
					}
				}
				if tt.owner != "" {
					set(cell(max(tt.version, 1), tt.owner, tt.left))
				}
				sent := map[string]int{}
				e.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
					if inside {
						return call()
					}
					sent[method]++
					switch n := sent[method]; {
					case method == tsotest.ReadRows && n == tt.fails:
						return nil, status.Error(codes.PermissionDenied, "the read is refused")
					case method == tsotest.CheckAndMutate && tt.taken != 0:
						set(cell(1, fmt.Sprint("y", n), tt.taken))
					case method == tsotest.CheckAndMutate && n <= tt.lost:
						if tt.late {
							_, _ = call()
						}
						return nil, status.Error(codes.Unavailable, "the write is lost")
					}
					return call()
				})
				got, err := tt.call(t.Context(), tso.NewRowLocks(table, oracle, tso.RowLocksConfig{}))
				e.On(nil)
				if rpcs := requests(sent); got != tt.want || (err == nil) != (tt.errs == nil) || rpcs != tt.rpcs || oracle.asked != tt.asked {
					t.Errorf("%s, %v with %s and %d timestamps; want %s with %s and %d", got, err, rpcs, oracle.asked, tt.want, tt.rpcs, tt.asked)
				}
				for _, text := range tt.errs {
					if err != nil && !strings.Contains(err.Error(), text) {
						t.Errorf("%v; want %q", err, text)
					}
				}
			})
		})
	}
}
