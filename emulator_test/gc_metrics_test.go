package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// numbers returns the values of garbage collection's metrics, by name and the value of
// their one attribute. For a histogram it is the count.
func numbers(t *testing.T, reader *sdkmetric.ManualReader) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					for _, kv := range p.Attributes.ToSlice() {
						all[m.Name+" "+kv.Value.String()] = float64(p.Value)
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					for _, kv := range p.Attributes.ToSlice() {
						all[m.Name+" "+kv.Value.String()] = float64(p.Count)
					}
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					all[m.Name] = p.Value
				}
			}
		}
	}
	return all
}

// TestGCMetrics reads the metrics of a collection that a live transaction blocks, and
// of the next one.
func TestGCMetrics(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		cfg := txn.Config{TokenTTL: -1, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(cfg))
		env.InitTable(admin.TableSpec{Name: "accounts", Families: []string{"bal"}})
		faults := txntest.NewFaults(t)
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		dying := env.NewClient(txn.Config{TokenTTL: -1, RPCTimeout: 2 * time.Hour}, faults.DialOptions()...)
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := dying.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("1"))
		ended := make(chan error, 1)
		go func() { _, err := tx.Commit(ctx); ended <- err }()
		<-slow.Fired()
		if _, err := env.Client.Timestamp(t.Context()); err != nil { // the client knows the time now
			t.Fatal(err)
		}
		if _, ok := numbers(t, reader)["percolator.gc.safe_point.age"]; ok {
			t.Error("there is a metric for the age of the safe point, but no safe point")
		}
		advance(20 * time.Minute)
		var blocked *gc.BlockedError
		if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention, LockWait: -1}); !errors.As(err, &blocked) {
			t.Fatalf("%v, want a BlockedError", err)
		}
		faults.Kill()
		cancel()
		<-ended
		advance(time.Hour)
		runGC(t, env.Client, gc.Config{})
		got := numbers(t, reader)
		for name, want := range map[string]float64{
			"percolator.gc.locks left": 1, "percolator.gc.locks rolled back": 1,
			"percolator.gc.run.duration blocked": 1, "percolator.gc.run.duration done": 1,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		// Its age is the retention and the duration of the fence.
		if age := time.Duration(got["percolator.gc.safe_point.age"] * float64(time.Second)); age < retention || age > retention+5*time.Minute {
			t.Errorf("the safe point is %v old", age)
		}
	})
}
