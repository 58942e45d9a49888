package notify

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/defaults"
	"github.com/percolator-bigtable/percolator/txn"
)

// Config configures a [Worker]. The zero value is usable.
type Config struct {
	// Concurrency bounds how many observers run at a time in this worker.
	// Defaults to 16.
	Concurrency int

	// Queue bounds how many cells wait for an observer. A scanner that finds it
	// full waits; a hint is dropped.
	// Defaults to 1024.
	Queue int

	// Finder finds notifications.
	// Defaults to a Scanner with its own defaults.
	Finder Finder

	// NoHints has the worker find work by scanning alone.
	// Defaults to false.
	NoHints bool

	// Locks are the advisory locks that keep two workers from running for the
	// same cell. Without them, both may run, and one of them in vain: never is
	// correctness lost. tso.NewRowLocks makes locks in the metadata table, which
	// pay only for observers that take much longer than some requests to
	// Bigtable.
	// Defaults to the timestamp service's, if the client uses one, and otherwise
	// to none.
	Locks tso.Locks

	// NoLocks runs observers without advisory locks, also where the timestamp
	// service has them.
	// Defaults to false.
	NoLocks bool

	// LockTTL is how long an advisory lock outlives a worker that died.
	// Defaults to 30 seconds.
	LockTTL time.Duration

	// Timeout bounds one run of an observer, its commit included.
	// Defaults to 5 minutes.
	Timeout time.Duration

	// DrainTimeout is how long Run, once its context has ended, waits for runs
	// under way before it cancels them.
	// Defaults to 30 seconds.
	DrainTimeout time.Duration

	// MaxAttempts is after how many failed runs for one change it becomes a dead
	// letter.
	// Defaults to 10.
	MaxAttempts int

	// Backoff paces failed runs of one cell: the n-th is followed by a pause of
	// between a half of and the whole Min·2ⁿ, at most Max. The pause is stored,
	// so that it holds for every worker.
	// Defaults to 1 second growing to 10 minutes.
	Backoff txn.Backoff

	// ConflictAttempts is how many runs follow each other at once while they
	// conflict with other transactions; then the change is to be tried again later.
	// Conflicts alone make no dead letter.
	// Defaults to 8.
	ConflictAttempts int

	// MaxHops is how many runs of observers may cause each other, one after the
	// other, before the last one is taken for part of an endless cycle and its
	// change becomes a dead letter.
	// Defaults to 1000. Negative: no limit.
	MaxHops int

	// OnEvent, when set, is called at each step of the worker's. It has to return
	// quickly and may be called concurrently.
	// Defaults to nil.
	OnEvent func(Event)

	// TracerProvider makes the spans of runs.
	// Defaults to OpenTelemetry's global one.
	TracerProvider trace.TracerProvider

	// MeterProvider makes the worker's metrics.
	// Defaults to OpenTelemetry's global one.
	MeterProvider metric.MeterProvider

	// Logger receives what an operator should know.
	// Defaults to a logger that drops everything.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	err := cmp.Or(
		defaults.Positive("Config.LockTTL", &c.LockTTL, 30*time.Second),
		defaults.Positive("Config.Timeout", &c.Timeout, 5*time.Minute),
		defaults.Positive("Config.DrainTimeout", &c.DrainTimeout, 30*time.Second),
		defaults.Positive("Config.Backoff.Min", &c.Backoff.Min, time.Second),
		defaults.Positive("Config.Backoff.Max", &c.Backoff.Max, 10*time.Minute),
		defaults.Positive("Config.Concurrency", &c.Concurrency, 16),
		defaults.Positive("Config.Queue", &c.Queue, 1024),
		defaults.Positive("Config.MaxAttempts", &c.MaxAttempts, 10),
		defaults.Positive("Config.ConflictAttempts", &c.ConflictAttempts, 8),
	)
	if err != nil {
		return c, fmt.Errorf("notify: %w: %w", txn.ErrInvalid, err)
	}
	if c.MaxHops == 0 {
		c.MaxHops = 1000
	}
	return c, nil
}
