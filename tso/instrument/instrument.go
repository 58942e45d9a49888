// Package instrument makes the OpenTelemetry instruments of this module's packages: names,
// units and bucket boundaries in one place, one error for all of them.
package instrument

import (
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

// Durations are the bucket boundaries, in seconds, that OpenTelemetry prescribes for the
// duration of database operations.
var Durations = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10}

// Counts are the bucket boundaries for sizes: rows, requests, timestamps.
var Counts = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096}

// A Set makes the instruments of one scope. Its error is that of the first instrument
// that could not be made.
type Set struct {
	Meter metric.Meter
	errs  []error
}

// New returns a Set for a scope of provider; nil is OpenTelemetry's global provider.
func New(provider metric.MeterProvider, scope string) *Set {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	return &Set{Meter: provider.Meter(scope)}
}

// Err returns the errors of all instruments made so far.
func (s *Set) Err() error { return errors.Join(s.errs...) }

// Seconds makes a histogram of durations, with the given bucket boundaries or Durations.
func (s *Set) Seconds(name, description string, buckets ...float64) metric.Float64Histogram {
	if len(buckets) == 0 {
		buckets = Durations
	}
	h, err := s.Meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(buckets...))
	return keep(s, h, err)
}

// Sizes makes a histogram of numbers, with the given bucket boundaries or Counts.
func (s *Set) Sizes(name, unit, description string, buckets ...float64) metric.Int64Histogram {
	if len(buckets) == 0 {
		buckets = Counts
	}
	h, err := s.Meter.Int64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(buckets...))
	return keep(s, h, err)
}

// Counter makes a counter of events.
func (s *Set) Counter(name, unit, description string) metric.Int64Counter {
	c, err := s.Meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return keep(s, c, err)
}

// Observed makes a counter that a callback reads.
func (s *Set) Observed(name, unit, description string) metric.Int64ObservableCounter {
	c, err := s.Meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return keep(s, c, err)
}

// Gauge makes a gauge of numbers that a callback reads.
func (s *Set) Gauge(name, unit, description string) metric.Int64ObservableGauge {
	g, err := s.Meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	return keep(s, g, err)
}

// SecondsGauge makes a gauge of seconds that a callback reads.
func (s *Set) SecondsGauge(name, description string) metric.Float64ObservableGauge {
	g, err := s.Meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
	return keep(s, g, err)
}

func keep[T any](s *Set, instrument T, err error) T {
	if err != nil {
		s.errs = append(s.errs, err)
	}
	return instrument
}
