package txntest_test

import (
	"context"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestStub runs every kind of request against a stub, and counts those that it
// answers itself.
func TestStub(t *testing.T) {
	ctx := t.Context()
	column := format.Column{Family: "bal", Qualifier: "usd"}
	stub, err := txntest.StartStub("", txntest.StubTable{Name: "accounts", Columns: []format.Column{column}, Value: []byte("10"), CommitTS: 1e15, Rows: 600})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := stub.Dial()
	if err != nil {
		t.Fatal(err)
	}
	bt, btAdmin, err := txntest.Open(ctx, conn, "project", "instance")
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "accounts", Families: []string{"bal"}}); err != nil {
		t.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{Admin: btAdmin, Oracle: tso.NewLocal(tso.LocalConfig{}), SyncSecondaries: true})
	if err != nil {
		t.Fatal(err)
	}
	requests := func(what string, want int64, f func()) {
		t.Helper()
		before, bytes := stub.Counts()
		f()
		after, more := stub.Counts()
		if after-before != want || more <= bytes {
			t.Errorf("%s: %d requests of %d bytes, want %d", what, after-before, more-bytes, want)
		}
	}
	requests("transaction of three rows", 1+3+1+1, func() {
		_, err := client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			accounts := tx.Table("accounts")
			value, ok, err := accounts.Get(ctx, "bob", "bal", "usd")
			if err != nil || !ok || string(value) != "10" {
				t.Errorf("read %q, %v, %v", value, ok, err)
			}
			for _, row := range []string{"ann", "bob", "joe"} {
				accounts.Set(row, "bal", "usd", []byte("1"))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what     string
		rows     bigtable.RowSet
		n        int
		requests int64
	}{
		{"row list", bigtable.RowList{"ann", "bob", "joe"}, 3, 1},
		{"limit", bigtable.PrefixRange("row-"), 100, 1},
		{"scan", nil, 600, 1},
	} {
		requests(c.what, c.requests, func() {
			n := 0
			for row, err := range snapshot.Table("accounts").ReadRows(ctx, c.rows, txn.Limit(c.n)) {
				if err != nil || len(row["bal"]) != 1 {
					t.Fatalf("row %v, %v", row, err)
				}
				n++
			}
			if n != c.n {
				t.Errorf("%s: %d rows, want %d", c.what, n, c.n)
			}
		})
	}
	requests("plain mutation", 1, func() {
		m := bigtable.NewMutation()
		m.Set("bal", "usd", 1000, nil)
		if err := bt.Open("accounts").Apply(ctx, "bob", m); err != nil {
			t.Error(err)
		}
	})
	if err := client.Close(ctx); err != nil {
		t.Error(err)
	}
	_, _, _ = bt.Close(), btAdmin.Close(), conn.Close()
	if err := stub.Close(); err != nil {
		t.Error(err)
	}
}
