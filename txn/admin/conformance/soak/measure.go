package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
)

const (
	measuredRows = 100 // of each caller
	takes        = 4   // transactions and raw requests take turns so many times
	maxPerCaller = 20_000
)

// A pair is a transaction and the raw requests that do the same.
type pair struct {
	name, raw string
	txn, bare func(ctx context.Context, caller, i int) error
}

// rowOf is a row that only one caller uses.
func rowOf(kind string, caller, i int) string {
	return fmt.Sprintf("%s/%02d/%03d", kind, caller, i%measuredRows)
}

// pairsOf returns what is compared.
func pairsOf(s *soak, client *txn.Client, t *bigtable.Table) []pair {
	const family, qualifier = conformance.Family, "v"
	value := bytes.Repeat([]byte("v"), 100)
	table := s.cfg.Prefix + "-lists"
	column := bigtable.RowFilter(bigtable.ChainFilters(bigtable.ColumnRangeFilter(family, qualifier, qualifier+"\x00"), bigtable.LatestNFilter(1)))
	set := func() *bigtable.Mutation {
		m := bigtable.NewMutation()
		m.Set(family, qualifier, 1000, value)
		return m
	}
	readRaw := func(ctx context.Context, caller, i int) error {
		_, err := t.ReadRow(ctx, rowOf("raw", caller, i), column)
		return err
	}
	update := func(ctx context.Context, read bool, rows ...string) error {
		_, err := client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			for _, row := range rows {
				if read {
					if _, _, err := tx.Table(table).Get(ctx, row, family, qualifier); err != nil {
						return err
					}
				}
				tx.Table(table).Set(row, family, qualifier, value)
			}
			return nil
		})
		return err
	}
	ten := func(kind string, caller, i int) (rows []string) {
		for n := range 10 {
			rows = append(rows, rowOf(kind, caller, 10*i+n))
		}
		return rows
	}
	return []pair{
		{
			"Get in a snapshot of its own", "ReadRow of one column",
			func(ctx context.Context, caller, i int) error {
				snapshot, err := client.Snapshot(ctx)
				if err != nil {
					return err
				}
				_, _, err = snapshot.Table(table).Get(ctx, rowOf("row", caller, i), family, qualifier)
				return err
			}, readRaw,
		}, {
			"Latest", "ReadRow of one column",
			func(ctx context.Context, caller, i int) error {
				_, err := client.Latest(table).ReadRow(ctx, rowOf("row", caller, i), txn.Columns(txn.Column{Family: family, Qualifier: qualifier}))
				return err
			}, readRaw,
		}, {
			"write of one cell", "Apply",
			func(ctx context.Context, caller, i int) error { return update(ctx, false, rowOf("row", caller, i)) },
			func(ctx context.Context, caller, i int) error { return t.Apply(ctx, rowOf("raw", caller, i), set()) },
		}, {
			"read of one cell, then its write", "ReadRow, then a conditional mutation",
			func(ctx context.Context, caller, i int) error { return update(ctx, true, rowOf("row", caller, i)) },
			func(ctx context.Context, caller, i int) error {
				if err := readRaw(ctx, caller, i); err != nil {
					return err
				}
				unchanged := bigtable.ChainFilters(bigtable.ColumnRangeFilter(family, qualifier, qualifier+"\x00"), bigtable.TimestampRangeFilterMicros(1000, 2000))
				return t.Apply(ctx, rowOf("raw", caller, i), bigtable.NewCondMutation(unchanged, set(), nil))
			},
		}, {
			"write of ten rows", "ApplyBulk of ten rows",
			func(ctx context.Context, caller, i int) error { return update(ctx, false, ten("row", caller, i)...) },
			func(ctx context.Context, caller, i int) error {
				all := make([]*bigtable.Mutation, 10)
				for n := range all {
					all[n] = set()
				}
				errs, err := t.ApplyBulk(ctx, ten("raw", caller, i), all)
				return errors.Join(append(errs, err)...)
			},
		},
	}
}

// measure compares transactions with raw requests, without faults.
func measure(ctx context.Context, s *soak, client *txn.Client, t *bigtable.Table) (all []Ratio, err error) {
	pairs := pairsOf(s, client, t)
	callers := 2 * s.cfg.Clients
	// Reads find something.
	for _, f := range []func(context.Context, int, int) error{pairs[4].txn, pairs[4].bare} {
		if _, err := turnOf(ctx, callers, func(i int, _ time.Duration) bool { return i < measuredRows/10 }, f); err != nil {
			return nil, fmt.Errorf("soak: filling the rows to measure: %w", err)
		}
	}
	budget := s.cfg.most() / int64(len(pairs)*takes*2) // of a turn
	length := s.cfg.Duration / 2 / time.Duration(len(pairs)*takes*2)
	for n, p := range pairs {
		r := Ratio{Name: p.name, Raw: p.raw, Callers: callers}
		var taken, bare []time.Duration
		var elapsed, bareElapsed time.Duration
		for turn := range takes {
			for side := range 2 {
				from := s.meter.n.Load()
				f, to, total := p.txn, &taken, &elapsed
				if side == 1 {
					f, to, total = p.bare, &bare, &bareElapsed
				}
				begun := time.Now()
				times, err := turnOf(ctx, callers, func(i int, since time.Duration) bool {
					return i == 0 || i < maxPerCaller && since < length && s.meter.n.Load()-from < budget
				}, f)
				if err != nil {
					return nil, fmt.Errorf("soak: measuring %s: %w", p.name, err)
				}
				if turn == 0 && n == 0 {
					continue // connections and caches warm up
				}
				*total += time.Since(begun)
				*to = append(*to, times...)
			}
		}
		r.Count = len(taken)
		r.Rate, r.RawRate = float64(len(taken))/elapsed.Seconds(), float64(len(bare))/bareElapsed.Seconds()
		r.P50, r.P99 = quantiles(taken)
		r.RawP50, r.RawP99 = quantiles(bare)
		r.Ratio, r.Slowdown = r.Rate/r.RawRate, r.P50/r.RawP50
		all = append(all, r)
	}
	return all, nil
}

// turnOf lets callers repeat f while more says so, and returns how long each call took.
func turnOf(ctx context.Context, callers int, more func(i int, since time.Duration) bool, f func(ctx context.Context, caller, i int) error) (all []time.Duration, err error) {
	each := make([][]time.Duration, callers)
	begun := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for c := range callers {
		offset := rand.IntN(measuredRows)
		g.Go(func() error {
			for i := 0; more(i, time.Since(begun)); i++ {
				from := time.Now()
				if err := f(gctx, c, i+offset); err != nil {
					return err
				}
				each[c] = append(each[c], time.Since(from))
			}
			return nil
		})
	}
	err = g.Wait()
	return slices.Concat(each...), err
}

// quantiles returns median and 99th percentile in milliseconds.
func quantiles(all []time.Duration) (p50, p99 float64) {
	slices.Sort(all)
	at := func(p float64) float64 {
		return float64(all[int(p*float64(len(all)-1))].Round(time.Microsecond)) / float64(time.Millisecond)
	}
	return at(0.5), at(0.99)
}
