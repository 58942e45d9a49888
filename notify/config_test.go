package notify

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/percolator-bigtable/percolator/txn"
)

// brokenMeters fail to make counters.
type (
	brokenMeters struct{ noop.MeterProvider }
	brokenMeter  struct{ noop.Meter }
)

var errMeter = errors.New("no counters on purpose")

func (brokenMeters) Meter(string, ...metric.MeterOption) metric.Meter { return brokenMeter{} }

func (brokenMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errMeter
}

func TestConfigDefaults(t *testing.T) {
	want := Config{
		LockTTL: 30 * time.Second, Timeout: 5 * time.Minute, DrainTimeout: 30 * time.Second, Backoff: txn.Backoff{Min: time.Second, Max: 10 * time.Minute},
		Concurrency: 16, Queue: 1024, MaxAttempts: 10, ConflictAttempts: 8, MaxHops: 1000,
	}
	set := Config{
		LockTTL: 1, Timeout: 2, DrainTimeout: 3, Backoff: txn.Backoff{Min: 4, Max: 5}, Concurrency: 6, Queue: 7, MaxAttempts: 8, ConflictAttempts: 9, MaxHops: -1,
	}
	for _, tt := range []struct{ cfg, want Config }{{Config{}, want}, {set, set}} {
		got, err := tt.cfg.withDefaults()
		if got.Finder == nil {
			t.Error("no finder")
		}
		got.Finder = nil
		if !reflect.DeepEqual(got, tt.want) || err != nil {
			t.Errorf("%+v: %v, want %+v", got, err, tt.want)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for field, cfg := range map[string]Config{
		"LockTTL": {LockTTL: -1}, "Timeout": {Timeout: -1}, "DrainTimeout": {DrainTimeout: -1}, "Backoff.Min": {Backoff: txn.Backoff{Min: -1}}, "Backoff.Max": {Backoff: txn.Backoff{Max: -1}},
		"Concurrency": {Concurrency: -1}, "Queue": {Queue: -1}, "MaxAttempts": {MaxAttempts: -1}, "ConflictAttempts": {ConflictAttempts: -1},
	} {
		if _, err := cfg.withDefaults(); !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), "Config."+field+" is -") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestWorkerWithoutMetrics: what cannot be measured is an error.
func TestWorkerWithoutMetrics(t *testing.T) {
	if _, err := newTelemetry(nil, brokenMeters{}); !errors.Is(err, errMeter) {
		t.Error(err)
	}
}
