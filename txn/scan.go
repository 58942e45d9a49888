package txn

import (
	"cmp"
	"context"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/buffer"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A scan takes the rows of a request in pages, as they arrive. It resolves the locks in a page
// together, merges the transaction's own writes in, and yields the rows of the page to the
// consumer while the next page arrives. If the consumer is slow, gRPC's flow control slows
// the server down. A page is bounded in rows and bytes, so a large scan needs little memory.
//
// After half of Config.RPCTimeout, the consumer's time included, a scan ends its request
// with the current page, full or not, and continues after that page with another request.
// It does the same when a request reaches its deadline, if any row has arrived. A client
// has at most maxStreams such requests under way. In further scans a request ends with
// each page, because consumers may need requests of their own, and Bigtable accepts a
// hundred at a time on a connection.
const (
	pageRows   = 256
	maxStreams = 16
)

// A scan is one iteration of View.ReadRows.
type scan struct {
	view    *View
	table   *store.Table
	options readOptions
	sel     store.Selection // what is read: options.sel, widened by overlay
	yield   func(bigtable.Row, error) bool
	overlay *buffer.Overlay // nil in a snapshot
	rest    store.RowSet    // rows that were not yielded yet
	pieces  store.Pieces
	page    []pageRow
	bytes   int  // size of page
	yielded int  // number of rows
	stopped bool // the consumer wants no more
}

// A pageRow is one row of a page: as read, and as evaluated.
type pageRow struct {
	key string
	raw bigtable.Row // until its locks are resolved
	row recovery.Evaluation
}

// run yields all rows, in as many requests as it takes.
func (s *scan) run(ctx context.Context) error {
	for !s.rest.Empty() && !s.stopped {
		if err := s.request(ctx); err != nil {
			return err
		}
	}
	s.yieldOwnBefore("")
	return nil
}

// request makes one request, yields the rows of its answer, and removes them from rest.
func (s *scan) request(ctx context.Context) error {
	filter := bigtable.RowFilter(s.table.VisibleAt(s.sel, s.view.at()))
	limit := 0
	streams := &s.view.client.streams
	onePage := streams.Add(1) > maxStreams
	defer streams.Add(-1)
	if onePage {
		limit = pageRows
	}
	if s.options.limit > 0 {
		// 16 more, because some rows may have no visible cell.
		n := min(s.options.limit-s.yielded, store.MaxPageRows) + 16
		limit = min(cmp.Or(limit, n), n)
	}
	began, read, endRequest := time.Now(), 0, false
	late := func() bool { return time.Since(began) > s.view.client.resolver.Store.Config.RPCTimeout/2 }
	var failed error
	left, err := s.table.StreamSet(ctx, &s.pieces, s.rest, s.options.reverse, limit, func(raw bigtable.Row) (more bool, blocked time.Duration) {
		read++
		if failed = s.addRow(ctx, raw); failed != nil {
			return false, 0
		}
		if len(s.page) < pageRows && s.bytes < store.MaxPageBytes && !late() {
			return true, 0
		}
		arrived := time.Now()
		failed = s.deliverPage(ctx)
		endRequest = onePage || late()
		return failed == nil && !s.stopped && !endRequest, time.Since(arrived)
	}, filter)
	if err != nil && failed == nil && !s.stopped && !endRequest {
		if read > 0 && store.CutShort(ctx, err) {
			return s.deliverPage(ctx)
		}
		failed = s.view.client.resolver.SafePoint.AfterRead(ctx, s.view.at(), err)
	}
	if failed != nil || s.stopped || endRequest {
		return failed
	}
	if err := s.deliverPage(ctx); err != nil {
		return err
	}
	if limit == 0 || read < limit {
		s.rest = left
	}
	return nil
}

// addRow adds a row to the page.
func (s *scan) addRow(ctx context.Context, raw bigtable.Row) error {
	e, err := recovery.Evaluate(ctx, s.table, raw, s.sel, s.view.at(), nil)
	if err != nil {
		return s.view.client.resolver.SafePoint.AfterRead(ctx, s.view.at(), err)
	}
	s.bytes += store.RowBytes(raw)
	s.page = append(s.page, pageRow{key: raw.Key(), raw: raw, row: e})
	return nil
}

// deliverPage yields the rows of the page to the consumer and removes them from rest.
func (s *scan) deliverPage(ctx context.Context) error {
	err := s.resolvePage(ctx, s.page)
	// Also check an empty page: garbage collection may have removed its rows.
	if err := s.view.client.resolver.SafePoint.AfterRead(ctx, s.view.at(), err); err != nil {
		return err
	}
	if len(s.page) == 0 {
		return nil
	}
	for i := range s.page {
		r := &s.page[i]
		if s.view.txn != nil {
			s.view.txn.noteExpiry(s.table, r.row.Row)
		}
		if !s.yieldOwnBefore(r.key) || !s.yieldMerged(r.key, r.row.Row) {
			break
		}
	}
	s.rest = s.rest.AfterKey(s.page[len(s.page)-1].key, s.options.reverse)
	clear(s.page)
	s.page, s.bytes = s.page[:0], 0
	return nil
}

// resolvePage resolves the locks of all rows of a page together. It reads these rows again
// until no lock is left that blocks the read.
func (s *scan) resolvePage(ctx context.Context, page []pageRow) error {
	passed := recovery.Ignored{}
	for {
		var locks []*format.Lock
		var blocked []*pageRow
		for i := range page {
			if r := &page[i]; len(r.row.Locks) > 0 {
				locks = append(locks, r.row.Locks...)
				blocked = append(blocked, r)
			}
		}
		if len(locks) == 0 {
			break
		}
		again, err := recovery.ResolveForRead(ctx, s.view.client.resolver, locks, s.view.at(), passed)
		if err != nil {
			return err
		}
		if again {
			err = s.readAgain(ctx, blocked, passed)
		} else {
			for _, r := range blocked {
				if r.row, err = recovery.Evaluate(ctx, s.table, r.raw, s.sel, s.view.at(), passed); err != nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.view.client.resolver.Store.Config.Parallelism)
	for i := range page {
		r := &page[i]
		r.raw = nil
		recovery.ResolveInBackground(s.view.client.resolver, r.row.Stranded, s.view.at())
		if len(r.row.Exact) > 0 || s.sel.First > 0 {
			g.Go(func() error { return r.row.Complete(gctx, s.view.client.resolver, s.table, r.key, s.sel, s.view.at()) })
		}
	}
	return g.Wait()
}

// readAgain reads the blocked rows again.
func (s *scan) readAgain(ctx context.Context, blocked []*pageRow, passed recovery.Ignored) error {
	set, byKey := store.RowSet{Keys: make([]string, 0, len(blocked))}, make(map[string]*pageRow, len(blocked))
	for _, r := range blocked {
		set.Keys, byKey[r.key] = append(set.Keys, r.key), r
		// A row that is gone now has nothing visible.
		*r = pageRow{key: r.key}
	}
	slices.Sort(set.Keys)
	var failed error
	err := s.table.ReadKeys(ctx, set, func(raw bigtable.Row) bool {
		r := byKey[raw.Key()]
		r.raw = raw
		r.row, failed = recovery.Evaluate(ctx, s.table, raw, s.sel, s.view.at(), passed)
		return failed == nil
	}, bigtable.RowFilter(s.table.VisibleAt(s.sel, s.view.at())))
	return cmp.Or(failed, err)
}

// yieldOwnBefore yields the rows that only the transaction itself has written and that come
// before key in the direction of the scan. If key is empty, it yields all remaining ones.
// It reports whether the consumer wants more.
func (s *scan) yieldOwnBefore(key string) bool {
	if s.overlay == nil {
		return true
	}
	for !s.stopped {
		next, ok := s.overlay.Next(s.options.reverse)
		if !ok || key != "" && (next == key || (next < key) == s.options.reverse) {
			return true
		}
		s.overlay.DropNext(s.options.reverse)
		s.yieldRow(s.overlay.Apply(next, nil))
	}
	return !s.stopped
}

// yieldMerged yields a row that was read, with the transaction's own writes applied. It
// reports whether the consumer wants more.
func (s *scan) yieldMerged(key string, row bigtable.Row) bool {
	if s.overlay != nil {
		if next, ok := s.overlay.Next(s.options.reverse); ok && next == key {
			s.overlay.DropNext(s.options.reverse)
		}
		row = s.overlay.Apply(key, row)
	}
	s.yieldRow(row)
	return !s.stopped
}

// yieldRow yields a row, unless it is empty.
func (s *scan) yieldRow(row bigtable.Row) {
	if len(row) > 0 {
		s.yielded++
		s.stopped = !s.yield(store.FirstCells(row, s.options.sel.First), nil) || s.yielded == s.options.limit
	}
}
