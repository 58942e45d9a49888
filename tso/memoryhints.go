package tso

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
)

// HintStats counts hints since the service was started. Received is what came
// in; Delivered went to a subscriber; Dropped found no room, or was waiting
// when its subscribers were gone or the server's term ended; Unwanted had no
// subscriber for its topic. The rest is waiting, or was equal to one that was.
type HintStats struct {
	Received    uint64
	Delivered   uint64
	Dropped     uint64
	Unwanted    uint64
	Subscribers int // at present
}

// hintTries is how many subscribers are tried for one hint before it is
// dropped: enough to get past some that are stuck, few enough to cost little
// when all are.
const hintTries = 8

// MemoryHints carry hints within one process. Each goes to the subscriber of
// its topic who has fewer waiting, of two chosen at random; when that one's
// queue is full, to another. What waits for a subscriber who leaves goes to the
// others. Make them with [NewMemoryHints].
type MemoryHints struct {
	mu     sync.Mutex
	closed bool
	topics map[string][]*hintSubscriber
	stats  HintStats // Subscribers included
	limit  int       // of subscribers
}

// hintSubscriber is one subscription. MemoryHints' mutex guards its queue.
type hintSubscriber struct {
	topics []string
	queue  hintQueue
	ended  chan struct{} // closed when the server's term ends
}

var _ Hints = (*MemoryHints)(nil)

var errTooManySubscribers = errors.New("tso: too many subscribers for hints")

// NewMemoryHints returns hints without subscribers.
func NewMemoryHints() *MemoryHints {
	return &MemoryHints{topics: map[string][]*hintSubscriber{}, limit: maxHintSubscribers}
}

// PublishHints implements [Hints].
func (m *MemoryHints) PublishHints(hints ...Hint) { m.publish(hints) }

// publish reports false while closed.
func (m *MemoryHints) publish(hints []Hint) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.stats.Received += uint64(len(hints))
	for _, h := range hints {
		m.route(h)
	}
	return true
}

// route gives h to a subscriber. It is called with mu held.
func (m *MemoryHints) route(h Hint) {
	all := m.topics[h.Topic]
	n := len(all)
	switch {
	case h.check() != nil:
		m.stats.Dropped++
		return
	case n == 0:
		m.stats.Unwanted++
		return
	}
	i := rand.IntN(n)
	first := all[i]
	if n > 1 {
		second := all[(i+1+rand.IntN(n-1))%n]
		if len(second.queue.order) < len(first.queue.order) {
			first = second
		}
	}
	if first.queue.add(h) {
		return
	}
	for k := range min(n, hintTries) {
		if all[(i+k)%n].queue.add(h) {
			return
		}
	}
	m.stats.Dropped++
}

// SubscribeHints implements [Hints].
func (m *MemoryHints) SubscribeHints(ctx context.Context, topics []string, deliver func(Hint)) error {
	topics, err := checkTopics(topics)
	if err != nil {
		return err
	}
	s, err := m.join(topics)
	if err != nil {
		return err
	}
	var batch []Hint
	defer func() { m.leave(s, batch) }()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.queue.ready:
		}
		for batch = m.take(s); len(batch) > 0 && ctx.Err() == nil; {
			h := batch[0]
			batch = batch[1:]
			deliver(h)
			m.delivered(1)
		}
	}
	return nil
}

// join adds a subscriber. It fails with ErrNotLeader while closed.
func (m *MemoryHints) join(topics []string) (*hintSubscriber, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil, ErrNotLeader
	case m.stats.Subscribers >= m.limit:
		return nil, fmt.Errorf("%w: there are %d", errTooManySubscribers, m.limit)
	}
	s := &hintSubscriber{topics: topics, queue: newHintQueue(), ended: make(chan struct{})}
	for _, t := range topics {
		m.topics[t] = append(m.topics[t], s)
	}
	m.stats.Subscribers++
	return s, nil
}

// leave removes a subscriber, unless its term ended before. What waited for it,
// and what it was given and did not deliver, goes to others.
func (m *MemoryHints) leave(s *hintSubscriber, undelivered []Hint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-s.ended:
		m.stats.Dropped += uint64(len(undelivered))
		return
	default:
	}
	m.stats.Subscribers--
	for _, t := range s.topics {
		rest := slices.DeleteFunc(m.topics[t], func(o *hintSubscriber) bool { return o == s })
		if m.topics[t] = rest; len(rest) == 0 {
			delete(m.topics, t)
		}
	}
	for _, h := range append(slices.Clip(undelivered), s.queue.drain()...) {
		if len(m.topics[h.Topic]) == 0 {
			m.stats.Dropped++ // somebody wanted it
			continue
		}
		m.route(h)
	}
}

func (m *MemoryHints) take(s *hintSubscriber) []Hint {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.queue.take()
}

func (m *MemoryHints) delivered(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Delivered += uint64(n)
}

// reset drops everything and ends all subscriptions; closed says whether more
// may come.
func (m *MemoryHints) reset(closed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = closed
	for _, all := range m.topics {
		for _, s := range all {
			select {
			case <-s.ended: // it has another topic
				continue
			default:
			}
			close(s.ended)
			m.stats.Subscribers--
			m.stats.Dropped += uint64(len(s.queue.drain()))
		}
	}
	clear(m.topics)
}

// Stats returns the counters.
func (m *MemoryHints) Stats() HintStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}
