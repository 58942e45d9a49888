package txn

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
)

// maxPageRows and maxPageBytes bound a page of rows, so that a long read needs little
// memory.
const (
	maxPageRows  = 4096
	maxPageBytes = 4 << 20
)

// table is one opened table: its requests, each with a deadline and with
// errors that name it, and its schema.
type table struct {
	name   string
	api    bigtable.TableAPI
	store  *store
	schema schemaSource
}

func newTable(s *store, name string) *table {
	t := &table{name: name, api: s.opener.OpenTable(name), store: s}
	t.schema = schemaSource{table: t, reloading: make(chan struct{}, 1)}
	return t
}

// timeout gives a request its deadline. Most have an earlier one from their
// caller already; a context of their own would only cost.
func (t *table) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= t.store.cfg.RPCTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, t.store.cfg.RPCTimeout)
}

// readRow reads one row. A row without matching cells is nil.
func (t *table) readRow(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error) {
	rctx, cancel := t.timeout(ctx)
	defer cancel()
	began := time.Now()
	r, err := t.api.ReadRow(rctx, row, bigtable.RowFilter(f))
	err = wrapRPC(ctx, "read", t.name, err)
	t.store.metrics.operation(ctx, "ReadRow", t.name, began, err)
	return r, err
}

// readRows calls fn for each row until it returns false. The deadline is for
// the whole request, so requests have to be bounded.
func (t *table) readRows(ctx context.Context, rows bigtable.RowSet, fn func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	rctx, cancel := t.timeout(ctx)
	defer cancel()
	began := time.Now()
	err := wrapRPC(ctx, "read", t.name, t.api.ReadRows(rctx, rows, fn, opts...))
	t.store.metrics.operation(ctx, "ReadRows", t.name, began, err)
	return err
}

// readPage is readRows for one page of a long read: of at most so many rows, as long
// as fn wants more, and no longer than half of the timeout; a request that comes to
// its deadline is a page, too, if it has brought any row. cut: the page has rows,
// and there may be more behind them.
func (t *table) readPage(ctx context.Context, rows bigtable.RowSet, most int, filter bigtable.Filter, fn func(bigtable.Row) bool) (cut bool, err error) {
	began, n := time.Now(), 0
	err = t.readRows(ctx, rows, func(raw bigtable.Row) bool {
		n++
		cut = !fn(raw) || time.Since(began) > t.store.cfg.RPCTimeout/2
		return !cut
	}, bigtable.RowFilter(filter), bigtable.LimitRows(int64(most)))
	if n > 0 && tookTooLong(ctx, err) {
		return true, nil
	}
	return cut || n == most, err
}

// streamRows is readRows for an answer that is consumed as it arrives: fn says,
// besides, how long its caller was held up by others than Bigtable.
func (t *table) streamRows(ctx context.Context, rows bigtable.RowSet, fn func(bigtable.Row) (goOn bool, blocked time.Duration), opts ...bigtable.ReadOption) error {
	rctx, cancel := t.timeout(ctx)
	defer cancel()
	began := time.Now()
	err := t.api.ReadRows(rctx, rows, func(raw bigtable.Row) bool {
		goOn, blocked := fn(raw)
		began = began.Add(blocked)
		return goOn
	}, opts...)
	err = wrapRPC(ctx, "read", t.name, err)
	t.store.metrics.operation(ctx, "ReadRows", t.name, began, err)
	return err
}

// checkAndMutate is one CheckAndMutateRow. Unless permanent(err), an error
// leaves open whether it was applied; the Bigtable client never retries it.
func (t *table) checkAndMutate(ctx context.Context, row string, predicate bigtable.Filter, onMatch, onMiss *bigtable.Mutation) (matched bool, err error) {
	rctx, cancel := t.timeout(ctx)
	defer cancel()
	began := time.Now()
	err = t.api.Apply(rctx, row, bigtable.NewCondMutation(predicate, onMatch, onMiss), bigtable.GetCondMutationResult(&matched))
	err = wrapRPC(ctx, "conditional mutation", t.name, err)
	t.store.metrics.operation(ctx, "CheckAndMutateRow", t.name, began, err)
	return matched, err
}

// A rowMutation is an unconditional, idempotent mutation of one row: every
// cell in it has an explicit timestamp, because the Bigtable client may apply
// it more than once (design §5, hazard 15).
type rowMutation struct {
	row string
	mut *bigtable.Mutation
	// ops is the number of changes in mut; Bigtable bounds their sum.
	ops int
	// names bounds the bytes of the names of columns and rows in mut.
	names int
	// hints are the observed cells that it commits.
	hints []Cell
	// startTS is that of the transaction whose commit this is: the mutation is
	// not sent any more once the safe point is there. 0 where that does not
	// matter.
	startTS tso.Timestamp
	// secondaries is the span of the commit that it belongs to; nil: none.
	secondaries *secondaries
	// deadline is when the background gives the mutation up.
	deadline time.Time
	// err is why the mutation is not known to be applied; shared: it may be because
	// of another transaction's, in the same request.
	err    error
	shared bool
}

// apply sends the mutations in as few requests as Bigtable's limit allows and
// returns those that are not known to be applied.
func (t *table) apply(ctx context.Context, muts []rowMutation) (failed []rowMutation, err error) {
	for len(muts) > 0 {
		n, ops := 0, 0
		for n < len(muts) && (n == 0 || ops+muts[n].ops <= maxMutations) {
			ops += muts[n].ops
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

func (t *table) applyOnce(ctx context.Context, muts []rowMutation) (failed []rowMutation, err error) {
	// The deadline first, then the check: what a collector's fence waits for is
	// the request's time, counted from when the safe point was good.
	rctx, cancel := context.WithTimeout(ctx, min(t.store.cfg.RPCTimeout, gctime.MaxApply()))
	defer cancel()
	muts, failed, err = t.store.safePoint.keepAbove(rctx, muts)
	switch {
	case err != nil:
		return failAll(muts, err), err
	case len(failed) > 0:
		err = failed[0].err
	}
	if len(muts) == 0 {
		return failed, err
	}
	rows := make([]string, len(muts))
	ms := make([]*bigtable.Mutation, len(muts))
	for i, m := range muts {
		rows[i], ms[i] = m.row, m.mut
	}
	// ApplyBulk can return an error with some entries applied: all of them
	// count as failed then, and are done again.
	began := time.Now()
	errs, bulkErr := t.api.ApplyBulk(rctx, rows, ms)
	bulkErr = wrapRPC(ctx, "bulk mutation", t.name, bulkErr)
	t.store.metrics.operation(ctx, "MutateRows", t.name, began, bulkErr)
	if bulkErr != nil {
		return append(failed, failAll(muts, bulkErr)...), bulkErr
	}
	for i, e := range errs {
		if e != nil {
			err = wrapRPC(ctx, "bulk mutation", t.name, e)
			failed = append(failed, muts[i])
			failed[len(failed)-1].err = err
		}
	}
	return failed, err
}

func failAll(muts []rowMutation, err error) []rowMutation {
	failed := slices.Clone(muts)
	for i := range failed {
		failed[i].err = err
	}
	return failed
}
