package txntest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// The rules of Cloud Bigtable hold without a transport, too.
func TestWithoutTransportIsStrict(t *testing.T) {
	env := txntest.New(t, txntest.WithoutTransport(), txntest.WithMaxRow(1000))
	env.CreateTable("t", "f")
	table, ctx := env.Bigtable.Open("t"), t.Context()
	unknown, value := bigtable.NewMutation(), bigtable.NewMutation()
	unknown.Set("unknown", "q", 1000, nil)
	value.Set("f", "q", 1000, make([]byte, 600))
	value.Set("f", "r", 1000, make([]byte, 600))
	if err := table.Apply(ctx, "row", value); err != nil {
		t.Fatal(err)
	}
	_, large := table.ReadRow(ctx, "row")
	_, small := table.ReadRow(ctx, "row", bigtable.RowFilter(bigtable.ColumnFilter("q")))
	_, filter := table.ReadRow(ctx, "row", bigtable.RowFilter(bigtable.ValueFilter(string(make([]byte, 30_000)))))
	errs, err := table.ApplyBulk(ctx, []string{"row", "other"}, []*bigtable.Mutation{value, unknown})
	if err != nil || len(errs) != 2 || errs[0] != nil {
		t.Fatal(errs, err)
	}
	for what, tt := range map[string]struct {
		err  error
		want codes.Code
	}{
		"a row that is too large":         {large, codes.FailedPrecondition},
		"a column of it":                  {small, codes.OK},
		"a filter that is too large":      {filter, codes.InvalidArgument},
		"an unknown family":               {table.Apply(ctx, "row", unknown), codes.NotFound},
		"an unknown family in one of two": {errs[1], codes.NotFound},
		"a condition without changes":     {table.Apply(ctx, "row", bigtable.NewCondMutation(bigtable.LatestNFilter(1), bigtable.NewMutation(), nil)), codes.InvalidArgument},
	} {
		if status.Code(tt.err) != tt.want {
			t.Errorf("%s: %v, want %v", what, tt.err, tt.want)
		}
	}
}
