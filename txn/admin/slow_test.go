package admin_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestSlowAdmin: tables can be made and adopted where changes of tables take time, and used as
// soon as the call returns.
func TestSlowAdmin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		slow := front.Options(strict.Front(strict.Config{AdminTime: 2 * time.Second}))
		env := txntest.New(t, txntest.Lenient(), txntest.WithServerOptions(slow...))
		env.InitTable(admin.TableSpec{Name: "made", Families: []string{"f"}})
		write(t, env, "made", "r")

		ctx := t.Context()
		if err := env.Admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "old", Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		m := bigtable.NewMutation()
		m.Set("f", "q", bigtable.Now(), []byte("before"))
		if err := env.Bigtable.Open("old").Apply(ctx, "r", m); err != nil {
			t.Fatal(err)
		}
		cfg := admin.AdoptConfig{Table: "old", ClearPolicies: true, Instance: fmt.Sprintf("projects/%s/instances/%s", env.Project, env.Instance)}
		plan, err := admin.PlanAdoption(ctx, env.Admin, env.Bigtable, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := admin.Adopt(ctx, env.Admin, env.Bigtable, cfg, plan); err != nil {
			t.Fatal(err)
		}
		write(t, env, "old", "s")
		if d := time.Since(begun); d < 30*time.Second {
			t.Errorf("all changes of tables took %v", d)
		}
	})
}

func write(t *testing.T, env *txntest.Env, table, row string) {
	t.Helper()
	if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table(table).Set(row, "f", "q", []byte("v"))
		return nil
	}); err != nil {
		t.Errorf("a write to table %s: %v", table, err)
	}
}
