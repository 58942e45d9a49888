package tso_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A fault happens at the first request of a method.
type fault struct {
	method string
	// before runs before the request. If code is not OK, the request fails.
	before func(e *tsotest.Emulator)
	code   codes.Code
	leaves bool // the caller's context ends
	// reads says that each read fails after it, with an error that passes.
	reads bool
	// takes is how long the request takes.
	takes time.Duration
}

// TestReserve: what a reservation does with the row, what it returns, and what the process knows of the row
// then, for each state of both.
func TestReserve(t *testing.T) {
	long.RacedAtNight(t)
	type known = tso.ReserverState
	const (
		advance = tsotest.CheckAndMutate
		add     = tsotest.ReadModifyWrite
		gone    = tso.Timestamp(0)
		minute  = tso.Timestamp(60e6)
		adds    = 16
	)
	// Timestamps below are from the present, in microseconds, unless they are absolute.
	var now tso.Timestamp
	tsotest.Bubble(t, func(*testing.T, *tsotest.Emulator) { now = tsotest.Now() })
	put := func(v tso.Timestamp) func(e *tsotest.Emulator) {
		return func(e *tsotest.Emulator) { e.PutInt(int64(v)) }
	}
	served := func(e *tsotest.Emulator) { e.Put([]byte("served")) }
	remove := (*tsotest.Emulator).DeleteRow
	isCode := func(c codes.Code) func(error) bool {
		return func(err error) bool { return status.Code(err) == c && !errors.Is(err, tso.ErrMode) }
	}
	is := func(target error) func(error) bool {
		return func(err error) bool { return errors.Is(err, target) }
	}
	corrupt := func(v tso.Timestamp, reason string) func(error) bool {
		return func(err error) bool {
			var c *tso.CorruptError
			return errors.As(err, &c) && c.Value == int64(v) && strings.Contains(c.Reason, reason)
		}
	}
	for _, tt := range []struct {
		name  string
		row   tso.Timestamp
		off   time.Duration // of the clock
		knows known
		n     int64
		at    fault
		want  tso.Timestamp
		err   func(error) bool
		after known
		rpcs  string
	}{
		{name: "no row", row: gone, n: 3, want: now + 2, after: known{Seen: true, Known: true, Value: now + 2, High: now + 2}, rpcs: "ReadRows:2 MutateRow:1 CheckAndMutateRow:2"},
		{name: "no row, and the clock is behind", row: gone, knows: known{High: now + 500}, n: 1, want: now + 501, after: known{Seen: true, Known: true, Value: now + 501, High: now + 501}, rpcs: "ReadRows:1 CheckAndMutateRow:2"},
		{name: "another initializes it", row: gone, n: 1, at: fault{method: advance, before: put(now + 7)}, want: now + 8, after: known{Seen: true, Known: true, Value: now + 8, High: now + 8}, rpcs: "ReadRows:2 MutateRow:1 CheckAndMutateRow:1 ReadModifyWriteRow:1"},
		{name: "may not initialize it", row: gone, n: 1, at: fault{method: advance, code: codes.PermissionDenied}, err: isCode(codes.PermissionDenied), rpcs: "ReadRows:2 MutateRow:1 CheckAndMutateRow:1"},
		{name: "cannot read it", row: now, n: 1, at: fault{method: tsotest.ReadRows, code: codes.PermissionDenied}, err: isCode(codes.PermissionDenied), rpcs: "ReadRows:1"},
		{name: "first of a process", row: now - 100, n: 2, want: now + 1, after: known{Seen: true, Known: true, Value: now + 1, High: now + 1}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "first of a process, ahead of the clock", row: now + 100, n: 2, want: now + 102, after: known{Seen: true, Known: true, Value: now + 102, High: now + 102}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "at what was handed out", row: now - 100, knows: known{High: now - 100}, n: 1, want: now, after: known{Seen: true, Known: true, Value: now, High: now}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "below what was handed out", row: now - 100, knows: known{High: now - 99}, n: 1, err: corrupt(now-100, "handed out already"), after: known{High: now - 99}, rpcs: "ReadRows:1"},

		{name: "alone", row: now - 100, knows: known{Seen: true, Known: true, Value: now - 100}, n: 1, want: now, after: known{Seen: true, Known: true, Value: now, High: now}, rpcs: "CheckAndMutateRow:1"},
		{name: "alone, and not any more", row: now + 50, knows: known{Seen: true, Known: true, Value: now - 100}, n: 1, want: now + 51, after: known{Seen: true, Known: true, Shared: true, Adds: adds, Value: now + 51, High: now + 51}, rpcs: "CheckAndMutateRow:1 ReadModifyWriteRow:1"},
		{name: "a move is lost", row: now - 100, knows: known{Seen: true, Known: true, Value: now - 100}, n: 1, at: fault{method: advance, code: codes.Unavailable}, want: now - 99, after: known{Seen: true, Known: true, Value: now - 99, High: now - 99}, rpcs: "CheckAndMutateRow:1 ReadModifyWriteRow:1"},
		{name: "a move is refused", row: now - 100, knows: known{Seen: true, Known: true, Value: now - 100}, n: 1, at: fault{method: advance, code: codes.PermissionDenied}, err: isCode(codes.PermissionDenied), after: known{Seen: true, Value: now - 100}, rpcs: "CheckAndMutateRow:1"},
		{name: "the callers leave a move", row: now - 100, knows: known{Seen: true, Known: true, Value: now - 100}, n: 1, at: fault{method: advance, code: codes.Unavailable, leaves: true}, err: func(err error) bool { return err != nil }, after: known{Seen: true, Value: now - 100}, rpcs: "CheckAndMutateRow:1"},
		{name: "the last one", row: tso.Max - 1, knows: known{Seen: true, Known: true, Value: tso.Max - 1}, n: 1, want: tso.Max, after: known{Seen: true, Known: true, Value: tso.Max, High: tso.Max}, rpcs: "CheckAndMutateRow:1"},
		{name: "more than there are", row: tso.Max - 1, knows: known{Seen: true, Known: true, Value: tso.Max - 1}, n: 2, err: is(tso.ErrExhausted), after: known{Seen: true, Known: true, Value: tso.Max - 1}, rpcs: ""},

		{name: "shared", row: now - 100, knows: known{Seen: true, Known: true, Shared: true, Value: now - 200}, n: 2, want: now - 98, after: known{Seen: true, Known: true, Shared: true, Value: now - 98, High: now - 98}, rpcs: "ReadModifyWriteRow:1"},
		{name: "shared, and not any more", row: now - 100, knows: known{Seen: true, Known: true, Shared: true, Value: now - 100, High: now - 100}, n: 2, want: now - 98, after: known{Seen: true, Known: true, Value: now - 98, High: now - 98}, rpcs: "ReadModifyWriteRow:1"},
		{name: "not known", row: now - 100, knows: known{Seen: true, Shared: true, Value: now - 100}, n: 2, want: now - 98, after: known{Seen: true, Known: true, Shared: true, Value: now - 98, High: now - 98}, rpcs: "ReadModifyWriteRow:1"},
		{name: "lags almost too much", row: now - 50_001, knows: known{Seen: true, Known: true, Shared: true, Value: now - 50_002, Adds: 2, Took: 2}, n: 1, want: now - 50_000, after: known{Seen: true, Known: true, Shared: true, Adds: 1, Value: now - 50_000, High: now - 50_000}, rpcs: "ReadModifyWriteRow:1"},
		{name: "lags too much", row: now - 60_000, knows: known{Seen: true, Known: true, Shared: true, Value: now - 60_001, Adds: 5, Took: 20_000}, n: 1, want: now, after: known{Seen: true, Known: true, Shared: true, Value: now, High: now}, rpcs: "CheckAndMutateRow:1 ReadModifyWriteRow:1"},
		{name: "another moves it", row: now - 60_000, knows: known{Seen: true, Known: true, Shared: true, Value: now - 60_001, Adds: 5, Took: 20_000}, n: 1, at: fault{method: advance, before: put(now + 3)}, want: now + 4, after: known{Seen: true, Known: true, Shared: true, Adds: adds, Value: now + 4, High: now + 4}, rpcs: "CheckAndMutateRow:1 ReadModifyWriteRow:2"},
		{name: "lags, and a move is lost", row: now - 60_000, knows: known{Seen: true, Known: true, Shared: true, Value: now - 60_001, Adds: 5, Took: 20_000}, n: 1, at: fault{method: advance, code: codes.PermissionDenied}, want: now - 59_999, after: known{Seen: true, Shared: true, Value: now - 59_999, High: now - 59_999}, rpcs: "CheckAndMutateRow:1 ReadModifyWriteRow:1"},
		{name: "the last one of a shared row", row: tso.Max - 1, knows: known{Seen: true, Known: true, Shared: true, Value: tso.Max - 1}, n: 1, want: tso.Max, after: known{Seen: true, Known: true, Value: tso.Max, High: tso.Max}, rpcs: "ReadModifyWriteRow:1"},
		{name: "more than a shared row has", row: tso.Max - 1, knows: known{Seen: true, Known: true, Shared: true, Value: tso.Max - 1}, n: 2, err: is(tso.ErrExhausted), after: known{Seen: true, Shared: true, Value: tso.Max - 1}, rpcs: "ReadModifyWriteRow:1"},
		{name: "the least value", row: tso.Min, knows: known{Seen: true, Known: true, Shared: true, Value: tso.Min}, n: 1, want: now, after: known{Seen: true, Known: true, Value: now, High: now}, rpcs: "ReadRows:1 MutateRow:1 CheckAndMutateRow:1 ReadModifyWriteRow:1"},
		{name: "below the least", row: tso.Min - 1, knows: known{Seen: true, Known: true, Shared: true, Value: now}, n: 1, err: is(row.ErrVanished), after: known{Shared: true, Value: now}, rpcs: "ReadModifyWriteRow:1"},
		{name: "the row is gone", row: gone, knows: known{Seen: true, Known: true, Shared: true, Value: now}, n: 3, err: is(row.ErrVanished), after: known{Shared: true, Value: now}, rpcs: "ReadModifyWriteRow:1"},
		{name: "negative", row: -5, knows: known{Seen: true, Known: true, Shared: true, Value: now}, n: 1, err: corrupt(-5, "negative"), after: known{Shared: true, Value: now}, rpcs: "ReadModifyWriteRow:1"},
		{name: "too large", row: tso.Max + 1, knows: known{Seen: true, Known: true, Shared: true, Value: now}, n: 1, err: corrupt(tso.Max+1, "above"), after: known{Shared: true, Value: now}, rpcs: "ReadModifyWriteRow:1"},
		{name: "stepped back", row: now - 1, knows: known{Seen: true, Known: true, Shared: true, Value: now, High: now}, n: 1, err: corrupt(now-1, "handed out already"), after: known{Shared: true, Value: now, High: now}, rpcs: "ReadModifyWriteRow:1"},

		{name: "an add is lost", row: now, knows: known{Seen: true, Known: true, Shared: true, Value: now}, n: 1, at: fault{method: add, code: codes.Unavailable}, err: isCode(codes.Unavailable), after: known{Seen: true, Shared: true, Value: now}, rpcs: "ReadModifyWriteRow:1"},
		{name: "an add fails, and the row is fine", row: now, knows: known{Seen: true, Known: true, Shared: true, Value: now}, n: 1, at: fault{method: add, code: codes.Internal}, err: isCode(codes.Internal), after: known{Shared: true, Value: now}, rpcs: "ReadRows:1 ReadModifyWriteRow:1"},
		{name: "an add fails in another mode", row: now, knows: known{Seen: true, Known: true, Shared: true, Value: now}, n: 1, at: fault{method: add, code: codes.Internal, before: served}, err: is(tso.ErrMode), after: known{Shared: true, Value: now}, rpcs: "ReadRows:1 ReadModifyWriteRow:1"},
		{name: "an add fails, and the row cannot be read", row: now, knows: known{Seen: true, Known: true, Shared: true, Value: now}, n: 1, at: fault{method: add, code: codes.Internal, reads: true}, err: isCode(codes.Internal), after: known{Shared: true, Value: now}, rpcs: "ReadRows:1 ReadModifyWriteRow:1"},
		{name: "the callers leave an add", row: now, knows: known{Seen: true, Known: true, Shared: true, Value: now}, n: 1, at: fault{method: add, code: codes.Internal, leaves: true}, err: func(err error) bool { return err != nil }, after: known{Seen: true, Shared: true, Value: now}, rpcs: "ReadModifyWriteRow:1"},

		{name: "a step", row: now - minute, knows: known{Seen: true, Known: true, Value: now - minute}, n: 1, want: now, after: known{Seen: true, Known: true, Value: now, High: now}, rpcs: "CheckAndMutateRow:1"},
		{name: "a long step", row: now - minute - 1, knows: known{Seen: true, Known: true, Value: now - minute - 1}, n: 1, want: now, after: known{Seen: true, Known: true, Value: now, High: now}, rpcs: "ReadRows:1 MutateRow:1 CheckAndMutateRow:1"},
		{name: "the clock is right again", row: now - 2*minute, knows: known{Seen: true, Known: true, ClockBad: true, Value: now - 2*minute}, n: 1, want: now, after: known{Seen: true, Known: true, Value: now, High: now}, rpcs: "ReadRows:1 MutateRow:1 CheckAndMutateRow:1"},
		{name: "the clock is ahead", row: now - 1, off: time.Minute, knows: known{Seen: true, Known: true, Value: now - 1}, n: 1, want: now, after: known{Seen: true, Known: true, Value: now, High: now}, rpcs: "ReadRows:1 MutateRow:1 CheckAndMutateRow:1"},
		{name: "the clock is far ahead", row: now - 1, off: time.Minute + time.Microsecond, knows: known{Seen: true, Known: true, Value: now - 1}, n: 1, want: now, after: known{Seen: true, Known: true, ClockBad: true, Value: now, High: now}, rpcs: "ReadRows:1 MutateRow:1 CheckAndMutateRow:1"},
		{name: "the clock is behind", row: now - 3*minute, off: -time.Minute, knows: known{Seen: true, Known: true, Value: now - 3*minute}, n: 1, want: now - minute, after: known{Seen: true, Known: true, Value: now - minute, High: now - minute}, rpcs: "ReadRows:1 MutateRow:1 CheckAndMutateRow:1"},
		{name: "the clock is far behind", row: now - 3*minute, off: -time.Minute - time.Microsecond, knows: known{Seen: true, Known: true, Value: now - 3*minute}, n: 1, want: now - minute - 1, after: known{Seen: true, Known: true, ClockBad: true, Value: now - minute - 1, High: now - minute - 1}, rpcs: "ReadRows:1 MutateRow:1 CheckAndMutateRow:1"},
		{name: "may not stamp", row: now - 2*minute, knows: known{Seen: true, Known: true, Value: now - 2*minute}, n: 1, at: fault{method: tsotest.MutateRow, code: codes.PermissionDenied}, err: isCode(codes.PermissionDenied), after: known{Seen: true, Known: true, Value: now - 2*minute}, rpcs: "MutateRow:1"},
		{name: "may not read the stamp", row: now - 2*minute, knows: known{Seen: true, Known: true, Value: now - 2*minute}, n: 1, at: fault{method: tsotest.ReadRows, code: codes.PermissionDenied}, err: isCode(codes.PermissionDenied), after: known{Seen: true, Known: true, Value: now - 2*minute}, rpcs: "ReadRows:1 MutateRow:1"},
		{name: "slow", row: now - 100, knows: known{Seen: true, Known: true, Value: now - 100}, n: 1, at: fault{method: advance, takes: 7 * time.Millisecond}, want: now, after: known{Seen: true, Known: true, Value: now, High: now, Took: 7000}, rpcs: "CheckAndMutateRow:1"},
		{name: "the row is deleted after an add", row: tso.Min, knows: known{Seen: true, Known: true, Shared: true, Value: tso.Min}, n: 1, at: fault{method: tsotest.ReadRows, before: remove}, want: tso.Min + 1, after: known{Known: true, Value: tso.Min + 1, High: tso.Min + 1}, rpcs: "ReadRows:1 MutateRow:1 ReadModifyWriteRow:1"},
		{name: "the row is deleted before the stamp is read", row: gone, n: 1, knows: known{Seen: true, Known: true, Value: now - 2*minute}, at: fault{method: tsotest.ReadRows, before: remove}, err: is(row.ErrVanished), after: known{Value: now - 2*minute}, rpcs: "ReadRows:1 MutateRow:1 ReadModifyWriteRow:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				d := e.Direct(tso.DirectConfig{Clock: func() time.Time { return time.Now().Add(tt.off) }})
				if tt.row != gone {
					put(tt.row)(e)
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				fired, inside := tt.at.method == "", false
				sent := map[string]int{}
				e.On(func(request context.Context, method string, call func() (any, error)) (any, error) {
					if inside {
						return call()
					}
					sent[method]++
					if fired && tt.at.reads && method == tsotest.ReadRows {
						return nil, status.Error(codes.ResourceExhausted, "injected")
					}
					if fired || method != tt.at.method {
						return call()
					}
					fired = true
					tsotest.Advance(tt.at.takes)
					if tt.at.before != nil {
						inside = true
						tt.at.before(e)
						inside = false
					}
					if tt.at.leaves {
						leave()
						<-request.Done()
					}
					if tt.at.code != codes.OK {
						return nil, status.Error(tt.at.code, "injected")
					}
					return call()
				})
				last, after, err := d.Reserve(ctx, tt.knows, tt.n)
				e.On(nil)
				if !fired {
					t.Error("the fault did not fire")
				}
				if last != tt.want || (err == nil) != (tt.err == nil) || err != nil && !tt.err(err) {
					t.Errorf("%d, %v; want %d", last-now, err, tt.want-now)
				}
				if after != tt.after {
					t.Errorf("knows %+v\nwant  %+v", after, tt.after)
				}
				all := 0
				for _, n := range sent {
					all += n
				}
				if got := requests(sent); got != tt.rpcs || d.Stats().RPCs != uint64(all) {
					t.Errorf("sent %s and counted %d, want %s", got, d.Stats().RPCs, tt.rpcs)
				}
			})
		})
	}
}

// requests writes numbers of requests as the emulator does.
func requests(sent map[string]int) string {
	var all []string
	for _, method := range []string{tsotest.ReadRows, tsotest.MutateRow, tsotest.CheckAndMutate, tsotest.ReadModifyWrite} {
		if n := sent[method]; n > 0 {
			all = append(all, fmt.Sprintf("%s:%d", method, n))
		}
	}
	return strings.Join(all, " ")
}

// TestMaxStep: the longest step of the clock that needs no comparison is the one of the configuration, or a
// minute.
func TestMaxStep(t *testing.T) {
	for configured, want := range map[time.Duration]time.Duration{0: time.Minute, -1: time.Minute, time.Second: time.Second} {
		for _, more := range []time.Duration{0, time.Microsecond} {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				e.PutInt(int64(tso.FromTime(time.Now().Add(-want - more))))
				if _, err := e.Direct(tso.DirectConfig{MaxStep: configured}).Timestamp(t.Context()); err != nil {
					t.Error(err)
				}
				rpcs := "ReadRows:1 CheckAndMutateRow:1"
				if more > 0 {
					rpcs = "ReadRows:2 MutateRow:1 CheckAndMutateRow:1"
				}
				e.Expect(rpcs)
			})
		}
	}
}
