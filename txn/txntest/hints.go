package txntest

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/percolator-bigtable/percolator/tso"
)

// A HintingOracle is an oracle that carries hints, as a served one does. It gives each hint to one
// subscriber of its topic, and drops none.
type HintingOracle struct {
	tso.Oracle

	mu          sync.Mutex
	topics      map[string]chan tso.Hint
	subscribers atomic.Int32
	received    atomic.Int32
}

// NewHintingOracle returns a local oracle that carries hints.
func NewHintingOracle() *HintingOracle {
	return &HintingOracle{Oracle: tso.NewLocal(tso.LocalConfig{}), topics: map[string]chan tso.Hint{}}
}

// Subscribers returns how many calls of SubscribeHints have not ended.
func (s *HintingOracle) Subscribers() int { return int(s.subscribers.Load()) }

// Received returns how many hints were published.
func (s *HintingOracle) Received() int { return int(s.received.Load()) }

func (s *HintingOracle) topic(name string) chan tso.Hint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[name] == nil {
		s.topics[name] = make(chan tso.Hint, 100)
	}
	return s.topics[name]
}

// PublishHints implements [tso.Hints].
func (s *HintingOracle) PublishHints(hints ...tso.Hint) {
	for _, h := range hints {
		s.received.Add(1)
		s.topic(h.Topic) <- h
	}
}

// SubscribeHints implements [tso.Hints].
func (s *HintingOracle) SubscribeHints(ctx context.Context, topics []string, deliver func(tso.Hint)) error {
	s.subscribers.Add(1)
	defer s.subscribers.Add(-1)
	var delivering sync.Mutex
	var g sync.WaitGroup
	for _, name := range topics {
		g.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case h := <-s.topic(name):
					delivering.Lock()
					deliver(h)
					delivering.Unlock()
				}
			}
		})
	}
	g.Wait()
	return nil
}
