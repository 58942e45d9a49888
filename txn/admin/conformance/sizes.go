package conformance

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Sizes that the library uses, in bytes.
const (
	longKey       = 4 << 10
	longQualifier = 2600 // family:qualifier/observer
	largeValue    = 2 << 20
)

// sizes are assumptions about what a service allows.
var sizes = []Assumption{
	{
		ID: "row-key-4k", Group: "Sizes", Class: Required,
		Title:  "Row keys may have 4 KB.",
		Used:   "the client allows them (`txn/format/limits.go`)",
		Source: quotas + "#limits-data-size",
		Breaks: "Transactions on rows with long keys fail.",
		Advice: "Use shorter row keys.",
		cost:   cost{requests: 2, bytes: 64 << 10},
		test: func(ctx context.Context, t *trial) error {
			row := t.row("")
			row += strings.Repeat("k", longKey-len(row))
			if err := t.apply(ctx, row, set("a", 1, "v")); err != nil {
				return brokenf("a row key of 4 KB is refused: %v", err)
			}
			return t.expect(ctx, "a row with a key of 4 KB", row, nil, cell{family1, "a", 1, "v"})
		},
	},
	{
		ID: "qualifier-2600", Group: "Sizes", Class: Required,
		Title:  "Qualifiers may have 2,600 bytes.",
		Used:   "locks and acknowledgments of columns with long names (`MaxColumnKey` in `txn/format/limits.go`)",
		Source: quotas + "#limits-data-size",
		Breaks: "Transactions on columns with long names fail.",
		Advice: "Use shorter qualifiers.",
		cost:   cost{requests: 2, bytes: 64 << 10},
		test: func(ctx context.Context, t *trial) error {
			row, q := t.row("r"), strings.Repeat("q", longQualifier)
			if err := t.apply(ctx, row, set(q, 1, "v")); err != nil {
				return brokenf("a qualifier of %d bytes is refused: %v", longQualifier, err)
			}
			return t.expect(ctx, "a long qualifier", row, exact(family1, q), cell{family1, q, 1, "v"})
		},
	},
	{
		ID: "value-2m", Group: "Sizes", Class: Required,
		Title:  "Values may have 2 MB.",
		Used:   "values of applications. The client allows 100 MB, as Cloud Bigtable does (`txn/format/limits.go`)",
		Source: quotas + "#limits-data-size",
		Breaks: "Transactions with large values fail.",
		Advice: "Use smaller values.",
		cost:   cost{requests: 2, bytes: 6 << 20},
		test: func(ctx context.Context, t *trial) error {
			row, v := t.row("r"), strings.Repeat("v", largeValue)
			if err := t.apply(ctx, row, set("a", 1, v)); err != nil {
				return brokenf("a value of 2 MB is refused: %v", err)
			}
			return t.expect(ctx, "a value of 2 MB", row, nil, cell{family1, "a", 1, v})
		},
	},
	{
		ID: "row-8m", Group: "Sizes", Class: Required,
		Title:  "Rows may have 8 MB, and can be read whole.",
		Used:   "rows with many columns or versions. Cloud Bigtable allows 256 MB (`txn/format/limits.go`)",
		Source: quotas + "#limits-data-size",
		Breaks: "Transactions on large rows fail.",
		Advice: "Use smaller rows, and collect garbage more often.",
		cost:   cost{requests: 5, bytes: 20 << 20},
		test: func(ctx context.Context, t *trial) error {
			row, want := t.row("r"), []cell{}
			for i := range int64(4) {
				c := cell{family1, "a", i + 1, strings.Repeat("v", largeValue)}
				if err := t.apply(ctx, row, set(c.qualifier, c.ms, c.value)); err != nil {
					return brokenf("value %d of 4 with 2 MB each is refused: %v", i+1, err)
				}
				want = append(want, c)
			}
			got, err := t.read(ctx, row, nil)
			if err != nil {
				return brokenf("a read of a row of 8 MB fails: %v", err)
			}
			if !same(got, want) {
				return brokenf("a read of a row of 8 MB returns %v", some(got))
			}
			return nil
		},
	},
}

// refusals are assumptions about what a service refuses, and with which code.
var refusals = []Assumption{
	{
		ID: "failed-mutation-whole", Group: "Refusals", Class: Optional,
		Title:  "A mutation that is refused for one of its changes applies none of them.",
		Used:   "nothing: the client checks names and sizes before it sends; hazard 18",
		Source: writes,
		Breaks: "Nothing, as long as no family is deleted while clients write. If one is, half of a prewrite may stay.",
		Advice: avoided,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			if err := t.apply(ctx, row, set("a", 1, "v").set("unknown", "a", 1, "v")); err == nil {
				return brokenf("a change of an unknown family is accepted")
			}
			return t.expect(ctx, "after a refused mutation", row, nil)
		},
	},
	{
		ID: "unknown-family-code", Group: "Refusals", Class: Optional,
		Title:  "A mutation of an unknown family fails with NOT_FOUND, INVALID_ARGUMENT or FAILED_PRECONDITION.",
		Used:   "such a code is final; the client reads the row again after others (`txn/internal/store/rpc.go`)",
		Source: "assumed; NOT_FOUND was seen: https://github.com/googleapis/java-bigtable/issues/32",
		Breaks: "Nothing. The error comes later and is less clear.",
		Advice: avoided,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			return refused(t.apply(ctx, t.row("r"), changes().set("unknown", "a", 1, "v")), "a mutation of an unknown family", codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition)
		},
	},
	{
		ID: "unknown-table-code", Group: "Refusals", Class: Required,
		Title:  "Requests for a table that does not exist fail with NOT_FOUND.",
		Used:   "clients and percctl say what is missing (`txn/internal/store/schema.go`)",
		Source: "assumed; seen: https://github.com/googleapis/python-bigtable/issues/715",
		Breaks: "Errors do not say that a table is missing, and adoptions of deleted tables do not end.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			none := t.bt.Open(t.name + "-none")
			return refused(t.request(ctx, "read", 64, func(ctx context.Context) error {
				_, err := none.ReadRow(ctx, "r")
				return err
			}), "a read of an unknown table", codes.NotFound)
		},
	},
	{
		ID: "empty-condition-refused", Group: "Refusals", Class: Optional,
		Title:  "A conditional mutation without any change is refused with INVALID_ARGUMENT.",
		Used:   "nothing: the client sends none",
		Source: dataAPI + "#checkandmutaterowrequest",
		Breaks: "Nothing. Code that is tested here may fail on Cloud Bigtable.",
		Advice: avoided,
		needs:  SingleRow,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			_, err := t.check(ctx, t.row("r"), exact(family1, "a"), nil, nil)
			return refused(err, "a conditional mutation without any change", codes.InvalidArgument)
		},
	},
	{
		ID: "many-changes-refused", Group: "Refusals", Class: Optional,
		Title:  "More than 100,000 changes in a request are refused with INVALID_ARGUMENT.",
		Used:   "nothing: the client sends fewer (`txn/format/limits.go`)",
		Source: dataAPI + "#mutaterowsrequest",
		Breaks: "Nothing. Code that is tested here may fail on Cloud Bigtable.",
		Advice: avoided,
		cost:   cost{requests: 1, bytes: 8 << 20},
		test: func(ctx context.Context, t *trial) error {
			// In one row: the client splits a mutation of many rows.
			return refused(t.apply(ctx, t.row("r"), removals(maxChanges+1)), "a mutation with 100,001 changes", codes.InvalidArgument)
		},
	},
	{
		ID: "large-filter-refused", Group: "Refusals", Class: Optional,
		Title:  "A filter of more than 20 KB is refused with INVALID_ARGUMENT.",
		Used:   "nothing: the client sends smaller ones (`FilterBudget` in `txn/internal/store/filter.go`)",
		Source: quotas + "#limits-operations",
		Breaks: "Nothing. Code that is tested here may fail on Cloud Bigtable.",
		Advice: avoided,
		cost:   cost{requests: 1, bytes: 64 << 10},
		test: func(ctx context.Context, t *trial) error {
			_, err := t.read(ctx, t.row("r"), largeFilter(22<<10))
			return refused(err, "a filter of more than 20 KB", codes.InvalidArgument)
		},
	},
	{
		ID: "long-row-key-refused", Group: "Refusals", Class: Optional,
		Title:  "A row key of more than 4 KB is refused with INVALID_ARGUMENT.",
		Used:   "nothing: the client checks keys (`txn/format/limits.go`)",
		Source: quotas + "#limits-data-size",
		Breaks: "Nothing. Code that is tested here may fail on Cloud Bigtable.",
		Advice: avoided,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			return refused(t.apply(ctx, t.row(strings.Repeat("k", longKey)), set("a", 1, "v")), "a row key of more than 4 KB", codes.InvalidArgument)
		},
	},
	{
		ID: "long-qualifier-refused", Group: "Refusals", Class: Optional,
		Title:  "A qualifier of more than 16 KB is refused with INVALID_ARGUMENT.",
		Used:   "nothing: the client checks columns (`txn/format/limits.go`)",
		Source: quotas + "#limits-data-size",
		Breaks: "Nothing. Code that is tested here may fail on Cloud Bigtable.",
		Advice: avoided,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			return refused(t.apply(ctx, t.row("r"), set(strings.Repeat("q", 16<<10+1), 1, "v")), "a qualifier of more than 16 KB", codes.InvalidArgument)
		},
	},
}

// refused is the error of a test whose request must fail with one of the codes.
func refused(err error, what string, allowed ...codes.Code) error {
	if err == nil {
		return brokenf("%s is accepted", what)
	}
	if unavailable(err) {
		return err
	}
	got := status.Code(err)
	for _, c := range allowed {
		if c == got {
			return nil
		}
	}
	return brokenf("%s fails with %v, want %v: %v", what, got, allowed, err)
}
