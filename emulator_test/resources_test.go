package emulator_test

import (
	"context"
	"errors"
	"flag"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var atOnce = flag.Int("at-once", 3000, "how many transactions TestManyTransactions has under way at once")

// TestManyTransactions has thousands of transactions open at once in one process. All
// commit, with few requests to the oracle, and release what they used.
func TestManyTransactions(t *testing.T) {
	transactions := *atOnce
	faults := txntest.NewFaults(t)
	env := txntest.New(t, txntest.WithDialOptions(faults.DialOptions()...))
	env.CreateTable("a", "f")
	if err := env.Client.CheckTable(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	faults.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var begun, all sync.WaitGroup
	var committed, failed atomic.Int64
	goroutines := runtime.NumGoroutine()
	begun.Add(transactions)
	start := make(chan struct{})
	for i := range transactions {
		all.Go(func() {
			tx, err := env.Client.Begin(ctx)
			begun.Done()
			if err != nil {
				failed.Add(1)
				return
			}
			defer tx.Rollback()
			<-start // closed when all have begun
			tx.Table("a").Set("row"+strconv.Itoa(i), "f", "q", []byte("v"))
			if _, err := tx.Commit(ctx); err != nil {
				if failed.Add(1) <= 3 {
					t.Errorf("a commit failed: %v", err)
				}
				return
			}
			committed.Add(1)
		})
	}
	begun.Wait()
	close(start)
	all.Wait()
	if committed.Load() != int64(transactions) || failed.Load() != 0 {
		t.Errorf("%d committed, %d failed", committed.Load(), failed.Load())
	}
	count := faults.Count()
	t.Logf("requests: %v", count)
	if n := count[txntest.StepPrewrite] + count[txntest.StepCommit]; n > 2*transactions+transactions/10 {
		t.Errorf("%d prewrites and commits for %d transactions", n, transactions)
	}
	if n := count[txntest.StepOracle]; n > transactions {
		t.Errorf("%d requests to the oracle for %d timestamps", n, 2*transactions)
	}
	if now := runtime.NumGoroutine(); now > goroutines+200 {
		t.Errorf("%d goroutines, %d before", now, goroutines)
	}
}

// At most four commits for each request of Config.Parallelism hold locks at the same
// time; the other ones wait. Without this bound 10,000 concurrent commits delay each
// other past their ttl: they send tens of thousands of heartbeats, and hardly any
// commits.
func TestCommitsAreAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1, Parallelism: 1}, faults.DialOptions()...)
		held := faults.On("commit", func(c txntest.Call) bool { return c.Step == txntest.StepCommit }, txntest.Hold, 4)
		results := make(chan error, 10)
		for i := range cap(results) {
			tx := beginSet(t, c, "v", "r"+strconv.Itoa(i))
			go func() {
				_, err := tx.Commit(t.Context())
				results <- err
			}()
			synctest.Wait()
		}
		if n := faults.Count()[txntest.StepPrewrite]; n != 4 {
			t.Errorf("%d prewrites while four commits are under way, want 4", n)
		}
		// A commit that stops waiting has sent nothing.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := beginSet(t, c, "v", "r99").Commit(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, txn.ErrUndetermined) {
			t.Errorf("commit whose context ends while it waits: %v", err)
		}
		held.Release()
		for range cap(results) {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if n := faults.Count()[txntest.StepPrewrite]; n != cap(results) {
			t.Errorf("%d prewrites of %d commits", n, cap(results))
		}
	})
}

// Config.Parallelism bounds the requests of one call that are under way: the prewrites of a
// commit, the removal of its locks after another client rolled it back, and the further reads
// of a scan.
func TestParallelism(t *testing.T) {
	const bound = 3
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		var running, most atomic.Int64
		during := func(f func() error) error {
			n := running.Add(1)
			defer running.Add(-1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			<-time.After(time.Millisecond)
			return f()
		}
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1, Parallelism: bound}, append(faults.DialOptions(),
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				return during(func() error { return invoke(ctx, method, req, reply, cc, opts...) })
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (s grpc.ClientStream, err error) {
				err = during(func() (err error) { s, err = streamer(ctx, desc, cc, method, opts...); return err })
				return s, err
			}))...)
		check := func(what string) {
			t.Helper()
			if n := most.Swap(0); n != bound {
				t.Errorf("%s: %d requests at a time, want %d", what, n, bound)
			}
		}
		var rows []string
		for i := range 4 * bound {
			rows = append(rows, "r"+strconv.Itoa(i))
		}

		mustSet(t, env.Client, "old", rows...)
		tx := beginSet(t, c, "new", rows...)
		// The data of a transaction that began before the snapshot, and committed after it,
		// hides the older data.
		before := takeSnapshot(t, c)
		held := faults.OnStep(txntest.StepCommit, txntest.Hold)
		committed := commitInBackground(t.Context(), tx)
		<-held.Fired()
		check("prewrites")
		held.Release()
		if o := <-committed; o.err != nil {
			t.Fatal(o.err)
		}
		advance(time.Second)
		most.Store(0)
		n := 0
		for row, err := range before.Table("a").ReadRows(t.Context(), bigtable.InfiniteRange("")) {
			if err != nil || string(row["f"][0].Value) != "old" {
				t.Fatalf("%v: %v", row, err)
			}
			n++
		}
		if n != len(rows) {
			t.Errorf("the scan has %d rows", n)
		}
		check("scan")

		held = faults.OnStep(txntest.StepCommit, txntest.Hold)
		tx = beginSet(t, c, "newer", rows...)
		committed = commitInBackground(t.Context(), tx)
		<-held.Fired()
		most.Store(0)
		m := bigtable.NewMutation()
		m.DeleteCellsInColumn(format.LockFamily, "f:q")
		m.DeleteTimestampRange("f", "q", tx.StartTS().Cell(), tx.StartTS().Cell()+1000)
		m.Set(format.MarkFamily, "f:q", tx.StartTS().Cell(), format.EncodeRollback(tx.StartTS()))
		if err := env.Bigtable.Open("a").Apply(t.Context(), rows[0], m); err != nil {
			t.Fatal(err)
		}
		held.Release()
		if o := <-committed; !errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("commit after a rollback: %v", o.err)
		}
		advance(time.Second)
		check("clean-up")
	})
}

// TestDeadBackend keeps committing while Bigtable does not answer requests for
// secondaries. The queue stays within its bound, every commit ends, and Close gives up
// in time.
func TestDeadBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1, BackgroundBytes: 60_000, RPCTimeout: time.Second, BackgroundTimeout: 10 * time.Second}, faults.DialOptions()...)
		dead := faults.On("secondaries", func(c txntest.Call) bool { return c.Step == txntest.StepSecondaries }, txntest.Hold, 0)
		most := 0
		for i := range 200 {
			tx := beginSet(t, c, "v", "p"+strconv.Itoa(i))
			tx.Table("a").Set("s"+strconv.Itoa(i), "f", "q", []byte("v"))
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			most = max(most, int(c.Stats().BackgroundBytes))
		}
		<-dead.Fired()
		if most > 60_000 {
			t.Errorf("%d bytes were queued, want at most 60,000", most)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Close(ctx); err == nil && most > 0 {
			t.Error("Close did not report the changes that are left")
		}
		dead.Release()
	})
}

// TestNoLeaksOfWorkersAndOracles starts and stops everything that has goroutines of its
// own, and tries some that cannot start. No goroutine may be left.
func TestNoLeaksOfWorkersAndOracles(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("left", "f")
	env.CreateTable("right", "f")
	client := env.NewClient(txn.Config{})
	if _, err := client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("left").Set("r", "f", "in", nil)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := changes.RegisterObserver(t.Context(), client, "left", txn.Column{Family: "f", Qualifier: "in"}, "count", false); err != nil {
		t.Fatal(err)
	}
	if err := changes.Notify(t.Context(), client, txn.Cell{Table: "left", Row: "r", Family: "f", Qualifier: "in"}); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	for name, run := range map[string]func(context.Context) error{
		"a worker that is cancelled": func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			events := make(chan struct{}, 100)
			w := observing(t, client, txn.Column{Family: "f", Qualifier: "in"}, notify.Config{Finder: &notify.Scanner{MinInterval: time.Millisecond}, OnEvent: func(notify.Event) {
				select {
				case events <- struct{}{}:
				default:
				}
			}})
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			<-events
			cancel()
			return <-done
		},
		"a worker that is stopped before it registers": func(ctx context.Context) error {
			w := observing(t, client, txn.Column{Family: "f", Qualifier: "in"}, notify.Config{})
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return w.Run(ctx)
		},
		"a client of no oracle": func(ctx context.Context) error {
			c, err := tso.NewClient(tso.ClientConfig{Addresses: []string{"127.0.0.1:1"}, Timeout: 50 * time.Millisecond})
			if err != nil {
				return err
			}
			if _, err := c.Timestamp(ctx); err == nil {
				t.Error("a timestamp without a server; want an error")
			}
			return c.Close()
		},
		"oracles that cannot be made": func(context.Context) error {
			if _, err := tso.NewClient(tso.ClientConfig{}); err == nil {
				t.Error("a client without an address; want an error")
			}
			if _, err := tso.NewClient(tso.ClientConfig{Addresses: []string{"127.0.0.1:1", "\x00:://"}}); err == nil {
				t.Log("gRPC accepts any address")
			}
			if _, err := server.New(env.Bigtable.OpenTable("percolator"), server.Config{Lease: 1}); err == nil {
				t.Error("a server with a lease of one nanosecond; want an error")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := run(ctx); err != nil {
				t.Error(err)
			}
			goleak.VerifyNone(t, before)
		})
	}
}
