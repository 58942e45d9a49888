package txn_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
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

// TestFamiliesAreCheckedOnce: all clients together ask the admin service once in
// SchemaMaxAge, also after clients died. A wrong policy makes each of them check.
func TestFamiliesAreCheckedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const age = time.Minute
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck())
		env.CreateTable("a", "f")
		cluster := model.New(model.Config{})
		var clients []*txn.Client
		for i := range 10 {
			bt, btAdmin := env.Open(cluster.Client(fmt.Sprint("client-", i))...)
			c, err := txn.NewClient(t.Context(), bt, txn.Config{Admin: btAdmin, SchemaMaxAge: age, TokenTTL: -1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			clients = append(clients, c)
		}
		// use lets each client read once a second, all at the same moment, and returns how many
		// requests reached the admin service.
		use := func(clients []*txn.Client, d time.Duration) int64 {
			cluster.Reset()
			for end := time.Now().Add(d); time.Now().Before(end); <-time.After(time.Second) {
				for _, c := range clients {
					_, _, err := c.Latest("a").Get(t.Context(), "r", "f", "q")
					if err != nil {
						t.Error(err)
					}
				}
			}
			return cluster.Sum(func(k model.Key) bool { return k.Method == "GetTable" }).Requests
		}
		if n := use(clients, age/2); n != 10 {
			t.Errorf("%d checks when the clients opened the table, want 10", n)
		}
		use(clients, age) // they are still in step
		if n := use(clients, 20*age); n < 18 || n > 25 {
			t.Errorf("%d checks by 10 clients in 20 minutes, want about 20", n)
		}
		if n := use(clients[1:4], 20*age); n < 18 || n > 25 {
			t.Errorf("%d checks by 3 clients in 20 minutes, want about 20", n)
		}
		if err := env.Admin.SetGCPolicy(t.Context(), "a", "f", bigtable.MaxVersionsPolicy(1)); err != nil {
			t.Fatal(err)
		}
		if n := use(clients[1:4], 2*age+10*time.Second); n < 6 {
			t.Errorf("%d checks by 3 clients after one failed, want those of each of them", n)
		}
	})
}

// TestLateCheckOfFamilies: a result that is stored late must not replace that of a later
// check, which knows a new family.
func TestLateCheckOfFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		open := func(opts ...grpc.DialOption) func() {
			bt, btAdmin := env.Open(opts...)
			c, err := txn.NewClient(t.Context(), bt, txn.Config{Admin: btAdmin, TokenTTL: -1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			read := func() {
				if _, _, err := c.Latest("a").Get(t.Context(), "r", "f", "q"); err != nil {
					t.Error(err)
				}
				synctest.Wait()
			}
			read()
			return read
		}
		faults := txntest.NewFaults(t)
		late, other := open(faults.DialOptions()...), open()
		<-time.After(2 * time.Minute) // virtual
		other()                       // it stores the first result
		late()
		<-time.After(2 * time.Minute) // virtual
		stored := faults.On("stored families", func(c txntest.Call) bool {
			return c.Step == txntest.StepSchema && c.Method == "CheckAndMutateRow"
		}, txntest.Hold, 1)
		late() // it has checked, and stores the result later
		<-stored.Fired()
		if err := env.Admin.CreateColumnFamily(t.Context(), "a", "g"); err != nil {
			t.Fatal(err)
		}
		other()
		stored.Release()
		synctest.Wait()
		row, err := env.Bigtable.OpenTable("percolator").ReadRow(t.Context(), "families/a")
		if err != nil || len(row["meta"]) != 1 {
			t.Fatalf("stored: %v, error %v", row, err)
		}
		if v := string(row["meta"][0].Value); !strings.HasSuffix(v, " f g") {
			t.Errorf("stored: %q, want families f and g", v)
		}
	})
}
