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
	// MetadataTable is the deployment's metadata table. It holds the oracle's row, the
	// schema of each transactional table, and worker tokens. Every client of a
	// deployment must use the same one.
	// Defaults to "percolator".
	MetadataTable string

	// Oracle hands out timestamps, between tso.Min and tso.Max. The client does not close
	// it.
	// Defaults to a tso.Direct on the metadata table, which the client owns.
	Oracle tso.Oracle

	// Admin, if set, lets the client check families and garbage-collection policies
	// against the table itself when it opens a table. After that, all clients with Admin
	// together check each table once in SchemaMaxAge, and share the result.
	// Defaults to nil: the client takes the families from the schema record that
	// admin.InitTable wrote, and checks no policy.
	Admin *bigtable.AdminClient

	// LockTTL is how long a lock stays valid after the last sign of life of its
	// transaction, in oracle time. Then other clients may roll it back. It bounds how
	// long a crashed client blocks others, unless its worker token shows earlier
	// that it is dead. Safety does not depend on it.
	// A client that has no worker token uses at most one minute.
	// Defaults to 10 seconds; at least 1 ms, at most 24 hours.
	LockTTL time.Duration

	// TokenTTL is how long this client's worker token stays fresh without renewal.
	// During a transaction the client renews it three times as often, and every 30 seconds while it is
	// idle. If the token of a lock's owner is stale, other clients may roll the lock back at once.
	// Defaults to 5 seconds. Negative: the client writes no token. Then other clients
	// learn only from LockTTL, at most one minute, that it is dead, and it holds no garbage collection back.
	TokenTTL time.Duration

	// RPCTimeout bounds every single request to Bigtable. Without it, the Bigtable
	// client would retry some requests without end. Requests that commit secondaries
	// take at most one minute, whatever this says: garbage collection relies on it.
	// After a request that was too slow, a read sends another one until its context ends.
	// Defaults to 20 seconds.
	RPCTimeout time.Duration

	// Backoff paces waits for locks and retries of requests, and, up to 250 ms, the
	// runs of Update's function after conflicts.
	// Defaults to 2 ms growing to 1 s.
	Backoff Backoff

	// Parallelism bounds the concurrent requests of one transaction or scan. The
	// client runs at most four times as many commits at a time. Further commits
	// wait; they hold no locks yet.
	// Defaults to 64.
	Parallelism int

	// LatchWait is how long one transaction may hold up another one of this client that
	// writes the same cells. A commit, or a run after a conflict, waits for its turn while
	// the queue moves, and else continues without. Transactions of more than 64 cells
	// queue only for cells that have conflicted in the last minute. A run after a conflict keeps its turn while Update's function runs, so a
	// function that waits for another transaction on the same cells waits for LatchWait.
	// Defaults to 1 second. Negative: transactions of this client do not queue, and
	// find conflicts with each other only through Bigtable.
	LatchWait time.Duration

	// PrefetchBytes is how many bytes of values a Get may read ahead: other columns of the
	// row that at least half of the transactions of the same name ([Named]) ask for
	// later. The client then answers later Gets from memory.
	// A transaction keeps at most 1 MiB of them.
	// Defaults to 64 KiB. Negative: no prefetching.
	PrefetchBytes int

	// BatchReads, if set, is how many point reads of a table one transaction
	// or snapshot sends at once, each in its own request. Further reads wait, and
	// share a request when one of those is answered. This saves requests and CPU
	// if many goroutines read in one transaction. It costs a waiting read up to one
	// round trip; a list of rows in one ReadRows costs neither.
	// Defaults to 0: each read is a request of its own, at once.
	BatchReads int

	// PassLocks lets reads pass the locks of live transactions instead of waiting, if
	// the owners of the locks have it set too: the read makes sure that such a
	// transaction commits after the read's timestamp. Before you set it on one client,
	// every client of the deployment must run a version that knows it: older clients
	// refuse such locks with ErrFormatVersion
	// (docs/design/recovery.md).
	// Defaults to false.
	PassLocks bool

	// SyncSecondaries makes Commit wait until the secondaries are committed too,
	// instead of committing them in the background.
	// Defaults to false.
	SyncSecondaries bool

	// BackgroundBytes bounds the approximate memory of the background queue. A commit that
	// finds the queue full commits its secondaries itself.
	// Defaults to 64 MiB.
	BackgroundBytes int

	// BackgroundTimeout is how long the client tries background work on a row. Then it
	// leaves the row's locks to the next reader. It sends nothing of a transaction that
	// garbage collection has passed, whatever this says.
	// Defaults to 1 minute.
	BackgroundTimeout time.Duration

	// SchemaMaxAge is how long the client uses a table's schema before it reads it
	// again in the background. It may take that long until the client knows new families.
	// A commit relies on observers and indexes that were read at most a minute ago.
	// Defaults to 1 minute.
	SchemaMaxAge time.Duration

	// TracerProvider makes the spans of transactions, reads and commits. A
	// transaction that is not sampled costs one call of its tracer.
	// Defaults to OpenTelemetry's global one.
	TracerProvider trace.TracerProvider

	// TraceRowKeys lets spans name row keys. Spans always name tables, families and
	// qualifiers, and never values.
	// Defaults to false.
	TraceRowKeys bool

	// MeterProvider makes the client's metrics.
	// Defaults to OpenTelemetry's global one.
	MeterProvider metric.MeterProvider

	// Logger receives what an operator should know, with the ids of the trace it
	// belongs to. Errors need an operator. Warnings say what this client could not do
	// and another client will do. The debug level logs every conflict with its cells.
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
	if c.LockTTL < time.Millisecond || c.LockTTL > format.MaxLockTTL {
		return c, format.Invalidf("Config.LockTTL is %v; it has to be between 1 ms and 24 hours", c.LockTTL)
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
