package hint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
)

// Stats is a tso.HintStats.
type Stats struct {
	Received    uint64
	Delivered   uint64
	Dropped     uint64
	Unwanted    uint64
	Subscribers int // at present
}

// ErrStopped says that a router accepts no hints and subscribers for now.
var ErrStopped = errors.New("tso: hints are stopped")

var (
	errTooManySubscribers = errors.New("tso: too many subscribers for hints")
	errFull               = errors.New("tso: no memory is left for subscriptions to hints")
)

// tries is how many subscribers the router tries for one hint before it drops
// the hint: enough to get past a few that are stuck, few enough to cost little
// when all are.
const tries = 8

// A Router gives each hint to one subscriber of its topic: of two chosen at
// random, to the one with fewer hints waiting. If that queue is full, the hint
// goes to another subscriber. What waits for a subscriber that leaves goes to
// the others. Make routers with [NewRouter].
type Router struct {
	// MaxSubscribers bounds the subscribers.
	MaxSubscribers int

	// MaxBytes bounds the memory of all topics and of the hints that wait. 0 means
	// no bound.
	MaxBytes int

	mu      sync.Mutex
	bytes   int
	stopped bool
	topics  map[string][]*Subscriber
	stats   Stats // Subscribers included
}

// A Subscriber is one subscription at a router.
type Subscriber struct {
	Ended chan struct{} // closed when Reset ends the subscription

	topics []string
	queue  Queue // the router's mutex guards it
}

// Ready has an element when [Router.Take] has something to return.
func (s *Subscriber) Ready() <-chan struct{} { return s.queue.Ready }

// NewRouter returns a router without subscribers.
func NewRouter() *Router {
	return &Router{topics: map[string][]*Subscriber{}, MaxSubscribers: maxSubscribers}
}

// Publish gives hints to subscribers. It reports false while the router is
// stopped.
func (r *Router) Publish(hints []Hint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	r.stats.Received += uint64(len(hints))
	for _, h := range hints {
		r.route(h)
	}
	return true
}

// route gives h to a subscriber. It is called with mu held.
func (r *Router) route(h Hint) {
	all := r.topics[h.Topic]
	n := len(all)
	switch {
	case h.Check() != nil:
		r.stats.Dropped++
		return
	case n == 0:
		r.stats.Unwanted++
		return
	}
	i := rand.IntN(n)
	first := all[i]
	if n > 1 {
		second := all[(i+1+rand.IntN(n-1))%n]
		if second.queue.Len() < first.queue.Len() {
			first = second
		}
	}
	if r.add(first, h) {
		return
	}
	for k := range min(n, tries) {
		if r.add(all[(i+k)%n], h) {
			return
		}
	}
	r.stats.Dropped++
}

// add gives h to a subscriber, unless its queue or the router is full. It is called
// with mu held.
func (r *Router) add(s *Subscriber, h Hint) (ok bool) {
	if r.MaxBytes > 0 && r.bytes+h.size() > r.MaxBytes {
		return false
	}
	r.counted(s, func() { ok = s.queue.Add(h) })
	return ok
}

// counted counts what f changes of a subscriber's queue. It is called with mu held.
func (r *Router) counted(s *Subscriber, f func()) {
	before := s.queue.memory()
	f()
	r.bytes += s.queue.memory() - before
}

// memory is about what a subscriber's topics hold of memory, in bytes.
func (s *Subscriber) memory() (n int) {
	for _, t := range s.topics {
		n += len(t) + 128
	}
	return n
}

// Subscribe calls deliver with hints of these topics, one call at a time, until
// ctx ends.
func (r *Router) Subscribe(ctx context.Context, topics []string, deliver func(Hint)) error {
	topics, err := CheckTopics(topics)
	if err != nil {
		return err
	}
	s, err := r.Join(topics)
	if err != nil {
		return err
	}
	var batch []Hint
	defer func() { r.Leave(s, batch) }()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done(): // Leave gives the batch to the others
		case <-s.Ready():
		}
		for batch = r.Take(s); len(batch) > 0 && ctx.Err() == nil; {
			h := batch[0]
			batch = batch[1:]
			deliver(h)
			r.Delivered(1)
		}
	}
	return nil
}

// Join adds a subscriber to topics that CheckTopics returned. It fails with
// ErrStopped while the router is stopped.
func (r *Router) Join(topics []string) (*Subscriber, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
		return nil, ErrStopped
	case r.stats.Subscribers >= r.MaxSubscribers:
		return nil, fmt.Errorf("%w: there are %d", errTooManySubscribers, r.MaxSubscribers)
	}
	s := &Subscriber{topics: topics, queue: NewQueue(), Ended: make(chan struct{})}
	if r.MaxBytes > 0 && r.bytes+s.memory() > r.MaxBytes {
		return nil, fmt.Errorf("%w: there are %d bytes for all", errFull, r.MaxBytes)
	}
	r.bytes += s.memory()
	for _, t := range topics {
		r.topics[t] = append(r.topics[t], s)
	}
	r.stats.Subscribers++
	return s, nil
}

// Leave removes a subscriber, unless Reset ended its subscription before. What
// waited for it, and what it took and did not deliver, goes to the others.
func (r *Router) Leave(s *Subscriber, undelivered []Hint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-s.Ended:
		r.stats.Dropped += uint64(len(undelivered))
		return
	default:
	}
	r.stats.Subscribers--
	r.bytes -= s.memory()
	var waited []Hint
	r.counted(s, func() { waited = s.queue.Drain() })
	for _, t := range s.topics {
		rest := slices.DeleteFunc(r.topics[t], func(o *Subscriber) bool { return o == s })
		if r.topics[t] = rest; len(rest) == 0 {
			delete(r.topics, t)
		}
	}
	for _, h := range append(slices.Clip(undelivered), waited...) {
		if len(r.topics[h.Topic]) == 0 {
			r.stats.Dropped++ // not unwanted: this one wanted it
			continue
		}
		r.route(h)
	}
}

// Take removes and returns what fits into one message for a subscriber.
func (r *Router) Take(s *Subscriber) []Hint {
	r.mu.Lock()
	defer r.mu.Unlock()
	var batch []Hint
	r.counted(s, func() { batch = s.queue.Take() })
	return batch
}

// Delivered counts n hints as delivered.
func (r *Router) Delivered(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Delivered += uint64(n)
}

// Reset drops all hints and ends all subscriptions. If stopped, the router
// takes no new ones until the next Reset.
func (r *Router) Reset(stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = stopped
	for _, all := range r.topics {
		for _, s := range all {
			select {
			case <-s.Ended: // it has another topic
				continue
			default:
			}
			close(s.Ended)
			r.stats.Subscribers--
			r.stats.Dropped += uint64(len(s.queue.Drain()))
		}
	}
	clear(r.topics)
	r.bytes = 0
}

// Stats returns the counters.
func (r *Router) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}
