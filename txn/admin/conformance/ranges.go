package conformance

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"cloud.google.com/go/bigtable"
)

// ranges are assumptions about reads of many rows.
var ranges = []Assumption{
	{
		ID: "row-keys-any-bytes", Group: "Rows", Class: Required,
		Title:  "Row keys may hold any bytes.",
		Used:   "row keys of applications (`txn/format/limits.go`)",
		Source: dataAPI + "#row",
		Breaks: "Transactions on such rows fail.",
		Advice: "Do not use such row keys.",
		cost:   cost{requests: 20, bytes: 64 << 10},
		test: func(ctx context.Context, t *trial) error {
			keys := []string{"a", "a\x00", "a\x00b", "a\xff", "ä", "a\nb", "a/b#c"}
			for i, k := range keys {
				if err := t.apply(ctx, t.row(k), set("a", int64(i+1), "v")); err != nil {
					return brokenf("the row key %q is refused: %v", k, err)
				}
			}
			for i, k := range keys {
				if err := t.expect(ctx, fmt.Sprintf("row %q", k), t.row(k), nil, cell{family1, "a", int64(i + 1), "v"}); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		ID: "rows-in-order", Group: "Rows", Class: Required,
		Title:  "A scan returns each row of its range once, in the order of their keys as bytes.",
		Used:   "pages of scans continue after the last key (`txn/scan.go`)",
		Source: reads,
		Breaks: "Scans fail, or miss rows.",
		Advice: otherService,
		cost:   rowCost,
		test:   ofRows("a scan", func(keys []string) []string { return keys }),
	},
	{
		ID: "rows-reversed", Group: "Rows", Class: Required,
		Title:  "A reversed scan returns the same rows from the last to the first.",
		Used:   "reversed scans (`txn/scan.go`)",
		Source: reads + "#reverse-scan",
		Breaks: "Reversed scans fail. Everything else works.",
		Advice: "Do not use reversed scans.",
		cost:   rowCost,
		test:   ofRows("a reversed scan", reversed, bigtable.ReverseScan()),
	},
	{
		ID: "rows-limited", Group: "Rows", Class: Required,
		Title:  "A scan with a limit returns the first rows of its range.",
		Used:   "pages of scans (`txn/scan.go`), garbage collection (`txn/internal/store/table.go`)",
		Source: dataAPI + "#readrowsrequest",
		Breaks: "Scans skip rows.",
		Advice: otherService,
		cost:   rowCost,
		test:   ofRows("a scan with a limit of 10", func(keys []string) []string { return keys[:10] }, bigtable.LimitRows(10)),
	},
	{
		ID: "pages-complete", Group: "Rows", Class: Required,
		Title:  "Each of many pages of a scan has all of its rows, also the last one.",
		Used:   "pages of scans (`txn/scan.go`), garbage collection (`txn/internal/store/table.go`), workers (`notify/scanner.go`)",
		Source: dataAPI + "#readrowsrequest",
		Breaks: "Scans miss rows. Garbage collection misses locks and deletes what they need; hazard 8.",
		Advice: otherService,
		cost:   cost{loops: true, patience: 5, bytes: 16 << 20},
		test:   testPages,
	},
	{
		ID: "row-range-bounds", Group: "Rows", Class: Required,
		Title:  "A range of rows contains its start and not its end, and a scan can continue after any key.",
		Used:   "pages of scans (`txn/scan.go`), parts of garbage collection (`txn/internal/store/rowset.go`)",
		Source: dataAPI + "#rowrange",
		Breaks: "Scans miss rows, or return rows twice.",
		Advice: otherService,
		cost:   rowCost,
		test: func(ctx context.Context, t *trial) error {
			keys, err := t.manyRows(ctx)
			if err != nil {
				return err
			}
			if err := t.expectRows(ctx, "a scan from row 5 to row 9", bigtable.NewRange(keys[5], keys[9]), keys[5:9]); err != nil {
				return err
			}
			return t.expectRows(ctx, "a scan after row 5", bigtable.NewRange(keys[5]+"\x00", keys[9]+"\x00"), keys[6:10])
		},
	},
	{
		ID: "row-list", Group: "Rows", Class: Required,
		Title:  "A read of a list of keys returns each row that exists once.",
		Used:   "reads of many rows (`txn/readbatch.go`)",
		Source: dataAPI + "#rowset",
		Breaks: "Reads miss rows.",
		Advice: otherService,
		cost:   rowCost,
		test: func(ctx context.Context, t *trial) error {
			keys, err := t.manyRows(ctx)
			if err != nil {
				return err
			}
			list := append(bigtable.RowList{t.row("none"), keys[7]}, keys...)
			slices.Reverse(list)
			return t.expectRows(ctx, "a read of a list with a key twice and an absent one", list, keys)
		},
	},
	{
		ID: "sampled-keys", Group: "Rows", Class: Required,
		Title:  "Sampled row keys come in order.",
		Used:   "parts of garbage collection and of workers' scans (`txn/admin/cellscan.go`, `txn/changes/worker.go`)",
		Source: dataAPI + "#samplerowkeysresponse",
		Breaks: "Workers and checks skip parts of a table.",
		Advice: otherService,
		cost:   rowCost,
		test: func(ctx context.Context, t *trial) error {
			if _, err := t.manyRows(ctx); err != nil {
				return err
			}
			return t.request(ctx, "sample", 1<<10, func(ctx context.Context) error {
				keys, err := t.table.SampleRowKeys(ctx)
				if err != nil {
					return err
				}
				for len(keys) > 0 && keys[len(keys)-1] == "" {
					keys = keys[:len(keys)-1] // the end of the table
				}
				if !sort.StringsAreSorted(keys) || slices.Contains(keys, "") {
					return brokenf("sampled keys arrive as %.200q", keys)
				}
				return nil
			})
		},
	},
}

// ofRows is the test of a scan of many rows. want says which it must return.
func ofRows(what string, want func(keys []string) []string, opts ...bigtable.ReadOption) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		keys, err := t.manyRows(ctx)
		if err != nil {
			return err
		}
		return t.expectRows(ctx, what, bigtable.PrefixRange(t.row("k")), want(keys), opts...)
	}
}

func reversed(keys []string) []string {
	keys = slices.Clone(keys)
	slices.Reverse(keys)
	return keys
}

var rowCost = cost{requests: 4, bytes: 128 << 10}

// testPages reads pages of all sizes of the same rows: by a limit, three times out of five, by a
// range's end, and as a list.
func testPages(ctx context.Context, t *trial) error {
	keys, err := t.manyRows(ctx)
	if err != nil {
		return err
	}
	end := t.row("l") // all rows begin with k
	t.begin()
	filter := bigtable.RowFilter(readFilter)
	return t.workers(ctx, t.cfg.Concurrency, func(ctx context.Context, i int) error {
		for n := 0; t.more(ctx); n++ {
			size := 1 + (n+i)%15
			from := (n*7 + i*11) % (len(keys) - size + 1)
			want := keys[from : from+size]
			var rows bigtable.RowSet = bigtable.NewRange(want[0], end)
			opts := []bigtable.ReadOption{filter, bigtable.LimitRows(int64(size))}
			what := "a page with a limit"
			switch n % 5 {
			case 1:
				what, want = "a reversed page with a limit", reversed(want)
				rows, opts = bigtable.NewRange(t.row("k"), want[0]+"\x00"), append(opts, bigtable.ReverseScan())
			case 3:
				what = "a page with an end"
				rows, opts = bigtable.NewRange(want[0], want[size-1]+"\x00"), opts[:1]
			case 4:
				what = "a read of a list"
				rows, opts = rowList(want), opts[:1]
			}
			if err := t.expectRows(ctx, what, rows, want, opts...); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}
