package txn

import (
	"context"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/buffer"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// ForUpdate says that the transaction begins with [Table.GetForUpdate] of cell. Then the client
// reads the cell beside its request for the start timestamp, so the transaction waits for four
// round trips instead of five if it writes nothing but this row. It may conflict with a
// transaction that committed between the read and the start timestamp. If the transaction reads
// anything else, it first reads the cell again. The option changes nothing else: if the cell is
// locked, for example, GetForUpdate sends its own request.
func ForUpdate(cell Cell) TxnOption { return txnOption(func(o *txnOptions) { o.forUpdate = &cell }) }

// A firstRead is what a transaction read beside its request for start_ts: the newest version of a
// cell that had no lock. The prewrite of the cell's row then looks for anything above that version
// (docs/design/reads.md).
type firstRead struct {
	cell    Cell
	item    bigtable.ReadItem // the value, with its commit_ts
	present bool
	version tso.Timestamp // commit_ts of the newest record; 0 if there is none
	// asOf is a timestamp that the oracle handed out before the read. A commit that the read
	// missed has a larger commit_ts: the cell had no lock, and a transaction asks for its
	// commit_ts after it has locked the cell.
	asOf tso.Timestamp

	// verifying is full while a read verifies. Later reads wait until it is empty.
	verifying chan struct{}

	mu       sync.Mutex
	used     bool // the function has the value
	verified bool // and it is the value at start_ts
	dropped  bool // the function read something else before
}

// readFirst reads the newest version of a cell in one request. It returns nil if there is a
// reason to read at start_ts instead.
func readFirst(ctx context.Context, r *recovery.Resolver, cell Cell) *firstRead {
	clock := &r.Clock
	f := &firstRead{cell: cell, asOf: clock.Newest(), verifying: make(chan struct{}, 1)}
	// An older one could soon be below the safe point.
	if f.asOf == 0 || f.asOf < clock.Now().Add(-gctime.SafePointMaxAge()) {
		return nil
	}
	sel := store.Selection{Columns: []Column{cell.Column()}}
	t, err := r.Table(ctx, cell.Table)
	if err != nil || t.Schema.CheckRead(ctx, sel) != nil {
		return nil
	}
	ctx, span := r.Trace.Begin(ctx, "read", cell.Table)
	raw, err := t.TryReadRow(ctx, cell.Row, t.Newest(sel))
	span.EndWith(err)
	expiries, unknown := t.Schema.FreshExpiries(ctx)
	if _, expires := expiries[cell.Family]; expires || unknown != nil || err != nil || len(raw[format.LockFamily]) > 0 {
		return nil
	}
	for _, item := range raw[format.WriteFamily] {
		f.version = tso.FromCell(item.Timestamp)
	}
	e, err := recovery.Evaluate(ctx, t, raw, sel, f.asOf, nil)
	if err != nil || len(e.Exact) > 0 {
		return nil
	}
	if items := e.Row[cell.Family]; len(items) > 0 {
		f.item, f.present = items[0], true
	}
	return f
}

// take returns the value for GetForUpdate, and makes the cell the primary.
// known is false if the client has to read it.
func (f *firstRead) take(cell Cell, b *buffer.Buffer) (value []byte, present, known bool) {
	if f.cell != cell {
		return nil, false, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.used || f.dropped || !b.LockFirst(cell) {
		return nil, false, false
	}
	f.used = true
	if !f.present {
		return nil, false, true
	}
	return append([]byte{}, f.item.Value...), true, true
}

// of returns the version that the prewrite of a row relies on. ok is false if it relies on none.
func (f *firstRead) of(row *store.RowWrites) (version tso.Timestamp, ok bool) {
	if f == nil || !row.IsRowOf(f.cell) {
		return 0, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version, f.used
}

// verify reads the cell at start_ts, before another read, so that the function sees one state.
func (f *firstRead) verify(ctx context.Context, r *recovery.Resolver, startTS tso.Timestamp) error {
	if f == nil {
		return nil
	}
	select {
	case f.verifying <- struct{}{}:
		defer func() { <-f.verifying }()
	case <-ctx.Done():
		return store.Ended(ctx, "percolator: reading "+f.cell.String()+" again", nil)
	}
	if f.settled() {
		return nil
	}
	table, err := r.Table(ctx, f.cell.Table)
	if err != nil {
		return err
	}
	row, err := recovery.ReadVisible(ctx, r, table, f.cell.Row, store.Selection{Columns: []Column{f.cell.Column()}}, startTS)
	if err = r.SafePoint.AfterRead(ctx, startTS, err); err != nil {
		return err
	}
	items := row[f.cell.Family]
	if (len(items) > 0) != f.present || f.present && items[0].Timestamp != f.item.Timestamp {
		return f.conflict(startTS)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verified = true
	return nil
}

// settled reports whether another read of the transaction need not verify.
func (f *firstRead) settled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropped = !f.used
	return f.dropped || f.verified
}

// oldest returns the timestamp that garbage collection must not pass.
func (f *firstRead) oldest(startTS tso.Timestamp) tso.Timestamp {
	if f == nil {
		return startTS
	}
	return min(f.asOf, startTS)
}

// checkWrite fails if garbage collection may have removed a commit that the read missed.
func (f *firstRead) checkWrite(ctx context.Context, r *recovery.Resolver, startTS tso.Timestamp) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	used := f.used
	f.mu.Unlock()
	if !used || r.SafePoint.CheckWrite(ctx, f.oldest(startTS)) == nil {
		return nil
	}
	return f.conflict(startTS)
}

// conflict is the error if another transaction may have changed the cell after the read.
func (f *firstRead) conflict(startTS tso.Timestamp) error {
	return &format.ConflictError{Cell: f.cell, StartTS: startTS, ConflictTS: f.version, Reason: format.ConflictWrite}
}
