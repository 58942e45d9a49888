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
// which only a part is requests. [Scans] is for scans: how long one takes depends on what it reads, so
// small reads beside them are measured instead.
package pace

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// less is what a Pacer leaves of the pieces if they are slow. Half of them would leave servers idle,
// because average varies, the more so the more servers there are.
const less = 3.0 / 4

// bounds are when a Pacer changes the number of pieces.
type bounds struct {
	// It adds pieces while they take less than quick times what they take alone, and takes pieces
	// away when they take more than slow times that.
	quick, slow float64
	// alone is after how many measurements of one piece at a time there are more.
	alone int
	// newest is the weight of the newest measurement in averages. It is less if more pieces than 1/newest
	// run at a time, because the more servers there are, the more their times differ.
	newest float64
	// more is how many pieces it adds after a measurement if the limit was never too high.
	more float64
	// worst bounds what one very slow piece counts.
	worst float64
}

var (
	ofPieces = bounds{1.75, 2, 4, 1.0 / 4, 1, 8}
	// Most of the time of a read is its round trip, and the average is that of reads at all nodes. If it is a
	// quarter longer, a part of the nodes has two scans or more, and others' requests wait there. Single
	// reads differ more than pieces do, so more of them make an average.
	ofScans = bounds{1.1, 1.25, 16, 1.0 / 32, 1.0 / 16, 3}
)

// A Pacer bounds how many pieces of batch work run at a time. Its methods may be called
// concurrently.
type Pacer struct {
	bounds
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
func New(most int) *Pacer { return newPacer(most, ofPieces) }

// Scans returns a Pacer for at most so many scans at a time. The caller sends a small read beside
// each of them now and then, and calls [Turn.Note]. Then the Pacer allows as many scans as let these reads
// take 1.1 to 1.25 times as long as beside one scan.
func Scans(most int) *Pacer { return newPacer(most, ofScans) }

func newPacer(most int, b bounds) *Pacer {
	return &Pacer{bounds: b, most: float64(max(most, 1)), limit: 1, doubles: true, average: 1}
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

// Note counts a small read that was sent at began beside the piece, and that has ended now. An error
// counts as a very slow answer.
func (t Turn) Note(began time.Time, err error) {
	p := t.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	took, base := time.Since(began), &p.base[0]
	if err != nil {
		took = time.Duration(p.worst * float64(*base))
	}
	if took <= 0 || began.Before(p.changed) || p.running > int(p.limit) {
		return // otherwise pieces that had begun before the limit became smaller would make it smaller still
	}
	p.note(base, took)
	p.admit()
}

// Limit returns how many pieces may run at a time now.
func (p *Pacer) Limit() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(p.limit)
}

// note changes the limit after a piece.
func (p *Pacer) note(base *time.Duration, took time.Duration) {
	if *base == 0 {
		*base = took
	}
	p.average += (min(float64(took)/float64(*base), p.worst) - p.average) * min(p.newest, 1/p.limit)
	p.counted++
	switch {
	case p.limit < 2:
		*base += (min(took, time.Duration(p.worst*float64(*base))) - *base) / time.Duration(min(p.counted, p.alone))
	case p.average < 1:
		// The service has become faster.
		*base += time.Duration(float64(took-*base) * p.newest)
	}
	switch {
	case p.average > p.slow && p.limit >= 2:
		p.limit, p.doubles = max(p.limit*less, 1), false
		p.average, p.counted, p.changed = p.quick, 0, time.Now()
	case p.average < p.quick && p.counted >= p.alone:
		if p.doubles {
			p.limit += p.more
		} else {
			p.limit += p.more / p.limit
		}
		p.limit = min(p.limit, p.most)
	}
}
