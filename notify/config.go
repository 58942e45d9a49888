package notify

import (
	"cmp"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/tso/defaults"
	"github.com/percolator-bigtable/percolator/txn"
)

// Config configures a [Worker]. The zero value is usable. Traces, metrics and log records go where
// those of the worker's client go.
type Config struct {
	// Concurrency bounds how many observers run at the same time in this worker. If it has
	// several, half of the places are divided among them, so that slow observers leave room for
	// the others.
	// Defaults to 16.
	Concurrency int

	// Queue bounds how many cells of each observed column wait for an observer. If it
	// is full, a scanner waits, and the worker drops hints.
	// Defaults to 1024.
	Queue int

	// Finder finds notifications.
	// Defaults to a Scanner with its own defaults.
	Finder Finder

	// NoHints has the worker find changes of its own process by its Finder alone, too.
	// Defaults to false.
	NoHints bool

	// Locks are the advisory locks that keep two workers from running an observer for
	// the same cell. Without them both may run it, and only one of the runs commits.
	// tso.NewRowLocks makes locks in the metadata table. They cost four requests for each
	// cell, so they only pay for observers whose runs cost more than that.
	// Defaults to none.
	Locks Locks

	// LockTTL is how long an advisory lock stays after its worker has died.
	// Defaults to 30 seconds.
	LockTTL time.Duration

	// Timeout bounds one run of an observer, its commit included.
	// Defaults to 5 minutes.
	Timeout time.Duration

	// DrainTimeout bounds how long Run waits for current runs after its context has
	// ended. It then cancels them.
	// Defaults to 30 seconds.
	DrainTimeout time.Duration

	// MaxAttempts bounds the failed runs for one change. After that many, the change
	// becomes a dead letter.
	// Defaults to 10.
	MaxAttempts int

	// Backoff bounds the pauses after failed runs of one cell: at most Min after the
	// first failure, and twice as long after each further one, up to Max. Each pause is
	// random, between a half and the whole of its bound. It is stored, so that it holds
	// for every worker.
	// Defaults to 1 second, growing to 10 minutes.
	Backoff txn.Backoff

	// ConflictAttempts bounds how many runs follow each other at once while they
	// conflict with other transactions. After that many, the worker pauses. Conflicts
	// alone never make a dead letter.
	// Defaults to 8.
	ConflictAttempts int

	// MaxHops bounds how many runs of observers may cause each other, one after the
	// other. Beyond it, the worker assumes an endless cycle, and the change becomes a
	// dead letter.
	// Defaults to 1000. Negative: no limit.
	MaxHops int

	// OnEvent, if set, is called after each check of a cell for an observer. Calls may
	// be concurrent. The worker waits for it, so it must return quickly.
	// Defaults to nil.
	OnEvent func(Event)
}

func (c Config) withDefaults() (Config, error) {
	if c.Finder == nil {
		c.Finder = &Scanner{}
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
