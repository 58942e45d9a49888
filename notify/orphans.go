package notify

import (
	"context"
	"log/slog"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// orphans handles notifications of columns that have no observer in this worker. It
// removes those of columns that have no registered observer at all.
type orphans struct {
	client  *txn.Client
	logger  *slog.Logger
	cleaner *cleaner

	// turn has room for the one goroutine that uses known. Another one waits only while
	// its context lasts, because the request may take long.
	turn  chan struct{}
	known map[string]registry // by table
}

func newOrphans(client *txn.Client, logger *slog.Logger, cleaner *cleaner) *orphans {
	return &orphans{client: client, logger: logger, cleaner: cleaner, turn: make(chan struct{}, 1), known: map[string]registry{}}
}

// A registry is what a table's registry of observers contained.
type registry struct {
	read time.Time
	// asOf is an oracle timestamp from before the registry was read.
	asOf     tso.Timestamp
	observed []changes.ObservedColumn
}

// registryMaxAge is how long orphans uses a registry before it reads it again.
const registryMaxAge = time.Minute

// found removes a notification if its column has no registered observer.
func (o *orphans) found(ctx context.Context, n changes.Notification) {
	r, ok := o.registry(ctx, n.Cell.Table)
	if !ok {
		return
	}
	if _, ok := changes.Watching(r.observed, n.Cell.Table, n.Cell.Column()); ok {
		return
	}
	cleared := changes.Cleared{Cell: n.Cell, UpTo: r.asOf}
	for observer := range n.Failures {
		cleared.Failures = append(cleared.Failures, observer)
	}
	o.cleaner.add(cleared)
}

// registry returns a table's registry; false if it cannot be read now.
func (o *orphans) registry(ctx context.Context, table string) (registry, bool) {
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return registry{}, false
	}
	if r := o.known[table]; time.Since(r.read) < registryMaxAge {
		return r, true
	}
	asOf, err := o.client.Timestamp(ctx)
	if err != nil {
		return registry{}, false
	}
	columns, err := changes.ObservedColumns(ctx, o.client, table)
	if err != nil {
		o.logger.DebugContext(ctx, "reading the registry of observers failed", "table", table, "error", err)
		return registry{}, false
	}
	r := registry{read: time.Now(), asOf: asOf, observed: columns}
	o.known[table] = r
	return r, true
}
