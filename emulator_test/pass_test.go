package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// If readers raised the minimum above a transaction's commit_ts, its weak notification
// has to be written at the new commit_ts. At the first one it would be below the run of
// the observer that passed the lock.
func TestPassedNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newObserved(t)
		col := txn.Column{Family: "d", Qualifier: "sum"}
		var mu sync.Mutex
		var seen []string
		w, err := notify.NewWorker(env.NewClient(txn.Config{PassLocks: true}), notify.Config{})
		if err == nil {
			err = w.Handle("sum", "docs", col, notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, _ txn.Cell) error {
				v, _, err := tx.Table("docs").Get(ctx, "a", "d", "mid")
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, string(v))
				return err
			}), notify.Weak())
		}
		if err == nil {
			err = w.Register(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{PassLocks: true}, faults.DialOptions()...)
		held := faults.OnStep(txntest.StepCommit, txntest.Hold)
		tx := begin(t, c)
		tx.Table("docs").Set("a", "d", "mid", []byte("new"))
		tx.Table("docs").Notify("a", "d", "sum")
		done := commitInBackground(t.Context(), tx)
		<-held.Fired()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		advance(time.Minute)
		held.Release()
		if o := <-done; o.err != nil {
			t.Fatal(o.err)
		}
		advance(5 * time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(seen) < 2 || seen[0] != "" || seen[len(seen)-1] != "new" {
			t.Errorf("the observer saw %q; want it to run before the commit and after it", seen)
		}
	})
}

// A client from before passable locks refuses them: it must neither wait for their ttl
// nor roll them back. Such a client knows only format version 1. Here a lock of an
// unknown version stands for a passable one.
func TestUnknownLockIsRefused(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck())
		env.CreateTable("a", "f")
		tx := begin(t, env.Client)
		set(tx, "1", "row")
		writeUnknownLock(t, env, tx.StartTS())
		advance(time.Hour)
		s := takeSnapshot(t, env.Client)
		if _, _, err := s.Table("a").Get(t.Context(), "row", "f", "q"); !errors.Is(err, txn.ErrFormatVersion) {
			t.Errorf("read: %v", err)
		}
		if err := tryUpdate(t.Context(), env.Client, "2", "row"); !errors.Is(err, txn.ErrFormatVersion) {
			t.Errorf("write: %v", err)
		}
		if len(stored(t, env, "row")[format.LockFamily]) != 1 {
			t.Error("the lock is gone")
		}
	})
}

// A secondary's lock of version 1 leads to a primary lock of an unknown version. A
// client that does not know that version reports it too, and does not wait.
func TestUnknownPrimaryLockIsRefused(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		crash := faults.OnStep(txntest.StepCommit, txntest.Crash)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx := beginSet(t, env.NewClient(txn.Config{}, faults.DialOptions()...), "1", "row", "other")
		done := commitInBackground(ctx, tx)
		<-crash.Fired()
		faults.Kill()
		cancel()
		<-done
		writeUnknownLock(t, env, tx.StartTS())
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := takeSnapshot(t, env.Client).Table("a").Get(ctx, "other", "f", "q"); !errors.Is(err, txn.ErrFormatVersion) {
			t.Errorf("read: %v", err)
		}
		if err := tryUpdate(ctx, env.Client, "2", "other"); !errors.Is(err, txn.ErrFormatVersion) {
			t.Errorf("write: %v", err)
		}
		if ctx.Err() != nil {
			t.Error("the read or the write waited")
		}
		advance(time.Hour)
		if len(stored(t, env, "row")[format.LockFamily]) != 1 || len(stored(t, env, "other")[format.LockFamily]) != 1 {
			t.Error("a lock is gone")
		}
	})
}

// A passRun is the result of clients that read cells while writers commit to them all
// the time.
type passRun struct {
	reads, writes, raises  int
	mean, p99, slowest     time.Duration // of reads
	written99, writtenLast time.Duration
}

// readBesideWriters runs four readers and four writers for four seconds.
func readBesideWriters(t *testing.T, cfg txn.Config, between time.Duration) (r passRun) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "0", "0", "1", "2", "3")
		var mu sync.Mutex
		var reads, writes []time.Duration
		end := time.Now().Add(4 * time.Second)
		var g sync.WaitGroup
		during := func(took *[]time.Duration, between time.Duration, f func() error) {
			g.Go(func() {
				for time.Now().Before(end) {
					advance(between)
					began := time.Now()
					if err := f(); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					*took = append(*took, time.Since(began))
					mu.Unlock()
				}
			})
		}
		var readers []*txn.Client
		for i := range 4 {
			w := env.NewClient(cfg, slow(20*time.Millisecond)...) // 20 ms away; the readers are 2 ms away
			during(&writes, 0, func() error { return tryUpdate(t.Context(), w, "1", fmt.Sprint(i), fmt.Sprint("other", i)) })
			c := env.NewClient(cfg, slow(2*time.Millisecond)...)
			readers = append(readers, c)
			during(&reads, between, func() error {
				s, err := c.Snapshot(t.Context())
				if err == nil {
					_, _, err = s.Table("a").Get(t.Context(), fmt.Sprint(i), "f", "q")
				}
				return err
			})
		}
		g.Wait()
		for _, c := range readers {
			r.raises += int(c.Stats().Raises)
		}
		slices.Sort(reads)
		slices.Sort(writes)
		r.reads, r.writes = len(reads), len(writes)
		for _, took := range reads {
			r.mean += took / time.Duration(len(reads))
		}
		r.p99, r.slowest = reads[len(reads)*99/100], reads[len(reads)-1]
		r.written99, r.writtenLast = writes[len(writes)*99/100], writes[len(writes)-1]
	})
	return r
}

func (r passRun) String() string {
	return fmt.Sprintf("%d reads: mean %v, 99 %% %v, slowest %v, %.2f raises each; %d writes: 99 %% %v, slowest %v",
		r.reads, r.mean, r.p99, r.slowest, float64(r.raises)/float64(r.reads), r.writes, r.written99, r.writtenLast)
}

// TestPassLocks measures, in virtual time, clients near to Bigtable that read cells to
// which distant writers commit all the time. With PassLocks most reads do not wait for
// a commit. The writers take longer, but still commit. The test compares means: about
// half of the reads find a lock, so that the median can be of either kind.
func TestPassLocks(t *testing.T) {
	long.Test(t, "it compares how long reads take, and clients pause by chance")
	for _, between := range []time.Duration{0, 31 * time.Millisecond} {
		off, on := readBesideWriters(t, txn.Config{}, between), readBesideWriters(t, txn.Config{PassLocks: true}, between)
		t.Logf("%v between reads, off: %v", between, off)
		t.Logf("%v between reads, on:  %v", between, on)
		if off.raises > 0 || on.raises == 0 || on.writes < off.writes/4 {
			t.Errorf("%v between reads: off %v, on %v; want raises, and at least a quarter of the commits", between, off, on)
		}
		if between > 0 && 3*on.mean >= 2*off.mean {
			t.Errorf("reads that pass locks take more than two thirds of the time: off %v, on %v", off, on)
		}
	}
}

// TestPassLargeCommit: a prewrite of a commit takes twelve seconds. No read of its rows waits for
// that, and raises become rare as the transaction grows older. Reads follow each other, so each
// run has the same requests.
func TestPassLargeCommit(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "old", "p", "s")
		owner, _, held := holdPrewrite(t, env, 20*time.Millisecond)
		tx := beginSet(t, owner, "new", "p", "s")
		done := commitInBackground(t.Context(), tx)
		<-held.Fired()
		faults := txntest.NewFaults(t)
		reader := env.NewClient(txn.Config{PassLocks: true}, append(faults.DialOptions(), slow(2*time.Millisecond)...)...)
		wantValue(t, takeSnapshot(t, reader), "p", "old") // reads the schema
		faults.Reset()
		before, began := reader.Stats().Raises, time.Now()
		var slowest time.Duration
		const reads = 1000
		for i := range reads {
			advance(time.Until(began.Add(time.Duration(i)*12*time.Millisecond + 300*time.Microsecond)))
			asked := time.Now()
			wantValue(t, takeSnapshot(t, reader), []string{"p", "s"}[i%2], "old")
			slowest = max(slowest, time.Since(asked))
		}
		raises, n := reader.Stats().Raises-before, faults.Count()
		if raises != 106 || n[txntest.StepRaise] != 106 || n[txntest.StepRead] != 1499 || slowest != 10*time.Millisecond {
			t.Errorf("%d raises by %d requests, %d reads of rows, the slowest read took %v; want 106, 106, 1499 and 10ms", raises, n[txntest.StepRaise], n[txntest.StepRead], slowest)
		}
		held.Release()
		if o := <-done; o.err != nil {
			t.Fatal(o.err)
		}
		wantValue(t, takeSnapshot(t, env.Client), "s", "new")
	})
}

// holdPrewrite returns a client whose requests take so long, and whose prewrite of the row s is held.
func holdPrewrite(t *testing.T, env *txntest.Env, away time.Duration) (*txn.Client, *txntest.Faults, *txntest.Rule) {
	faults := txntest.NewFaults(t)
	held := faults.On("a late prewrite", stepOn(txntest.StepPrewrite, "s"), txntest.Hold, 1)
	owner := env.NewClient(txn.Config{PassLocks: true, SyncSecondaries: true}, append(faults.DialOptions(), slow(away)...)...)
	txntest.Patient(owner)
	return owner, faults, held
}

// TestPassStream: readers come one after the other while a transaction commits, each with a
// larger timestamp. The owner commits all the same, after few requests, and readers wait for
// few requests of the owner. A distant owner also extends its lock, which readers change between
// its read and its write.
func TestPassStream(t *testing.T) {
	long.Test(t, "many readers beside one commit")
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for name, tt := range map[string]struct{ between, owner, prewrites, longest time.Duration }{
		"young": {100 * time.Microsecond, 2 * time.Millisecond, 50 * time.Millisecond, 40 * time.Millisecond},
		"near":  {time.Millisecond, 2 * time.Millisecond, 2 * time.Second, 40 * time.Millisecond},
		"far":   {20 * time.Millisecond, 200 * time.Millisecond, 14 * time.Second, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.WithoutTransport())
				env.CreateTable("a", "f")
				mustSet(t, env.Client, "old", "p", "s")
				readers := make([]*txn.Client, 20)
				for i := range readers {
					readers[i] = env.NewClient(txn.Config{PassLocks: true}, slow(2*time.Millisecond)...)
					wantValue(t, takeSnapshot(t, readers[i]), "p", "old") // reads the schema
				}
				owner, faults, held := holdPrewrite(t, env, tt.owner)
				tx := beginSet(t, owner, "new", "p", "s")
				done := commitInBackground(t.Context(), tx)
				<-held.Fired()
				var mu sync.Mutex
				var longest time.Duration
				var g sync.WaitGroup
				release := time.AfterFunc(tt.prewrites, held.Release)
				defer release.Stop()
				for i := 0; len(done) == 0; i++ {
					g.Go(func() {
						asked := time.Now()
						s, err := readers[i%len(readers)].Snapshot(t.Context())
						if err == nil {
							_, _, err = s.Table("a").Get(t.Context(), []string{"p", "s"}[i%2], "f", "q")
						}
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						defer mu.Unlock()
						longest = max(longest, time.Since(asked))
					})
					advance(tt.between)
				}
				g.Wait()
				n, o := faults.Count(), <-done
				t.Logf("%v; %d commits, %d seals, the commit took %v more; the longest read took %v", o.err, n[txntest.StepCommit], n[txntest.StepSeal], o.took-tt.prewrites, longest)
				if o.err != nil || n[txntest.StepCommit] > 4 || n[txntest.StepSeal] > 3 || longest > tt.longest {
					t.Errorf("%v after %d commits and %d seals; the longest read took %v; want a commit after at most 4 and 3, and no read longer than %v", o.err, n[txntest.StepCommit], n[txntest.StepSeal], longest, tt.longest)
				}
			})
		})
	}
}

// writeUnknownLock stores a lock of a later format version.
func writeUnknownLock(t *testing.T, env *txntest.Env, startTS tso.Timestamp) {
	t.Helper()
	m := bigtable.NewMutation()
	m.Set(format.LockFamily, "f:q", startTS.Cell(), []byte{1 << 3, 3, 2 << 3, 1})
	if err := env.Bigtable.Open("a").Apply(t.Context(), "row", m); err != nil {
		t.Fatal(err)
	}
}

// TestPassedTooLate: a reader passes a commit whose bound does not allow a later commit_ts. Then
// it can only be rolled back, which the owner does although nobody asked it to settle, and Update
// runs the function again. If the owner cannot find that out, the outcome is unknown, and the
// function does not run again.
func TestPassedTooLate(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("outcome refused %t", refused), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				sent, reads := false, 0
				env, owner, faults := newFaultyClient(t, txn.Config{PassLocks: true, TokenTTL: -1}, refuse(func(c txntest.Call) bool {
					mu.Lock()
					defer mu.Unlock()
					sent = sent || c.Step == txntest.StepCommit
					if !sent || c.Step != txntest.StepRead {
						return false
					}
					reads++
					return refused && reads > 1 // the first one finds the minimum
				})...)
				held := faults.OnStep(txntest.StepCommit, txntest.Hold)
				runs := 0
				done := inBackground(func() error {
					_, err := owner.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
						if runs++; runs == 1 {
							tx.CommitBefore(tx.StartTS() + 5e6)
						}
						set(tx, "3", "bob", "joe")
						return nil
					})
					return err
				})
				<-held.Fired()
				advance(time.Second)
				wantValue(t, takeSnapshot(t, env.NewClient(txn.Config{PassLocks: true, TokenTTL: -1})), "bob", "") // passes
				advance(10 * time.Second)
				held.Release()
				err := (<-done).err
				if refused {
					if !errors.Is(err, txn.ErrUndetermined) || runs != 1 {
						t.Errorf("%v after %d runs, want an unknown outcome after one", err, runs)
					}
					return
				}
				if err != nil || runs != 2 {
					t.Errorf("%v after %d runs, want success after two", err, runs)
				}
				wantValue(t, takeSnapshot(t, env.Client), "joe", "3")
			})
		})
	}
}
