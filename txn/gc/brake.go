package gc

import (
	"cmp"
	"context"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/internal/pace"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// probeInterval is how often a scan measures what it does to requests for single rows, and how long it
// waits for the last answer.
const probeInterval = 100 * time.Millisecond

// A brake decides when one stream of a run that reads every row may scan. All streams of a collector
// have the same pacer.
type brake struct {
	pacer *pace.Pacer
	next  time.Time // when the next probe is due
}

// scan calls read, which reads a page of t from the first row of rest on. How many scans run at a time
// depends on how long a request for a single row takes beside them. One scan always runs.
func (b *brake) scan(ctx context.Context, t *store.Table, rest store.RowSet, read func() error) error {
	if b.pacer == nil || len(rest.Ranges) == 0 {
		return read()
	}
	turn, err := b.pacer.Begin(ctx)
	if err != nil {
		return store.Ended(ctx, "gc: waiting for other scans", err)
	}
	pctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered, refused := true, error(nil)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		// The read may wait until its tablet is back. Meanwhile another one has its turn.
		if answered, refused = b.probe(pctx, t, rest.Ranges[0].Start, turn, over); !answered {
			turn.End(0, 0)
		}
	}()
	err = read()
	close(over)
	select {
	case <-ended:
	case <-time.After(probeInterval):
		cancel()
		<-ended
	}
	if answered {
		turn.End(0, 0)
	}
	return cmp.Or(err, refused)
}

// probe reads a row that a scan begins with, again and again, until over is closed or a read fails. The
// row is just behind the last one that was read, so it seldom exists, and the read costs nothing but its turn at
// the node that the scan keeps busy.
func (b *brake) probe(ctx context.Context, t *store.Table, row string, turn pace.Turn, over <-chan struct{}) (answered bool, refused error) {
	nothing := store.Interleave(store.Chain(bigtable.CellsPerRowLimitFilter(1), bigtable.StripValueFilter()))
	for {
		if wait := time.Until(b.next); wait > 0 {
			select {
			case <-over:
				return true, nil
			case <-time.After(wait):
			}
		}
		began := time.Now()
		b.next = began.Add(probeInterval)
		_, err := t.TryReadRow(ctx, cmp.Or(row, "\x00"), nothing)
		turn.Note(began, err)
		switch {
		case err != nil && store.Permanent(err) && ctx.Err() == nil:
			return false, err
		case err != nil:
			return false, nil
		}
	}
}
