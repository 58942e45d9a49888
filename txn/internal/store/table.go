package store

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/settled"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// The bounds of a page of rows, so that a long read needs little memory.
const (
	MaxPageRows  = 4096
	MaxPageBytes = 4 << 20
)

// A Table makes the requests of one table, each with a deadline and with errors that name the
// table, and holds its schema.
type Table struct {
	Name    string
	API     bigtable.TableAPI
	store   *Store
	Schema  SchemaSource
	tablets tablets
	ill     illness
}

func newTable(s *Store, name string) *Table {
	t := &Table{Name: name, API: s.opener.OpenTable(name), store: s}
	t.Schema = SchemaSource{table: t, reloading: make(chan struct{}, 1)}
	news := make(chan struct{})
	t.Schema.news.Store(&news)
	return t
}

// Timeout returns a context that ends after Config.RPCTimeout. Mostly the caller's deadline is
// earlier already; then it returns ctx, because another context would only cost.
func (t *Table) Timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return within(ctx, t.store.Config.RPCTimeout)
}

func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= limit {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// admitRead waits for a place for a read of the table.
func (t *Table) admitRead(ctx context.Context) error {
	if t == t.store.Metadata {
		return nil // every read depends on it
	}
	return t.store.reads.Admit(ctx, "reads")
}

func (t *Table) releaseRead() {
	if t != t.store.Metadata {
		t.store.reads.Release()
	}
}

func (t *Table) attempts() attempts {
	return attempts{table: t, pause: t.store.Config.Backoff.Start()}
}

// VisibleAt is the filter of a read of the table at ts (Selection.VisibleAt).
func (t *Table) VisibleAt(sel Selection, ts tso.Timestamp) bigtable.Filter {
	return sel.VisibleAt(ts, t.dataFamilies(sel))
}

// Newest is VisibleAt the end of time.
func (t *Table) Newest(sel Selection) bigtable.Filter { return sel.Newest(t.dataFamilies(sel)) }

// dataFamilies returns the families that the filter of a read of everything must name.
func (t *Table) dataFamilies(sel Selection) []string {
	s := t.Schema.Current()
	if sel.KeysOnly {
		return s.DataFamilies()
	}
	return s.ReadFamilies()
}

// ReadRow reads one row. It returns nil if no cell of the row matches. It tries again until
// ctx ends.
func (t *Table) ReadRow(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error) {
	for a := t.attempts(); ; {
		r, err := t.ReadRowOnce(ctx, row, f)
		if err != nil {
			err = a.again(ctx, err)
			if err == nil {
				continue
			}
		}
		return r, err
	}
}

// ReadRowOnce is one try of ReadRow.
func (t *Table) ReadRowOnce(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error) {
	if err := t.admitRead(ctx); err != nil {
		return nil, err
	}
	defer t.releaseRead()
	return t.TryReadRow(ctx, row, f)
}

// TryReadRow is ReadRowOnce for callers that must not wait for other reads.
func (t *Table) TryReadRow(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error) {
	return t.TryReadRowWithin(ctx, t.store.Config.RPCTimeout, row, f)
}

// TryReadRowWithin is TryReadRow for a caller that waits no longer than limit.
func (t *Table) TryReadRowWithin(ctx context.Context, limit time.Duration, row string, f bigtable.Filter) (bigtable.Row, error) {
	rctx, cancel := within(ctx, limit)
	defer cancel()
	began := time.Now()
	r, err := t.API.ReadRow(rctx, row, bigtable.RowFilter(f))
	err = WrapRPC(ctx, "read", t.Name, err)
	t.store.Metrics.Operation(ctx, "ReadRow", t.Name, began, err)
	return r, err
}

// ReadRows calls fn for each row until fn returns false. Until the first row has arrived, it
// tries again until ctx ends. Config.RPCTimeout bounds the whole request, so the caller must
// bound the number of rows. Of a range in which few rows match, read pages.
func (t *Table) ReadRows(ctx context.Context, rows bigtable.RowSet, fn func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	for a := t.attempts(); ; {
		arrived, err := t.tryReadRows(ctx, rows, fn, opts)
		if err != nil && !arrived {
			err = a.again(ctx, err)
			if err == nil {
				continue
			}
		}
		return err
	}
}

// TryReadRows is one try of ReadRows.
func (t *Table) TryReadRows(ctx context.Context, rows bigtable.RowSet, fn func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	_, err := t.tryReadRows(ctx, rows, fn, opts)
	return err
}

func (t *Table) tryReadRows(ctx context.Context, rows bigtable.RowSet, fn func(bigtable.Row) bool, opts []bigtable.ReadOption) (arrived bool, err error) {
	return t.tryStreamRows(ctx, rows, func(raw bigtable.Row) (bool, time.Duration) { return fn(raw), 0 }, opts)
}

// ReadKeys is ReadRows of a sorted set of keys, which may need several requests. It continues after
// an answer that was cut short.
func (t *Table) ReadKeys(ctx context.Context, set RowSet, fn func(bigtable.Row) bool, opts ...bigtable.ReadOption) error {
	for !set.Empty() {
		request, last, goOn := set.Request(false), "", true
		err := t.ReadRows(ctx, request, func(raw bigtable.Row) bool {
			last, goOn = raw.Key(), fn(raw)
			return goOn
		}, opts...)
		switch {
		case !goOn:
			return nil
		case last != "" && CutShort(ctx, err):
			set = set.AfterKey(last, false)
		case err != nil:
			return err
		default:
			set = set.AfterRequest(request, false)
		}
	}
	return nil
}

// ReadPage reads one page of a long read: at most that many rows of rest, as long as fn returns
// true, and for at most half of Config.RPCTimeout. A page may have no rows. If the request
// fails after some rows, and another one may succeed, these rows are a page too. left are the
// rows of rest after the page.
func (t *Table) ReadPage(ctx context.Context, p *Pieces, rest RowSet, maxRows int, filter bigtable.Filter, fn func(bigtable.Row) bool) (left RowSet, err error) {
	return t.readPage(ctx, p, false, rest, maxRows, filter, fn)
}

// readPage is ReadPage. once is that of streamSet.
func (t *Table) readPage(ctx context.Context, p *Pieces, once bool, rest RowSet, maxRows int, filter bigtable.Filter, fn func(bigtable.Row) bool) (left RowSet, err error) {
	began, rowsRead, last, cut := time.Now(), 0, "", false
	left, err = t.streamSet(ctx, p, rest, false, maxRows, once, func(raw bigtable.Row) (bool, time.Duration) {
		rowsRead++
		last = raw.Key()
		cut = !fn(raw) || time.Since(began) > t.store.Config.RPCTimeout/2
		return !cut, 0
	}, []bigtable.ReadOption{bigtable.RowFilter(filter)})
	if rowsRead > 0 && CutShort(ctx, err) {
		cut, err = true, nil
	}
	if cut || rowsRead == maxRows {
		return rest.AfterKey(last, false), err
	}
	return left, err
}

// pages reads rows page by page and calls fn with each page, until fn returns false or an error.
func (t *Table) pages(ctx context.Context, rs bigtable.RowSet, once bool, filter func(*Table) bigtable.Filter, fn func(*Table, []bigtable.Row) (bool, error)) error {
	rest, err := NewRowSet(rs)
	if err != nil {
		return err
	}
	var pieces Pieces
	for !rest.Empty() {
		var page []bigtable.Row
		bytes := 0
		rest, err = t.readPage(ctx, &pieces, once, rest, MaxPageRows, filter(t), func(raw bigtable.Row) bool {
			page = append(page, raw)
			bytes += RowBytes(raw)
			return bytes < MaxPageBytes
		})
		if err != nil {
			return err
		}
		if goOn, err := fn(t, page); err != nil || !goOn {
			return err
		}
	}
	return nil
}

// StreamSet reads the next rows of a scan, in one request that is answered, and calls fn with
// each row until fn returns false. limit is the most rows of the request; 0 is no limit. left
// are the rows of rest that the request did not ask for. It is meaningful if there was no error
// and neither fn nor limit ended the request. fn also returns how long the caller blocked it,
// for example in the application's own loop.
//
// It tries again until ctx ends, or until the first row has arrived. A request that reaches its
// deadline without a row is repeated for fewer rows, so that the scan makes progress however few rows
// match.
func (t *Table) StreamSet(ctx context.Context, p *Pieces, rest RowSet, reverse bool, limit int, fn func(bigtable.Row) (goOn bool, blocked time.Duration), opts ...bigtable.ReadOption) (left RowSet, err error) {
	return t.streamSet(ctx, p, rest, reverse, limit, false, fn, opts)
}

// streamSet is StreamSet. If once is set, it tries again only while smaller pieces may help.
func (t *Table) streamSet(ctx context.Context, p *Pieces, rest RowSet, reverse bool, limit int, once bool, fn func(bigtable.Row) (bool, time.Duration), opts []bigtable.ReadOption) (left RowSet, err error) {
	if reverse {
		opts = append(opts, bigtable.ReverseScan())
	}
	if limit > 0 {
		opts = append(opts, bigtable.LimitRows(int64(limit)))
	}
	for a := t.attempts(); ; {
		piece, later := p.next(&t.tablets, rest, reverse)
		request := piece.Request(reverse)
		rows, stopped := 0, false
		began := time.Now()
		arrived, err := t.tryStreamRows(ctx, request, func(raw bigtable.Row) (bool, time.Duration) {
			rows++
			goOn, blocked := fn(raw)
			began = began.Add(blocked)
			stopped = !goOn || rows == limit
			return goOn, blocked
		}, opts)
		switch {
		case err == nil:
			if !stopped {
				p.answered(&t.tablets, time.Since(began), t.store.Config.RPCTimeout)
			}
			return piece.AfterRequest(request, reverse).join(later, reverse), nil
		case arrived:
			return RowSet{}, err
		}
		smaller := false
		if ownDeadline(ctx, err) {
			t.tabletBounds(ctx)
			smaller = p.tooSlow(&t.tablets, rest, piece, reverse)
		}
		if once && (!smaller || a.failed+1 >= maxSlowTries) {
			return RowSet{}, err
		}
		if err := a.again(ctx, err); err != nil {
			return RowSet{}, err
		}
	}
}

// Tablets divides rows into those of each tablet, as far as Bigtable says where tablets end.
func (t *Table) Tablets(ctx context.Context, rest RowSet) (parts []RowSet) {
	t.tabletBounds(ctx)
	t.tablets.mu.Lock()
	defer t.tablets.mu.Unlock()
	for !rest.Empty() {
		var part RowSet
		part, rest = t.tablets.cut(0, rest, false)
		parts = append(parts, part)
	}
	return parts
}

// tabletBounds asks where Bigtable divides the table, if that was long ago.
func (t *Table) tabletBounds(ctx context.Context) {
	t.tablets.mu.Lock()
	fresh := time.Since(t.tablets.asked) < boundsMaxAge
	t.tablets.mu.Unlock()
	if fresh {
		return
	}
	rctx, cancel := t.Timeout(ctx)
	defer cancel()
	began := time.Now()
	keys, err := t.API.SampleRowKeys(rctx)
	err = WrapRPC(ctx, "sample of row keys", t.Name, err)
	t.store.Metrics.Operation(ctx, "SampleRowKeys", t.Name, began, err)
	t.tablets.mu.Lock()
	defer t.tablets.mu.Unlock()
	if t.tablets.asked = time.Now(); err == nil {
		slices.Sort(keys)
		t.tablets.bounds = slices.DeleteFunc(slices.Compact(keys), func(k string) bool { return k == "" })
	}
}

// tryStreamRows makes one request. It has a place among the client's reads until the first row
// arrives: from then on the caller may read for the application that consumes the rows. fn also
// returns how long the caller blocked it, which does not count as Bigtable's time.
func (t *Table) tryStreamRows(ctx context.Context, rows bigtable.RowSet, fn func(bigtable.Row) (bool, time.Duration), opts []bigtable.ReadOption) (arrived bool, err error) {
	if err := t.admitRead(ctx); err != nil {
		return false, err
	}
	rctx, cancel := t.Timeout(ctx)
	defer cancel()
	began := time.Now()
	err = t.API.ReadRows(rctx, rows, func(raw bigtable.Row) bool {
		if !arrived {
			arrived = true
			t.releaseRead()
		}
		goOn, blocked := fn(raw)
		began = began.Add(blocked)
		return goOn
	}, opts...)
	if !arrived {
		t.releaseRead()
	}
	err = WrapRPC(ctx, "read", t.Name, err)
	t.store.Metrics.Operation(ctx, "ReadRows", t.Name, began, err)
	return arrived, err
}

// CheckAndMutate is one CheckAndMutateRow. After an error it is unknown whether Bigtable applied
// the mutation, unless Permanent(err) holds. The Bigtable client never retries it.
func (t *Table) CheckAndMutate(ctx context.Context, row string, predicate bigtable.Filter, onMatch, onMiss *bigtable.Mutation) (matched bool, err error) {
	return t.CheckAndMutateWithin(ctx, t.store.Config.RPCTimeout, row, predicate, onMatch, onMiss)
}

// CheckAndMutateWithin is CheckAndMutate for a caller that waits no longer than limit.
func (t *Table) CheckAndMutateWithin(ctx context.Context, limit time.Duration, row string, predicate bigtable.Filter, onMatch, onMiss *bigtable.Mutation) (matched bool, err error) {
	rctx, cancel := within(ctx, limit)
	defer cancel()
	began := time.Now()
	err = t.API.Apply(rctx, row, bigtable.NewCondMutation(predicate, onMatch, onMiss), bigtable.GetCondMutationResult(&matched))
	if err == nil {
		t.noteAnswered(row, time.Since(began))
	}
	err = WrapRPC(ctx, "conditional mutation", t.Name, err)
	t.store.Metrics.Operation(ctx, "CheckAndMutateRow", t.Name, began, err)
	return matched, err
}

// A RowMutation is an unconditional, idempotent mutation of one row. Each cell in it has an
// explicit timestamp, because the Bigtable client may apply it more than once (design §5,
// hazard 15).
type RowMutation struct {
	Row string
	Mut *bigtable.Mutation
	// Ops is the number of changes in Mut. Bigtable limits their sum in a request.
	Ops int
	// NameBytes is an upper bound of the bytes that the names of columns and rows take in Mut.
	NameBytes int
	// Hints are the observed cells that the mutation commits.
	Hints []format.Cell
	// StartTS is the start_ts of the transaction. The client does not send
	// the mutation once the safe point has reached it. 0 means that the safe point does not
	// matter.
	StartTS tso.Timestamp
	// Secondaries is the span of the commit that the mutation belongs to; nil is none.
	Secondaries *telemetry.Secondaries
	// Settles is the commit that has no locks left once all its mutations are applied; nil if
	// nobody needs to know.
	Settles *settled.Commit
	// deadline is when the background gives the mutation up.
	deadline time.Time
	// Err is the error of the last request with the mutation. It may have been applied
	// nevertheless.
	Err error
	// shared says that the request had mutations of other transactions too, so Err may be
	// about those.
	shared bool
}

// Apply sends the mutations in as few requests as Bigtable's limits allow. It returns the
// mutations that may not have been applied, each with its error, and the last error.
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
	// First the deadline, then the check. A collector's fence waits for the time of a
	// request, counted from a moment when the client relied on the safe point.
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
	// If ApplyBulk returns an error, it may still have applied some entries. They all count
	// as failed, and the caller sends them again.
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

// size returns an upper bound of the memory that a mutation takes, in bytes.
func (m *RowMutation) size() int {
	const opBytes = 256 // a change with its messages, short names and a record
	return opBytes*m.Ops + len(m.Row) + m.NameBytes
}
