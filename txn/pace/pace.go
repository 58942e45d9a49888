// Package pace keeps batch work from slowing down a service. A [Pacer] decides how many pieces of
// the work run at a time. It needs no configuration. It measures how long a piece takes that runs
// alone, and then adds more, until pieces take about twice as long: the service, or its network,
// has no more to give, and requests of other clients wait, too. Then it takes a quarter of them
// away. So the work slows down other requests by a bounded factor.
//
//	p := pace.New(16)
//	for _, part := range parts {
//		g.Go(func() error {
//			return p.Do(ctx, len(part), func() error { return write(ctx, part) })
//		})
//	}
//
// Bigtable's own flow control of batch writes (RateLimitInfo) would not do: it is only for MutateRows,
// which few requests of transactions are, and the Go client does not ask for it. If a service
// refuses requests, that client follows its advice (RetryInfo).
//
// Jobs, bulk loads, tables that leave and garbage collections use it. [Pacer.Begin] is for pieces of
// which only a part is requests.
package pace

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"
)

const (
	// A Pacer adds pieces while they take less than quick times what they take alone, and
	// takes pieces away when they take more than slow times that.
	quick, slow = 1.75, 2
	// less is what it leaves of them then. Half of them would leave servers idle, because average
	// varies, the more so the more servers there are.
	less = 3.0 / 4
	// alone is how many pieces run one after the other before there are more.
	alone = 4
	// newest is the weight of the newest piece in averages. It is less if more than four run at a
	// time, because the more servers there are, the more their times differ.
	newest = 1.0 / 4
	// worst bounds what one very slow piece counts.
	worst = 8.0
)

// A Pacer bounds how many pieces of batch work run at a time. Its methods may be called
// concurrently.
type Pacer struct {
	most float64

	mu      sync.Mutex
	limit   float64 // how many may run
	doubles bool    // the limit was never too high
	running int
	base    [bits.UintSize + 1]time.Duration // what a piece takes alone, by the number of bits of its size
	average float64                          // of the pieces' time/base
	counted int                              // pieces since the limit became 1
	changed time.Time                        // when the limit was last made smaller
	waiting []chan struct{}                  // for a turn, in order; closed when it is there
}

// New returns a Pacer for at most so many pieces at a time.
func New(most int) *Pacer {
	return &Pacer{most: float64(max(most, 1)), limit: 1, doubles: true, average: 1}
}

// Do waits until a piece may run, and runs it: f sends the requests, and nothing else takes it
// long. size is how much it writes, as for [Turn.End].
func (p *Pacer) Do(ctx context.Context, size int, f func() error) error {
	turn, err := p.Begin(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	defer func() { turn.End(size, time.Since(began)) }()
	return f()
}

// Begin waits until a piece may run. The pieces run in the order of Begin, so parts of the work that
// are on different servers take turns. Each Turn needs an End.
func (p *Pacer) Begin(ctx context.Context) (Turn, error) {
	ended := func() error {
		return fmt.Errorf("pace: waiting for other pieces of the work: %w", ctx.Err())
	}
	if ctx.Err() != nil {
		return Turn{}, ended()
	}
	mine := make(chan struct{})
	p.mu.Lock()
	p.waiting = append(p.waiting, mine)
	p.admit()
	p.mu.Unlock()
	select {
	case <-mine:
		return Turn{p, time.Now()}, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, mine); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	} else {
		p.running-- // its turn has come meanwhile
		p.admit()
	}
	return Turn{}, ended()
}

// admit lets as many pieces run as the limit allows.
func (p *Pacer) admit() {
	for p.running < int(p.limit) && len(p.waiting) > 0 {
		close(p.waiting[0])
		p.waiting = p.waiting[1:]
		p.running++
	}
}

// A Turn is a piece of the work that may run.
type Turn struct {
	pacer *Pacer
	began time.Time
}

// End ends the piece. took is how long its requests took, without waits for anything but the
// service, and size how much they wrote: only times of pieces of about the same size are compared.
// A piece whose took is 0 does not count.
func (t Turn) End(size int, took time.Duration) {
	p := t.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	if took > 0 && !t.began.Before(p.changed) { // the smaller limit could not help an earlier one yet
		p.note(&p.base[bits.Len(uint(max(size, 0)))], took)
	}
	p.admit()
}

// note changes the limit after a piece.
func (p *Pacer) note(base *time.Duration, took time.Duration) {
	if *base == 0 {
		*base = took
	}
	p.average += (min(float64(took)/float64(*base), worst) - p.average) * min(newest, 1/p.limit)
	p.counted++
	switch {
	case p.limit < 2:
		*base += (took - *base) / time.Duration(min(p.counted, alone))
	case p.average < 1:
		// The service has become faster.
		*base += time.Duration(float64(took-*base) * newest)
	}
	switch {
	case p.average > slow && p.limit >= 2:
		p.limit, p.doubles = max(p.limit*less, 1), false
		p.average, p.counted, p.changed = quick, 0, time.Now()
	case p.average < quick && p.counted >= alone:
		if p.doubles {
			p.limit++
		} else {
			p.limit += 1 / p.limit
		}
		p.limit = min(p.limit, p.most)
	}
}
