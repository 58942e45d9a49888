package gc

import (
	"context"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"

	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// DefaultRetention is how long garbage collection keeps versions where GCConfig
// does not say another.
const DefaultRetention = 24 * time.Hour

// Config configures [Client.RunGC] and [Client.PlanGC]. The zero value is
// usable.
type Config struct {
	// Retention is how far back reads stay possible, in oracle time. The newest
	// delete of a column is kept for one more.
	// Defaults to 24 hours; at least 10 minutes.
	Retention time.Duration

	// Rate bounds the rows that are read a second.
	// Defaults to 0: no bound.
	Rate float64

	// LockWait is how long a run waits for live transactions at or below the safe
	// point to end, after which it stops with a GCBlockedError. It never rolls a
	// live transaction back.
	// Defaults to 1 minute. Negative: it does not wait.
	LockWait time.Duration

	// Plain also removes data from before a table was adopted, and plain writes
	// since, where a committed version hides it from every transaction.
	// Defaults to false: that data is left for those who read it plainly.
	Plain bool

	// Restart begins anew where a run was interrupted, instead of going on.
	// Defaults to false.
	Restart bool

	// Progress, when set, is called now and then, by one goroutine at a time. It
	// has to return quickly.
	// Defaults to nil.
	Progress func(Progress)
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Retention == 0 {
		cfg.Retention = DefaultRetention
	}
	if least := gctime.MinRetention(); cfg.Retention < least {
		return cfg, format.Invalidf("GCConfig.Retention is %v; it has to be at least %v, so that transactions that take their time are not cut off", cfg.Retention, least)
	}
	if !(cfg.Rate >= 0) {
		return cfg, format.Invalidf("GCConfig.Rate is %v; it has to be positive, or zero for no bound", cfg.Rate)
	}
	if cfg.LockWait == 0 {
		cfg.LockWait = time.Minute
	}
	if cfg.Progress == nil {
		cfg.Progress = func(Progress) {}
	}
	return cfg, nil
}

// A GCPhase is what a run of garbage collection is doing.
type Phase string

// The phases of a run (docs/gc.md).
const (
	// GCNone: there was no run yet.
	None Phase = "none"
	// GCFence: the safe point is published; the run waits until everybody goes
	// by it.
	Fence Phase = "fence"
	// GCLocks: locks at or below the safe point are being resolved.
	Locks Phase = "locks"
	// GCCollect: versions are being removed.
	Collect Phase = "collect"
	// GCDone: the run came to its end.
	Done Phase = "done"
)

// Progress says how far a run is.
type Progress struct {
	Phase Phase
	// Left is how long the fence lasts yet.
	Left time.Duration
	// Table and Row are where it is, in GCLocks and GCCollect.
	Table, Row string
	// Total of what was done so far, by this run.
	Total Table
}

// A GCReport says what a run did, or what a plan found.
type Report struct {
	// DryRun is whether this is a plan: nothing was changed, and the numbers say
	// what a run would do.
	DryRun bool `json:"dry_run"`
	// SafePoint is what was collected up to.
	SafePoint tso.Timestamp `json:"safe_point"`
	// Previous is the safe point before this run.
	Previous tso.Timestamp `json:"previous_safe_point"`
	// Now is the oracle's time when the safe point was chosen.
	Now tso.Timestamp `json:"now"`
	// Nothing is whether there is nothing to do: the safe point cannot move, and
	// everything up to it is collected.
	Nothing bool `json:"nothing_to_do"`
	// Resumed is whether the run continued one that was interrupted.
	Resumed bool `json:"resumed"`
	// Finished is whether the run came to its end.
	Finished bool `json:"finished"`
	// HeldBy are the clients that keep the safe point below what the retention
	// allows, the oldest first.
	HeldBy []Hold `json:"held_by"`
	// Locks are the locks at or below the safe point, by what happened to them.
	Locks LockCounts `json:"locks"`
	// Tables are the tables that were collected, by name.
	Tables []Table `json:"tables"`
	// Total is the sum over the tables.
	Total Table `json:"total"`
	// Elapsed is how long the run took.
	Elapsed time.Duration `json:"elapsed_ns"`
}

// A GCHold is a client with an old transaction, or snapshot, that is open.
type Hold struct {
	Owner string `json:"owner"` // id of the client
	Host  string `json:"host"`  // host of the client's process
	PID   int64  `json:"pid"`   // id of the client's process
	// OldestTS is the start_ts of its oldest open transaction or held snapshot.
	OldestTS tso.Timestamp `json:"oldest_ts"`
	// ExpiresTS is the oracle time at which the client's worker token becomes stale.
	ExpiresTS tso.Timestamp `json:"expires_ts"`
}

// LockCounts counts locks by what happened to them. In a plan, all are Found.
type LockCounts struct {
	Found         int64 `json:"found"`          // locks at or below the safe point
	RolledForward int64 `json:"rolled_forward"` // locks that the run rolled forward
	RolledBack    int64 `json:"rolled_back"`    // locks that the run rolled back
	// Gone are locks that their owners or other clients removed during the run.
	Gone int64 `json:"gone"`
	// Live are locks whose owners are alive.
	Live int64 `json:"live"`
}

// A GCTable counts what a collection removes in one table.
type Table struct {
	// Table is the name of the table.
	Table string `json:"table,omitempty"`
	// Rows are the rows that were read.
	Rows int64 `json:"rows"`
	// RowsChanged are rows that had something to remove.
	RowsChanged int64 `json:"rows_changed"`
	// RowsSkipped are rows that could not be judged, because of a live lock or
	// damaged records; Check says which.
	RowsSkipped int64 `json:"rows_skipped"`
	// Versions are committed values and deletes, by their write records.
	Versions int64 `json:"versions"`
	// Deletes are those of the versions that were deletes and the newest of their
	// columns.
	Deletes int64 `json:"newest_deletes"`
	// Marks are rollback markers and lock-only commits.
	Marks int64 `json:"marks"`
	// Data are data cells of transactions.
	Data int64 `json:"data_cells"`
	// Plain are data cells written without transactions.
	Plain int64 `json:"plain_cells"`
	// Cells are all of these, counted in cells of Bigtable.
	Cells int64 `json:"cells"`
	// Bytes are the lengths of their values and qualifiers, before compression.
	Bytes int64 `json:"bytes"`
}

func (t *Table) add(o Table) {
	t.Rows += o.Rows
	t.RowsChanged += o.RowsChanged
	t.RowsSkipped += o.RowsSkipped
	t.Versions += o.Versions
	t.Deletes += o.Deletes
	t.Marks += o.Marks
	t.Data += o.Data
	t.Plain += o.Plain
	t.Cells += o.Cells
	t.Bytes += o.Bytes
}

// A GCBlockedError says that garbage collection stopped before it removed
// anything, because transactions at or below the safe point are alive. They go
// on; the next run tries again.
type BlockedError struct {
	SafePoint tso.Timestamp
	// Locks are some of theirs, Count is how many there are.
	Locks []format.Lock
	Count int64
}

func (e *BlockedError) Error() string {
	oldest := e.Locks[0]
	for _, l := range e.Locks {
		if l.StartTS < oldest.StartTS {
			oldest = l
		}
	}
	return fmt.Sprintf("txn: garbage collection is blocked, and nothing was removed: %d locks at or below the safe point %d are of live transactions; the oldest found started at %d (%s), owner %q, lock on %s: wait until they end, or end their clients, and run it again", e.Count, e.SafePoint, oldest.StartTS, oldest.StartTS.Time().UTC().Format(time.RFC3339), oldest.Owner, oldest.Cell)
}

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *BlockedError) ErrorType() string { return "gc_blocked" }

// A GCBusyError says that another collector is at work.
type BusyError struct {
	Holder string
	// Left is when its lease ends, unless it is renewed.
	Left time.Duration
	// Lost: this run had the lease, and lost it. What it did stays done.
	Lost bool
}

func (e *BusyError) Error() string {
	if e.Lost {
		return fmt.Sprintf("txn: garbage collection stopped: its lease went to %s; what it did stays done", e.Holder)
	}
	return fmt.Sprintf("txn: garbage collection is under way by %s; its lease ends in %v unless it is renewed", e.Holder, e.Left.Round(time.Second))
}

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *BusyError) ErrorType() string { return "gc_busy" }

// Run collects the garbage of all transactional tables of the deployment: it
// moves the safe point up to Retention ago, or to where open transactions allow,
// waits until no client goes by an older one (two minutes), resolves every lock
// at or below it, and removes the versions that no read at or above it can see.
// A run that was interrupted is gone on with where it stopped; run it again for
// what has become garbage since.
//
// Reads below the safe point fail with ErrTooOld from then on, and so do
// commits of transactions that started at or below it.
//
// One collector works at a time: a GCBusyError names the other. A GCBlockedError
// means that live transactions are in the way. The report is returned with every
// error that comes after the run began, and says what was done. When ctx ends,
// what was removed stays removed, and the position is kept.
func Run(ctx context.Context, client *txn.Client, cfg Config) (*Report, error) {
	c := access.Resolver(client)
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	ctx, span := c.Trace.Call(ctx, "collect garbage", "")
	report, err := collect(ctx, c, cfg, span)
	span.EndWith(err)
	return report, err
}

func collect(ctx context.Context, c *recovery.Resolver, cfg Config, s telemetry.Span) (*Report, error) {
	begun := time.Now()
	lease, ctx, err := takeLease(ctx, c)
	if err != nil {
		return nil, err
	}
	defer lease.release(ctx)
	r, err := newRun(c, cfg, lease.owner)
	if err != nil {
		return nil, err
	}
	err = lease.explain(r.run(ctx))
	r.report.Elapsed = time.Since(begun)
	r.measure.end(ctx, s, r.report, err)
	return r.report, err
}

// Plan says what RunGC would reclaim now, and changes nothing. It reads every
// table. What is locked is counted as it stands, so the numbers are estimates
// where transactions have not ended.
func Plan(ctx context.Context, client *txn.Client, cfg Config) (*Report, error) {
	c := access.Resolver(client)
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	begun := time.Now()
	r, err := newRun(c, cfg, "")
	if err != nil {
		return nil, err
	}
	r.report.DryRun = true
	err = r.plan(ctx)
	r.report.Elapsed = time.Since(begun)
	return r.report, err
}
