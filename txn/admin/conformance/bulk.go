package conformance

import (
	"context"
	"fmt"
	"slices"

	"cloud.google.com/go/bigtable"
)

// bulk are assumptions about mutations of many rows (MutateRows).
var bulk = []Assumption{
	{
		ID: "bulk-applied", Group: "Bulk mutations", Class: Required,
		Title:  "A mutation of many rows applies every entry that it acknowledges.",
		Used:   "commits of secondaries (`txn/internal/store/background.go`)",
		Source: dataAPI + "#mutaterowsresponse",
		Breaks: "A committed value can be lost without an error: a secondary stays locked after its commit counts as complete, and garbage collection may remove the record of its primary.",
		Advice: otherService,
		cost:   cost{loops: true, patience: 5, bytes: 16 << 20},
		test:   testBulkApplied,
	},
	{
		ID: "bulk-partial", Group: "Bulk mutations", Class: Required,
		Title:  "If one entry of a mutation of many rows is refused, the others apply, and the answer says which failed.",
		Used:   "commits of secondaries of many transactions together (`txn/internal/store/background.go`)",
		Source: dataAPI + "#mutaterowsresponse",
		Breaks: "One bad row delays the commits of other transactions, or a failed commit counts as done.",
		Advice: otherService,
		cost:   cost{requests: 2, bytes: 16 << 10},
		test: func(ctx context.Context, t *trial) error {
			keys := []string{t.row("1"), t.row("2"), t.row("3")}
			errs, err := t.applyBulk(ctx, keys, []*change{set("a", 1, "v"), changes().set("unknown", "a", 1, "v"), set("a", 1, "v")})
			if err != nil {
				return brokenf("the whole request fails: %v", err)
			}
			if len(errs) != 3 || errs[0] != nil || errs[1] == nil || errs[2] != nil {
				return brokenf("the second of three entries has an unknown family, and the answers are %v", errs)
			}
			return t.expectRows(ctx, "a read of the three rows", rowList(keys), []string{keys[0], keys[2]})
		},
	},
	{
		ID: "bulk-100000", Group: "Bulk mutations", Class: Required,
		Title:  "One request may have 100,000 changes.",
		Used:   "the client fills requests up to that number (`MaxMutations` in `txn/format/limits.go`)",
		Source: dataAPI + "#mutaterowsrequest",
		Breaks: "Large transactions fail.",
		Advice: "Write fewer cells in one transaction.",
		cost:   cost{requests: 1, bytes: 8 << 20},
		test: func(ctx context.Context, t *trial) error {
			var keys []string
			var all []*change
			for i := range 100 {
				keys, all = append(keys, t.row(fmt.Sprintf("k%03d", i))), append(all, removals(maxChanges/100))
			}
			errs, err := t.applyBulk(ctx, keys, all)
			if err := firstError(err, errs); err != nil {
				return brokenf("a request with 100,000 changes fails: %v", err)
			}
			return nil
		},
	},
}

// testBulkApplied: each worker replaces the values of its rows by the next ones, a few rows in
// each request, and scans all of them.
func testBulkApplied(ctx context.Context, t *trial) error {
	const rows, entries = 50, 10
	t.begin()
	return t.workers(ctx, t.cfg.Concurrency, func(ctx context.Context, i int) error {
		keys := make([]string, rows)
		for k := range keys {
			keys[k] = t.row(fmt.Sprintf("w%02d/%02d", i, k))
		}
		for n := int64(1); n == 1 || t.moreOf(ctx, rows/entries+1); n++ {
			for part := range slices.Chunk(keys, entries) {
				all := make([]*change, len(part))
				for k := range all {
					all[k] = replace(n)
				}
				errs, err := t.applyBulk(ctx, part, all)
				if err := firstError(err, errs); err != nil {
					return err
				}
			}
			stored, err := t.rows(ctx, bigtable.PrefixRange(t.row(fmt.Sprintf("w%02d/", i))), bigtable.RowFilter(readFilter))
			if err != nil {
				return err
			}
			for _, key := range keys {
				if want := version(n); !same(stored[key], want) {
					return brokenf("after an acknowledged mutation of %d rows, row %q has %v, want %v", entries, key, some(stored[key]), want)
				}
			}
		}
		return ctx.Err()
	})
}
