package tso

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// LocalConfig configures a [Local] oracle. The zero value is ready to use.
type LocalConfig struct {
	// Clock is the clock that timestamps follow. Defaults to time.Now.
	Clock func() time.Time
}

// Local is an oracle in memory, for tests: each timestamp is the larger of the
// clock and one more than the last.
//
// Its order holds for the callers of one Local only: never across processes, and
// not across restarts when the clock steps back or timestamps were ahead of it.
// Data that outlives the process needs [Direct].
//
// The zero Local is ready to use. A Local must not be copied after first use.
type Local struct {
	cfg LocalConfig

	mu   sync.Mutex
	last Timestamp
}

var _ Oracle = (*Local)(nil)

// NewLocal returns a new in-memory oracle.
func NewLocal(cfg LocalConfig) *Local { return &Local{cfg: cfg} }

// Timestamp returns the next timestamp. It fails when ctx has ended, and once
// [Max] was handed out, with [ErrExhausted].
func (l *Local) Timestamp(ctx context.Context) (Timestamp, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("tso: asking for a timestamp: %w", err)
	}
	clock := l.cfg.Clock
	if clock == nil {
		clock = time.Now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// The clock is read under the lock, so that a timestamp is never older
	// than the moment at which its caller got the lock.
	next := max(l.last+1, FromTime(clock()))
	if next > Max {
		return 0, ErrExhausted
	}
	l.last = next
	return next, nil
}
