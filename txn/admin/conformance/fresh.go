package conformance

import (
	"context"
	"fmt"
	"sync/atomic"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
)

// A register is a row whose only cell has a version. One worker writes it, and reads it by one
// kind of read: the same request again and again, as a cache before the service would need.
type register struct {
	row, beside string
	read        func(context.Context, *trial) (map[string][]cell, error)
}

// kinds are the kinds of read of a row. The library sends the first most often.
func kinds(row, beside string) []func(context.Context, *trial) (map[string][]cell, error) {
	filter := bigtable.RowFilter(readFilter)
	one := func(f bigtable.Filter) func(context.Context, *trial) (map[string][]cell, error) {
		return func(ctx context.Context, t *trial) (map[string][]cell, error) {
			all, err := t.read(ctx, row, f)
			return map[string][]cell{row: all}, err
		}
	}
	many := func(rows bigtable.RowSet, opts ...bigtable.ReadOption) func(context.Context, *trial) (map[string][]cell, error) {
		return func(ctx context.Context, t *trial) (map[string][]cell, error) {
			return t.rows(ctx, rows, append(opts, filter)...)
		}
	}
	return []func(context.Context, *trial) (map[string][]cell, error){
		one(readFilter),
		one(bigtable.InterleaveFilters(exact(family1, "v"), bigtable.BlockAllFilter())),
		one(readFilter),
		one(readFilter),
		many(bigtable.PrefixRange(row)),
		many(bigtable.RowList{row, beside}),
		many(bigtable.NewRange(row, ""), bigtable.LimitRows(1)),
		many(bigtable.NewRange("", row+"\x00"), bigtable.LimitRows(1), bigtable.ReverseScan()),
	}
}

// testFresh writes each register in turn by each kind of request, and reads it after each write,
// every other time beside the write, too. Half of the reads take a connection of their own.
func testFresh(ctx context.Context, t *trial) error {
	reader := t
	if t.cfg.Dial != nil {
		bt, _, end, err := t.cfg.Dial(ctx)
		if err != nil {
			return err
		}
		defer end()
		reader = t.through(bt)
	}
	t.begin()
	return t.workers(ctx, 2*t.cfg.Concurrency, func(ctx context.Context, i int) error {
		from := t
		if i%2 == 1 {
			from = reader
		}
		row := t.row(fmt.Sprintf("w%03d", i))
		all := kinds(row, row+"+")
		r := register{row, row + "+", all[i/2%len(all)]}
		if err := t.apply(ctx, r.row, replace(1)); err != nil {
			return err
		}
		for n := int64(2); t.moreOf(ctx, 2*(maxBeside+2)); n++ {
			if err := r.step(ctx, t, from, n); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// maxBeside is how many reads a register sends beside a write at most.
const maxBeside = 3

// step writes version n and reads it.
func (r register) step(ctx context.Context, t, from *trial, n int64) error {
	g, gctx := errgroup.WithContext(ctx)
	var written atomic.Bool
	if n%8 >= 4 {
		g.Go(func() error {
			// The first read may end before the service begins with the write.
			for i := 0; i < maxBeside && !written.Load(); i++ {
				got, err := r.read(gctx, from)
				if err != nil {
					return err
				}
				if !same(got[r.row], version(n-1)) && !same(got[r.row], version(n)) {
					return brokenf("a read beside the write of version %d found %v", n, some(got[r.row]))
				}
			}
			return nil
		})
	}
	kind := ""
	g.Go(func() (err error) {
		defer written.Store(true)
		kind, err = r.write(gctx, t, n)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	got, err := r.read(ctx, from)
	if err != nil {
		return err
	}
	if !same(got[r.row], version(n)) {
		return brokenf("after %s had written version %d, and that was acknowledged, a read found %v", kind, n, some(got[r.row]))
	}
	return nil
}

// write replaces version n-1. Every other write is a conditional mutation, as in transactions.
func (r register) write(ctx context.Context, t *trial, n int64) (kind string, err error) {
	switch n % 4 {
	case 0:
		return "a mutation", t.apply(ctx, r.row, replace(n))
	case 2:
		errs, err := t.applyBulk(ctx, []string{r.row, r.beside}, []*change{replace(n), replace(n)})
		return "a mutation of two rows", firstError(err, errs)
	default:
		before := bigtable.ChainFilters(exact(family1, "v"), between(n-1, n))
		matched, err := t.check(ctx, r.row, before, replace(n), set("wrong", n, "w"))
		if err == nil && !matched {
			err = brokenf("a conditional mutation did not find version %d, whose write was acknowledged", n-1)
		}
		return "a conditional mutation", err
	}
}
