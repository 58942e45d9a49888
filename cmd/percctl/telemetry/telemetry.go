// Package telemetry exports the traces and metrics of a process as
// OpenTelemetry's environment variables say. Without them nothing is recorded.
package telemetry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

const (
	// delay is how long spans wait to be sent together, where
	// OTEL_BSP_SCHEDULE_DELAY does not say: short, because commands are.
	delay = time.Second
	// flushTimeout bounds how long the end of a process waits for a back end.
	flushTimeout = 5 * time.Second
)

// Main runs a program with the process's arguments and the telemetry that the
// environment asks for, and returns its exit code.
func Main(p cli.Program) int {
	s := cli.System()
	stop, err := Start(context.Background(), p.Name, s.Err)
	if err != nil {
		fmt.Fprintf(s.Err, "%s: %v\n", p.Name, err)
		return cli.ExitUsage
	}
	defer stop()
	return p.Main(os.Args[1:], s)
}

// Start installs what the environment asks for as the process's providers:
//
//   - OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER: otlp, console, none, and prometheus for metrics.
//     Default: otlp when OTEL_EXPORTER_OTLP_ENDPOINT (or the one of the signal) is set, else none.
//   - every other variable of OpenTelemetry's SDK and exporters.
//
// The service's name is service, unless OTEL_SERVICE_NAME has another.
//
// Call stop before the process ends, however it ends: it sends what is left. Start fails, having
// installed nothing, for values that cannot work.
func Start(ctx context.Context, service string, stderr io.Writer) (stop func(), err error) {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return func() {}, nil
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	otel.SetErrorHandler(&once{log: log})
	var stops []func(context.Context) error
	stop = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		var errs []error
		for _, s := range stops {
			errs = append(errs, s(ctx))
		}
		if err := errors.Join(errs...); err != nil {
			log.Warn("sending the last telemetry failed", "error", err)
		}
	}
	traces, metrics := wanted("TRACES"), wanted("METRICS")
	if !traces && !metrics {
		return stop, nil
	}
	about, err := describe(ctx, service)
	if err != nil {
		return nil, fmt.Errorf("telemetry: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	var exporter sdktrace.SpanExporter
	if traces {
		if exporter, err = newSpanExporter(ctx, stderr); err != nil {
			return nil, fmt.Errorf("telemetry: OTEL_TRACES_EXPORTER=%s: %w; it can be otlp, console or none", os.Getenv("OTEL_TRACES_EXPORTER"), err)
		}
	}
	if metrics {
		reader, err := newMetricReader(ctx, stderr)
		if err != nil {
			if exporter != nil {
				err = errors.Join(err, exporter.Shutdown(ctx))
			}
			return nil, fmt.Errorf("telemetry: OTEL_METRICS_EXPORTER=%s: %w; it can be otlp, prometheus, console or none", os.Getenv("OTEL_METRICS_EXPORTER"), err)
		}
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(about))
		otel.SetMeterProvider(provider)
		stops = append(stops, provider.Shutdown)
	}
	if traces {
		var opts []sdktrace.BatchSpanProcessorOption
		if os.Getenv("OTEL_BSP_SCHEDULE_DELAY") == "" {
			opts = append(opts, sdktrace.WithBatchTimeout(delay))
		}
		provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter, opts...), sdktrace.WithResource(about))
		otel.SetTracerProvider(provider)
		otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
		stops = append(stops, provider.Shutdown)
	}
	return stop, nil
}

// Console exporters write to standard error: standard output is for data.

func newSpanExporter(ctx context.Context, stderr io.Writer) (sdktrace.SpanExporter, error) {
	if os.Getenv("OTEL_TRACES_EXPORTER") == "console" {
		return stdouttrace.New(stdouttrace.WithWriter(stderr))
	}
	return autoexport.NewSpanExporter(ctx)
}

func newMetricReader(ctx context.Context, stderr io.Writer) (sdkmetric.Reader, error) {
	if os.Getenv("OTEL_METRICS_EXPORTER") == "console" {
		exporter, err := stdoutmetric.New(stdoutmetric.WithWriter(stderr))
		if err != nil {
			return nil, err
		}
		return sdkmetric.NewPeriodicReader(exporter), nil
	}
	return autoexport.NewMetricReader(ctx)
}

// wanted reports whether a signal is to be exported.
func wanted(signal string) bool {
	switch os.Getenv("OTEL_" + signal + "_EXPORTER") {
	case "none":
		return false
	case "":
		return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
	}
	return true
}

// describe says who sends.
func describe(ctx context.Context, service string) (*resource.Resource, error) {
	return resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName(service), semconv.ServiceInstanceID(rand.Text())),
		resource.WithHost(), resource.WithProcessPID(), resource.WithTelemetrySDK(),
		resource.WithFromEnv(), // last: it wins
	)
}

// once logs each error of the exporters once: a back end that is away would
// fill the terminal otherwise.
type once struct {
	log *slog.Logger

	mu   sync.Mutex
	seen map[string]bool
}

// maxErrors bounds how many different ones are told.
const maxErrors = 20

func (o *once) Handle(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if text := err.Error(); !o.seen[text] && len(o.seen) < maxErrors {
		if o.seen == nil {
			o.seen = map[string]bool{}
		}
		o.seen[text] = true
		o.log.Warn("telemetry", "error", text)
	}
}
