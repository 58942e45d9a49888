package emulator_test

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestTelemetryOfOperations: testdata/telemetry.txt lists what every operation of a new client adds to
// its metrics, and what it logs: nothing, as long as no request fails. Of a histogram, that is the number of values.
func TestTelemetryOfOperations(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	var out strings.Builder
	for _, op := range append(operations(), packageOperations()...) {
		if op.ahead || op.token || strings.HasPrefix(op.name, "scan, owner") {
			continue // some of its requests come at any time, or it resolves two locks at a time
		}
		synctest.Test(t, func(t *testing.T) {
			env := newOperated(t, op)
			synctest.Wait() // secondaries
			var log strings.Builder
			reader := sdkmetric.NewManualReader()
			c := env.NewClient(txn.Config{TokenTTL: -1, SyncSecondaries: true, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}, unsampled())
			before := counted(t, reader)
			if _, err := op.call(t.Context(), c); err != nil {
				t.Errorf("%s: %v", op.name, err)
			}
			synctest.Wait() // what it does in the background
			fmt.Fprintf(&out, "%s\n", op.name)
			after := counted(t, reader)
			for _, name := range slices.Sorted(maps.Keys(after)) {
				var list []string
				for _, of := range slices.Sorted(maps.Keys(after[name])) {
					if n := after[name][of] - before[name][of]; n != 0 {
						list = append(list, strings.TrimSpace(fmt.Sprintf("%d %s", n, of)))
					}
				}
				if len(list) > 0 {
					fmt.Fprintf(&out, "\t%s: %s\n", name, strings.Join(list, ", "))
				}
			}
			for line := range strings.Lines(log.String()) {
				fmt.Fprintf(&out, "\tlog: %s", line)
			}
		})
	}
	compareWith(t, "testdata/telemetry.txt", out.String())
}

// counted returns what a client has counted, by the name and the values of the attributes.
func counted(t *testing.T, reader *sdkmetric.ManualReader) map[string]map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]int64{}
	add := func(name string, of attribute.Set, n int64) {
		if all[name] == nil {
			all[name] = map[string]int64{}
		}
		var values []string
		for _, kv := range of.ToSlice() {
			if kv.Key != "db.system.name" { // always the same
				values = append(values, kv.Value.String())
			}
		}
		all[name][strings.Join(values, " ")] += n
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, int64(p.Count))
				}
			case metricdata.Histogram[int64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, int64(p.Count))
				}
			}
		}
	}
	return all
}
