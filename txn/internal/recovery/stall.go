package recovery

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A patientReader reads a primary again and again, to find out the outcome of a transaction. If the
// row stalls, it waits until the row answers a probe, as all that want the row do.
type patientReader struct {
	table *store.Table
	row   string
	from  time.Time // since when the row has not answered; zero: it has
	err   error     // the last one
}

// lookEvery is how often a reader looks whether the lock is still there.
const lookEvery = 700 * time.Millisecond

// await returns when a request may be sent. If holds is set, and the row has stalled, it returns a
// store.StallError instead of waiting. gone reports that it need not be sent, because the lock l does not
// exist any more: its owner has given up, for the same reason.
func (p *patientReader) await(ctx context.Context, r *Resolver, l *format.Lock, holds bool) (gone bool, err error) {
	if p.err != nil && time.Since(p.from) >= p.table.StallAfter(p.row) {
		p.table.NoteStall(p.row)
	}
	for p.table.IsClosed(p.row) {
		if holds {
			stall := &store.StallError{Table: p.table, Row: p.row, Lock: true, Err: p.err}
			if p.err != nil {
				stall.After = time.Since(p.from)
			}
			return false, stall
		}
		if err := p.table.AwaitFor(ctx, lookEvery, p.row); err == nil || ctx.Err() != nil {
			p.err = nil
			return false, err
		}
		if gone, err := r.lockIsGone(ctx, l); gone || (err != nil && !store.Transient(err)) {
			return gone, err
		}
	}
	return false, nil
}

// read is a ReadFunc.
func (p *patientReader) read(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error) {
	began := time.Now()
	raw, err := p.table.TryReadRowWithin(ctx, p.table.StallAfter(row), row, f)
	if p.err == nil {
		p.from = began
	}
	p.err = err
	return raw, err
}
