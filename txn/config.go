package txn

import (
	"cmp"
	"log/slog"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/defaults"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

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

	// Backoff paces waits for locks and retries of requests.
	// Defaults to 2 ms growing to 1 s.
	Backoff Backoff

	// Parallelism bounds the requests that one transaction or scan has under
	// way at a time.
	// Defaults to 64.
	Parallelism int

	// LatchWait is how long a commit, and a run after a conflict, waits for its turn
	// among this client's transactions that write the same cells, before it goes on
	// without. Transactions of more than 128 cells do not queue. The latches of a run
	// after a conflict are held while Update's function runs: one that waits for
	// another transaction of this client on the same cells waits that long.
	// Defaults to 1 second. Negative: no latches.
	LatchWait time.Duration

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

	// BackgroundBytes bounds the memory, about, of what waits for background work,
	// as BackgroundCells does.
	// Defaults to 64 MiB.
	BackgroundBytes int

	// BackgroundTimeout is how long background work on a row is tried before it
	// is left to whoever meets the row's locks. Nothing of a transaction that
	// garbage collection has passed is sent, however long that is.
	// Defaults to 1 minute.
	BackgroundTimeout time.Duration

	// SchemaMaxAge is how long a table's schema is used before it is read again
	// in the background, which is how new families and newly observed columns
	// become known.
	// Defaults to 1 minute.
	SchemaMaxAge time.Duration

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

// A Backoff is an exponential backoff with full jitter: the n-th wait is
// uniformly distributed between 0 and min(Max, Min·2ⁿ).
type Backoff struct {
	// Min is the first upper bound. Defaults to 2 ms.
	Min time.Duration
	// Max is the largest upper bound. Defaults to 1 s.
	Max time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.TokenTTL == 0 {
		c.TokenTTL = 5 * time.Second
	}
	if c.LatchWait == 0 {
		c.LatchWait = time.Second
	}
	if c.PrefetchBytes == 0 {
		c.PrefetchBytes = 64 << 10
	}
	err := cmp.Or(
		defaults.Positive("Config.LockTTL", &c.LockTTL, 10*time.Second),
		defaults.Positive("Config.BatchReads", &c.BatchReads, 0),
	)
	if err != nil {
		return c, format.Invalidf("%v", err)
	}
	if c.LockTTL < time.Millisecond {
		return c, format.Invalidf("Config.LockTTL is %v; it has to be at least 1 ms", c.LockTTL)
	}
	return c, nil
}

// store is the part of the configuration that the layers below need.
func (c Config) store() store.Config {
	return store.Config{
		MetadataTable: c.MetadataTable, Admin: c.Admin, RPCTimeout: c.RPCTimeout, SchemaMaxAge: c.SchemaMaxAge, Backoff: store.Backoff(c.Backoff), Parallelism: c.Parallelism,
		BackgroundBytes: c.BackgroundBytes, BackgroundTimeout: c.BackgroundTimeout,
		TracerProvider: c.TracerProvider, TraceRowKeys: c.TraceRowKeys, MeterProvider: c.MeterProvider, Logger: c.Logger,
	}
}
