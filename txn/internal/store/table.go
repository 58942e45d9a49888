package store

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// maxPageRows and maxPageBytes bound a page of rows, so that a long read needs little
// memory.
const (
	MaxPageRows  = 4096
	MaxPageBytes = 4 << 20
)

// Table is one opened table: its requests, each with a deadline and with
// errors that name it, and its schema.
type Table struct {
	Name   string
	API    bigtable.TableAPI
	store  *Store
	Schema SchemaSource
}

func newTable(s *Store, name string) *Table {
	t := &Table{Name: name, API: s.opener.OpenTable(name), store: s}
	t.Schema = SchemaSource{table: t, reloading: make(chan struct{}, 1)}
	return t
}

// Timeout gives a request its deadline. Most have an earlier one from their
// caller already; a context of their own would only cost.
func (t *Table) Timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= t.store.Config.RPCTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, t.store.Config.RPCTimeout)
}

// ReadRow reads one row. A row without matching cells is nil.
func (t *Table) ReadRow(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error) {
	rctx, cancel := t.Timeout(ctx)
	defer cancel()
	began := time.Now()
	r, err := t.API.ReadRow(rctx, row, bigtable.RowFilter(f))
	err = WrapRPC(ctx, "read", t.Name, err)
	t.store.Metrics.Operation(ctx, "ReadRow", t.Name, began, err)
	return r, err
}

// ReadRows calls fn for each row until it returns false. The deadline is for
// the whole request, so requests have to be bounded.
func (t *Table) ReadRows(ctx context.Context, rows bigtable.RowSet, fn func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	rctx, cancel := t.Timeout(ctx)
	defer cancel()
	began := time.Now()
	err := WrapRPC(ctx, "read", t.Name, t.API.ReadRows(rctx, rows, fn, opts...))
	t.store.Metrics.Operation(ctx, "ReadRows", t.Name, began, err)
	return err
}

// ReadPage is readRows for one page of a long read: of at most so many rows, as long
// as fn wants more, and no longer than half of the timeout; a request that comes to
// its deadline is a page, too, if it has brought any row. cut: the page has rows,
// and there may be more behind them.
func (t *Table) ReadPage(ctx context.Context, rows bigtable.RowSet, most int, filter bigtable.Filter, fn func(bigtable.Row) bool) (cut bool, err error) {
	began, n := time.Now(), 0
	err = t.ReadRows(ctx, rows, func(raw bigtable.Row) bool {
		n++
		cut = !fn(raw) || time.Since(began) > t.store.Config.RPCTimeout/2
		return !cut
	}, bigtable.RowFilter(filter), bigtable.LimitRows(int64(most)))
	if n > 0 && RequestTimedOut(ctx, err) {
		return true, nil
	}
	return cut || n == most, err
}

// StreamRows is readRows for an answer that is consumed as it arrives: fn says,
// besides, how long its caller was held up by others than Bigtable.
func (t *Table) StreamRows(ctx context.Context, rows bigtable.RowSet, fn func(bigtable.Row) (goOn bool, blocked time.Duration), opts ...bigtable.ReadOption) error {
	rctx, cancel := t.Timeout(ctx)
	defer cancel()
	began := time.Now()
	err := t.API.ReadRows(rctx, rows, func(raw bigtable.Row) bool {
		goOn, blocked := fn(raw)
		began = began.Add(blocked)
		return goOn
	}, opts...)
	err = WrapRPC(ctx, "read", t.Name, err)
	t.store.Metrics.Operation(ctx, "ReadRows", t.Name, began, err)
	return err
}

// CheckAndMutate is one CheckAndMutateRow. Unless permanent(err), an error
// leaves open whether it was applied; the Bigtable client never retries it.
func (t *Table) CheckAndMutate(ctx context.Context, row string, predicate bigtable.Filter, onMatch, onMiss *bigtable.Mutation) (matched bool, err error) {
	rctx, cancel := t.Timeout(ctx)
	defer cancel()
	began := time.Now()
	err = t.API.Apply(rctx, row, bigtable.NewCondMutation(predicate, onMatch, onMiss), bigtable.GetCondMutationResult(&matched))
	err = WrapRPC(ctx, "conditional mutation", t.Name, err)
	t.store.Metrics.Operation(ctx, "CheckAndMutateRow", t.Name, began, err)
	return matched, err
}

// A rowMutation is an unconditional, idempotent mutation of one row: every
// cell in it has an explicit timestamp, because the Bigtable client may apply
// it more than once (design §5, hazard 15).
type RowMutation struct {
	Row string
	Mut *bigtable.Mutation
	// Ops is the number of changes in mut; Bigtable bounds their sum.
	Ops int
	// NameBytes bounds the bytes of the names of columns and rows in mut.
	NameBytes int
	// Hints are the observed cells that it commits.
	Hints []format.Cell
	// StartTS is that of the transaction whose commit this is: the mutation is
	// not sent any more once the safe point is there. 0 where that does not
	// matter.
	StartTS tso.Timestamp
	// Secondaries is the span of the commit that it belongs to; nil: none.
	Secondaries *telemetry.Secondaries
	// deadline is when the background gives the mutation up.
	deadline time.Time
	// Err is why the mutation is not known to be applied; shared: it may be because
	// of another transaction's, in the same request.
	Err    error
	shared bool
}

// Apply sends the mutations in as few requests as Bigtable's limit allows and
// returns those that are not known to be applied.
func (t *Table) Apply(ctx context.Context, muts []RowMutation) (failed []RowMutation, err error) {
	for len(muts) > 0 {
		n, ops := 0, 0
		for n < len(muts) && (n == 0 || ops+muts[n].Ops <= format.MaxMutations) {
			ops += muts[n].Ops
			n++
		}
		f, e := t.applyOnce(ctx, muts[:n])
		failed = append(failed, f...)
		if e != nil {
			err = e
		}
		muts = muts[n:]
	}
	return failed, err
}

func (t *Table) applyOnce(ctx context.Context, muts []RowMutation) (failed []RowMutation, err error) {
	// The deadline first, then the check: what a collector's fence waits for is
	// the request's time, counted from when the safe point was good.
	rctx, cancel := context.WithTimeout(ctx, min(t.store.Config.RPCTimeout, gctime.MaxApply()))
	defer cancel()
	muts, failed, err = t.store.SafePoint.splitTooOld(rctx, muts)
	switch {
	case err != nil:
		return failAll(muts, err), err
	case len(failed) > 0:
		err = failed[0].Err
	}
	if len(muts) == 0 {
		return failed, err
	}
	rows := make([]string, len(muts))
	ms := make([]*bigtable.Mutation, len(muts))
	for i, m := range muts {
		rows[i], ms[i] = m.Row, m.Mut
	}
	// ApplyBulk can return an error with some entries applied: all of them
	// count as failed then, and are done again.
	began := time.Now()
	errs, bulkErr := t.API.ApplyBulk(rctx, rows, ms)
	bulkErr = WrapRPC(ctx, "bulk mutation", t.Name, bulkErr)
	t.store.Metrics.Operation(ctx, "MutateRows", t.Name, began, bulkErr)
	if bulkErr != nil {
		return append(failed, failAll(muts, bulkErr)...), bulkErr
	}
	for i, e := range errs {
		if e != nil {
			err = WrapRPC(ctx, "bulk mutation", t.Name, e)
			failed = append(failed, muts[i])
			failed[len(failed)-1].Err = err
		}
	}
	return failed, err
}

func failAll(muts []RowMutation, err error) []RowMutation {
	failed := slices.Clone(muts)
	for i := range failed {
		failed[i].Err = err
	}
	return failed
}

// size bounds the memory that a mutation takes.
func (m *RowMutation) size() int {
	const opBytes = 256 // with its messages, short names and a record
	return opBytes*m.Ops + len(m.Row) + m.NameBytes
}
