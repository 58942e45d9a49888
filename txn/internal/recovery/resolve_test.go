package recovery

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestResolve: what each kind of caller does with a lock of a transaction that started at 100, for
// each state of its primary: the outcome, the requests, and what is stored then. testdata/resolve.txt
// lists them.
func TestResolve(t *testing.T) {
	long.RacedAtNight(t)
	const short, long = 1000 * time.Microsecond, 30 * time.Minute
	primaries := []struct {
		name string
		make func(w *world) *format.Lock // nil: there is no primary lock
	}{
		{"live", func(w *world) *format.Lock { return w.lock("p", long, false) }},
		{"passable", func(w *world) *format.Lock { return w.lock("p", long, true) }},
		{"expired", func(w *world) *format.Lock { return w.lock("p", short, false) }},
		{"empty", func(*world) *format.Lock { return nil }},
		{"committed", func(w *world) *format.Lock { w.commit("p", format.KindPut, committedTS); return nil }},
		{"committed later", func(w *world) *format.Lock { w.commit("p", format.KindPut, base+1250); return nil }},
		{"committed, locked", func(w *world) *format.Lock {
			w.commit("p", format.KindPut, committedTS)
			return w.lock("p", long, false)
		}},
		{"committed lock-only", func(w *world) *format.Lock { w.commit("p", format.KindLock, committedTS); return nil }},
		{"rolled back", func(w *world) *format.Lock { w.rollback("p"); return nil }},
		{"rolled back, locked", func(w *world) *format.Lock { w.rollback("p"); return w.lock("p", long, false) }},
	}
	says := func(o Outcome, err error) string {
		s := fmt.Sprintf("%v", o.State)
		if o.CommitTS != 0 {
			s += fmt.Sprintf(" %d", o.CommitTS-base)
		}
		if o.LockGone {
			s += " gone"
		}
		return s + " " + errorName(err)
	}
	forWrite := func(ts tso.Timestamp) func(w *world, l *format.Lock) string {
		return func(w *world, l *format.Lock) string {
			return says(w.r.ResolveForWrite(w.Context(), l, ts, func() { w.Note("unlatch") }))
		}
	}
	callers := []struct {
		name string
		call func(w *world, l *format.Lock) string
	}{
		{"older writer", forWrite(base + 50)},
		{"younger writer", forWrite(base + 1200)},
		{"reader", func(w *world, l *format.Lock) string {
			ignore, err := w.r.resolveOneForRead(w.Context(), l, base+1200)
			return fmt.Sprintf("ignore %t %s", ignore, errorName(err))
		}},
		{"latest, newest 90", func(w *world, l *format.Lock) string {
			ignore, err := w.r.resolveOneForLatest(w.Context(), l, base+90, base+1200)
			return fmt.Sprintf("ignore %t %s", ignore, errorName(err))
		}},
		{"latest, newest 120", func(w *world, l *format.Lock) string {
			ignore, err := w.r.resolveOneForLatest(w.Context(), l, base+120, base+1000)
			return fmt.Sprintf("ignore %t %s", ignore, errorName(err))
		}},
		{"operator", func(w *world, l *format.Lock) string {
			s, err := w.r.ResolveLock(w.Context(), *l)
			return says(Outcome{Status: s}, err)
		}},
	}
	g := worldtest.NewGolden(t, "resolve.txt", *update)
	for _, p := range primaries {
		t.Run(p.name, func(t *testing.T) {
			var lines []string
			for _, safePoint := range []tso.Timestamp{0, startTS} {
				for _, secondary := range []string{"primary", "live secondary", "expired secondary", "secondary that is gone", "live secondary that is gone", "primary as it was"} {
					for _, c := range callers {
						if safePoint != 0 && c.name != "older writer" && c.name != "reader" {
							continue
						}
						newWorld(t, Config{TokenTTL: -1, PassLocks: true}, safePoint, func(w *world) {
							l := p.make(w)
							switch secondary {
							case "live secondary":
								l = w.lock("s", long, false)
							case "expired secondary":
								l = w.lock("s", short, false)
							case "secondary that is gone":
								l = &format.Lock{Cell: cell("s"), StartTS: startTS, Kind: format.KindPut, Primary: cell("p"), TTL: short}
							case "live secondary that is gone":
								l = &format.Lock{Cell: cell("s"), StartTS: startTS, Kind: format.KindPut, Primary: cell("p"), TTL: long}
							case "primary as it was":
								l = &format.Lock{Cell: cell("p"), StartTS: startTS, Kind: format.KindPut, Primary: cell("p"), TTL: short}
							}
							if l == nil {
								return
							}
							got, count := c.call(w, l), &w.r.Counters
							lines = append(lines, fmt.Sprintf("safe point %d, %s, %s: %s; %s; met %d, forward %d, back %d, raised %d", max(safePoint-base, 0), secondary, c.name, got, w.did(),
								count.LocksMet.Load(), count.RolledForward.Load(), count.RolledBack.Load(), count.Raises.Load()))
						})
					}
				}
			}
			g.Compare(t, p.name, lines)
		})
	}
}

// TestIsDead: when a client may roll a lock back at a time, the requests for it, and the bounds. The oracle
// is at 1300.
func TestIsDead(t *testing.T) {
	const second, far = time.Second, 2*format.MaxLockTTL + 500*time.Microsecond
	for _, tt := range []struct {
		ttl        time.Duration
		owner      string
		start, now tso.Timestamp
		fault      error
		want       string
	}{
		{second, "", 100, 1_000_099, nil, "false ok"},
		{second, "", 100, 1_000_100, nil, "true ok"},
		{second, "gone", 100, 100, nil, "true ok, read token worker/gone"},
		{second, "gone", 100, 99, nil, "true ok, read token worker/gone, oracle"},
		{second, "gone", 1300, 99, nil, "true ok, read token worker/gone, oracle"},
		{second, "gone", 1301, 99, nil, "true corrupt, read token worker/gone, oracle"},
		{second, "gone", 100, 99, worldtest.Denied, "true PermissionDenied, read token worker/gone, oracle"},
		{second, "", 100, 99, nil, "false ok"},
		{far, "", 100, 600, nil, "false ok"},
		{far, "", 100, 599, nil, "false ok, oracle"}, // it was written later, so it is not endless
		{far, "", 1000, 599, nil, "true ok, oracle"}, // it still is
	} {
		newWorld(t, Config{TokenTTL: time.Hour}, 0, func(w *world) {
			if tt.fault != nil {
				w.Inject("oracle", tt.fault)
			}
			dead, err := w.r.isDead(w.Context(), &format.Lock{Cell: cell("p"), Primary: cell("p"), StartTS: base + tt.start, TTL: tt.ttl, Owner: tt.owner}, base+tt.now)
			if got := strings.Join(append([]string{fmt.Sprint(dead, " ", errorName(err))}, w.Did()...), ", "); got != tt.want {
				t.Errorf("%v of %q from %d at %d: %s, want %s", tt.ttl, tt.owner, tt.start, tt.now, got, tt.want)
			}
		})
	}
}

// TestResolveAtBounds: a commit at the timestamp of a read is visible to it, and a lock has expired at the
// microsecond at which it expires.
func TestResolveAtBounds(t *testing.T) {
	newWorld(t, Config{}, 0, func(w *world) {
		w.commit("p", format.KindPut, committedTS)
		if ignore, err := w.r.resolveOneForRead(w.Context(), w.lock("s", time.Hour, false), committedTS); ignore || err != nil || w.r.Claims != nil {
			t.Errorf("a commit at the read: %t, %v; with claims: %t", ignore, err, w.r.Claims != nil)
		}
		w.Expect("a commit at the read", "read p, change s, hint s")
		for now, want := range map[tso.Timestamp]string{1099: "", 1100: "oracle, read v, change v"} {
			l := &format.Lock{Cell: cell("v"), Primary: cell("v"), StartTS: startTS, TTL: time.Millisecond, Kind: format.KindPut}
			w.Set("a", "v", format.LockFamily, "f:q", startTS.Cell(), format.EncodeLock(l))
			w.r.Outcomes = newOutcomeCache()
			if ignore, err := w.r.resolveOneForLatest(w.Context(), l, base+50, base+now); ignore != (want == "") || err != nil {
				t.Errorf("a lock that expires at 1100, at %d: %t, %v", now, ignore, err)
			}
			w.Expect(fmt.Sprint(now), want)
		}
	})
}

// TestResolveFails: without the stored safe point, nobody knows whether a lock below it is
// late, so its outcome stays open. A primary lock that a newer client wrote is an error at once.
func TestResolveFails(t *testing.T) {
	for name, call := range map[string]func(w *world, l *format.Lock) error{
		"reader": func(w *world, l *format.Lock) error {
			_, err := w.r.resolveOneForRead(w.Context(), l, base+1200)
			return err
		},
		"latest": func(w *world, l *format.Lock) error {
			_, err := w.r.resolveOneForLatest(w.Context(), l, base+1200, base+1200)
			return err
		},
		"writer": func(w *world, l *format.Lock) error {
			_, err := w.r.ResolveForWrite(w.Context(), l, base+1200, func() {})
			return err
		},
		"operator": func(w *world, l *format.Lock) error {
			_, err := w.r.resolveLock(w.Context(), l, base+1200)
			return err
		},
	} {
		newWorld(t, Config{TokenTTL: -1}, startTS, func(w *world) {
			listed := w.Name
			w.Name = func(kind, table, what string) (string, string) {
				if what == "/"+store.GCRowKey {
					return "read gc", ""
				}
				return listed(kind, table, what)
			}
			l := w.lock("s", time.Hour, false)
			w.Inject("read gc", worldtest.Denied)
			if err := call(w, l); errorName(err) != "PermissionDenied" {
				t.Errorf("%s, without the safe point: %v", name, err)
			}
			w.Expect(name, "read gc")
			l.StartTS++
			newer := format.Marshal(&recordpb.Lock{FormatVersion: 99})
			w.Set("a", "p", format.LockFamily, "f:q", l.StartTS.Cell(), newer)
			if err := call(w, l); !errors.Is(err, format.ErrFormatVersion) {
				t.Errorf("%s, with a lock of a newer client: %v", name, err)
			}
			w.Expect(name, "read p")
		})
	}
}
