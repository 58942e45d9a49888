package txn

import (
	"log/slog"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
)

// DefaultMetadataTable is the name of the metadata table where Config does not
// say another.
const DefaultMetadataTable = "percolator"

// Config configures a [Client]. The zero value is usable.
type Config struct {
	// MetadataTable is the deployment's metadata table: the oracle's row, the
	// schema of each transactional table, worker tokens. Every client of a
	// deployment has to use the same one.
	// Defaults to "percolator".
	MetadataTable string

	// Oracle hands out timestamps. The client does not close it.
	// Defaults to a tso.Direct on the metadata table, which the client owns.
	Oracle tso.Oracle

	// Admin, when set, lets the client check families and garbage-collection
	// policies whenever it opens a table, against the table itself.
	// Defaults to nil: families come from the schema record that InitTable
	// wrote, and policies are not checked.
	Admin *bigtable.AdminClient

	// LockTTL is how long a lock outlives the last sign of life of its
	// transaction before others may roll it back, in oracle time. It bounds how
	// long a crashed client holds others up, unless its worker token shows
	// earlier that it is dead. Safety does not depend on it.
	// Defaults to 10 seconds.
	LockTTL time.Duration

	// TokenTTL is how long this client's worker token stays fresh without being
	// renewed; it is renewed three times as often. A lock whose owner's token
	// has gone stale may be rolled back at once.
	// Defaults to 5 seconds. Negative: no token is written, and only LockTTL
	// tells others that this client is dead.
	TokenTTL time.Duration

	// RPCTimeout bounds every single request to Bigtable. The Bigtable client
	// retries some requests on its own, without end but for this. Requests that
	// commit secondaries take at most one minute, whatever it says: garbage
	// collection relies on that.
	// Defaults to 20 seconds.
	RPCTimeout time.Duration

	// MaxAttempts bounds how often Update runs its function.
	// Defaults to 0: until the context ends.
	MaxAttempts int

	// Backoff paces waits for locks and retries of requests.
	// Defaults to 2 ms growing to 1 s.
	Backoff Backoff

	// RetryBackoff paces the runs of Update's function after conflicts.
	// Defaults to Backoff, growing to 250 ms at most.
	RetryBackoff Backoff

	// Parallelism bounds the requests that one transaction or scan has under
	// way at a time.
	// Defaults to 64.
	Parallelism int

	// MaxCommits bounds the commits that this client has under way at a time.
	// Those beyond wait for their turn; they hold no locks yet.
	// Defaults to 256.
	MaxCommits int

	// LatchWait is how long a commit, and a run after a conflict, waits for its turn
	// among this client's transactions that write the same cells, before it goes on
	// without. Transactions of more than 128 cells do not queue. The latches of a run
	// after a conflict are held while Update's function runs: one that waits for
	// another transaction of this client on the same cells waits that long.
	// Defaults to 1 second. Negative: no latches.
	LatchWait time.Duration

	// RecentCommits is how many cells the client remembers with their last commit,
	// so that a transaction that conflicts with it fails before it sends a prewrite.
	// Defaults to 1024. Negative: none.
	RecentCommits int

	// PrefetchBytes is how many bytes of values a Get of a transaction may be
	// expected to bring along: other columns of the row that transactions of the
	// same name have asked for behind this one, in at least every second case. The
	// later Gets are then answered from memory. What is kept of it is bounded by 1
	// MiB a transaction.
	// Defaults to 64 KiB. Negative: nothing is prefetched.
	PrefetchBytes int

	// BatchReads, when set, is how many point reads of a table one transaction, or
	// one snapshot, has under way at a time; further ones wait, and share a request
	// as soon as one of them is answered. It saves requests and CPU where many
	// goroutines read in one transaction, and costs those that wait up to one round
	// trip; a list of rows in one ReadRows costs neither.
	// Defaults to 0: each read is a request of its own, at once.
	BatchReads int

	// PassLocks lets reads pass the locks of live transactions instead of waiting
	// for them, where the transactions' clients have it set too: a read makes sure
	// that such a transaction commits after the read's timestamp. Every client of the
	// deployment has to know it before one sets it: those that do not refuse the
	// locks, with ErrFormatVersion (docs/design/2026-11-20-min-commit-ts.md).
	// Defaults to false.
	PassLocks bool

	// SyncSecondaries makes Commit wait until the secondaries are committed
	// too, instead of leaving them to the background.
	// Defaults to false.
	SyncSecondaries bool

	// BackgroundCells bounds the changes of cells that wait for background work,
	// two or three a written cell; a commit that finds the queue full commits its
	// secondaries itself.
	// Defaults to 100,000.
	BackgroundCells int

	// BackgroundBytes bounds the memory, about, of what waits for background work,
	// as BackgroundCells does.
	// Defaults to 64 MiB.
	BackgroundBytes int

	// SeparateSecondaries makes each transaction commit its secondaries in
	// requests of its own, instead of in those of all transactions that commit
	// while a request is under way. Batching costs no time and saves requests; this
	// is for comparison.
	// Defaults to false.
	SeparateSecondaries bool

	// BackgroundTimeout is how long background work on a row is tried before it
	// is left to whoever meets the row's locks. Nothing of a transaction that
	// garbage collection has passed is sent, however long that is.
	// Defaults to 1 minute.
	BackgroundTimeout time.Duration

	// MaxHold is how long an open transaction, or a snapshot taken with Hold,
	// keeps garbage collection below it. After that it goes on as long as the
	// versions are there, and then fails with ErrTooOld. Clients without a worker
	// token (TokenTTL) hold nothing.
	// Defaults to 24 hours.
	MaxHold time.Duration

	// SchemaMaxAge is how long a table's schema is used before it is read again
	// in the background, which is how new families and newly observed columns
	// become known.
	// Defaults to 1 minute.
	SchemaMaxAge time.Duration

	// OnResolve, when set, is called after each cell that this client rolled
	// forward or back on behalf of another transaction. It has to return
	// quickly and may be called concurrently.
	// Defaults to nil.
	OnResolve func(Resolution)

	// TracerProvider makes the spans of transactions, reads and commits; what a
	// transaction that records none costs is one question to its tracer.
	// Defaults to OpenTelemetry's global one.
	TracerProvider trace.TracerProvider

	// TraceRowKeys lets spans name row keys. Tables, families and qualifiers they
	// always name; values never.
	// Defaults to false.
	TraceRowKeys bool

	// MeterProvider makes the client's metrics.
	// Defaults to OpenTelemetry's global one.
	MeterProvider metric.MeterProvider

	// Logger receives what an operator should know, with the ids of the trace that
	// it belongs to: errors that somebody has to act on, warnings about what the
	// client could not do and somebody else will, and, at the debug level, every
	// conflict with its cells.
	// Defaults to a logger that drops everything.
	Logger *slog.Logger
}

// A Resolution tells of one cell that a client settled for another
// transaction.
type Resolution struct {
	Lock   Lock
	Status Status
}

// A Backoff is an exponential backoff with full jitter: the n-th wait is
// uniformly distributed between 0 and min(Max, Min·2ⁿ).
type Backoff struct {
	// Min is the first upper bound. Defaults to 2 ms.
	Min time.Duration
	// Max is the largest upper bound. Defaults to 1 s.
	Max time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.MetadataTable == "" {
		c.MetadataTable = DefaultMetadataTable
	}
	if c.TokenTTL == 0 {
		c.TokenTTL = 5 * time.Second
	}
	if r := c.RetryBackoff; r.Min < 0 || r.Max < 0 {
		return c, invalid("Config.RetryBackoff is %v to %v; it has to be positive, or zero for its default", r.Min, r.Max)
	}
	if c.LatchWait == 0 {
		c.LatchWait = time.Second
	}
	if c.RecentCommits == 0 {
		c.RecentCommits = 1024
	}
	if c.PrefetchBytes == 0 {
		c.PrefetchBytes = 64 << 10
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"LockTTL", &c.LockTTL, 10 * time.Second},
		{"RPCTimeout", &c.RPCTimeout, 20 * time.Second},
		{"BackgroundTimeout", &c.BackgroundTimeout, time.Minute},
		{"MaxHold", &c.MaxHold, 24 * time.Hour},
		{"SchemaMaxAge", &c.SchemaMaxAge, time.Minute},
		{"Backoff.Min", &c.Backoff.Min, 2 * time.Millisecond},
		{"Backoff.Max", &c.Backoff.Max, time.Second},
	} {
		if *d.value < 0 {
			return c, invalid("Config.%s is %v; it has to be positive, or zero for its default", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	for _, n := range []struct {
		name  string
		value *int
		def   int
	}{
		{"MaxAttempts", &c.MaxAttempts, 0},
		{"Parallelism", &c.Parallelism, 64},
		{"MaxCommits", &c.MaxCommits, 256},
		{"BackgroundCells", &c.BackgroundCells, 100_000},
		{"BackgroundBytes", &c.BackgroundBytes, 64 << 20},
		{"BatchReads", &c.BatchReads, 0},
	} {
		if *n.value < 0 {
			return c, invalid("Config.%s is %d; it has to be positive, or zero for its default", n.name, *n.value)
		}
		if *n.value == 0 {
			*n.value = n.def
		}
	}
	if c.RetryBackoff.Min == 0 {
		c.RetryBackoff.Min = min(c.Backoff.Min, 250*time.Millisecond)
	}
	if c.RetryBackoff.Max == 0 {
		c.RetryBackoff.Max = min(c.Backoff.Max, 250*time.Millisecond)
	}
	if c.LockTTL < time.Millisecond {
		return c, invalid("Config.LockTTL is %v; it has to be at least 1 ms", c.LockTTL)
	}
	return c, nil
}
