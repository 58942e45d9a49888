package txn_test

import (
	"context"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

func TestNotInitialized(t *testing.T) {
	env := txntest.New(t, txntest.Embedded())
	_, err := txn.NewClient(t.Context(), env.Bigtable, txn.Config{MetadataTable: "elsewhere"})
	wantError(t, err, txn.ErrNotInitialized, "elsewhere", "percctl table init", "InitTable")

	_, err = env.Client.Update(t.Context(), set("unknown", "r"))
	wantError(t, err, txn.ErrNotInitialized, `"unknown"`, "percctl table init unknown")
	_, err = env.Client.Update(t.Context(), set("percolator", "r"))
	wantError(t, err, txn.ErrInvalid, `"percolator"`)
}

func TestSchemaIsVerified(t *testing.T) {
	ctx := t.Context()
	env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck())

	t.Run("policy", func(t *testing.T) {
		env.CreateTable("policy", "f")
		if err := env.Admin.SetGCPolicy(ctx, "policy", "f", bigtable.MaxVersionsPolicy(1)); err != nil {
			t.Fatal(err)
		}
		wantError(t, env.Client.CheckTable(ctx, "policy"), txn.ErrSchema, `"policy"`, "family f", "versions() > 1", "setgcpolicy policy f never")
		err := admin.InitTable(ctx, env.Admin, env.Bigtable, "", admin.TableSpec{Name: "policy"})
		wantError(t, err, txn.ErrSchema, "family f")
	})
	t.Run("missing family", func(t *testing.T) {
		env.CreateTable("missing", "f")
		if err := env.Admin.DeleteColumnFamily(ctx, "missing", format.MarkFamily); err != nil {
			t.Fatal(err)
		}
		wantError(t, env.Client.CheckTable(ctx, "missing"), txn.ErrSchema, format.MarkFamily, "percctl table init missing")
	})
	t.Run("family added later", func(t *testing.T) {
		env.CreateTable("grows", "f")
		if err := env.Client.CheckTable(ctx, "grows"); err != nil {
			t.Fatal(err)
		}
		if err := env.Admin.CreateColumnFamily(ctx, "grows", "g"); err != nil {
			t.Fatal(err)
		}
		_, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("grows").Set("r", "g", "q", nil)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
