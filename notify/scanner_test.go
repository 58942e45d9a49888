package notify_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// sweepOnce has a scanner read the tables once and returns what it offered.
// meet says at which offers another worker turns out to be there.
func sweepOnce(t *testing.T, c *txn.Client, s *notify.Scanner, meet func(txn.Cell) bool) (offered []txn.Cell) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	s.MinInterval, s.MaxInterval = 24*time.Hour, 24*time.Hour
	done := make(chan error, 1)
	go func() {
		done <- s.Find(ctx, notify.Search{
			Client: c, Tables: []string{"docs"}, Logger: slog.New(slog.DiscardHandler),
			Offer: func(_ context.Context, n changes.Notification, met func()) bool {
				mu.Lock()
				defer mu.Unlock()
				offered = append(offered, n.Cell)
				if meet(n.Cell) {
					met()
				}
				return true
			},
		})
	}()
	pass(time.Minute)
	cancel()
	<-done
	return offered
}

// TestTeleportSkipsNothing: a scanner that jumps away from another worker comes
// back within the same sweep: every notification is offered exactly once, also
// the other columns of the row where it jumped.
func TestTeleportSkipsNothing(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		var want []txn.Cell
		cols := []notify.Column{input, middle, output}
		for _, col := range cols {
			register(t, env.Client, col, col.Qualifier, false)
		}
		_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for i := range 200 {
				row := fmt.Sprintf("%c%03d", 'a'+i%26, i)
				for _, col := range cols {
					tx.Table("docs").Set(row, col.Family, col.Qualifier, nil)
					want = append(want, txn.Cell{Table: "docs", Row: row, Family: col.Family, Qualifier: col.Qualifier})
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Second) // the secondaries
		compare := func(a, b txn.Cell) int {
			if a.String() < b.String() {
				return -1
			}
			return 1
		}
		slices.SortFunc(want, compare)
		check := func(every int, threads, pieces int) {
			n := 0
			s := &notify.Scanner{Threads: threads, Pieces: pieces}
			got := sweepOnce(t, env.Client, s, func(txn.Cell) bool { n++; return n%every == 0 })
			slices.SortFunc(got, compare)
			if !slices.Equal(got, want) {
				t.Errorf("with a meeting at every %d. cell, %d threads and %d pieces: %d offers, want each of %d once", every, threads, pieces, len(got), len(want))
			}
			if st := s.Stats(); st.Teleports == 0 || st.Sweeps != 1 {
				t.Errorf("%+v", st)
			}
		}
		for _, every := range []int{1, 2, 3, 7, 100} {
			check(every, 1, 1)
			check(every, 3, 5)
		}
	})
}

// TestTableGrows: rows that were there when a sweep began are found by it, each
// once, whatever is written beside it.
func TestTableGrows(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		key := func(n int) string {
			b := make([]byte, 1+rnd.IntN(n))
			for i := range b {
				b[i] = "abcd"[rnd.IntN(4)]
			}
			return string(b)
		}
		rows := map[string]bool{}
		for range 20 {
			_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				for range 5 {
					row := key(6)
					rows[row] = true
					tx.Table("docs").Set(row, "d", "in", nil)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			pass(time.Second)
			grown := map[string]bool{}
			got := sweepOnce(t, env.Client, &notify.Scanner{Threads: 1 + rnd.IntN(3)}, func(txn.Cell) bool {
				if len(grown) < 5 {
					row := key(8)
					grown[row] = true
					put(t, env.Client, input, row, "v")
				}
				return rnd.IntN(4) == 0
			})
			n := map[string]int{}
			for _, c := range got {
				n[c.Row]++
			}
			for row := range rows {
				if n[row] != 1 {
					t.Errorf("seed %d: row %q was offered %d times", seed, row, n[row])
				}
			}
			maps.Copy(rows, grown)
		}
	})
}

// scans counts requests that read a range of docs.
func scans(calls []txntest.Call) int {
	n := 0
	for _, c := range calls {
		if r, ok := c.Request.(*btpb.ReadRowsRequest); ok && c.Table == "docs" && len(r.GetRows().GetRowKeys()) == 0 {
			n++
		}
	}
	return n
}

// TestScanCost: the number of scans does not grow with the number of workers,
// and an idle fleet sweeps about once in MaxInterval, a piece by two requests. When all but one worker go away,
// the one left does not keep to its small share.
func TestScanCost(t *testing.T) {
	const minutes = 20
	count := map[int]int{}
	for _, workers := range []int{1, 8} {
		virtual(t, func(t *testing.T, env *txntest.Env) {
			faults := txntest.NewFaults(t)
			stops := make([]func() error, workers)
			found := make(chan struct{}, 1)
			for i := range workers {
				w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{NoHints: true})
				handle(t, w, "o", input, func(context.Context, *txn.Txn, txn.Cell) error {
					found <- struct{}{}
					return nil
				})
				stops[i] = start(t, w)
			}
			pass(10 * time.Minute) // until it is idle
			faults.Reset()
			pass(minutes * time.Minute)
			count[workers] = scans(faults.Calls())
			if n := count[workers]; n < minutes/2 || n > 5*minutes {
				t.Errorf("%d workers: %d scans in %d idle minutes", workers, n, minutes)
			}
			for _, stop := range stops[1:] {
				if err := stop(); err != nil {
					t.Error(err)
				}
			}
			begun := time.Now()
			put(t, env.Client, input, "row", "v")
			<-found
			if d := time.Since(begun); d > 3*time.Minute {
				t.Errorf("%d workers, all but one stopped: found after %v", workers, d)
			}
		})
	}
	if count[8] > 2*count[1] {
		t.Errorf("%d scans by one worker, %d by eight", count[1], count[8])
	}
}

// TestScanSpeedsUp: a scanner that finds something looks again soon.
func TestScanSpeedsUp(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		w := newWorker(t, env.Client, notify.Config{NoHints: true})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		pass(10 * time.Minute)
		put(t, env.Client, input, "row", "1")
		begun := time.Now()
		wait(t, env.Client)
		if d := time.Since(begun); d > 70*time.Second {
			t.Errorf("the first was found after %v", d)
		}
		put(t, env.Client, input, "row", "2")
		begun = time.Now()
		wait(t, env.Client)
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("the second was found after %v", d)
		}
	})
}

// TestForeignObserver: notifications that wait for an observer which runs
// nowhere cost this worker a look now and then, not one in each of many sweeps.
func TestForeignObserver(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		register(t, env.Client, input, "elsewhere", false)
		const rows = 20
		for i := range rows {
			put(t, env.Client, input, fmt.Sprintf("row%d", i), "v")
		}
		s := &notify.Scanner{}
		w := newWorker(t, env.Client, notify.Config{NoHints: true, Finder: s})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		pass(20 * time.Minute)
		stats := w.Stats()
		if stats.Committed != rows {
			t.Errorf("%+v", stats)
		}
		if looks := stats.Acknowledged; looks > 25*rows {
			t.Errorf("%d looks in vain at %d cells in 20 minutes", looks, rows)
		}
		// A new change is run all the same.
		put(t, env.Client, input, "row0", "again")
		pass(2 * time.Minute)
		if n := effects(t, env.Client)["row0"]; n != 2 {
			t.Errorf("%d effects", n)
		}
		wantLeft(t, env.Client, rows+1, 0)
		// Once it is unregistered, nothing waits for it.
		if _, err := changes.UnregisterObserver(t.Context(), env.Client, "docs", "elsewhere"); err != nil {
			t.Fatal(err)
		}
		pass(5 * time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}

// One table that was deleted while it had observers ended every sweep: nothing was
// found in the others without a hint; closed by skip (scanner.go).
func TestDeletedTable(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true})
		found := make(chan struct{}, 10)
		handle(t, w, "o", input, func(context.Context, *txn.Txn, txn.Cell) error { found <- struct{}{}; return nil })
		z := notify.Column{Table: "effects", Family: "e", Qualifier: "z"}
		handle(t, w, "e", z, observeEffect)
		start(t, w)
		pass(5 * time.Minute)
		if err := env.Admin.DeleteTable(t.Context(), "effects"); err != nil {
			t.Fatal(err)
		}
		for i := range 3 { // with its pieces still known, and then without
			put(t, env.Client, input, fmt.Sprint("row", i), "v")
			pass(3 * time.Minute)
			if len(found) != i+1 {
				t.Fatalf("%d changes were found, want %d", len(found), i+1)
			}
		}
		env.CreateTable("effects", "e")
		put(t, env.Client, z, "row", "v")
		pass(3 * time.Minute)
		if n := len(effects(t, env.Client)); n != 1 {
			t.Errorf("%d changes were found in the table once it was there again, want 1", n)
		}
	})
}

// A worker took the workers of other tables for those that share its sweeps, and
// swept as seldom as they all together; closed by counting those with an observer in
// common (countWorkers, scanner.go).
func TestSweepsBesideOtherTables(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		for range 20 {
			w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true})
			handle(t, w, "e", notify.Column{Table: "effects", Family: "e", Qualifier: "z"}, observeEffect)
			start(t, w)
		}
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true})
		found := make(chan struct{}, 1)
		handle(t, w, "o", input, func(context.Context, *txn.Txn, txn.Cell) error { found <- struct{}{}; return nil })
		start(t, w)
		pass(time.Hour)
		for i := range 4 {
			begun := time.Now()
			put(t, env.Client, input, fmt.Sprint("row", i), "v")
			<-found
			if took := time.Since(begun); took > 2*time.Minute {
				t.Errorf("found after %v, want MaxInterval, roughly", took)
			}
			pass(10 * time.Minute)
		}
	})
}
