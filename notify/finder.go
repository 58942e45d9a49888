package notify

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A Finder finds notifications. It is what a worker can be sure of: hints may
// be lost.
type Finder interface {
	// Find looks for notifications in the tables of s and offers them, until ctx
	// ends; it returns ctx's error then. Each notification has to be found in
	// the end, however often others are offered before. After another error it
	// is called again.
	Find(ctx context.Context, s Search) error
}

// A Search is what a Finder is asked to do.
type Search struct {
	Client *txn.Client
	// Tables that have observers here.
	Tables []string
	// Observers are the ids of these observers.
	Observers []string
	// Offer hands a notification over, and waits while the worker is busy. taken
	// is false if the worker has it already, or has nothing to do with it. met is
	// called, later and perhaps never, when another worker turns out to be at the
	// cell: a scanner looks elsewhere then (paper §2.4).
	Offer func(ctx context.Context, n changes.Notification, met func()) (taken bool)
	// Logger is never nil.
	Logger *slog.Logger
}

// offer puts what a finder has found into its lane.
func (w *Worker) offer(ctx context.Context, n changes.Notification, met func()) (taken bool) {
	w.telemetry.scannedCell()
	l := w.lanes[columnOf(n.Cell)]
	if l == nil {
		w.orphans.found(ctx, n)
		return false
	}
	if l.busy(n.Cell.Row) || l.isSettled(n) || w.allWaiting(l, n) {
		return false
	}
	if !l.offer(ctx, task{cell: n.Cell, met: met}, true) {
		return false
	}
	w.counters.found.Add(1)
	w.telemetry.took("scan")
	return true
}

// allWaiting reports that each observer of the column here has failed for the
// newest change, as far as the notify column tells, and is not to be tried yet.
// Failures without a notification wait for nothing; they are to be removed.
func (w *Worker) allWaiting(l *lane, n changes.Notification) bool {
	now := changes.OracleNow(w.client)
	if now == 0 || len(n.Triggers) == 0 {
		return false
	}
	newest := n.Triggers[len(n.Triggers)-1].TS
	for _, h := range l.handlers {
		f, failed := n.Failures[h.id]
		if !failed || newest > f.LastTS || f.NotBefore <= now {
			return false
		}
	}
	return true
}

// orphans are notifications of columns that have no observer in this worker.
// Those of columns that have none anywhere any more are removed.
type orphans struct {
	worker *Worker

	mu      sync.Mutex
	checked map[string]orphanCheck // by table
}

type orphanCheck struct {
	at time.Time
	// asOf is an oracle timestamp from before the registry was read.
	asOf     tso.Timestamp
	observed map[txn.Column]bool
}

// registryMaxAge is how often the registry is looked at for orphans.
const registryMaxAge = time.Minute

func (o *orphans) found(ctx context.Context, n changes.Notification) {
	check, ok := o.check(ctx, n.Cell.Table)
	if !ok || check.observed[n.Cell.Column()] {
		return
	}
	cleared := changes.Cleared{Cell: n.Cell, UpTo: check.asOf}
	for observer := range n.Failures {
		cleared.Failures = append(cleared.Failures, observer)
	}
	o.worker.cleaner.add(cleared)
}

func (o *orphans) check(ctx context.Context, table string) (orphanCheck, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c, ok := o.checked[table]; ok && time.Since(c.at) < registryMaxAge {
		return c, true
	}
	asOf, err := o.worker.client.Timestamp(ctx)
	if err != nil {
		return orphanCheck{}, false
	}
	columns, err := changes.ObservedColumns(ctx, o.worker.client, table)
	if err != nil {
		o.worker.cfg.Logger.DebugContext(ctx, "reading the registry of observers failed", "table", table, "error", err)
		return orphanCheck{}, false
	}
	c := orphanCheck{at: time.Now(), asOf: asOf, observed: map[txn.Column]bool{}}
	for _, col := range columns {
		c.observed[col.Column] = true
	}
	if o.checked == nil {
		o.checked = map[string]orphanCheck{}
	}
	o.checked[table] = c
	return c, true
}
