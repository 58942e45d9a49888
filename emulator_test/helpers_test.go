package emulator_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// newFaultyClient makes table a with family f, and a client whose requests the returned
// Faults can disturb.
func newFaultyClient(t *testing.T, cfg txn.Config, opts ...grpc.DialOption) (*txntest.Env, *txn.Client, *txntest.Faults) {
	t.Helper()
	env := txntest.New(t, txntest.WithoutTransport())
	env.CreateTable("a", "f")
	faults := txntest.NewFaults(t)
	return env, env.NewClient(cfg, append(faults.DialOptions(), opts...)...), faults
}

// advance lets virtual time pass.
func advance(d time.Duration) { <-time.After(d) }

// step matches requests of a step.
func step(s txntest.Step) func(txntest.Call) bool {
	return func(c txntest.Call) bool { return c.Step == s }
}

// stepOn matches requests of a step on a row.
func stepOn(s txntest.Step, row string) func(txntest.Call) bool {
	return func(c txntest.Call) bool { return c.Step == s && c.Row == row }
}

// begin begins a transaction.
func begin(t *testing.T, c *txn.Client, opts ...txn.TxnOption) *txn.Txn {
	t.Helper()
	tx, err := c.Begin(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// beginSet begins a transaction that sets f:q of the rows. The first row is the
// primary.
func beginSet(t *testing.T, c *txn.Client, value string, rows ...string) *txn.Txn {
	t.Helper()
	tx := begin(t, c)
	set(tx, value, rows...)
	return tx
}

// set sets f:q of rows of table a.
func set(tx *txn.Txn, value string, rows ...string) {
	for _, row := range rows {
		tx.Table("a").Set(row, "f", "q", []byte(value))
	}
}

// tryUpdate sets f:q of the rows in an Update.
func tryUpdate(ctx context.Context, c *txn.Client, value string, rows ...string) error {
	_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		set(tx, value, rows...)
		return nil
	})
	return err
}

// mustSet is tryUpdate, which must succeed.
func mustSet(t *testing.T, c *txn.Client, value string, rows ...string) {
	t.Helper()
	if err := tryUpdate(t.Context(), c, value, rows...); err != nil {
		t.Fatal(err)
	}
}

// inBackground runs f in a goroutine. The channel receives f's error, and how long f
// took.
func inBackground(f func() error) chan outcome {
	ch := make(chan outcome, 1)
	begun := time.Now()
	go func() { err := f(); ch <- outcome{err, time.Since(begun)} }()
	return ch
}

type outcome struct {
	err  error
	took time.Duration
}

func commitInBackground(ctx context.Context, tx *txn.Txn) chan outcome {
	return inBackground(func() error { _, err := tx.Commit(ctx); return err })
}

func takeSnapshot(t *testing.T, c *txn.Client, opts ...txn.SnapshotOption) *txn.Snapshot {
	t.Helper()
	s, err := c.Snapshot(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantValue reads f:q of a row; "" means that it is absent.
func wantValue(t *testing.T, s *txn.Snapshot, row, want string) {
	t.Helper()
	v, ok, err := s.Table("a").Get(t.Context(), row, "f", "q")
	if err != nil || string(v) != want || ok != (want != "") {
		t.Errorf("row %s is %q (exists: %v, error: %v), want %q", row, v, ok, err, want)
	}
}

// wantNoLocks fails the test if table a has locks.
func wantNoLocks(t *testing.T, c *txn.Client) {
	t.Helper()
	for l, err := range admin.Locks(t.Context(), c, "a", nil) {
		t.Errorf("lock left on %s: %v", l.Cell, err)
	}
}

// stored returns a row as Bigtable stores it, without a transaction.
func stored(t *testing.T, env *txntest.Env, row string) bigtable.Row {
	t.Helper()
	r, err := env.Bigtable.Open("a").ReadRow(t.Context(), row)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// budgetEnv makes a client whose requests are counted. It is warm: its tables are open,
// the oracle knows its row and the client's token is written.
func budgetEnv(t *testing.T, cfg txn.Config) (*txntest.Env, *txn.Client, *txntest.Faults) {
	t.Helper()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("a", "f")
	env.CreateTable("b", "f")
	faults := txntest.NewFaults(t)
	// Background requests must not be counted later.
	cfg.SchemaMaxAge = time.Hour
	c := env.NewClient(cfg, faults.DialOptions()...)
	_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
		tx.Table("a").Set("warm", "f", "q", nil)
		tx.Table("b").Set("warm", "f", "q", nil)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	faults.Reset()
	return env, c, faults
}
