package gc

import (
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
)

// DefaultRetention is how long versions are kept if [Config.Retention] is 0.
const DefaultRetention = 24 * time.Hour

// Config configures [Run] and [Plan]. The zero value is usable.
type Config struct {
	// Retention is how far back reads stay possible, in oracle time. It is also how
	// late a request may arrive (docs/guarantees.md).
	// Defaults to 24 hours; at least 10 minutes.
	Retention time.Duration

	// Rate limits how many rows are read in a second, by all collectors of the run together: each
	// reads an equal share. While another collector leads the run, its Rate counts, and this one
	// only limits this collector.
	// Defaults to 0: no limit.
	Rate float64

	// LockWait is how long a run waits for live transactions at or below the safe
	// point to end. Then it stops with a [BlockedError]. It never rolls a live
	// transaction back.
	// Defaults to 1 minute. Negative: it does not wait.
	LockWait time.Duration

	// Plain also removes plain data (from before the adoption of its table, or of
	// plain writes since) if a committed version at or below the safe point hides
	// it from every transaction.
	// Defaults to false: plain data is kept for plain readers.
	Plain bool

	// FullEvery is how much time passes between runs that read every row. Runs in between read
	// only rows that clients have noted as changed, and do not search for locks. Clients begin
	// to note rows when the first run with FullEvery has begun.
	// Defaults to 0: every run reads every row.
	FullEvery time.Duration

	// Restart begins a new run instead of continuing an interrupted one.
	// Defaults to false.
	Restart bool

	// Progress, when set, is called with each step of the run, by one goroutine at
	// a time. It must return quickly.
	// Defaults to nil.
	Progress func(Progress)
}

// MinRetention is the shortest Config.Retention. Shorter than that, a slow transaction could be
// damaged.
func MinRetention() time.Duration { return gctime.MinRetention() }

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Retention == 0 {
		cfg.Retention = DefaultRetention
	}
	if least := MinRetention(); cfg.Retention < least {
		return cfg, invalidf("Config.Retention is %v; set it to %v or more, so that slow transactions can end", cfg.Retention, least)
	}
	if !(cfg.Rate >= 0) {
		return cfg, invalidf("Config.Rate is %v rows a second; set it to a positive number, or to 0 for no limit", cfg.Rate)
	}
	if cfg.FullEvery < 0 {
		return cfg, invalidf("Config.FullEvery is %v; set it to a positive duration, or to 0 to read every row in every run", cfg.FullEvery)
	}
	if cfg.LockWait == 0 {
		cfg.LockWait = time.Minute
	}
	if cfg.Progress == nil {
		cfg.Progress = func(Progress) {}
	}
	return cfg, nil
}

// A Phase is what a run is doing.
type Phase string

// The phases of a run, in their order (docs/gc.md).
const (
	// PhaseNone: no run has begun yet.
	PhaseNone Phase = "none"
	// PhaseFence: the safe point is published, and the run waits until every
	// client uses it.
	PhaseFence Phase = "fence"
	// PhaseLocks: the run resolves locks at or below the safe point.
	PhaseLocks Phase = "locks"
	// PhaseCollect: the run removes versions.
	PhaseCollect Phase = "collect"
	// PhaseChanges: the run removes versions from rows that clients noted as changed.
	PhaseChanges Phase = "changes"
	// PhaseDone: the run has collected every table.
	PhaseDone Phase = "done"
)

// Progress says how far a run is.
type Progress struct {
	Phase Phase
	// Left is how much longer the fence lasts, in PhaseFence.
	Left time.Duration
	// Table and Row are what was read last, in PhaseLocks and PhaseCollect.
	Table, Row string
	// Total is what this run has done so far.
	Total Counts
}

// A Hold is a client with an open transaction or a held snapshot that keeps the
// safe point back.
type Hold struct {
	Owner string `json:"owner"` // id of the client
	Host  string `json:"host"`  // host of the client's process
	PID   int64  `json:"pid"`   // id of the client's process
	// OldestTS is the start_ts of its oldest open transaction or held snapshot.
	OldestTS tso.Timestamp `json:"oldest_ts"`
	// ExpiresTS is the oracle time at which the client's worker token becomes stale.
	ExpiresTS tso.Timestamp `json:"expires_ts"`
}
