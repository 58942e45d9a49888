package txntest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

func TestEnv(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("accounts", "bal")
	ctx := t.Context()
	ts, err := env.Client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		a := tx.Table("accounts")
		a.Set("bob", "bal", "usd", []byte("3"))
		a.Set("joe", "bal", "usd", []byte("9"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := env.Client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for row, want := range map[string]string{"bob": "3", "joe": "9"} {
		v, ok, err := s.Table("accounts").Get(ctx, row, "bal", "usd")
		if err != nil || !ok || string(v) != want {
			t.Errorf("%s at %d after commit at %d: %q, %v, %v", row, s.ReadTS(), ts, v, ok, err)
		}
	}
}

// TestEnvInVirtualTime: a bubble has an emulator inside the process, whatever the environment names.
func TestEnvInVirtualTime(t *testing.T) {
	t.Setenv("BIGTABLE_EMULATOR_HOST", "127.0.0.1:1")
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t)
		env.CreateTable("accounts", "bal")
		begun := time.Now()
		<-time.After(10 * time.Minute) // virtual
		_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			tx.Table("accounts").Set("bob", "bal", "usd", nil)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begun); d < 10*time.Minute {
			t.Errorf("only %v passed", d)
		}
	})
}

// TestMetadataSteps: a request on the metadata table has the step of its row.
func TestMetadataSteps(t *testing.T) {
	env := txntest.New(t)
	faults := txntest.NewFaults(t)
	bt, _ := env.Open(faults.DialOptions()...)
	locks := tso.NewRowLocks(bt.OpenTable(format.DefaultMetadataTable), env.Oracle(), tso.RowLocksConfig{})
	if ok, _, err := locks.Acquire(t.Context(), "scan", "me", time.Minute); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if n := faults.Count(); n[txntest.StepLock] < 2 || len(n) != 1 {
		t.Errorf("taking a lock is %v", n)
	}
}
