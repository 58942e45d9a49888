package emulator_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A hotRun is the result of many goroutines that move money between ten accounts.
type hotRun struct {
	commits, attempts, conflicts, early int
	requests, wasted                    int // wasted counts prewrites of transactions that did not commit
	median, p99, slowest                time.Duration
}

// requestCount counts a connection's requests.
type requestCount struct{ all, prewrites atomic.Int64 }

func (n *requestCount) dialOptions() []grpc.DialOption {
	return txntest.Intercept(func(c txntest.Call) error {
		switch c.Step {
		case txntest.StepOracle, txntest.StepSchema, txntest.StepToken, txntest.StepSafePoint:
			return nil
		case txntest.StepPrewrite:
			n.prewrites.Add(1)
		}
		n.all.Add(1)
		return nil
	})
}

const (
	hotAccounts = 10
	hotInitial  = 1000
)

// bankOnHotCells runs transfers for the duration d, with a delay before each request.
func bankOnHotCells(t *testing.T, cfg txn.Config, clients, workers int, delay, d time.Duration) (r hotRun) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for i := range hotAccounts {
				tx.Table("a").Set(strconv.Itoa(i), "f", "q", []byte(strconv.Itoa(hotInitial)))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		n := &requestCount{}
		cs := make([]*txn.Client, clients)
		for i := range cs {
			cs[i] = env.NewClient(cfg, append(n.dialOptions(), slow(delay)...)...)
		}
		var mu sync.Mutex
		var took []time.Duration
		end := time.Now().Add(d)
		var g sync.WaitGroup
		for w := range workers {
			g.Go(func() {
				rnd := rand.New(rand.NewPCG(7, uint64(w)))
				for time.Now().Before(end) {
					from := rnd.IntN(hotAccounts)
					to := (from + 1 + rnd.IntN(hotAccounts-1)) % hotAccounts
					began := time.Now()
					if err := moveHot(t.Context(), cs[w%clients], from, to); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					took = append(took, time.Since(began))
					mu.Unlock()
				}
			})
		}
		g.Wait()
		synctest.Wait()
		slices.Sort(took)
		r.commits = len(took)
		r.median, r.p99, r.slowest = took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
		r.requests = int(n.all.Load())
		r.wasted = int(n.prewrites.Load()) - 2*r.commits
		for _, c := range cs {
			s := c.Stats()
			r.attempts += int(s.Begun)
			r.conflicts += int(s.Conflicts)
			r.early += int(s.EarlyConflicts)
		}
		sum := 0
		for i := range hotAccounts {
			v, _, err := takeSnapshot(t, env.Client).Table("a").Get(t.Context(), strconv.Itoa(i), "f", "q")
			if err != nil {
				t.Fatal(err)
			}
			balance, _ := strconv.Atoi(string(v))
			sum += balance
		}
		if sum != hotAccounts*hotInitial {
			t.Errorf("the accounts hold %d, want %d", sum, hotAccounts*hotInitial)
		}
	})
	return r
}

func moveHot(ctx context.Context, c *txn.Client, from, to int) error {
	_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		a := tx.Table("a")
		for i, row := range []int{from, to} {
			v, _, err := a.Get(ctx, strconv.Itoa(row), "f", "q")
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(string(v))
			if err != nil {
				return err
			}
			a.Set(strconv.Itoa(row), "f", "q", []byte(strconv.Itoa(n-1+2*i)))
		}
		return nil
	})
	return err
}

func (r hotRun) String() string {
	return fmt.Sprintf("%4d commits, %5.2f attempts and %5.2f conflicts a commit (%4.1f %% early), %5.1f requests and %5.2f wasted prewrites a commit; median %v, 99 %% %v, slowest %v",
		r.commits, float64(r.attempts)/float64(r.commits), float64(r.conflicts)/float64(r.commits), 100*float64(r.early)/float64(max(1, r.conflicts)),
		float64(r.requests)/float64(r.commits), float64(r.wasted)/float64(r.commits), r.median, r.p99, r.slowest)
}

var hotModes = []struct {
	name string
	cfg  txn.Config
}{
	{"off", txn.Config{LatchWait: -1}},
	{"both", txn.Config{}},
}

var everyHotMode = flag.Bool("hot", false, "let TestHotCells measure with 16 and 64 goroutines")

// TestHotCells measures latches and early conflicts in virtual time, in which only
// round trips take time. With both, there are more commits with fewer requests, and the
// slowest transfer takes less time.
func TestHotCells(t *testing.T) {
	long.Test(t, "it compares how many commits there are, and clients pause by chance")
	for _, clients := range []int{1, 4} {
		for _, workers := range []int{16, 64} {
			if workers != 64/clients && !*everyHotMode {
				continue
			}
			runs := map[string]hotRun{}
			for _, mode := range hotModes {
				r := bankOnHotCells(t, mode.cfg, clients, workers, 5*time.Millisecond, time.Second)
				runs[mode.name] = r
				t.Logf("%d clients, %d goroutines, %-11s %v", clients, workers, mode.name+":", r)
			}
			off, both := runs["off"], runs["both"]
			if both.requests*off.commits > off.requests*both.commits*9/10 {
				t.Errorf("%d clients, %d goroutines: latches and early conflicts save no requests", clients, workers)
			}
			if clients == 1 && (both.wasted > 0 || both.attempts > 21*both.commits/10+workers || both.slowest > off.slowest || both.commits < off.commits) {
				t.Errorf("%d goroutines of one client: %v; want no wasted prewrite, at most two attempts, a slowest transfer below %v, and more than %d commits", workers, both, off.slowest, off.commits)
			}
		}
	}
}

// TestOneHotCell has 64 goroutines of one client change one cell, for longer than the queue takes
// to move once. Their transactions queue before they run, so nearly every run commits. After
// the load, a function does not queue before its run any more.
func TestOneHotCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, each = 64, 10
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{}, slow(5*time.Millisecond)...)
		var runs atomic.Int64
		increment := func(ctx context.Context, tx *txn.Txn) error {
			runs.Add(1)
			v, _, err := tx.Table("a").GetForUpdate(ctx, "hot", "f", "q")
			if err != nil {
				return err
			}
			n, _ := strconv.Atoi(string(v))
			tx.Table("a").Set("hot", "f", "q", []byte(strconv.Itoa(n+1)))
			return nil
		}
		var g sync.WaitGroup
		for range workers {
			g.Go(func() {
				for range each {
					if _, err := c.Update(t.Context(), increment); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		g.Wait()
		wantValue(t, takeSnapshot(t, c), "hot", strconv.Itoa(workers*each))
		n := runs.Load()
		t.Logf("%.2f runs a commit", float64(n)/workers/each)
		if n > workers*each+workers+20 { // the first call of each goroutine does not know its cells yet
			t.Errorf("%d runs for %d commits", n, workers*each)
		}
		if s := c.Stats(); s.Conflicts != s.EarlyConflicts {
			t.Errorf("%d conflicts, of which the client noticed %d itself", s.Conflicts, s.EarlyConflicts)
		}
	})
}

// TestOneHotCellOfManyClients has 32 clients change one cell. Those that come too late pause, so each commit costs
// few requests, and the next one begins soon.
func TestOneHotCellOfManyClients(t *testing.T) {
	long.Test(t, "32 clients, and figures with pauses by chance")
	long.NotUnderRace(t, "one request after the other, and what it costs")
	synctest.Test(t, func(t *testing.T) {
		const clients, workers, lasts = 32, 2, 4 * time.Second
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		n := &requestCount{}
		var commits atomic.Int64
		end := time.Now().Add(lasts)
		var g sync.WaitGroup
		for range clients {
			c := env.NewClient(txn.Config{TokenTTL: -1}, append(n.dialOptions(), slow(5*time.Millisecond)...)...)
			for range workers {
				g.Go(func() {
					for time.Now().Before(end) {
						if _, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
							v, _, err := tx.Table("a").Get(ctx, "hot", "f", "q")
							n, _ := strconv.Atoi(string(v))
							tx.Table("a").Set("hot", "f", "q", []byte(strconv.Itoa(n+1)))
							return err
						}); err != nil {
							t.Error(err)
							return
						}
						commits.Add(1)
					}
				})
			}
		}
		g.Wait()
		wantValue(t, takeSnapshot(t, env.Client), "hot", strconv.Itoa(int(commits.Load())))
		rate, requests := float64(commits.Load())/time.Since(end.Add(-lasts)).Seconds(), float64(n.all.Load())/float64(commits.Load())
		t.Logf("%.0f commits/s, %.0f requests a commit", rate, requests)
		if requests > 33 {
			t.Errorf("%.0f requests a commit", requests)
		}
	})
}

// prewrites counts a transaction's prewrites.
func prewrites(f *txntest.Faults, tx *txn.Txn) (n int) {
	for _, c := range f.Calls() {
		if c.Step == txntest.StepPrewrite && c.StartTS == tx.StartTS() {
			n++
		}
	}
	return n
}

// A transaction sends no prewrite if its client knows of the conflict, or notices it while
// the transaction waits for a latch. Its error is the same as that of a conflict that
// Bigtable reports.
func TestEarlyConflict(t *testing.T) {
	for _, tt := range []struct {
		name  string
		write func(tx *txn.Txn)
	}{
		{"write", func(tx *txn.Txn) { tx.Table("a").Set("hot", "f", "q", []byte("1")) }},
		{"delete", func(tx *txn.Txn) { tx.Table("a").Delete("hot", "f", "q") }},
		{"lock", func(tx *txn.Txn) { tx.Table("a").Lock("hot", "f", "q") }},
	} {
		var errs []*txn.ConflictError
		for _, cfg := range []txn.Config{{LatchWait: -1}, {}} {
			synctest.Test(t, func(t *testing.T) {
				_, c, faults := newFaultyClient(t, cfg)
				late, after := begin(t, c), begin(t, c)
				set(late, "2", "hot")
				set(after, "2", "other")
				// The same row, another column: no conflict.
				after.Table("a").Set("hot", "f", "r", []byte("2"))
				first := begin(t, c)
				tt.write(first)
				held := faults.OnStep(txntest.StepPrewrite, txntest.Hold)
				done := commitInBackground(t.Context(), first)
				<-held.Fired()
				var lateDone <-chan outcome
				if cfg.LatchWait == 0 {
					lateDone = commitInBackground(t.Context(), late)
					synctest.Wait() // it waits for the latch
				}
				held.Release()
				if o := <-done; o.err != nil {
					t.Fatal(o.err)
				}
				if lateDone == nil {
					lateDone = commitInBackground(t.Context(), late)
				}
				var conflict *txn.ConflictError
				if o := <-lateDone; !errors.As(o.err, &conflict) {
					t.Fatalf("%v, want a conflict", o.err)
				}
				want := 0
				if cfg.LatchWait < 0 {
					want = 1
				}
				if n := prewrites(faults, late); n != want {
					t.Errorf("%s, %+v: %d prewrites of the transaction with the conflict, want %d", tt.name, cfg, n, want)
				}
				if s := c.Stats(); s.EarlyConflicts != int64(1-want) || s.Conflicts != 1 || s.LatchWaits != map[bool]int64{true: 1}[cfg.LatchWait == 0] {
					t.Errorf("stats %+v", s)
				}
				if _, err := after.Commit(t.Context()); err != nil {
					t.Errorf("commit of another cell: %v", err)
				}
				if _, err := beginSet(t, c, "3", "hot").Commit(t.Context()); err != nil {
					t.Errorf("commit of a transaction that began after the first commit: %v", err)
				}
				conflict.ConflictTS -= conflict.StartTS
				conflict.StartTS = 0
				errs = append(errs, conflict)
			})
		}
		for _, e := range errs[1:] {
			if e.Cell != errs[0].Cell || e.Reason != errs[0].Reason || e.ConflictTS <= 0 {
				t.Errorf("%s: early conflict: %+v; conflict that Bigtable reported: %+v", tt.name, e, errs[0])
			}
		}
	}
}

// A commit of one cell is no early conflict for another cell. The client also remembers
// conflicts that Bigtable reported.
func TestEarlyConflictNamesItsCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newFaultyClient(t, txn.Config{})
		early := beginSet(t, c, "1", "one")
		mustSet(t, c, "2", "two")
		if _, err := early.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		late := []*txn.Txn{beginSet(t, c, "1", "three"), beginSet(t, c, "1", "three")}
		mustSet(t, env.Client, "2", "three")
		for i, tx := range late {
			if _, err := tx.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) || prewrites(faults, tx) != 1-i || c.Stats().EarlyConflicts != int64(i) {
				t.Errorf("transaction %d: %v, %d prewrites, stats %+v", i, err, prewrites(faults, tx), c.Stats())
			}
		}
	})
}

// When Update runs its function again, the transaction keeps its latches. Other
// transactions of the client that write the cell wait for it, but not for longer than
// LatchWait.
func TestRetryKeepsItsLatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := newFaultyClient(t, txn.Config{LatchWait: time.Second})
		runs := 0
		var other <-chan outcome
		_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			set(tx, "1", "hot", "cold")
			switch runs++; runs {
			case 1:
				mustSet(t, c, "2", "hot")
			case 2:
				other = commitInBackground(ctx, beginSet(t, c, "3", "cold"))
				synctest.Wait()
			}
			return nil
		})
		if err != nil || runs != 2 {
			t.Errorf("%d runs, %v; want a second run without a conflict", runs, err)
		}
		if o := <-other; !errors.Is(o.err, txn.ErrConflict) || c.Stats().EarlyConflicts != 2 {
			t.Errorf("the other transaction: %v; stats %+v", o.err, c.Stats())
		}
		if n := faults.Count()[txntest.StepAbort]; n != 0 {
			t.Errorf("%d requests that remove locks, want none", n)
		}

		// If a run takes longer than LatchWait, other transactions do not wait for it.
		runs = 0
		_, err = c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			set(tx, "1", "hot")
			if runs++; runs <= 2 {
				began := time.Now()
				mustSet(t, c, "2", "hot") // inside the function, so that it waits for this run
				if took := time.Since(began); runs == 2 && took != time.Second {
					t.Errorf("the transaction inside the function took %v, want LatchWait", took)
				}
			}
			return nil
		})
		if err != nil || runs != 3 {
			t.Errorf("%d runs, %v", runs, err)
		}

		// A function that fails leaves no latch to wait for.
		failed := errors.New("failed")
		runs = 0
		_, err = c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			set(tx, "1", "hot")
			if runs++; runs == 1 {
				mustSet(t, c, "2", "hot")
				return nil
			}
			return failed
		})
		began := time.Now()
		mustSet(t, c, "4", "hot")
		if took := time.Since(began); !errors.Is(err, failed) || took > 0 {
			t.Errorf("%v; the next transaction took %v", err, took)
		}
	})
}

// A transaction that waits for another client's lock releases its latches. Otherwise
// the other transactions of its client would wait for that lock one after the other.
func TestLatchIsNotHeldWhileWaitingForALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newFaultyClient(t, txn.Config{LatchWait: time.Hour, Backoff: txn.Backoff{Max: 10 * time.Millisecond}})
		old := beginSet(t, c, "1", "hot", "mine")
		otherFaults := txntest.NewFaults(t)
		other := env.NewClient(txn.Config{}, otherFaults.DialOptions()...)
		held := otherFaults.OnStep(txntest.StepCommit, txntest.Hold)
		done := commitInBackground(t.Context(), beginSet(t, other, "2", "hot"))
		<-held.Fired()
		waiting := commitInBackground(t.Context(), old) // older, so it waits
		advance(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		young := beginSet(t, c, "3", "hot")
		if _, err := young.Commit(ctx); !errors.Is(err, txn.ErrConflict) {
			t.Errorf("%v; want a conflict with the lock at once", err)
		}
		if n := prewrites(faults, young); n == 0 {
			t.Error("the younger transaction sent no prewrite; want one")
		}
		held.Release()
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
		if o := <-waiting; !errors.Is(o.err, txn.ErrConflict) {
			t.Error(o.err)
		}
	})
}

// The same holds for a transaction of Update, which may keep its latches after a conflict.
func TestUpdateHoldsNoLatchWhileWaitingForALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := newFaultyClient(t, txn.Config{LatchWait: time.Hour, Backoff: txn.Backoff{Max: 10 * time.Millisecond}})
		otherFaults := txntest.NewFaults(t)
		other := env.NewClient(txn.Config{}, otherFaults.DialOptions()...)
		held := otherFaults.OnStep(txntest.StepCommit, txntest.Hold)
		var done <-chan outcome
		runs := 0
		waiting := inBackground(func() error {
			_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				if runs++; runs == 1 {
					done = commitInBackground(t.Context(), beginSet(t, other, "2", "hot"))
					<-held.Fired()
				}
				set(tx, "1", "hot", "mine")
				return nil
			})
			return err
		})
		advance(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := beginSet(t, c, "3", "hot").Commit(ctx); !errors.Is(err, txn.ErrConflict) {
			t.Errorf("%v; want a conflict with the lock at once", err)
		}
		held.Release()
		if o := <-waiting; o.err != nil || runs != 2 {
			t.Errorf("%v after %d runs; want a second run, without a conflict", o.err, runs)
		}
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
	})
}

// A client whose commit request is under way does not take its transaction as committed
// yet, when another of its goroutines finds the locks.
func TestOwnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		mustSet(t, c, "1", "bob", "joe")
		synctest.Wait()
		held := faults.OnStep(txntest.StepCommit, txntest.Hold)
		done := commitInBackground(t.Context(), beginSet(t, c, "2", "bob", "joe"))
		<-held.Fired()
		faults.Reset()
		s := takeSnapshot(t, c)
		read := inBackground(func() error { wantValue(t, s, "joe", "2"); return nil })
		advance(time.Second)
		if n := faults.Count(); n[txntest.StepRollForward] > 0 {
			t.Errorf("%d cells were rolled forward before the commit point", n[txntest.StepRollForward])
		}
		held.Release()
		<-read
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
		// After the commit it does not have to read the primary.
		faults.Reset()
		late := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		mustSet(t, c, "3", "bob", "joe")
		<-late.Fired()
		faults.Reset()
		wantValue(t, takeSnapshot(t, c), "joe", "3")
		if n := faults.Count(); n[txntest.StepRead] != 2 || n[txntest.StepRollForward] != 1 {
			t.Errorf("%v; want the cell read twice and rolled forward", n)
		}
		late.Release()
	})
}

// When its context ends, a transaction stops waiting for a latch, and the next
// transaction gets the latch.
func TestLatchWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := newFaultyClient(t, txn.Config{LatchWait: time.Hour})
		held := faults.OnStep(txntest.StepPrewrite, txntest.Hold)
		first := commitInBackground(t.Context(), beginSet(t, c, "1", "hot"))
		<-held.Fired()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2) // before the row counts as stalled
		defer cancel()
		if _, err := beginSet(t, c, "2", "hot").Commit(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v; want the context's error", err)
		}
		held.Release()
		if o := <-first; o.err != nil {
			t.Error(o.err)
		}
		mustSet(t, c, "3", "hot")
	})
}
