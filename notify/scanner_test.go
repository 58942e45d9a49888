package notify_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// sweepOnce has a scanner read the tables once and returns what it offered.
// meet says at which offers another worker turns out to work on the cell.
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
// back within the same sweep. It offers every notification exactly once, also in the other
// columns of the row where it jumped.
func TestTeleportSkipsNothing(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		var want []txn.Cell
		cols := []column{input, middle, output}
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
				t.Errorf("with another worker at every %d. cell, %d threads and %d pieces: %d offers, want each of %d once", every, threads, pieces, len(got), len(want))
			}
			if st := s.Stats(); st.Teleports == 0 || st.Sweeps != 1 {
				t.Errorf("%+v", st)
			}
		}
		for _, every := range []int{1, 2, 3, 7, 100} {
			check(every, 1, 1)
			check(every, 3, 5)
		}
	}, txntest.WithoutJournal())
}

// TestTableGrows: a sweep finds each row that was there when it began once, although clients
// write other rows at the same time.
func TestTableGrows(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		seed := uint64(1)
		if !long.Reduced() {
			seed = rand.Uint64()
		}
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
	}, txntest.WithoutJournal())
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
// and idle workers together sweep about once in MaxInterval, each piece with two requests. When
// all but one worker stop, the last one does not keep its small share.
func TestScanCost(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
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
		}, txntest.WithoutJournal())
	}
	if count[8] > 2*count[1] {
		t.Errorf("%d scans by one worker, %d by eight", count[1], count[8])
	}
}

// TestLargeTableIsSwept: workers that start together read a large table about once, and then not
// more at a time than one worker.
func TestLargeTableIsSwept(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		const workers, size = 8, 40e9
		cluster := model.New(model.Config{Nodes: 20, Tables: map[string]model.Table{"docs": {Bytes: size, Splits: model.HexSplits("", 100)}}})
		found := make(chan struct{}, 1)
		for i := range workers {
			w := newWorker(t, env.NewClient(txn.Config{}, cluster.Client(fmt.Sprint("worker-", i))...), notify.Config{NoHints: true})
			handle(t, w, "o", input, func(context.Context, *txn.Txn, txn.Cell) error { found <- struct{}{}; return nil })
			start(t, w)
		}
		pass(time.Minute)
		if n := cluster.Sum(model.All).Bytes / size; n > 1.5 {
			t.Errorf("after a minute the workers had read the table %.1f times", n)
		}
		cluster.Reset()
		pass(5 * time.Minute)
		_, busy := cluster.Busy()
		// Each worker has two threads.
		if n := busy.Minutes() / 5; n < 1 || n > 3 {
			t.Errorf("idle workers kept %.1f nodes busy, want about 2", n)
		}
		put(t, env.Client, input, "row", "v")
		begun := time.Now()
		<-found
		// One worker alone reads the table in 91 seconds.
		if took := time.Since(begun); took > 10*time.Minute {
			t.Errorf("found after %v", took)
		}
	}, txntest.WithoutJournal())
}

// TestScanSpeedsUp: a scanner that finds something sweeps again soon.
func TestScanSpeedsUp(t *testing.T) {
	long.RacedAtNight(t)
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
	}, txntest.WithoutJournal())
}

// TestForeignObserver: notifications of an observer that no worker runs cost this worker a
// check from time to time, not one in every sweep.
func TestForeignObserver(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
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
			t.Errorf("%d useless checks of %d cells in 20 minutes", looks, rows)
		}
		// The observer still runs for a new change.
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

// A table that was deleted while it had observers ended every sweep, and the scan found
// nothing in other tables. Fixed by skip (scanner.go).
func TestDeletedTable(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true})
		found := make(chan struct{}, 10)
		handle(t, w, "o", input, func(context.Context, *txn.Txn, txn.Cell) error { found <- struct{}{}; return nil })
		z := columnOf("effects", "e", "z")
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

// While Bigtable does not answer reads of a part of the data, sweeps find what is in the rest.
// A lock of a dead client does not stop them either, if its primary is in that part. Before the
// fix, a part that was not read in time ended the sweep of all others, which then took up to
// seven minutes (now two).
func TestSweepsBesideUnansweredTable(t *testing.T) {
	long.RacedAtNight(t)
	for reads, match := range map[string]func(rowKeys [][]byte) bool{
		"scans":       func(keys [][]byte) bool { return len(keys) == 0 },
		"the primary": func(keys [][]byte) bool { return len(keys) > 0 },
	} {
		t.Run(reads, func(t *testing.T) {
			virtual(t, func(t *testing.T, env *txntest.Env) {
				faults, deaths := txntest.NewFaults(t), txntest.NewFaults(t)
				w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{NoHints: true})
				var found sync.Map
				handle(t, w, "o", input, func(_ context.Context, _ *txn.Txn, c txn.Cell) error { found.Store(c.Row, true); return nil })
				handle(t, w, "e", columnOf("effects", "e", "z"), observeEffect)
				start(t, w)
				pass(5 * time.Minute)
				var over atomic.Bool
				unanswered := faults.On(reads, func(c txntest.Call) bool {
					r, ok := c.Request.(*btpb.ReadRowsRequest)
					return ok && c.Table == "effects" && match(r.GetRows().GetRowKeys()) && !over.Load()
				}, txntest.Crash, 0)
				dies := deaths.OnStep(txntest.StepSecondaries, txntest.Hold)
				_, err := env.NewClient(txn.Config{TokenTTL: -1}, deaths.DialOptions()...).Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					tx.Table("effects").Set("primary", "e", "x", nil)
					tx.Table(input.table).Set("left", input.Family, input.Qualifier, nil)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				<-dies.Fired()
				deaths.Kill()
				sweepSoon(t, env.Client, "effects")
				<-unanswered.Fired()
				want := func(row string) {
					t.Helper()
					pass(3 * time.Minute)
					if _, ok := found.Load(row); !ok {
						t.Errorf("the change of %s was not found", row)
					}
				}
				for _, row := range []string{"row1", "row2", "row3"} {
					put(t, env.Client, input, row, "v")
					want(row)
				}
				over.Store(true)
				want("left")
			})
		})
	}
}

// A worker counted the workers of other tables among those that share its sweeps, and its
// sweeps were too rare. Fixed by counting only workers with an observer in common
// (countWorkers, scanner.go).
func TestSweepsBesideOtherTables(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		for range 20 {
			w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true})
			handle(t, w, "e", columnOf("effects", "e", "z"), observeEffect)
			start(t, w)
		}
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true})
		found := make(chan struct{}, 1)
		handle(t, w, "o", input, func(context.Context, *txn.Txn, txn.Cell) error { found <- struct{}{}; return nil })
		start(t, w)
		pass(5 * time.Minute)
		for i := range 4 {
			begun := time.Now()
			put(t, env.Client, input, fmt.Sprint("row", i), "v")
			<-found
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("found after %v, want about one interval", took)
			}
			pass(time.Minute)
		}
	})
}
