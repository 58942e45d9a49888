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
	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// lateSchema is a client whose next look at the schema record, in the background, is
// answered late.
func lateSchema(t *testing.T, env *txntest.Env) (*txn.Client, *answerHold) {
	t.Helper()
	env.CreateTable("a", "f")
	var armed atomic.Bool
	hold := newAnswerHold(func(c txntest.Call) bool { return armed.Load() && c.Step == txntest.StepSchema })
	c := env.NewClient(txn.Config{TokenTTL: time.Minute}, hold.dialOption())
	wantValue(t, takeSnapshot(t, c), "bob", "")
	pass(2 * time.Minute)
	armed.Store(true)
	wantValue(t, takeSnapshot(t, c), "bob", "") // has it read again
	<-hold.held
	return c, hold
}

// observeSums runs an observer of a/f:q in c and returns how to count its runs.
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

// A late answer to a look at the schema replaced what a registration had shown since:
// for a minute, the worker that had registered took its own observer for
// unregistered, and removed its notifications; closed by merge (schema.go).
func TestLateSchemaAfterRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		a, hold := lateSchema(t, env)
		runs, _ := observeSums(t, a)
		pass(100 * time.Millisecond) // registered
		close(hold.release)
		synctest.Wait()
		mustSet(t, env.NewClient(txn.Config{TokenTTL: -1}), "1", "bob") // knows of it
		pass(10 * time.Minute)
		if runs() == 0 {
			t.Error("the change was not observed")
		}
	})
}

// A schema counted as fresh from when its answer came, however late: a writer did not
// know of a registration for longer than SchemaMaxAge, and what it wrote behind a
// Backfill was not observed; closed by counting from the request (loaded, schema.go).
func TestLateSchemaAfterBackfill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		writer, hold := lateSchema(t, env)
		runs, col := observeSums(t, env.NewClient(txn.Config{TokenTTL: time.Minute}))
		pass(15 * time.Second)
		close(hold.release)
		pass(46 * time.Second) // 61 s after the registration
		if _, err := notify.Backfill(t.Context(), env.Client, "a", col, nil, nil); err != nil {
			t.Fatal(err)
		}
		pass(5 * time.Second)
		mustSet(t, writer, "1", "bob")
		pass(time.Hour)
		if runs() == 0 {
			t.Error("the change was not observed")
		}
	})
}

// A look at the registry that came between a look at a new family and its answer kept
// the old families, and a commit to the new one failed; closed by merge (schema.go).
func TestNewFamilyBesideLookAtTheRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
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
		if _, err := changes.Observed(t.Context(), c, "a"); err != nil {
			t.Fatal(err)
		}
		close(release)
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
	})
}
