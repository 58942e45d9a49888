package instrument

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
)

// Tracer returns the tracer of one scope of provider; nil is OpenTelemetry's global
// provider.
func Tracer(provider trace.TracerProvider, scope string) trace.Tracer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return provider.Tracer(scope)
}

// Quiet returns ctx for requests that belong to no trace. Its span is valid but not
// sampled, so that the Bigtable client and gRPC begin no traces of their own for them.
func Quiet(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(ctx, quiet)
}

var quiet = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{0: 1}, SpanID: trace.SpanID{0: 1}})

// ErrorType returns the name of an error for spans and metrics: that of its method
// ErrorType, "canceled" or "deadline_exceeded" for the errors of contexts, or "_OTHER",
// which is OpenTelemetry's word for every other error. There are few such names, and none
// contains data.
func ErrorType(err error) string {
	var typed interface{ ErrorType() string }
	switch {
	case errors.As(err, &typed):
		return typed.ErrorType()
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline_exceeded"
	}
	return "_OTHER"
}
