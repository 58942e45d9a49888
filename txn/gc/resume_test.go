package gc_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A run that a release without parts has left is continued at its row, and the position of an
// interrupted run is one at which such a release may continue.
func TestRunOfReleaseWithoutParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("a", "f")
		const rows = 30
		for range 2 {
			for i := range rows {
				if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					tx.Table("a").Set(fmt.Sprintf("row%02d", i), "f", "q", []byte("v"))
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		<-time.After(11 * time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		cfg := gc.Config{Retention: 10 * time.Minute, Rate: 10, Progress: func(p gc.Progress) {
			if p.Total.Rows == rows/3 {
				cancel()
			}
		}}
		if r, err := gc.Run(ctx, env.Client, cfg); err == nil || r.Total.Rows != rows/3 {
			t.Fatalf("%+v, %v", r, err)
		}
		metadata := env.Bigtable.Open("percolator")
		raw, err := metadata.ReadRow(t.Context(), store.GCRowKey)
		if err != nil {
			t.Fatal(err)
		}
		var run recordpb.GarbageRun
		for _, item := range raw[store.DeployFamily] {
			if item.Column == store.DeployFamily+":run" {
				if err := proto.Unmarshal(item.Value, &run); err != nil {
					t.Fatal(err)
				}
			}
		}
		if run.Phase != recordpb.GarbageRun_PHASE_COLLECT || run.Table != "a" || string(run.Row) != "row09" || len(run.Parts) != 1 {
			t.Errorf("the record is %v", &run)
		}
		run.Divided, run.Parts, run.Collectors = false, nil, nil
		value, err := proto.Marshal(&run)
		if err != nil {
			t.Fatal(err)
		}
		m := bigtable.NewMutation()
		m.Set(store.DeployFamily, "run", 0, value)
		if err := metadata.Apply(t.Context(), store.GCRowKey, m); err != nil {
			t.Fatal(err)
		}
		faults := txntest.NewFaults(t)
		r, err := gc.Run(t.Context(), env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...), gc.Config{Retention: 10 * time.Minute})
		reads := 0 // with the rate of the first run, pages would be small
		for _, c := range faults.Calls() {
			if c.Table == "a" && c.Method == "ReadRows" && c.Row == "" {
				reads++
			}
		}
		if reads != 1 {
			t.Errorf("%d reads", reads)
		}
		if err != nil || !r.Resumed || !r.Finished || r.Total.Rows != rows-rows/3 || r.Total.Versions != rows-rows/3 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
