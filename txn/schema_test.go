package txn_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
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
	long.RacedAtNight(t)
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
		// use lets each client read once a second, one after the other, and returns how many
		// requests reached the admin service. Clients that check at the same moment do not share.
		use := func(clients []*txn.Client, d time.Duration) int64 {
			cluster.Reset()
			for end := time.Now().Add(d); time.Now().Before(end); {
				for _, c := range clients {
					<-time.After(time.Second / time.Duration(len(clients)))
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
		if n := use(clients, 20*age); n < 18 || n > 23 {
			t.Errorf("%d checks by 10 clients in 20 minutes, want about 20", n)
		}
		if n := use(clients[1:4], 20*age); n < 18 || n > 23 {
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

// TestTableIsOpenedOnce: calls at the same time share the requests that open a table, and the
// registration of an observer needs no other check of the families.
func TestTableIsOpenedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		cluster := model.New(model.Config{})
		bt, btAdmin := env.Open(cluster.Client("client")...)
		c, err := txn.NewClient(t.Context(), bt, txn.Config{Admin: btAdmin, TokenTTL: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.Background()) }()
		for range 50 {
			go func() {
				if _, _, err := c.Latest("a").Get(t.Context(), "r", "f", "q"); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		for _, column := range []string{"p", "q"} {
			if err := changes.RegisterObserver(t.Context(), c, "a", txn.Column{Family: "f", Qualifier: column}, "o-"+column, false); err != nil {
				t.Error(err)
			}
		}
		if n := cluster.Sum(func(k model.Key) bool { return k.Method == "GetTable" }).Requests; n != 1 {
			t.Errorf("%d requests for the table's families, want 1", n)
		}
	})
}

// TestFleetOpensTables: a fleet that starts opens more tables than the quota of the admin service
// allows in a minute. It waits for one answer a table, not for one a client. The goroutines of a
// client share one request.
func TestFleetOpensTables(t *testing.T) {
	long.Test(t, "a fleet of clients")
	long.NotUnderRace(t, "hours of virtual time")
	const clients, tables = 40, 100
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck())
		for i := range tables {
			if i%10 == 9 {
				<-time.After(time.Minute) // the quota of changes
			}
			env.CreateTable(fmt.Sprint("t", i), "f")
		}
		<-time.After(time.Minute)
		cluster := model.New(model.Config{})
		requests := func() int64 {
			return cluster.Sum(func(k model.Key) bool { return k.Method == "GetTable" }).Requests
		}
		began := time.Now()
		var all errgroup.Group
		for i := range clients {
			bt, btAdmin := env.Open(cluster.Client(fmt.Sprint("client-", i))...)
			c, err := txn.NewClient(t.Context(), bt, txn.Config{Admin: btAdmin, TokenTTL: -1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			for n := range 2 * tables {
				all.Go(func() error {
					_, _, err := c.Latest(fmt.Sprint("t", n%tables)).Get(t.Context(), "r", "f", "q")
					return err
				})
			}
		}
		if err := all.Wait(); err != nil {
			t.Error(err)
		}
		n, took := requests(), time.Since(began)
		t.Logf("%d requests in %v", n, took)
		// Each client opens 100 tables, and 1,000 requests are allowed in a minute.
		if n <= clients*tables || n > 3*clients*tables || took > 2*time.Minute {
			t.Errorf("%d requests in %v", n, took)
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
		began := time.Now()
		late() // it has checked, and stores the result later
		if took := time.Since(began); took > 0 {
			t.Errorf("a read waited %v for the check of the families", took)
		}
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
