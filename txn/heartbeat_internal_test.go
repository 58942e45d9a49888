package txn

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/worldtest"
)

// TestHeartbeatKeepsMinimum: a heartbeat writes the lock again with the minimum commit_ts to which readers
// have raised it, and fails if it cannot read that.
func TestHeartbeatKeepsMinimum(t *testing.T) {
	lock := func(min tso.Timestamp, sealed bool) *format.Lock {
		cell := Cell{Table: "a", Row: "p", Family: "f", Qualifier: "q"}
		return &format.Lock{Cell: cell, StartTS: base + 100, Kind: format.KindPut, Primary: cell, TTL: time.Minute, Passable: true, MinCommitTS: min, Sealed: sealed}
	}
	plain := lock(0, false)
	plain.Passable = false
	for name, tt := range map[string]struct {
		stored       []byte // nil: none
		notPassable  bool
		change, read error // of the first request
		want         string
	}{
		"as it was":          {stored: format.EncodeLock(lock(base+200, false)), want: "ok; change p; p(lock@100 min 200) 1h0m0s"},
		"raised by one":      {stored: format.EncodeLock(lock(base+201, false)), want: "ok; change p, read p, change p; p(lock@100 min 201) 1h0m0s"},
		"sealed":             {stored: format.EncodeLock(lock(base+300, true)), want: "ok; change p, read p, change p; p(lock@100 min 300 sealed) 1h0m0s"},
		"gone":               {want: "ok; change p, read p; "},
		"plain":              {stored: format.EncodeLock(plain), want: "ok; change p, read p; p(lock@100) 1m0s"},
		"of a plain lock":    {stored: format.EncodeLock(plain), notPassable: true, want: "ok; change p; p(lock@100) 1h0m0s"},
		"gone, a plain lock": {notPassable: true, want: "ok; change p; "},
		"damaged":            {stored: []byte{255}, want: "corrupt; change p, read p; p(lock@100)"},
		"refused":            {stored: format.EncodeLock(lock(base+300, true)), change: worldtest.Denied, want: "PermissionDenied; change p; p(lock@100 min 300 sealed) 1m0s"},
		"cannot be read":     {stored: format.EncodeLock(lock(base+300, true)), read: worldtest.Denied, want: "PermissionDenied; change p, read p; p(lock@100 min 300 sealed) 1m0s"},
	} {
		newWorld(t, Config{PassLocks: true}, func(w *world) {
			if tt.stored != nil {
				w.Set("a", "p", format.LockFamily, "f:q", (base + 100).Cell(), tt.stored)
			}
			table, err := w.c.resolver.Table(w.Context(), "a")
			w.Must(err)
			w.Inject("1 change p", tt.change)
			w.Inject("1 read p", tt.read)
			h := &heartbeat{minCommit: base + 200}
			l := lock(0, false)
			if l.Passable, l.TTL = !tt.notPassable, time.Hour; strings.Contains(name, "plain") {
				h.minCommit = 0
			}
			err = h.rewrite(w.Context(), table, l)
			line, stored, _ := w.did(false)
			if rows := w.Row("a", "p")[format.LockFamily]; len(rows) > 0 {
				if now, err := format.DecodeLock(l.Cell, l.StartTS, rows[0].Value); err == nil {
					stored += fmt.Sprint(" ", now.TTL)
				}
			}
			if got := worldtest.ErrorName(err, base, nil) + "; " + line + "; " + stored; got != tt.want {
				t.Errorf("%s: %s\nwant %s", name, got, tt.want)
			}
		})
	}
}

// TestHeartbeatStops: a beat extends the primary lock. stop waits for a beat that is under way, and no
// further one follows.
func TestHeartbeatStops(t *testing.T) {
	newWorld(t, Config{}, func(w *world) {
		tx, err := w.c.Begin(w.Context())
		w.Must(err)
		setCells(tx, "p:q", "p:a")
		rows, err := tx.buffer.Group(w.Context(), w.c.resolver.Store, nil)
		w.Must(err)
		c := &commit{txn: tx, client: w.c, startTS: tx.startTS, primary: tx.buffer.Primary(), rows: rows}
		l := lockOf(c, rows[0].Writes[slices.IndexFunc(rows[0].Writes, func(v *store.Write) bool { return v.Cell == c.primary })])
		w.Set("a", "p", format.LockFamily, "f:q", tx.startTS.Cell(), format.EncodeLock(&l))
		w.start()
		var stopped atomic.Bool
		w.before["2 change p"] = func() {
			go func() { c.heartbeat.stop(); stopped.Store(true) }()
			synctest.Wait()
			if stopped.Load() {
				t.Error("stop has not waited for a beat")
			}
		}
		c.heartbeat.start(w.Context(), c)
		w.After(time.Minute)
		if !stopped.Load() {
			t.Error("stop has not returned")
		}
		w.Expect("two beats", "1 change p, 2 change p")
		stored, err := format.DecodeLock(l.Cell, l.StartTS, w.Row("a", "p")[format.LockFamily][0].Value)
		if err != nil || stored.TTL != 12500*time.Millisecond {
			t.Errorf("after one beat the lock is %+v, %v", stored, err)
		}
		tx.Rollback()
		w.Must(w.c.Close(w.Context()))
	})
}
