package gc_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A page is written three times. Two days later its older versions are garbage.
func ExampleRun() {
	ctx := context.Background()
	client, clock, stop := pages(ctx)
	defer stop()
	for _, text := range []string{"one", "two", "three"} {
		_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("pages").Set("home", "contents", "html", []byte(text))
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	clock.ahead = 48 * time.Hour

	report, err := gc.Run(ctx, client, gc.Config{Retention: 24 * time.Hour})
	var blocked *gc.BlockedError
	switch {
	case errors.As(err, &blocked):
		log.Fatal("a transaction older than a day is alive: ", err)
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println(report.Total.Versions, "versions removed")

	status, err := gc.ReadStatus(ctx, client)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the last run is", status.Run.Phase)
	// Output:
	// 2 versions removed
	// the last run is done
}

// A plan says what a run would remove, and changes nothing.
func ExamplePlan() {
	ctx := context.Background()
	client, clock, stop := pages(ctx)
	defer stop()
	for range 2 {
		_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("pages").Delete("home", "contents", "html")
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	clock.ahead = 72 * time.Hour

	plan, err := gc.Plan(ctx, client, gc.Config{Retention: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	for _, table := range plan.Tables {
		fmt.Println(table.Table, table.Versions, "versions,", table.Deletes, "of them the newest of a column")
	}
	// Output:
	// pages 1 versions, 0 of them the newest of a column
}

// clock is a clock that can be set forward.
type clock struct{ ahead time.Duration }

func (c *clock) now() time.Time { return time.Now().Add(c.ahead) }

// pages starts an emulator with a table, and a client whose time clock sets.
func pages(ctx context.Context) (*txn.Client, *clock, func()) {
	txntest.ShortenGC(60) // a run takes 2 seconds instead of 2 minutes
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "pages", Families: []string{"contents"}}); err != nil {
		log.Fatal(err)
	}
	clock := &clock{}
	client, err := txn.NewClient(ctx, bt, txn.Config{Oracle: tso.NewLocal(tso.LocalConfig{Clock: clock.now}), TokenTTL: -1})
	if err != nil {
		log.Fatal(err)
	}
	return client, clock, func() {
		_ = client.Close(ctx)
		stop()
	}
}
