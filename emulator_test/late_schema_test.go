package emulator_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// lateSchema makes a client whose next read of the schema record, in the background,
// gets a late answer.
func lateSchema(t *testing.T, env *txntest.Env) (*txn.Client, *answerHold) {
	t.Helper()
	env.CreateTable("a", "f")
	var armed atomic.Bool
	hold := newAnswerHold(func(c txntest.Call) bool { return armed.Load() && c.Step == txntest.StepSchema })
	c := env.NewClient(txn.Config{TokenTTL: time.Minute}, hold.dialOption())
	wantValue(t, takeSnapshot(t, c), "bob", "")
	advance(2 * time.Minute)
	armed.Store(true)
	old := takeSnapshot(t, c)
	read := inBackground(func() error { // makes the client read the schema again, and waits for it
		_, _, err := old.Table("a").Get(t.Context(), "bob", "f", "q")
		return err
	})
	t.Cleanup(func() {
		if o := <-read; o.err != nil {
			t.Error(o.err)
		}
	})
	<-hold.held
	return c, hold
}

// observeSums runs an observer of a/f:q with client c. It returns how to count its
// runs.
func observeSums(t *testing.T, c *txn.Client) (runs func() int, col txn.Column) {
	t.Helper()
	w, err := notify.NewWorker(c, notify.Config{NoHints: true})
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	col = txn.Column{Family: "f", Qualifier: "q"}
	if err := w.Handle("o", "a", col, notify.ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error { n.Add(1); return nil })); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := inBackground(func() error { return w.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
	})
	return func() int { return int(n.Load()) }, col
}

// A late answer to a read of the schema record does not replace a newer registration.
// Before the fix the worker that had registered took its own observer as unregistered
// for a minute, and removed its notifications.
func TestLateSchemaAfterRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		a, hold := lateSchema(t, env)
		runs, _ := observeSums(t, a)
		advance(100 * time.Millisecond) // the observer is registered now
		close(hold.release)
		synctest.Wait()
		mustSet(t, env.NewClient(txn.Config{TokenTTL: -1}), "1", "bob") // this client knows of the observer
		advance(10 * time.Minute)
		if runs() == 0 {
			t.Error("the change was not observed")
		}
	})
}

// The age of a schema counts from its request, not from its answer. Before the fix a
// writer did not know of a registration for longer than SchemaMaxAge after a late
// answer, and what it wrote after a Backfill was not observed.
func TestLateSchemaAfterBackfill(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		writer, hold := lateSchema(t, env)
		runs, col := observeSums(t, env.NewClient(txn.Config{TokenTTL: time.Minute}))
		advance(15 * time.Second)
		close(hold.release)
		advance(46 * time.Second) // 61 s after the registration
		if _, err := notify.Backfill(t.Context(), env.Client, notify.BackfillConfig{Table: "a", Column: col}); err != nil {
			t.Fatal(err)
		}
		advance(5 * time.Second)
		mustSet(t, writer, "1", "bob")
		advance(time.Hour)
		if runs() == 0 {
			t.Error("the change was not observed")
		}
	})
}

// A client reads a table's new families, and meanwhile the registry of observers. The
// new families must not be lost. Before the fix they were, and a commit to the new
// family failed.
func TestNewFamilyDuringRegistryRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		var armed atomic.Bool
		var once sync.Once
		held, release := make(chan struct{}), make(chan struct{})
		c := env.NewClient(txn.Config{TokenTTL: -1}, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoker(ctx, method, req, reply, cc, opts...)
			if armed.Load() && strings.HasSuffix(method, "/GetTable") {
				once.Do(func() { close(held); <-release })
			}
			return err
		}))
		wantValue(t, takeSnapshot(t, c), "bob", "")
		env.InitTable(admin.TableSpec{Name: "a", Families: []string{"f", "g"}})
		armed.Store(true)
		done := inBackground(func() error {
			_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("a").Set("bob", "g", "q", []byte("1"))
				return nil
			})
			return err
		})
		<-held
		if _, err := changes.ObservedColumns(t.Context(), c, "a"); err != nil {
			t.Fatal(err)
		}
		close(release)
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
	})
}
