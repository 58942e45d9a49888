package notify_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// waiting is a Wait under way.
type waiting struct {
	asOf tso.Timestamp
	err  error
	done chan struct{}
}

func waitInBackground(ctx context.Context, c *txn.Client) *waiting {
	w := &waiting{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.asOf, w.err = notify.Wait(ctx, c, notify.WaitConfig{})
	}()
	return w
}

func (w *waiting) isDone() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// scanOf chooses reads of ranges of a table.
func scanOf(table string) func(txntest.Call) bool {
	return func(c txntest.Call) bool {
		r, ok := c.Request.(*btpb.ReadRowsRequest)
		return ok && c.Table == table && len(r.GetRows().GetRowKeys()) == 0
	}
}

// TestWaitSeesRunsInBetween: a change is pending at Wait's timestamp; before Wait
// reads its row, the observer runs, causes a change in a row that Wait has read already, and
// removes the notification. Only an acknowledgment that was committed above that timestamp
// shows the run. If Wait ignored those, it would return before the chain has ended.
func TestWaitSeesRunsInBetween(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		env.CreateTable("zdocs", "d")
		late := columnOf("zdocs", "d", "in")
		register(t, env.Client, late, "first", false)
		register(t, env.Client, input, "second", false)
		put(t, env.Client, late, "row", "v")

		faults := txntest.NewFaults(t)
		hold := faults.On("scan of zdocs", scanOf("zdocs"), txntest.Hold, 1)
		waiter := waitInBackground(t.Context(), env.NewClient(txn.Config{RPCTimeout: time.Hour}, faults.DialOptions()...))
		<-hold.Fired() // docs was read: nothing there

		w := newWorker(t, env.Client, notify.Config{})
		release := make(chan struct{})
		handle(t, w, "first", late, func(_ context.Context, tx *txn.Txn, _ txn.Cell) error {
			tx.Table("docs").Set("row", "d", "in", []byte("caused"))
			return nil
		})
		handle(t, w, "second", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			<-release
			return observeEffect(ctx, tx, cell)
		})
		start(t, w)
		pass(10 * time.Second)
		hold.Release()
		pass(10 * time.Second)
		if waiter.isDone() {
			t.Errorf("Wait returned %d, %v before the second observer ran", waiter.asOf, waiter.err)
		}
		close(release)
		<-waiter.done
		if waiter.err != nil {
			t.Error(waiter.err)
		}
		s, err := env.Client.Snapshot(t.Context(), txn.At(waiter.asOf))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for range s.Table("effects").ReadRows(t.Context(), nil) {
			n++
		}
		if n != 1 {
			t.Errorf("%d effects as of Wait's timestamp", n)
		}
	})
}

// TestWaitSeesStrandedLocks: the writer died after its commit point. Only a lock shows the
// change of its secondary. If Wait ignored locks, it would return at once.
func TestWaitSeesStrandedLocks(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		dies := faults.OnStep(txntest.StepSecondaries, txntest.Crash)
		victim := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		_, err := victim.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("effects").Set("primary", "e", "x", nil)
			tx.Table("docs").Set("row", "d", "in", nil)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-dies.Fired()
		faults.Kill()
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		wait(t, env.Client)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d effects after Wait", n)
		}
	})
}

// TestWaitSeesRunUnderWay: a run has taken its commit_ts and not committed yet.
func TestWaitSeesRunUnderWay(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "first", false)
		register(t, env.Client, middle, "second", false)
		faults := txntest.NewFaults(t)
		held := faults.On("commit of the run", func(c txntest.Call) bool { return c.Step == txntest.StepCommit && c.Table == "docs" }, txntest.Hold, 1)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute, LockTTL: time.Hour, RPCTimeout: time.Hour}, faults.DialOptions()...), notify.Config{})
		handle(t, w, "first", input, func(_ context.Context, tx *txn.Txn, _ txn.Cell) error {
			tx.Table("docs").Set("aaa", "d", "mid", []byte("caused"))
			return nil
		})
		handle(t, w, "second", middle, observeEffect)
		start(t, w)
		put(t, env.Client, input, "row", "v")
		<-held.Fired()
		waiter := waitInBackground(t.Context(), env.Client)
		pass(30 * time.Second)
		if waiter.isDone() {
			t.Errorf("Wait returned %v while a run was under way", waiter.err)
		}
		held.Release()
		<-waiter.done
		if n := effects(t, env.Client)["aaa"]; n != 1 || waiter.err != nil {
			t.Errorf("%d effects after Wait, %v", n, waiter.err)
		}
	})
}

// TestWaitSeesWeakNotifications: a transaction below Wait's timestamp has taken
// its commit_ts and not sent its weak notification yet. Only
// locks show it, in a column without observers. Without its first pass Wait would return.
func TestWaitSeesWeakNotifications(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", true)
		faults := txntest.NewFaults(t)
		held := faults.OnStep(txntest.StepNotify, txntest.Hold)
		writer := env.NewClient(txn.Config{LockTTL: time.Hour, RPCTimeout: time.Hour}, faults.DialOptions()...)
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect, notify.Weak())
		start(t, w)
		written := make(chan error, 1)
		go func() { written <- notifyWeakly(t.Context(), writer, input, "row", "x") }()
		<-held.Fired()
		waiter := waitInBackground(t.Context(), env.Client)
		pass(30 * time.Second)
		if waiter.isDone() {
			t.Errorf("Wait returned %v before a transaction below its timestamp had notified", waiter.err)
		}
		held.Release()
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		<-waiter.done
		if n := effects(t, env.Client)["row"]; n != 1 || waiter.err != nil {
			t.Errorf("%d effects after Wait, %v", n, waiter.err)
		}
	})
}

// TestWaitBesideLoad: a load on columns without observers always has locks somewhere. It
// does not delay Wait, even if columns are for weak notifications and every lock counts.
func TestWaitBesideLoad(t *testing.T) {
	for _, weak := range []bool{false, true} {
		t.Run(fmt.Sprintf("weak %v", weak), func(t *testing.T) {
			virtual(t, func(t *testing.T, env *txntest.Env) {
				register(t, env.Client, input, "o", weak)
				busy := env.NewClient(txn.Config{TokenTTL: time.Minute}, slow(20*time.Millisecond))
				ctx, cancel := context.WithCancel(t.Context())
				var load sync.WaitGroup
				var commits atomic.Int32
				for i := range 6 {
					load.Go(func() {
						// Each holds its lock half of the time, and not all at the same time.
						<-time.After(time.Duration(i) * 7 * time.Millisecond)
						for ctx.Err() == nil {
							_, err := busy.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
								tx.Table("docs").Set("load"+strconv.Itoa(i), "d", "other", []byte("v"))
								return nil
							})
							if err != nil && ctx.Err() == nil {
								t.Error(err)
							}
							commits.Add(1)
						}
					})
				}
				w := newWorker(t, env.Client, notify.Config{})
				if weak {
					handle(t, w, "o", input, observeEffect, notify.Weak())
				} else {
					handle(t, w, "o", input, observeEffect)
				}
				start(t, w)
				for i := range 5 {
					if weak {
						if err := notifyWeakly(t.Context(), env.Client, input, fmt.Sprintf("row%d", i), fmt.Sprintf("x%d", i)); err != nil {
							t.Fatal(err)
						}
					} else {
						put(t, env.Client, input, fmt.Sprintf("row%d", i), "v")
					}
				}
				wctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
				defer stop()
				before := commits.Load()
				if _, err := notify.Wait(wctx, env.Client, notify.WaitConfig{}); err != nil {
					t.Error(err)
				}
				cancel()
				load.Wait()
				if commits.Load() == before {
					t.Error("there was no load")
				}
				for i := range 5 {
					if n := effects(t, env.Client)[fmt.Sprintf("row%d", i)]; n != 1 {
						t.Errorf("row%d: %d effects", i, n)
					}
				}
			})
		})
	}
}

// TestWaitBesideHotRow: each time Wait checks a row, it finds another lock. It waits for the
// first of them and for no other, because only locks below its own timestamp count.
func TestWaitBesideHotRow(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", true) // weak: every lock counts
		locks := 0
		// lock leaves a lock in the row until what it returns is called.
		lock := func() (commit func()) {
			locks++
			faults := txntest.NewFaults(t)
			held := faults.OnStep(txntest.StepCommit, txntest.Hold)
			c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
			done := make(chan error, 1)
			go func() {
				_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					tx.Table("docs").Set("hot", "d", "other"+strconv.Itoa(locks), []byte("v"))
					return nil
				})
				done <- err
			}()
			<-held.Fired()
			return func() {
				held.Release()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		commit := lock()
		_, err := notify.Wait(t.Context(), env.Client, notify.WaitConfig{Progress: func(changes.Unfinished) {
			last := commit
			if commit = func() {}; locks < 10 {
				commit = lock()
			}
			last()
		}})
		if err != nil {
			t.Error(err)
		}
		commit()
		if locks != 2 {
			t.Errorf("Wait returned after the %dth lock of the row", locks)
		}
	})
}

// TestWaitNeverEarly: chains across rows and tables under load of everything at
// once. When Wait returns, each chain that began before the call is complete at the
// timestamp that it returns.
func TestWaitNeverEarly(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		env.CreateTable("zdocs", "d")
		far := columnOf("zdocs", "d", "in")
		const chains = 8
		hop := func(to column) notify.ObserverFunc {
			return func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
				v, _, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
				n, _ := strconv.Atoi(cell.Row)
				tx.Table(to.table).Set(strconv.Itoa((n+chains/2)%chains), to.Family, to.Qualifier, v)
				return err
			}
		}
		steps := []struct {
			id       string
			from, to column
		}{{"one", input, far}, {"two", far, middle}, {"three", middle, output}}
		for i := range 3 {
			w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: i == 0})
			for _, s := range steps {
				register(t, env.Client, s.from, s.id, false)
				handle(t, w, s.id, s.from, hop(s.to))
			}
			start(t, w)
		}
		for round := range 5 {
			want := strconv.Itoa(round)
			var writers sync.WaitGroup
			for i := range chains {
				writers.Go(func() { put(t, env.Client, input, strconv.Itoa(i), want) })
			}
			writers.Wait()
			asOf, err := notify.Wait(t.Context(), env.NewClient(txn.Config{TokenTTL: -1}), notify.WaitConfig{Backoff: txn.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			s, err := env.Client.Snapshot(t.Context(), txn.At(asOf))
			if err != nil {
				t.Fatal(err)
			}
			for i := range chains {
				v, _, err := s.Table("docs").Get(t.Context(), strconv.Itoa(i), "d", "out")
				if err != nil || string(v) != want {
					t.Errorf("round %d: chain %d ended with %q as of Wait's timestamp, %v", round, i, v, err)
				}
			}
		}
	})
}

// TestWaitRefuses: Wait refuses a negative pause.
func TestWaitRefuses(t *testing.T) {
	for _, b := range []txn.Backoff{{Min: -1}, {Max: -1}} {
		if _, err := notify.Wait(t.Context(), nil, notify.WaitConfig{Backoff: b}); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("%+v: %v", b, err)
		}
	}
}

// TestWaitEnds: Wait ends with its context, and reports what it waits for.
func TestWaitEnds(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		put(t, env.Client, input, "row", "v")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var seen changes.Unfinished
		_, err := notify.Wait(ctx, env.Client, notify.WaitConfig{Progress: func(u changes.Unfinished) { seen = u }})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if seen.Cell.Row != "row" || seen.TS == 0 {
			t.Errorf("waiting for %+v", seen)
		}
	})
}

// TestWaitReportsErrors: if Bigtable refuses a read of the table, Wait ends with that error.
// It does not try until its context ends, and it does not say that all is done.
func TestWaitReportsErrors(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		put(t, env.Client, input, "row", "v")
		refused := 0
		client := env.NewClient(txn.Config{}, txntest.Intercept(func(c txntest.Call) error {
			if r, ok := c.Request.(*btpb.ReadRowsRequest); ok && c.Table == "docs" && len(r.GetRows().GetRowKeys()) == 0 {
				refused++
				return status.Error(codes.PermissionDenied, "injected: refused")
			}
			return nil
		})...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := notify.Wait(ctx, client, notify.WaitConfig{}); status.Code(err) != codes.PermissionDenied || refused != 1 {
			t.Errorf("%v after %d refusals", err, refused)
		}
	})
}

// TestWaitSeesWeakRunsInBetween: a weak notification is written below Wait's
// timestamp after its first pass has read the cell's row, and is acknowledged before the
// second pass reads it. The run caused a change in a row that Wait has read. A weak
// notification leaves nothing but the acknowledgment, so the acknowledgment has to count.
func TestWaitSeesWeakRunsInBetween(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		env.CreateTable("zdocs", "d")
		env.CreateTable("zz", "e")
		late := columnOf("zdocs", "d", "in")
		register(t, env.Client, late, "first", true)
		register(t, env.Client, input, "second", false)
		writing := txntest.NewFaults(t)
		notifying := writing.OnStep(txntest.StepNotify, txntest.Hold)
		writer := env.NewClient(txn.Config{LockTTL: time.Hour, RPCTimeout: time.Hour}, writing.DialOptions()...)
		written := make(chan error, 1)
		go func() {
			_, err := writer.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("zz").Set("row", "e", "x", nil)
				tx.Table("zdocs").Notify("row", "d", "in")
				return nil
			})
			written <- err
		}()
		<-notifying.Fired()

		faults := txntest.NewFaults(t)
		n := 0
		second := faults.On("second scan of zdocs", func(c txntest.Call) bool {
			if scanOf("zdocs")(c) {
				n++
			}
			return scanOf("zdocs")(c) && n == 2
		}, txntest.Hold, 1)
		waiter := waitInBackground(t.Context(), env.NewClient(txn.Config{RPCTimeout: time.Hour}, faults.DialOptions()...))
		pass(5 * time.Second) // at the lock in zz
		notifying.Release()
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		<-second.Fired()
		w := newWorker(t, env.Client, notify.Config{})
		release := make(chan struct{})
		handle(t, w, "first", late, func(_ context.Context, tx *txn.Txn, _ txn.Cell) error {
			tx.Table("docs").Set("row", "d", "in", []byte("caused"))
			return nil
		}, notify.Weak())
		handle(t, w, "second", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			<-release
			return observeEffect(ctx, tx, cell)
		})
		start(t, w)
		pass(10 * time.Second)
		second.Release()
		pass(10 * time.Second)
		if waiter.isDone() {
			t.Errorf("Wait returned %d, %v before the second observer ran", waiter.asOf, waiter.err)
		}
		close(release)
		<-waiter.done
		if waiter.err != nil {
			t.Error(waiter.err)
		}
	})
}

// TestWaitOfDeletedTable: a table with a pending change was deleted, and its schema record
// was not. Wait ends for the other tables, whether the client can read the table's
// description or not.
func TestWaitOfDeletedTable(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "gone", Families: []string{"d"}}); err != nil {
			t.Fatal(err)
		}
		gone := columnOf("gone", "d", "in")
		register(t, env.Client, gone, "o", false)
		put(t, env.Client, gone, "row", "v")
		if err := env.Admin.DeleteTable(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		bare, err := txn.NewClient(t.Context(), env.Bigtable, txn.Config{TokenTTL: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = bare.Close(t.Context()) }()
		for _, client := range []*txn.Client{env.NewClient(txn.Config{}), bare} {
			if _, err := notify.Wait(t.Context(), client, notify.WaitConfig{}); err != nil {
				t.Error(err)
			}
		}
	})
}
