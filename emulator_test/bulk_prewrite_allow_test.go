package emulator_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/bulkprewrite"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// readsPastHiddenLock lets writer, which may prewrite in bulk, lock below a lock-only lock, and
// reports an error if a snapshot of reader changes because of that.
func readsPastHiddenLock(t *testing.T, env *txntest.Env, oracle tso.Oracle, writer, reader *txn.Client) {
	t.Helper()
	rows := rowNames(4)
	old := beginSet(t, writer, "new", rows...)
	slow := txntest.NewFaults(t)
	locker := begin(t, env.NewClient(txn.Config{TokenTTL: -1, Oracle: oracle}, slow.DialOptions()...))
	locker.Table("a").Lock("other", "f", "q")
	locker.Table("a").Lock(rows[2], "f", "q")
	held := slow.OnStep(txntest.StepCommit, txntest.Crash)
	dies, cancel := context.WithCancel(t.Context())
	defer cancel()
	locked := commitInBackground(dies, locker)
	<-held.Fired()
	done := commitInBackground(t.Context(), old)
	synctest.Wait()
	if n := len(stored(t, env, rows[2])[format.LockFamily]); n != 2 {
		t.Fatalf("%d locks in the column, want 2: the writer did not prewrite in bulk", n)
	}
	s := takeSnapshot(t, reader)
	first := make(chan string, 1)
	go func() {
		v, _, err := s.Table("a").Get(t.Context(), rows[2], "f", "q")
		if err != nil {
			t.Error(err)
		}
		first <- string(v)
	}()
	synctest.Wait()
	slow.Kill()
	cancel()
	<-locked
	advance(time.Minute)
	if o := <-done; o.err != nil {
		t.Fatal(o.err)
	}
	was := <-first
	v, _, err := s.Table("a").Get(t.Context(), rows[2], "f", "q")
	if err != nil || was != string(v) {
		t.Errorf("the snapshot showed %q, and then %q, %v", was, v, err)
	}
}

// The oracle's time jumps while or after a table gets the property. No client relies on it.
func TestAllowBulkPrewriteWhileTimeJumps(t *testing.T) {
	for _, during := range []bool{true, false} {
		t.Run(fmt.Sprint("during=", during), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ahead atomic.Int64
				oracle := tso.NewLocal(tso.LocalConfig{Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
				env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{Oracle: oracle}))
				env.CreateTable("a", "f")
				writer, reader := env.NewClient(txn.Config{Oracle: oracle}), env.NewClient(txn.Config{Oracle: oracle})
				mustSet(t, reader, "0", "warm")
				allowed := inBackground(func() error { return bulkprewrite.Allow(t.Context(), writer, "a") })
				if during {
					advance(30 * time.Second)
					ahead.Store(int64(10 * time.Minute))
				}
				if o := <-allowed; o.err != nil || o.took < 2*time.Minute {
					t.Fatalf("after %v: %v", o.took, o.err)
				}
				ahead.Store(int64(20 * time.Minute))
				readsPastHiddenLock(t, env, oracle, writer, reader)
			})
		})
	}
}

// A client that only reads has no token. It uses a schema for longer than Allow takes.
func TestAllowBulkPrewriteBesideOldSchema(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		writer, reader := env.NewClient(txn.Config{}), env.NewClient(txn.Config{SchemaMaxAge: time.Hour})
		wantValue(t, takeSnapshot(t, reader), "warm", "")
		if err := bulkprewrite.Allow(t.Context(), writer, "a"); err != nil {
			t.Fatal(err)
		}
		readsPastHiddenLock(t, env, nil, writer, reader)
	})
}

// A request of Allow fails, and takes effect much later: the one that announces the property, or the
// one that allows bulk prewrites.
func TestAllowBulkPrewriteArrivesLate(t *testing.T) {
	for _, second := range []bool{false, true} {
		t.Run(fmt.Sprint("second=", second), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.CreateTable("a", "f")
				faults := txntest.NewFaults(t)
				operator := env.NewClient(txn.Config{}, faults.DialOptions()...)
				writer, reader := env.NewClient(txn.Config{}), env.NewClient(txn.Config{})
				replaces := func(c txntest.Call) bool { return c.Row == "schema/a" && c.Method == "CheckAndMutateRow" }
				var late *txntest.Rule
				if !second {
					late = faults.On("schema", replaces, txntest.Delay, 1)
				}
				failed := inBackground(func() error { return bulkprewrite.Allow(t.Context(), operator, "a") })
				if second {
					advance(time.Minute)
					late = faults.On("schema", replaces, txntest.Delay, 1)
				}
				if o := <-failed; o.err == nil {
					t.Error("Allow returned no error")
				}
				advance(10 * time.Minute)
				wantValue(t, takeSnapshot(t, reader), "warm", "")
				advance(10 * time.Second)
				late.Release()
				if second {
					advance(time.Minute)
					readsPastHiddenLock(t, env, nil, writer, reader)
					return
				}
				counted := txntest.NewFaults(t)
				mustSet(t, env.NewClient(txn.Config{}, counted.DialOptions()...), "1", rowNames(4)...)
				if n := bulkSizes(counted); len(n) > 0 {
					t.Errorf("bulk prewrites of %v rows just after it was announced", n)
				}
			})
		})
	}
}

// A request of Allow is lost, doubled, or applied with an error. Allow, or another call of it, allows bulk
// prewrites, and not before two minutes have passed.
func TestAllowBulkPrewriteFaults(t *testing.T) {
	for _, action := range []txntest.Action{txntest.DropRequest, txntest.DropResponse, txntest.Duplicate, txntest.Echo} {
		for k := range 2 {
			t.Run(fmt.Sprintf("%v/%d", action, k+1), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					env := txntest.New(t, txntest.Embedded())
					env.CreateTable("a", "f")
					reader := env.NewClient(txn.Config{})
					wantValue(t, takeSnapshot(t, reader), "warm", "")
					faults := txntest.NewFaults(t)
					n := 0
					rule := faults.On("schema", func(c txntest.Call) bool {
						if c.Row == "schema/a" && c.Method == "CheckAndMutateRow" {
							n++
							return n > k
						}
						return false
					}, action, 1)
					operator := env.NewClient(txn.Config{}, faults.DialOptions()...)
					begun := time.Now()
					err := bulkprewrite.Allow(t.Context(), operator, "a")
					if fails := action == txntest.DropRequest || action == txntest.DropResponse; (err != nil) != fails {
						t.Errorf("the first call: %v", err)
					} else if fails {
						err = bulkprewrite.Allow(t.Context(), operator, "a")
					}
					<-rule.Fired()
					rule.Release()
					if err != nil || !allowsBulk(t, env) || time.Since(begun) < 2*time.Minute {
						t.Errorf("after %v: %v", time.Since(begun), err)
					}
					readsPastHiddenLock(t, env, nil, operator, reader)
				})
			})
		}
	}
}

// percctl table adopt of an older release continues an interrupted undo: it writes the record with the format
// version that it knows, and keeps the fields that it does not know. Older clients use the table then.
func TestBulkPrewriteInARecordOfAnOlderVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, _, _ := newBulkEnv(t, txn.Config{})
		meta := env.Bigtable.Open(format.DefaultMetadataTable)
		row, err := meta.ReadRow(t.Context(), "schema/a")
		if err != nil {
			t.Fatal(err)
		}
		record := row["meta"][0].Value
		if record[0] != 1<<3 || record[1] != format.BulkVersion {
			t.Fatalf("the record begins with %v", record[:2])
		}
		record[1] = format.Version
		m := bigtable.NewMutation()
		m.Set("meta", "schema", 0, record)
		if err := meta.Apply(t.Context(), "schema/a", m); err != nil {
			t.Fatal(err)
		}
		counted := txntest.NewFaults(t)
		mustSet(t, env.NewClient(txn.Config{}, counted.DialOptions()...), "1", rowNames(4)...)
		if n := bulkSizes(counted); len(n) > 0 {
			t.Errorf("bulk prewrites of %v rows in a table that clients of older releases accept", n)
		}
	})
}
