package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestResolveWithFaults: requests of a caller that resolves an expired lock of row "s" fail. It tries
// again what may succeed, and says what it could not find out. testdata/faults.txt lists the outcomes.
func TestResolveWithFaults(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	const short = 1000 * time.Microsecond
	unavailable, refused := status.Error(codes.Unavailable, ""), status.Error(codes.PermissionDenied, "")
	kinds := map[string][]error{"unavailable": {unavailable}, "second unavailable": {nil, unavailable}, "refused": {refused}, "second refused": {nil, refused}, "lost": {errApplied}, "second lost": {nil, errApplied}}
	primaries := map[string]func(w *world){
		"expired":         func(w *world) { w.lock("p", short, false) },
		"empty":           func(*world) {},
		"committed":       func(w *world) { w.commit("p", format.KindPut, committedTS) },
		"committed later": func(w *world) { w.commit("p", format.KindPut, base+1250) },
		"damaged":         func(w *world) { w.Set("a", "p", format.LockFamily, "f:q", startTS.Cell(), []byte{255}) },
		"passable":        func(w *world) { w.lock("p", 30*time.Minute, true) },
		"passed":          func(w *world) { w.passed(base + 1200) },
		"passed below":    func(w *world) { w.passed(base + 1199) },
		"sealed":          func(w *world) { w.sealed(base + 1199) },
	}
	callers := map[string]func(w *world, l *format.Lock) string{
		"writer": func(w *world, l *format.Lock) string {
			o, err := w.r.ResolveForWrite(w.Context(), l, base+1200, func() {})
			return fmt.Sprintf("%v %s", o.State, errorName(err))
		},
		"reader": func(w *world, l *format.Lock) string {
			ignore, err := w.r.resolveOneForRead(w.Context(), l, base+1200)
			return fmt.Sprintf("ignore %t %s", ignore, errorName(err))
		},
		"latest": func(w *world, l *format.Lock) string {
			ignore, err := w.r.resolveOneForLatest(w.Context(), l, base+1200, base+1200)
			return fmt.Sprintf("ignore %t %s", ignore, errorName(err))
		},
		"operator": func(w *world, l *format.Lock) string {
			s, err := w.r.ResolveLock(w.Context(), *l)
			return fmt.Sprintf("%v %s", s.State, errorName(err))
		},
	}
	g := worldtest.NewGolden(t, "faults.txt", *update)
	for _, p := range slices.Sorted(maps.Keys(primaries)) {
		t.Run(p, func(t *testing.T) {
			var lines []string
			for _, c := range slices.Sorted(maps.Keys(callers)) {
				for _, request := range []string{"none", "read", "change", "oracle"} {
					for _, kind := range slices.Sorted(maps.Keys(kinds)) {
						if request == "none" && kind != "refused" || request != "change" && strings.HasSuffix(kind, "lost") || (request == "none" || p == "committed later") && c == "operator" {
							continue
						}
						newWorld(t, Config{TokenTTL: -1, PassLocks: true}, 0, func(w *world) {
							primaries[p](w)
							l := w.lock("s", short, false)
							w.Faults[request] = slices.Clone(kinds[kind])
							got, did := callers[c](w, l), w.did()
							if request == "none" || len(w.Faults[request]) == 0 { // else it is another case's
								lines = append(lines, fmt.Sprintf("%s, %s %s: %s; %s; raised %d", c, request, kind, got, did, w.r.Counters.Raises.Load()))
							}
							clear(w.Faults)
						})
					}
				}
			}
			g.Compare(t, p, lines)
		})
	}
}

// sealed stores a primary lock that readers may not raise any more.
func (w *world) sealed(minCommit tso.Timestamp) {
	l := w.lock("p", 30*time.Minute, true)
	l.MinCommitTS, l.Sealed = minCommit, true
	w.Set("a", "p", format.LockFamily, "f:q", startTS.Cell(), format.EncodeLock(l))
}

// TestPassLock: who may pass a lock.
func TestPassLock(t *testing.T) {
	for name, tt := range map[string]struct {
		off, otherTable bool
		edit            func(*format.Lock)
		want            bool
		requests        int
	}{
		"passable":          {want: true, requests: 1},
		"off":               {off: true},
		"not passable":      {edit: func(l *format.Lock) { l.Passable = false }},
		"at the read":       {edit: func(l *format.Lock) { l.MinCommitTS = base + 1200 }, want: true},
		"above the read":    {edit: func(l *format.Lock) { l.MinCommitTS, l.Sealed = base+1201, true }, want: true},
		"below the read":    {edit: func(l *format.Lock) { l.MinCommitTS = base + 1199 }, requests: 1}, // another one is stored
		"sealed":            {edit: func(l *format.Lock) { l.Sealed = true }},
		"of a lost table":   {edit: func(l *format.Lock) { l.Cell.Table = "none" }},
		"changed since":     {edit: func(l *format.Lock) { l.Record += "x" }, requests: 1},
		"of another client": {edit: func(l *format.Lock) { l.StartTS++ }, requests: 1},
	} {
		newWorld(t, Config{TokenTTL: -1, PassLocks: !tt.off}, 0, func(w *world) {
			l := w.lock("p", 30*time.Minute, true)
			if tt.edit != nil {
				tt.edit(l)
			}
			if name == "below the read" {
				l.Record = string(format.EncodeLock(l))
			}
			got := passLock(w.Context(), w.r, l, base+1200)
			raised := w.r.Counters.Raises.Load() == 1
			if got != tt.want || len(w.Requests) != tt.requests || raised != (tt.want && tt.requests > 0) {
				t.Errorf("%s: passed %t, raised %t, requests %v", name, got, raised, w.Requests)
			}
		})
	}
	newWorld(t, Config{TokenTTL: -1, PassLocks: true}, 0, func(w *world) {
		if passLock(w.Context(), w.r, nil, base+1200) {
			t.Error("passed no lock")
		}
		l := w.lock("p", 30*time.Minute, true)
		w.Faults["change"] = []error{errApplied} // the answer is lost, so the reader does not know
		if passLock(w.Context(), w.r, l, base+1200) || w.r.Counters.Raises.Load() != 0 {
			t.Error("passed a lock without an answer")
		}
	})
}

// TestSealLock: a seal never lowers the minimum, and restores no lock.
func TestSealLock(t *testing.T) {
	for name, tt := range map[string]struct {
		setup func(*world)
		want  string
	}{
		"below": {func(w *world) { w.passed(base + 1199) }, "true p(f:q@100 lock@100 min 1200 sealed)"},
		"at":    {func(w *world) { w.passed(base + 1200) }, "false p(f:q@100 lock@100 min 1200)"},
		"above": {func(w *world) { w.passed(base + 1201) }, "false p(f:q@100 lock@100 min 1201)"},
		"gone":  {func(w *world) { w.rollback("p") }, "false p(mark@100)"},
	} {
		newWorld(t, Config{TokenTTL: -1, PassLocks: true}, 0, func(w *world) {
			tt.setup(w)
			l := &format.Lock{Cell: cell("p"), Primary: cell("p"), StartTS: startTS, Kind: format.KindPut, TTL: time.Minute, Passable: true}
			sealed, err := sealLock(w.Context(), w.table, l, base+1200)
			w.Must(err)
			if got := fmt.Sprint(sealed, " ", w.Cells("a", base)); got != tt.want {
				t.Errorf("%s: %s, want %s", name, got, tt.want)
			}
		})
	}
}

// TestResolveOthers: a prewrite resolves the locks that it found. It conflicts with an older
// transaction that is alive, and with one that committed at or above its own start.
func TestResolveOthers(t *testing.T) {
	const long = 30 * time.Minute
	for name, tt := range map[string]struct {
		make  func(w *world)
		ts    tso.Timestamp
		fault error
		want  string
	}{
		"committed below": {func(w *world) { w.commit("p", format.KindPut, committedTS) }, committedTS + 1, nil, "ok; read p, change s, hint s; resolved [s]; p(f:q@100 write@150) s(f:q@100 notify@150 write@150)"},
		"committed at it": {func(w *world) { w.commit("p", format.KindPut, committedTS) }, committedTS, nil, "conflict s 150 with 150: write; read p, change s, hint s; resolved [s]; p(f:q@100 write@150) s(f:q@100 notify@150 write@150)"},
		"committed above": {func(w *world) { w.commit("p", format.KindPut, committedTS) }, committedTS - 1, nil, "conflict s 149 with 150: write; read p, change s, hint s; resolved [s]; p(f:q@100 write@150) s(f:q@100 notify@150 write@150)"},
		"rolled back":     {func(w *world) { w.rollback("p") }, committedTS, nil, "ok; read p, change s; resolved [s]; p(mark@100)"},
		"alive":           {func(w *world) { w.lock("p", long, false) }, committedTS, nil, "conflict s 150 with 100: lock; read p; resolved []; p(f:q@100 lock@100) s(f:q@100 lock@100)"},
		"cannot be read":  {func(w *world) { w.lock("p", long, false) }, committedTS, status.Error(codes.PermissionDenied, ""), "PermissionDenied; read p; resolved []; p(f:q@100 lock@100) s(f:q@100 lock@100)"},
	} {
		newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
			tt.make(w)
			l := w.lock("s", long, false)
			if tt.fault != nil {
				w.Faults["read"] = []error{tt.fault}
			}
			if got := errorName(ResolveOthers(w.Context(), w.r, []*format.Lock{l}, tt.ts, func() { w.Note("unlatch") })) + "; " + w.did(); got != tt.want {
				t.Errorf("%s: %s\nwant %s", name, got, tt.want)
			}
		})
	}
	newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
		gone := &format.Lock{Cell: cell("s"), StartTS: startTS, Primary: cell("p"), TTL: 1}
		// Below the writer's start nothing shows the outcome, but the lock is gone.
		if o, err := w.r.FindOutcome(w.Context(), gone, committedTS, false, WaitNever); err != nil || !o.LockGone || o.Final() {
			t.Errorf("a lock that is gone: %+v, %v", o, err)
		}
		if err := ResolveOthers(w.Context(), w.r, []*format.Lock{w.lock("s", long, false), w.lock("t", long, false)}, committedTS, func() {}); err != nil {
			var c *format.ConflictError
			if !errors.As(err, &c) || c.Cell.Row != "s" {
				t.Errorf("two locks: %v", err)
			}
		} else {
			t.Error("two live locks do not conflict")
		}
	})
}

// TestResolveLocks: an operator resolves several locks. The outcome of a transaction is found with its
// first lock, and those of a live one stay.
func TestResolveLocks(t *testing.T) {
	newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
		w.commit("p", format.KindPut, committedTS)
		future := &format.Lock{Cell: cell("u"), StartTS: base + 5000, Primary: cell("u"), TTL: time.Hour, Kind: format.KindPut}
		alive := &format.Lock{Cell: cell("x"), StartTS: base + 200, Primary: cell("v"), TTL: time.Hour, Kind: format.KindPut}
		second, primary := *alive, *alive
		second.Cell, primary.Cell = cell("y"), cell("v")
		w.Set("a", "v", format.LockFamily, "f:q", alive.StartTS.Cell(), format.EncodeLock(&primary))
		bad := &format.Lock{Cell: cell("z"), StartTS: startTS + 1, Primary: format.Cell{Table: "a"}}
		noCell := &format.Lock{Cell: format.Cell{Table: "a"}, StartTS: startTS + 2, Primary: cell("p")}
		locks := []format.Lock{*w.lock("s", time.Hour, false), *w.lock("t", time.Hour, false), *future, *alive, second, *bad, *noCell}
		got := make([]string, len(locks))
		if err := w.r.ResolveLocks(w.Context(), locks, func(i int, s format.Status, err error) { got[i] += fmt.Sprintf("%v %s", s.State, errorName(err)) }); err != nil {
			t.Error(err)
		}
		want := []string{"committed ok", "committed ok", "unknown corrupt", "locked ok", "locked ok", "unknown invalid", "unknown invalid"}
		if !slices.Equal(got, want) || !slices.Equal(w.Requests, []string{"oracle", "read p", "change s", "hint s", "read v", "change t"}) {
			t.Errorf("%q, after %v", got, w.Requests)
		}
		w.Faults["oracle"] = []error{status.Error(codes.Unavailable, "")}
		if err := w.r.ResolveLocks(w.Context(), locks, func(int, format.Status, error) { t.Error("resolved without a timestamp") }); status.Code(errors.Unwrap(err)) != codes.Unavailable {
			t.Error(err)
		}
		ended, cancel := context.WithCancel(w.Context())
		w.OnRequest = func(int) { cancel() }
		if err := w.r.ResolveLocks(ended, locks, func(int, format.Status, error) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("with an ended context: %v", err)
		}
		w.r.BeginClose()
		if err := w.r.ResolveLocks(w.Context(), locks, func(int, format.Status, error) {}); !errors.Is(err, format.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		w.Must(w.r.Drain(w.Context())) // nothing is left
	})
	newWorld(t, Config{TokenTTL: -1}, 0, func(w *world) {
		w.rollback("p")
		first, other := *w.lock("s", time.Hour, false), *w.lock("t", time.Hour, false)
		ctx, cancel := context.WithCancel(w.Context())
		n := 0
		err := w.r.ResolveLocks(ctx, []format.Lock{first, other}, func(int, format.Status, error) { n++; cancel() })
		if !errors.Is(err, context.Canceled) || n != 1 {
			t.Errorf("the context ended after the first lock: %v, %d locks", err, n)
		}
	})
}
