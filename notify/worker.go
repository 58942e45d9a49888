package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/tso/pause"
	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A Worker runs observers. Any number of workers in any number of processes may run the
// same observers, and at most one run commits for each change (paper §2.4).
type Worker struct {
	client    *txn.Client
	log       *slog.Logger
	cfg       Config
	locker    locker
	cleaner   *cleaner
	counters  counters
	telemetry telemetry
	orphans   *orphans

	shared chan struct{} // slots of runs that no observer owns
	later  timers
	lanes  sync.WaitGroup // goroutines that check cells

	mu       sync.Mutex
	handlers map[target][]*handler
	running  bool
	// stop stops Run with an error.
	stop context.CancelCauseFunc
}

// NewWorker returns a worker over client, which the caller still has to close. The
// worker reads and writes nothing before Run. Fails with txn.ErrInvalid if client is nil
// or cfg is invalid.
func NewWorker(client *txn.Client, cfg Config) (*Worker, error) {
	if client == nil {
		return nil, fmt.Errorf("notify: %w: nil *txn.Client", txn.ErrInvalid)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	tracers, meters, log := changes.Telemetry(client)
	w := &Worker{
		client:   client,
		log:      log,
		cfg:      cfg,
		handlers: map[target][]*handler{},
		locker:   newLocker(cfg),
	}
	if w.telemetry, err = newTelemetry(tracers, meters); err != nil {
		return nil, fmt.Errorf("notify: metrics: %w", err)
	}
	w.cleaner = newCleaner(client, log, &w.counters.cleared)
	w.orphans = newOrphans(client, log, w.cleaner)
	return w, nil
}

// Handle adds an observer of a table's column, or of all columns of a [txn.Pattern]. Call it
// before Run, which registers the observer in the table's schema record. A column without
// qualifier is the one with the empty qualifier, not the whole family. The id names the observer in the store: it must
// stay the same from one release to the next, and differ from the ids of the table's
// other observers. It has 1 to 100 bytes, without spaces, slashes, colons and percent
// signs.
//
// Several observers may watch a column. Like the paper, we advise against it: it is then
// not obvious what runs when the column is written.
//
// Fails with txn.ErrInvalid if the table, the column, the id, the observer or an option
// is invalid, or the worker is running; with txn.ErrLimit if the column and the id are
// too long together; and with changes.ErrRegistration if another observer of the worker has
// the id, or has the column for the other kind of notifications. The worker is then
// unchanged. Only Run and Register can find that the table has no such family.
func (w *Worker) Handle(id, table string, column txn.Column, o Observer, opts ...HandleOption) error {
	h, err := newHandler(id, target{table, column}, o, w.cfg, opts)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.conflict(h); err != nil {
		return fmt.Errorf("notify: observer %q of column %s: %w", id, h.target, err)
	}
	w.handlers[h.target] = append(w.handlers[h.target], h)
	return nil
}

// conflict returns why a handler cannot be added to the present ones. w.mu is locked.
func (w *Worker) conflict(h *handler) error {
	if w.running {
		return fmt.Errorf("%w: the worker is running; call Handle before Run", txn.ErrInvalid)
	}
	for _, others := range w.handlers {
		for _, other := range others {
			switch {
			case other.id == h.id && other.target.table == h.target.table:
				return fmt.Errorf("%w: the worker has an observer with this id, of column %s", changes.ErrRegistration, other.target)
			case other.target == h.target && other.weak != h.weak:
				return fmt.Errorf("%w: observer %q has the column for the other kind of notifications, weak or strong", changes.ErrRegistration, other.id)
			}
		}
	}
	return nil
}

// Run registers the observers, and runs them until ctx ends. It then starts no new run,
// waits for the current ones, for Config.DrainTimeout at most, and returns nil. A worker
// can run again after Run has returned, but only once at a time.
//
// If Run has to cancel runs, it returns an error. Their changes stay pending, for other
// workers. If an observer does not return 5 seconds after its context was cancelled, Run
// returns without it, and this worker cannot run again.
//
// Run stops by itself, with an error, if it cannot register the observers, if the
// configuration of the finder is invalid (txn.ErrInvalid), or if the client is closed
// (txn.ErrClosed).
func (w *Worker) Run(ctx context.Context) error {
	ctx, err := w.begin(ctx)
	if err != nil {
		return err
	}
	defer w.stop(nil)
	if err := w.Register(ctx); err != nil {
		w.stopped()
		if ctx.Err() != nil {
			return nil // stopped, as it may be at any other time
		}
		return err
	}
	if err := changes.Announce(ctx, w.client, w.ids()); err != nil {
		w.log.WarnContext(ctx, "announcing the worker failed; it is not listed until it renews its token", "error", err)
	}
	// Current runs outlive ctx until drain has waited for them.
	runs, cancelRuns := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRuns()
	in := w.start(ctx, runs)
	stopMeasuring, err := w.telemetry.watch(in.lanes, w.cfg.Finder)
	if err != nil {
		w.log.WarnContext(ctx, "measuring the backlog failed", "error", err)
	}
	defer stopMeasuring()
	stopHints := func() {}
	if !w.cfg.NoHints {
		stopHints = changes.WatchNotifications(w.client, func(cell txn.Cell) bool { return in.hint(ctx, cell) })
	}
	w.find(ctx, in)
	stopHints()
	idle, err := w.drain(ctx, cancelRuns)
	if idle {
		w.stopped()
	}
	var own *stopError
	if errors.As(context.Cause(ctx), &own) {
		err = errors.Join(own.err, err)
	}
	return err
}

// begin marks the worker as running, and returns the context of Run, which w.stop ends.
func (w *Worker) begin(ctx context.Context) (context.Context, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.running:
		return nil, errors.New("notify: the worker is running already")
	case len(w.handlers) == 0:
		return nil, fmt.Errorf("notify: %w: the worker has no observers; call Handle first", txn.ErrInvalid)
	}
	w.running = true
	ctx, w.stop = context.WithCancelCause(ctx)
	return instrument.Quiet(ctx), nil
}

// stopped lets the worker run again.
func (w *Worker) stopped() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = false
}

// A stopError is why a worker stopped by itself.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }

// clientClosed stops a worker whose client is closed.
func (w *Worker) clientClosed(err error) {
	w.stop(&stopError{fmt.Errorf("notify: the client was closed while the worker was running: %w", err)})
}

// Register registers the observers in the schema records of their tables, as Run does
// too. Clients that know of a registration notify the changes that they commit from then
// on; running clients notice it up to a minute later (see [Backfill]).
//
// Fails with changes.ErrRegistration if another observer is registered with the id, or the
// column is registered for the other kind of notifications, and with txn.ErrSchema if the
// table lacks the family. After an error some observers may be registered. Calling
// Register again is harmless.
func (w *Worker) Register(ctx context.Context) error {
	for _, h := range w.all() {
		if err := changes.RegisterObserver(ctx, w.client, h.target.table, h.target.column, h.id, h.weak); err != nil {
			return fmt.Errorf("notify: registering observer %s: %w", h.id, err)
		}
	}
	return nil
}

// Stats returns the worker's counts.
func (w *Worker) Stats() Stats { return w.counters.stats() }

// report counts an event and calls Config.OnEvent.
func (w *Worker) report(e Event) {
	w.counters.count(e)
	if w.cfg.OnEvent != nil {
		w.cfg.OnEvent(e)
	}
}

// all returns the handlers in order of their columns and ids.
func (w *Worker) all() []*handler {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*handler
	for _, hs := range w.handlers {
		all = append(all, hs...)
	}
	slices.SortFunc(all, func(a, b *handler) int {
		if c := strings.Compare(a.target.String(), b.target.String()); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
	})
	return all
}

// underWay returns how many runs are under way.
func (w *Worker) underWay() (n int) {
	for _, h := range w.all() {
		n += len(h.slots)
	}
	return n
}

func (w *Worker) ids() []string {
	var ids []string
	for _, h := range w.all() {
		ids = append(ids, h.id)
	}
	return ids
}

// tables returns the tables that have observers in this worker.
func (w *Worker) tables() []string {
	var names []string
	for to := range w.handlers {
		names = append(names, to.table)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// start starts a lane for each column, and the cleaner.
func (w *Worker) start(ctx, runs context.Context) *intake {
	w.later.open()
	w.shared = share(w.cfg.Concurrency, w.all())
	in := &intake{client: w.client, lanes: map[target]*lane{}, orphans: w.orphans, counters: &w.counters, telemetry: &w.telemetry}
	for to := range w.handlers {
		var hs []*handler
		for other, more := range w.handlers {
			if other.contains(to) {
				hs = append(hs, more...)
			}
		}
		slices.SortFunc(hs, func(a, b *handler) int { return strings.Compare(a.id, b.id) })
		if to.column.IsPattern() {
			in.patterns = append(in.patterns, to)
		}
		l := newLane(hs, w.cfg.Concurrency, w.cfg.Queue, &w.later)
		l.check = func(ctx, runs context.Context, l *lane, t task) time.Duration {
			return (&check{w, l, t}).do(ctx, runs)
		}
		in.lanes[to] = l
		for range l.width {
			w.lanes.Go(func() { l.work(ctx, runs) })
		}
	}
	slices.SortFunc(in.patterns, func(a, b target) int { return len(b.column.Qualifier) - len(a.column.Qualifier) })
	w.cleaner.start(runs)
	return in
}

// findPause is the pause before a finder that failed starts again.
const findPause = time.Second

// find runs the finder until ctx ends. After an error it starts the finder again, except
// after errors that would come again.
func (w *Worker) find(ctx context.Context, in *intake) {
	s := Search{Client: w.client, Tables: w.tables(), Observers: w.ids(), Offer: in.offer, Logger: w.log, lane: in.target, busy: in.busy, behind: in.behind}
	for ctx.Err() == nil {
		err := w.cfg.Finder.Find(ctx, s)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, txn.ErrClosed):
			w.clientClosed(err)
			return
		case errors.Is(err, txn.ErrInvalid):
			w.stop(&stopError{err})
			return
		}
		w.log.WarnContext(ctx, "finding notifications failed; the finder starts again in a second", "error", err)
		_ = pause.For(ctx, findPause) // the loop sees that ctx has ended
	}
}

// stuckTimeout is how long observers have to return after their context was cancelled.
const stuckTimeout = 5 * time.Second

// withdrawTimeout bounds the last request of a worker, which takes it off the list of
// workers.
const withdrawTimeout = 5 * time.Second

// drain waits until the current runs have returned and the cleaner has stopped. After
// Config.DrainTimeout it cancels both. idle: nothing is running any more.
func (w *Worker) drain(ctx context.Context, cancelRuns func()) (idle bool, err error) {
	w.later.close()
	stopped := make(chan struct{})
	go func() {
		w.lanes.Wait()
		w.cleaner.stop()
		close(stopped)
	}()
	timeout := time.NewTimer(w.cfg.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-stopped:
		idle = true
	case <-timeout.C:
		n := w.underWay()
		cancelRuns()
		stuck := time.NewTimer(stuckTimeout)
		defer stuck.Stop()
		select {
		case <-stopped:
			idle = true
		case <-stuck.C:
		}
		switch {
		case !idle:
			err = fmt.Errorf("notify: the worker cannot stop: %d observers are still running, %v after their context was cancelled; an observer has to return when its context ends", w.underWay(), stuckTimeout)
		case n > 0:
			err = fmt.Errorf("notify: the worker cancelled %d observers that were still running after Config.DrainTimeout (%v); other workers run them for these changes", n, w.cfg.DrainTimeout)
		}
	}
	wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	if werr := changes.Announce(wctx, w.client, nil); werr != nil {
		w.log.DebugContext(ctx, "taking the worker off the list of workers failed; it stays there until its token is stale", "error", werr)
	}
	return idle, err
}
