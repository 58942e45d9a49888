package conformance

import (
	"context"
	"fmt"
	"strings"

	"cloud.google.com/go/bigtable"
)

// filters are assumptions about filters of reads.
var filters = []Assumption{
	{
		ID: "column-range-exact", Group: "Filters", Class: Required,
		Title:  "A column range matches exactly the columns in it, for qualifiers of any bytes.",
		Used:   "every filter names columns by ranges (`ExactColumn` in `txn/internal/store/filter.go`)",
		Source: dataAPI + "#columnrange",
		Breaks: "A prewrite looks at the lock of another column.",
		Advice: otherService,
		cost:   cost{requests: 20, bytes: 64 << 10},
		test: func(ctx context.Context, t *trial) error {
			row, c := t.row("r"), changes()
			all := []string{"a", "a\x00", "a\x00\x00", "b", "a:b/c", "\x00", "\xff", "\xff\xff", "line\nbreak", "ü", ".*", "a|b"}
			for _, q := range all {
				c.set(family1, q, 1, q)
			}
			c.set(family2, "a", 1, "other family")
			if err := t.apply(ctx, row, c); err != nil {
				return err
			}
			for _, q := range all {
				if err := t.expect(ctx, fmt.Sprintf("a read of the column %q", q), row, exact(family1, q), cell{family1, q, 1, q}); err != nil {
					return err
				}
			}
			return t.expect(ctx, "a read of a whole family", row, wholeFamily(family2), cell{family2, "a", 1, "other family"})
		},
	},
	{
		ID: "qualifier-empty", Group: "Filters", Class: Required,
		Title:  "A qualifier may be empty.",
		Used:   "columns of applications (`txn/format/cell.go`)",
		Source: dataAPI + "#column",
		Breaks: "Transactions cannot write columns whose qualifier is empty.",
		Advice: "Do not use columns whose qualifier is empty.",
		cost:   simple,
		test: shows(set("", 1, "v").set(family1, "x", 1, "w"),
			reading{"a read of the column with the empty qualifier", exact(family1, ""), []cell{{family1, "", 1, "v"}}}),
	},
	{
		ID: "value-range", Group: "Filters", Class: Required,
		Title:  "A value range matches exactly the values in it.",
		Used:   "the oracle's state changes only if it is what was read (`ExactValue` in `txn/internal/store/filter.go`)",
		Source: dataAPI + "#valuerange",
		Breaks: "Two servers of the oracle lead at the same time.",
		Advice: otherService,
		cost:   simple,
		test: shows(set("a", 1, "v").set(family1, "b", 1, "v\x00").set(family1, "c", 1, "u").set(family1, "d", 1, "w").set(family1, "e", 1, "vv"),
			reading{"a read of the value v", bigtable.ValueRangeFilter([]byte("v"), []byte("v\x00")), []cell{{family1, "a", 1, "v"}}}),
	},
	{
		ID: "latest-n", Group: "Filters", Class: Required,
		Title:  "The filter for the newest cell returns the newest cell of each column.",
		Used:   "reads ask for the newest record (`Latest` in `txn/internal/store/filter.go`)",
		Source: filterDocs + "#cells-per-column-limit",
		Breaks: "Reads return old values.",
		Advice: otherService,
		cost:   simple,
		test: shows(set("a", 2, "v").set(family1, "a", 3, "w").set(family1, "a", 1, "u").set(family1, "b", 1, "x"),
			reading{"a read of the newest cells", bigtable.LatestNFilter(1), []cell{{family1, "a", 3, "w"}, {family1, "b", 1, "x"}}}),
	},
	{
		ID: "chain-order", Group: "Filters", Class: Required,
		Title:  "The filters of a Chain apply in their order.",
		Used:   "the newest record at or below a timestamp (`VisibleAt` in `txn/internal/store/filter.go`)",
		Source: dataAPI + "#rowfilter",
		Breaks: "Snapshots do not see a value that was overwritten after their timestamp.",
		Advice: otherService,
		cost:   simple,
		test: shows(set("a", 1, "u").set(family1, "a", 2, "v").set(family1, "a", 3, "w"),
			reading{"a read of timestamps, then the newest", bigtable.ChainFilters(between(0, 3), bigtable.LatestNFilter(1)), []cell{{family1, "a", 2, "v"}}},
			reading{"a read of the newest, then timestamps", bigtable.ChainFilters(bigtable.LatestNFilter(1), between(0, 3)), nil}),
	},
	{
		ID: "cells-per-row", Group: "Filters", Class: Required,
		Title:  "The filter for the first cells of a row returns those with the smallest qualifiers.",
		Used:   "reads with `CellsPerRow` (`txn/internal/store/firstcells.go`)",
		Source: filterDocs + "#cells-per-row-limit",
		Breaks: "Reads of the first cells miss cells.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			if err := t.apply(ctx, row, set("c", 1, "u").set(family1, "a", 2, "v").set(family1, "d", 3, "w").set(family1, "b", 1, "x")); err != nil {
				return err
			}
			first := bigtable.InterleaveFilters(bigtable.BlockAllFilter(), bigtable.ChainFilters(bigtable.ColumnRangeFilter(family1, "a", ""), bigtable.CellsPerRowLimitFilter(2)))
			return t.expect(ctx, "a read of the first two cells", row, first, cell{family1, "a", 2, "v"}, cell{family1, "b", 1, "x"})
		},
	},
	{
		ID: "interleave-union", Group: "Filters", Class: Required,
		Title:  "An Interleave returns what any of its filters matches.",
		Used:   "reads of locks, records and data together (`txn/internal/store/filter.go`)",
		Source: dataAPI + "#rowfilter",
		Breaks: "Reads miss locks or data.",
		Advice: otherService,
		cost:   simple,
		test: shows(set("a", 1, "u").set(family1, "b", 2, "v").set(family2, "c", 3, "w").set(family1, "d", 4, "x"),
			reading{"a read of three columns", bigtable.InterleaveFilters(exact(family1, "a"), exact(family1, "b"), exact(family2, "c")),
				[]cell{{family1, "a", 1, "u"}, {family1, "b", 2, "v"}, {family2, "c", 3, "w"}}}),
	},
	{
		ID: "filter-18k", Group: "Filters", Class: Required,
		Title:  "Filters of 18 KB are allowed, in reads and in conditional mutations.",
		Used:   "the client fills filters up to that size (`FilterBudget` in `txn/internal/store/filter.go`)",
		Source: quotas + "#limits-operations",
		Breaks: "Transactions with many columns in a row fail.",
		Advice: "Write fewer or shorter columns in one row and transaction.",
		needs:  SingleRow,
		cost:   cost{requests: 3, bytes: 128 << 10},
		test: func(ctx context.Context, t *trial) error {
			row, f := t.row("r"), largeFilter(18<<10)
			if err := t.apply(ctx, row, set("there", 1, "v")); err != nil {
				return err
			}
			if _, err := t.read(ctx, row, f); err != nil {
				return brokenf("a read with a filter of 18 KB fails: %v", err)
			}
			if matched, err := t.check(ctx, row, f, set("b", 1, "w"), nil); err != nil || !matched {
				return brokenf("a conditional mutation with a predicate of 18 KB: matched = %v, error: %v", matched, err)
			}
			return nil
		},
	},
}

// largeFilter returns a filter with an encoded size of a little less than n bytes. It matches
// the column f:there, and no other that exists.
func largeFilter(n int) bigtable.Filter {
	const name = 200
	all := []bigtable.Filter{exact(family1, "there")}
	for size := 2*name + 60; size < n-2*name-60; size += 2*name + 22 {
		all = append(all, exact(family1, fmt.Sprintf("%05d%s", len(all), strings.Repeat("x", name-5))))
	}
	return bigtable.InterleaveFilters(all...)
}
