package notify

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"golang.org/x/time/rate"

	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A HandleOption configures one observer of a worker.
type HandleOption func(*handler)

// Weak declares that the column is for weak notifications: transactions notify it
// (txn.Table.Notify) without conflicts, and no transaction can write it.
func Weak() HandleOption { return func(h *handler) { h.weak = true } }

// Concurrency bounds how many runs of the observer this worker has under way.
// Defaults to Config.Concurrency.
func Concurrency(n int) HandleOption { return func(h *handler) { h.concurrency = n } }

// RateLimit bounds how many runs of the observer this worker begins: perSecond in a
// second, and up to burst at once after a quiet time.
// Defaults to no limit.
func RateLimit(perSecond float64, burst int) HandleOption {
	return func(h *handler) { h.rate, h.burst = perSecond, burst }
}

// MaxAttempts bounds the failed runs for one change. After that many, the change
// becomes a dead letter.
// Defaults to Config.MaxAttempts.
func MaxAttempts(n int) HandleOption { return func(h *handler) { h.maxAttempts = n } }

// Timeout bounds one run of the observer, its commit included.
// Defaults to Config.Timeout.
func Timeout(d time.Duration) HandleOption { return func(h *handler) { h.timeout = d } }

// TxnOptions are for the transactions in which the observer runs, for example
// txn.Serializable().
// Defaults to none.
func TxnOptions(opts ...txn.TxnOption) HandleOption {
	return func(h *handler) { h.txnOptions = append(h.txnOptions, opts...) }
}

// A handler is an observer with its options.
type handler struct {
	id       string
	target   target
	observer Observer

	weak        bool
	concurrency int
	rate        float64
	burst       int
	maxAttempts int
	timeout     time.Duration
	txnOptions  []txn.TxnOption

	limiter *rate.Limiter // nil: no limit
	slots   chan struct{} // one for each run under way
	// own are those of the worker's slots that only this observer may take.
	own chan struct{}
}

// share divides a worker's slots. Half of them belong to single observers, so that slow ones leave
// room for the others. All observers share the rest.
func share(slots int, hs []*handler) (shared chan struct{}) {
	own := 0
	if n := len(hs); n > 1 && n < slots {
		own = max(slots/2/n, 1)
	}
	for _, h := range hs {
		h.own = make(chan struct{}, own)
	}
	return make(chan struct{}, slots-own*len(hs))
}

func newHandler(id string, to target, o Observer, cfg Config, opts []HandleOption) (*handler, error) {
	h := &handler{id: id, target: to, observer: o, concurrency: cfg.Concurrency, maxAttempts: cfg.MaxAttempts, timeout: cfg.Timeout}
	for _, opt := range opts {
		opt(h)
	}
	if err := h.validate(); err != nil {
		return nil, fmt.Errorf("notify: observer %q of column %s: %w", id, to, err)
	}
	h.slots = make(chan struct{}, h.concurrency)
	if h.rate > 0 {
		h.limiter = rate.NewLimiter(rate.Limit(h.rate), h.burst)
	}
	return h, nil
}

func (h *handler) validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", txn.ErrInvalid, fmt.Sprintf(format, args...))
	}
	if err := changes.CheckRegistration(h.target.table, h.target.column, h.id); err != nil {
		return err
	}
	switch v := reflect.ValueOf(h.observer); {
	case h.observer == nil:
		return bad("the observer is nil")
	case h.weak && h.target.column.IsPattern():
		return bad("a pattern cannot take weak notifications: no transaction can write such columns")
	case v.Kind() == reflect.Func && v.IsNil():
		return bad("the observer is a nil function")
	case h.concurrency <= 0:
		return bad("Concurrency(%d) must be positive", h.concurrency)
	case h.maxAttempts <= 0:
		return bad("MaxAttempts(%d) must be positive", h.maxAttempts)
	case h.timeout <= 0:
		return bad("Timeout(%v) must be positive", h.timeout)
	case h.rate < 0 || (h.rate > 0 && h.burst <= 0):
		return bad("RateLimit(%g, %d): both must be positive", h.rate, h.burst)
	}
	return nil
}

// acquire waits for the observer's rate limit, for a slot of the observer and for one of
// the worker, which it takes from the observer's own or from shared. It returns nil, and holds no
// slot, if ctx ends before that.
func (h *handler) acquire(ctx context.Context, shared chan struct{}) (from chan struct{}) {
	if h.limiter != nil && h.limiter.Wait(ctx) != nil {
		return nil
	}
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	select {
	case h.own <- struct{}{}:
		from = h.own
	case shared <- struct{}{}:
		from = shared
	case <-ctx.Done():
		<-h.slots
		return nil
	}
	if ctx.Err() != nil { // a slot was free, and ctx had ended
		h.release(from)
		return nil
	}
	return from
}

// release frees the slots that acquire took.
func (h *handler) release(from chan struct{}) {
	<-from
	<-h.slots
}
