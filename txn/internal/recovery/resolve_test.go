package recovery

import (
	"fmt"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestResolve: what each kind of caller does with a lock of a transaction that started at 100, for
// each state of its primary: the outcome, the requests, and what is stored then. testdata/resolve.txt
// lists them.
func TestResolve(t *testing.T) {
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
	g := newGolden(t, "resolve.txt")
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
			g.compare(t, p.name, lines)
		})
	}
}
