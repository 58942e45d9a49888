package store

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// oldestWindow is how long a stranded lock that was met counts at least. Two
// windows are kept, so that a scrape never falls into an empty one.
const oldestWindow = time.Minute

// oldest remembers the age of the oldest stranded lock that was met lately. A
// lock that nobody meets is not known to anybody; `percctl lock list` looks.
type oldest struct {
	mu            sync.Mutex
	since         time.Time // when current began
	current, last time.Duration
}

func (o *oldest) met(now time.Time, age time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn(now)
	o.current = max(o.current, age)
}

func (o *oldest) read(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn(now)
	return max(o.current, o.last)
}

// turn begins a new window when the present one is over.
func (o *oldest) turn(now time.Time) {
	switch passed := now.Sub(o.since); {
	case passed < oldestWindow:
		return
	case passed < 2*oldestWindow:
		o.last = o.current
	default:
		o.last = 0
	}
	o.current, o.since = 0, now
}

// Stranded measures a lock whose owner was found dead at oracle time now.
func (m *metrics) Stranded(l *format.Lock, now tso.Timestamp) {
	ctx := context.Background()
	if !m.strandedAge.Enabled(ctx) {
		return
	}
	age := time.Duration(now-l.StartTS) * time.Microsecond
	m.strandedAge.Record(ctx, age.Seconds(), metric.WithAttributes(semconv.DBCollectionName(l.Cell.Table)))
	m.oldest.met(time.Now(), age)
}

// Listed is for a lock that an operator's list has shown; one that is past its
// ttl counts as stranded. now is the oracle's time, about; 0: not known.
func (m *metrics) Listed(l *format.Lock, now tso.Timestamp) {
	if m.strandedAge.Enabled(context.Background()) && now >= l.ExpiresTS() {
		m.oldest.met(time.Now(), time.Duration(now-l.StartTS)*time.Microsecond)
	}
}

// batch measures a request of the background.
func (m *metrics) batch(rows int) {
	if ctx := context.Background(); m.batchRows.Enabled(ctx) {
		m.batchRows.Record(ctx, int64(rows))
	}
}

// gaveUp counts rows of background work.
func (m *metrics) gaveUp(rows int) {
	if ctx := context.Background(); m.dropped.Enabled(ctx) {
		m.dropped.Add(ctx, int64(rows))
	}
}
