//go:build unix

package txn_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

type discard struct{}

func (discard) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                             { return nil }

// BenchmarkTelemetry runs transactions without an SDK, with one that samples
// nothing, with one that records everything, in turn, and reports what each
// takes, the emulator in this process included, and the ratios to the first. docs/observability.md has the numbers.
func BenchmarkTelemetry(b *testing.B) {
	env := txntest.New(b, txntest.Embedded(), txntest.WithoutCheck())
	env.CreateTable("accounts", "bal")
	off := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	on := sdktrace.NewTracerProvider(sdktrace.WithBatcher(discard{}))
	b.Cleanup(func() { _, _ = off.Shutdown(context.Background()), on.Shutdown(context.Background()) })
	modes := []string{"none", "off", "all"}
	clients := []*txn.Client{
		env.NewClient(txn.Config{SyncSecondaries: true}),
		env.NewClient(txn.Config{SyncSecondaries: true, TracerProvider: off}),
		env.NewClient(txn.Config{SyncSecondaries: true, TracerProvider: on, TraceRowKeys: true,
			MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))}),
	}
	cpu, wall := make([]time.Duration, len(modes)), make([]time.Duration, len(modes))
	for n := 0; b.Loop(); n++ {
		if err := env.Admin.DropAllRows(b.Context(), "accounts"); err != nil {
			b.Fatal(err)
		}
		for i := range modes {
			i = (i + n) % len(modes) // who comes after whom changes
			began, used := time.Now(), cpuTime(b)
			for range turn {
				if err := benchTransfer(b.Context(), clients[i]); err != nil {
					b.Fatal(err)
				}
			}
			wall[i] += time.Since(began)
			cpu[i] += cpuTime(b) - used
		}
	}
	for i, mode := range modes {
		b.ReportMetric(float64(cpu[i].Microseconds())/float64(b.N*turn), mode+"-cpu-µs/txn")
		if i > 0 {
			b.ReportMetric(float64(cpu[i])/float64(cpu[0]), mode+"/none-cpu")
			b.ReportMetric(float64(wall[i])/float64(wall[0]), mode+"/none-wall")
		}
	}
}

// turn is how many transactions of one kind follow each other.
const turn = 20

// cpuTime is what this process has used; unlike the wall clock it hardly
// depends on what else the machine does.
func cpuTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
