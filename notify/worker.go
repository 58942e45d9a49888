package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A Worker runs observers. Any number of workers in any number of processes may
// run the same observers; each change is acknowledged once (paper §2.4).
type Worker struct {
	client    *txn.Client
	cfg       Config
	locker    locker
	cleaner   *cleaner
	counters  counters
	telemetry telemetry

	slots   chan struct{} // one for each observer that may run
	later   timers
	orphans orphans
	active  sync.WaitGroup // lanes

	mu       sync.Mutex
	handlers map[Column][]*handler
	lanes    map[Column]*lane
	running  bool
	// end ends Run with an error.
	end context.CancelCauseFunc
}

// A handler is an observer with its options.
type handler struct {
	id       string
	column   Column
	observer Observer

	weak        bool
	concurrency int
	rate        float64
	burst       int
	maxAttempts int
	timeout     time.Duration
	txnOptions  []txn.TxnOption

	limiter *rate.Limiter
	slots   chan struct{}
}

// NewWorker returns a worker over client, which stays the caller's. Nothing is
// read or written before Run.
func NewWorker(client *txn.Client, cfg Config) (*Worker, error) {
	if client == nil {
		return nil, fmt.Errorf("notify: %w: nil *txn.Client", txn.ErrInvalid)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Finder == nil {
		cfg.Finder = &Scanner{}
	}
	cfg.Logger = txn.WithTraceIDs(cfg.Logger)
	w := &Worker{
		client:   client,
		cfg:      cfg,
		slots:    make(chan struct{}, cfg.Concurrency),
		handlers: map[Column][]*handler{},
	}
	if w.locker, err = newLocker(client, cfg); err != nil {
		return nil, err
	}
	if w.telemetry, err = newTelemetry(cfg); err != nil {
		return nil, fmt.Errorf("notify: metrics: %w", err)
	}
	w.cleaner = newCleaner(w)
	w.orphans.worker = w
	return w, nil
}

// Handle adds an observer of a column, before Run. id names it in the store: it
// has to stay the same from one release to the next, and to differ from those of
// the table's other observers. Run registers it, or Register.
//
// Several observers may watch a column. Like the paper we advise against it: it
// is not obvious then what runs when a column is written.
func (w *Worker) Handle(id string, col Column, o Observer, opts ...HandleOption) error {
	h := &handler{id: id, column: col, observer: o, concurrency: w.cfg.Concurrency, maxAttempts: w.cfg.MaxAttempts, timeout: w.cfg.Timeout}
	for _, opt := range opts {
		opt(h)
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("notify: observer %q of column %s: %w: %s", id, col, txn.ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case o == nil:
		return bad("it is nil")
	case id == "":
		return bad("its id is empty")
	case h.concurrency <= 0:
		return bad("Concurrency(%d) has to be positive", h.concurrency)
	case h.maxAttempts <= 0:
		return bad("MaxAttempts(%d) has to be positive", h.maxAttempts)
	case h.timeout <= 0:
		return bad("Timeout(%v) has to be positive", h.timeout)
	case h.rate < 0 || (h.rate > 0 && h.burst <= 0):
		return bad("RateLimit(%g, %d): both have to be positive", h.rate, h.burst)
	}
	h.slots = make(chan struct{}, h.concurrency)
	if h.rate > 0 {
		h.limiter = rate.NewLimiter(rate.Limit(h.rate), h.burst)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running {
		return bad("the worker is running; add observers before Run")
	}
	for _, others := range w.handlers {
		for _, other := range others {
			switch {
			case other.id == id && other.column.Table == col.Table:
				return fmt.Errorf("notify: observer %q of column %s: %w: the worker has an observer of that id, on column %s", id, col, changes.ErrRegistration, other.column)
			case other.column == col && other.weak != h.weak:
				return fmt.Errorf("notify: observer %q of column %s: %w: observer %q has the column for the other kind of notifications, weak or strong", id, col, changes.ErrRegistration, other.id)
			}
		}
	}
	w.handlers[col] = append(w.handlers[col], h)
	slices.SortFunc(w.handlers[col], func(a, b *handler) int { return strings.Compare(a.id, b.id) })
	return nil
}

// Run registers the observers and runs them until ctx ends. Then it starts
// nothing new, finishes what is running, for Config.DrainTimeout at most, and
// returns nil; an error if it had to cancel runs, which changes nothing for
// their cells but that somebody else runs them. An observer that does not
// return even then is left behind after a few seconds, and the worker cannot be
// run again.
//
// It ends by itself, with an error, when the observers cannot be registered,
// when the finder's configuration is invalid, or when the client is closed
// under it. A worker runs once at a time.
func (w *Worker) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.running || len(w.handlers) == 0 {
		defer w.mu.Unlock()
		if w.running {
			return errors.New("notify: the worker is running already")
		}
		return fmt.Errorf("notify: %w: the worker has no observers; call Handle first", txn.ErrInvalid)
	}
	w.running = true
	ctx, w.end = context.WithCancelCause(ctx)
	w.mu.Unlock()
	defer w.end(nil)
	ctx = trace.ContextWithSpanContext(ctx, quiet)

	if err := w.Register(ctx); err != nil {
		w.stopped()
		return err
	}
	if err := changes.Announce(ctx, w.client, w.ids()); err != nil {
		w.cfg.Logger.WarnContext(ctx, "announcing the worker failed; it is not listed until its token is renewed", "error", err)
	}
	// What is running outlives ctx, until it is drained.
	runs, cancelRuns := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRuns()
	w.start(ctx, runs)
	stopMeasuring, err := w.watchLanes()
	if err != nil {
		w.cfg.Logger.WarnContext(ctx, "measuring the backlog failed", "error", err)
	}
	defer stopMeasuring()
	stopHints := w.watch(ctx)
	w.find(ctx)
	stopHints()
	idle, err := w.drain(ctx, cancelRuns)
	if idle {
		w.stopped()
	}
	var own *endError
	if errors.As(context.Cause(ctx), &own) {
		err = errors.Join(own.err, err)
	}
	return err
}

// stopped lets the worker be run again.
func (w *Worker) stopped() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = false
}

// An endError is why a worker ended by itself.
type endError struct{ err error }

func (e *endError) Error() string { return e.err.Error() }

// fail ends Run with an error.
func (w *Worker) fail(err error) { w.end(&endError{err}) }

// Register writes the observers into the registry, which Run does as well: what
// is committed afterwards, by clients that know of it, is notified. On an error
// some may be registered; to register again is harmless. changes.ErrRegistration says
// that something else is registered under an id or for a column.
func (w *Worker) Register(ctx context.Context) error {
	for _, h := range w.all() {
		if err := changes.RegisterObserver(ctx, w.client, h.column.Table, h.column.column(), h.id, h.weak); err != nil {
			return fmt.Errorf("notify: registering observer %s: %w", h.id, err)
		}
	}
	return nil
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
		if c := strings.Compare(a.column.String(), b.column.String()); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
	})
	return all
}

func (w *Worker) ids() []string {
	var ids []string
	for _, h := range w.all() {
		ids = append(ids, h.id)
	}
	return ids
}

// tables returns those that have observers here.
func (w *Worker) tables() []string {
	var names []string
	for col := range w.handlers {
		names = append(names, col.Table)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// start starts a lane for each column, and the cleaner.
func (w *Worker) start(ctx, runs context.Context) {
	w.later.open()
	w.lanes = map[Column]*lane{}
	for col, hs := range w.handlers {
		l := newLane(w, hs)
		w.lanes[col] = l
		for range l.width {
			w.active.Go(func() { l.work(ctx, runs) })
		}
	}
	w.cleaner.start(runs)
}

// watch has hints put into the lanes: of this process, and, where the oracle
// carries them, of others.
func (w *Worker) watch(ctx context.Context) (stop func()) {
	if w.cfg.NoHints {
		return func() {}
	}
	stopWatching := changes.WatchNotifications(w.client, func(cell txn.Cell) bool { return w.hinted(ctx, cell) })
	sctx, cancel := context.WithCancel(ctx)
	var subscribed sync.WaitGroup
	subscribed.Go(func() {
		err := changes.SubscribeHints(sctx, w.client, w.columns(), func(cell txn.Cell) { w.hinted(ctx, cell) })
		if err != nil && sctx.Err() == nil {
			w.cfg.Logger.WarnContext(ctx, "hints from other processes are not to be had; the scan finds what they would have told of", "error", err)
		}
	})
	return func() {
		stopWatching()
		cancel()
		subscribed.Wait()
	}
}

// hinted reports whether there is room for a cell that a hint told of.
func (w *Worker) hinted(ctx context.Context, cell txn.Cell) (taken bool) {
	l := w.lanes[columnOf(cell)]
	if l == nil || ctx.Err() != nil {
		return false
	}
	if !l.offer(ctx, task{cell: cell}, false) {
		w.counters.hintsDropped.Add(1)
		return false
	}
	w.counters.hinted.Add(1)
	w.telemetry.took("hint")
	return true
}

// columns returns those that have observers here.
func (w *Worker) columns() []changes.ObservedColumn {
	var all []changes.ObservedColumn
	for col := range w.handlers {
		all = append(all, changes.ObservedColumn{Table: col.Table, Column: col.column()})
	}
	return all
}

// find has the finder look for notifications until ctx ends. A finder that
// fails is started again, unless that would not help.
func (w *Worker) find(ctx context.Context) {
	s := Search{Client: w.client, Tables: w.tables(), Observers: w.ids(), Offer: w.offer, Logger: w.cfg.Logger}
	for ctx.Err() == nil {
		err := w.cfg.Finder.Find(ctx, s)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, txn.ErrClosed):
			w.closed(err)
			return
		case errors.Is(err, txn.ErrInvalid):
			w.fail(err)
			return
		}
		w.cfg.Logger.WarnContext(ctx, "looking for notifications failed; it goes on in a second", "error", err)
		_ = sleep(ctx, time.Second) // the loop looks
	}
}

func (w *Worker) closed(err error) {
	w.fail(fmt.Errorf("notify: the client was closed under a running worker: %w", err))
}

// stuckTimeout is how long observers have for returning after they were
// cancelled.
const stuckTimeout = 5 * time.Second

// drain waits for the runs under way and for what is left to be removed, and
// cancels both after DrainTimeout. idle: nothing is running any more.
func (w *Worker) drain(ctx context.Context, cancelRuns func()) (idle bool, err error) {
	w.later.close()
	ended := make(chan struct{})
	go func() {
		w.active.Wait()
		w.cleaner.stop()
		close(ended)
	}()
	timeout := time.NewTimer(w.cfg.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-ended:
		idle = true
	case <-timeout.C:
		n := len(w.slots)
		cancelRuns()
		stuck := time.NewTimer(stuckTimeout)
		defer stuck.Stop()
		select {
		case <-ended:
			idle = true
		case <-stuck.C:
		}
		switch {
		case !idle:
			err = fmt.Errorf("notify: %d observers were still running %v after the end of Run was asked for, and have not returned although their context was cancelled; an observer has to return when its context ends", len(w.slots), w.cfg.DrainTimeout+stuckTimeout)
		case n > 0:
			err = fmt.Errorf("notify: %d observers were still running %v after the end of Run was asked for, and were cancelled; their changes are left to other workers", n, w.cfg.DrainTimeout)
		}
	}
	actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if aerr := changes.Announce(actx, w.client, nil); aerr != nil {
		w.cfg.Logger.DebugContext(ctx, "taking the announcement of the worker back failed; its token goes stale by itself", "error", aerr)
	}
	return idle, err
}
