package txn

import (
	"context"
	"slices"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
)

// A scan reads pages of rows, settles the locks in a page together, and merges
// the transaction's own writes in. A page is bounded in rows and bytes, so
// that a large scan needs little memory, no request runs long, and the
// emulator, which prepares a whole range before it answers, does little of
// that.
const (
	firstPageRows = 256
	maxPageRows   = 4096
	maxPageBytes  = 4 << 20
)

type scan struct {
	view    *View
	table   *table
	options readOptions
	overlay *overlay // nil in a snapshot
	rest    rowSet   // what was not read yet
	given   int      // rows yielded
}

// pageRow is one row of a page, as read and then as evaluated.
type pageRow struct {
	key string
	raw bigtable.Row // kept while locks are in the way
	row evaluation
}

func (s *scan) run(ctx context.Context, yield func(bigtable.Row, error) bool) error {
	rows := firstPageRows
	if s.rest.keys != nil {
		rows = maxPageRows
	}
	if s.options.limit > 0 {
		// Some rows may turn out to have nothing visible.
		rows = min(rows, min(s.options.limit, maxPageRows)+16)
	}
	for !s.rest.empty() {
		page, err := s.readPage(ctx, rows)
		if err == nil {
			err = s.settle(ctx, page)
		}
		if err := s.view.client.afterRead(ctx, s.view.ts, err); err != nil {
			return err
		}
		for _, r := range page {
			if !s.emitBefore(r.key, yield) || !s.emit(r.key, r.row.row, yield) {
				return nil
			}
		}
		rows = min(rows*2, maxPageRows)
	}
	s.emitBefore("", yield)
	return nil
}

// readPage reads the next page and moves rest behind it.
func (s *scan) readPage(ctx context.Context, rows int) ([]*pageRow, error) {
	request := s.rest.request(s.options.reverse)
	opts := []bigtable.ReadOption{
		bigtable.RowFilter(s.options.sel.visibleAt(s.view.ts, s.table.current().readFamilies())),
		bigtable.LimitRows(int64(rows)),
	}
	if s.options.reverse {
		opts = append(opts, bigtable.ReverseScan())
	}
	var page []*pageRow
	var failed error
	bytes, full := 0, false
	err := s.table.readRows(ctx, request, func(raw bigtable.Row) bool {
		e, err := evaluate(s.table, raw, s.options.sel, s.view.ts, nil)
		if err != nil {
			failed = err
			return false
		}
		page = append(page, &pageRow{raw.Key(), raw, e})
		for _, items := range raw {
			for _, it := range items {
				bytes += len(it.Value) + len(it.Column)
			}
		}
		full = bytes >= maxPageBytes || len(page) >= rows
		return !full
	}, opts...)
	switch {
	case failed != nil:
		return nil, failed
	case err != nil:
		return nil, err
	case full:
		s.rest = s.rest.beyond(page[len(page)-1].key, s.options.reverse)
	default:
		s.rest = s.rest.answered(request, s.options.reverse)
	}
	return page, nil
}

// settle resolves the locks of a page, all rows together, reading the rows
// again until none is in the way.
func (s *scan) settle(ctx context.Context, page []*pageRow) error {
	passed := passed{}
	for {
		var locks []*Lock
		blocked := map[string]*pageRow{}
		for _, r := range page {
			if len(r.row.locks) > 0 {
				locks = append(locks, r.row.locks...)
				blocked[r.key] = r
			}
		}
		if len(locks) == 0 {
			break
		}
		again, err := s.view.client.clearForRead(ctx, locks, s.view.ts, passed)
		if err != nil {
			return err
		}
		if again {
			err = s.readAgain(ctx, blocked, passed)
		} else {
			for _, r := range blocked {
				if r.row, err = evaluate(s.table, r.raw, s.options.sel, s.view.ts, passed); err != nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.view.client.cfg.Parallelism)
	for _, r := range page {
		r.raw = nil
		s.view.client.clearBehind(r.row.stranded, s.view.ts)
		if len(r.row.exact) > 0 {
			g.Go(func() error { return r.row.readExact(gctx, s.table, r.key) })
		}
	}
	return g.Wait()
}

// readAgain reads the rows that had locks once more.
func (s *scan) readAgain(ctx context.Context, blocked map[string]*pageRow, passed passed) error {
	set := rowSet{keys: make([]string, 0, len(blocked))}
	for key, r := range blocked {
		set.keys = append(set.keys, key)
		r.row = evaluation{} // a row that is gone now has nothing visible
	}
	slices.Sort(set.keys)
	var failed error
	filter := bigtable.RowFilter(s.options.sel.visibleAt(s.view.ts, s.table.current().readFamilies()))
	for !set.empty() {
		request := set.request(false).(bigtable.RowList)
		err := s.table.readRows(ctx, request, func(raw bigtable.Row) bool {
			r := blocked[raw.Key()]
			r.raw = raw
			r.row, failed = evaluate(s.table, raw, s.options.sel, s.view.ts, passed)
			return failed == nil
		}, filter)
		if failed != nil {
			return failed
		}
		if err != nil {
			return err
		}
		set = set.answered(request, false)
	}
	return nil
}

// emitBefore yields the transaction's own rows that come before key in the
// direction of the scan and were not read; all that are left when key is
// empty. It reports whether to go on.
func (s *scan) emitBefore(key string, yield func(bigtable.Row, error) bool) bool {
	if s.overlay == nil {
		return true
	}
	for len(s.overlay.keys) > 0 {
		next := s.overlay.next(s.options.reverse)
		if key != "" && (next == key || (next < key) == s.options.reverse) {
			return true
		}
		s.overlay.drop(s.options.reverse)
		if !s.yield(s.overlay.apply(next, nil), yield) {
			return false
		}
	}
	return true
}

// emit yields a row that was read, with the transaction's writes laid over it.
func (s *scan) emit(key string, row bigtable.Row, yield func(bigtable.Row, error) bool) bool {
	if s.overlay != nil {
		if len(s.overlay.keys) > 0 && s.overlay.next(s.options.reverse) == key {
			s.overlay.drop(s.options.reverse)
		}
		row = s.overlay.apply(key, row)
	}
	return s.yield(row, yield)
}

func (s *scan) yield(row bigtable.Row, yield func(bigtable.Row, error) bool) bool {
	if len(row) == 0 {
		return true
	}
	s.given++
	return yield(row, nil) && (s.options.limit == 0 || s.given < s.options.limit)
}

func (o *overlay) next(reverse bool) string {
	if reverse {
		return o.keys[len(o.keys)-1]
	}
	return o.keys[0]
}

func (o *overlay) drop(reverse bool) {
	if reverse {
		o.keys = o.keys[:len(o.keys)-1]
	} else {
		o.keys = o.keys[1:]
	}
}
