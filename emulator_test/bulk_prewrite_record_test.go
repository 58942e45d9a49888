package emulator_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/bulkprewrite"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// loseSchema deletes the schema record of table a.
func loseSchema(t *testing.T, env *txntest.Env) {
	t.Helper()
	m := bigtable.NewMutation()
	m.DeleteRow()
	if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), "schema/a", m); err != nil {
		t.Fatal(err)
	}
}

// allowsBulk reports whether table a has the property.
func allowsBulk(t *testing.T, env *txntest.Env) bool {
	t.Helper()
	d, err := admin.Describe(t.Context(), env.Client, "a")
	if err != nil {
		t.Fatal(err)
	}
	return d.BulkPrewrite
}

// The schema record of a table with bulk prewrites is lost, and an operator makes it again without saying
// so. Their locks may still hide others.
func TestBulkPrewriteAfterALostRecord(t *testing.T) {
	for _, existing := range []bool{false, true} {
		t.Run(map[bool]string{false: "new table", true: "existing table"}[existing], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.InitTable(admin.TableSpec{Name: "a", Families: []string{"f"}, BulkPrewrite: !existing})
				writer := env.NewClient(txn.Config{})
				if existing {
					if err := bulkprewrite.Allow(t.Context(), writer, "a"); err != nil {
						t.Fatal(err)
					}
				}
				loseSchema(t, env)
				if p, err := admin.PlanAdoption(t.Context(), env.Admin, env.Bigtable, admin.AdoptConfig{Table: "a"}); err != nil || len(p.Refusals) == 0 {
					t.Errorf("adoption: %+v, %v; want a refusal", p, err)
				}
				env.InitTable(admin.TableSpec{Name: "a"})
				if !allowsBulk(t, env) {
					t.Error("the new record does not have the property")
				}
				reader := env.NewClient(txn.Config{})
				readsPastHiddenLock(t, env, nil, writer, reader)
				// A table that leaves keeps nothing of it.
				for _, c := range []*txn.Client{writer, reader, env.Client} {
					closeNow(c)
				}
				advance(5 * time.Minute)
				if _, err := leave(t.Context(), t, env, env.Admin, env.Bigtable); err != nil {
					t.Fatal(err)
				}
				if info, err := env.Admin.TableInfo(t.Context(), "a"); err != nil || !slices.Equal(info.Families, []string{"f"}) {
					t.Errorf("after it has left, the table is %+v, %v", info, err)
				}
				env.InitTable(admin.TableSpec{Name: "a"}) // for the consistency check
			})
		})
	}
}

// The schema record of a table without bulk prewrites is lost, and made again with them. Clients have
// the table open, and rely on what they read before.
func TestBulkPrewriteWithANewRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		writer, reader := env.NewClient(txn.Config{}), env.NewClient(txn.Config{})
		wantValue(t, takeSnapshot(t, reader), "warm", "")
		loseSchema(t, env)
		env.InitTable(admin.TableSpec{Name: "a", BulkPrewrite: true})
		if allowsBulk(t, env) {
			t.Error("the new record has the property at once")
		}
		if o := <-inBackground(func() error { return bulkprewrite.Allow(t.Context(), writer, "a") }); o.err != nil || o.took < 2*time.Minute {
			t.Errorf("allowing it took %v: %v", o.took, o.err)
		}
		readsPastHiddenLock(t, env, nil, writer, reader)
		// A client without Config.Admin could not keep the property.
		plain, err := txn.NewClient(t.Context(), env.Bigtable, txn.Config{TokenTTL: -1})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(bulkprewrite.Allow(t.Context(), plain, "a"), plain.Close(t.Context())); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("without Config.Admin: %v", err)
		}
	})
}
