package conformance

import (
	"context"
	"fmt"
	"sync/atomic"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// SingleRow is the id of the assumption without which conditional mutations cannot be tested.
const SingleRow = "single-row-transactions"

// conditional are assumptions about conditional mutations (CheckAndMutateRow), and about
// increments (ReadModifyWriteRow).
var conditional = []Assumption{
	{
		ID: SingleRow, Group: "Conditional mutations", Class: Required,
		Title:  "The app profile allows conditional mutations and increments.",
		Used:   "every prewrite, commit and recovery (`txn/internal/store/rpc.go`)",
		Source: profiles,
		Breaks: "Every transaction that writes fails.",
		Advice: "Use an app profile with single-cluster routing and single-row transactions: gcloud bigtable app-profiles update PROFILE --route-to=CLUSTER --transactional-writes.",
		cost:   cost{requests: 3, bytes: 1 << 10},
		test: func(ctx context.Context, t *trial) error {
			row, err := seed(ctx, t)
			if err != nil {
				return err
			}
			_, err = t.check(ctx, row, exact(family1, "none"), nil, set("a", 1, "1"))
			if status.Code(err) == codes.FailedPrecondition {
				return brokenf("a conditional mutation is refused: %v", err)
			}
			if err != nil {
				return err
			}
			_, err = t.increment(ctx, row, "n", 1)
			return err
		},
	},
	{
		ID: "conditional-branches", Group: "Conditional mutations", Class: Required,
		Title:  "A conditional mutation applies the changes of one branch only, and the answer says which.",
		Used:   "prewrite, commit, rollback; hazards 1, 3, 4 (`txn/prewrite.go`, `txn/commit.go`)",
		Source: dataAPI + "#checkandmutaterowrequest",
		Breaks: "A transaction locks a row that another one has locked, or commits after its rollback: updates are lost.",
		Advice: otherService,
		needs:  SingleRow,
		cost:   cost{requests: 4, bytes: 4 << 10},
		test: func(ctx context.Context, t *trial) error {
			row, err := seed(ctx, t)
			if err != nil {
				return err
			}
			for _, c := range []struct {
				column string
				match  bool
			}{{"seed", true}, {"none", false}} {
				matched, err := t.check(ctx, row, exact(family1, c.column), set("yes-"+c.column, 1, "y"), set("no-"+c.column, 1, "n"))
				if err != nil {
					return err
				}
				if matched != c.match {
					return brokenf("the answer for a predicate on column %s is matched = %v, want %v", c.column, matched, c.match)
				}
			}
			return t.expect(ctx, "after one mutation whose predicate matches and one whose predicate does not", row, nil,
				cell{family1, "seed", 1, "s"}, cell{family1, "yes-seed", 1, "y"}, cell{family1, "no-none", 1, "n"})
		},
	},
	{
		ID: "predicate-interleave", Group: "Conditional mutations", Class: Required,
		Title:  "A predicate that is an Interleave matches if any of its filters matches.",
		Used:   "the conflict check of a prewrite (`Conflicts` in `txn/internal/store/filter.go`)",
		Source: dataAPI + "#rowfilter",
		Breaks: "A prewrite does not see some locks or newer commits: updates are lost.",
		Advice: otherService,
		needs:  SingleRow,
		cost:   cost{requests: 5, bytes: 4 << 10},
		test: func(ctx context.Context, t *trial) error {
			a, b, c := exact(family1, "a"), exact(family1, "b"), exact(family2, "c")
			return t.predicates(ctx, map[string]predicate{
				"Interleave(absent, absent, present)": {bigtable.InterleaveFilters(a, b, c), true},
				"Interleave(present, absent)":         {bigtable.InterleaveFilters(c, a), true},
				"Interleave(absent, absent)":          {bigtable.InterleaveFilters(a, b), false},
			})
		},
	},
	{
		ID: "predicate-chain", Group: "Conditional mutations", Class: Required,
		Title:  "A predicate that is a Chain matches only cells that pass all of its filters.",
		Used:   "commit, heartbeat and rollback look for one lock (`LockAt` in `txn/internal/store/filter.go`); hazard 6",
		Source: dataAPI + "#rowfilter",
		Breaks: "A late commit finds another transaction's lock and commits under it.",
		Advice: otherService,
		needs:  SingleRow,
		cost:   cost{requests: 5, bytes: 4 << 10},
		test: func(ctx context.Context, t *trial) error {
			c, absent := exact(family2, "c"), exact(family1, "a")
			return t.predicates(ctx, map[string]predicate{
				"Chain(present, its timestamp)":           {bigtable.ChainFilters(c, between(5, 6)), true},
				"Chain(present, another timestamp)":       {bigtable.ChainFilters(c, between(6, 7)), false},
				"Chain(newest, Interleave(absent, none))": {bigtable.ChainFilters(bigtable.LatestNFilter(1), bigtable.InterleaveFilters(absent, bigtable.BlockAllFilter())), false},
			})
		},
	},
	{
		ID: "predicate-absent-row", Group: "Conditional mutations", Class: Required,
		Title:  "A predicate does not match a row that does not exist, and the mutation then creates the row.",
		Used:   "the first prewrite of a row (`txn/prewrite.go`), rollback markers; hazard 2",
		Source: dataAPI + "#checkandmutaterowrequest",
		Breaks: "Transactions cannot create rows.",
		Advice: otherService,
		needs:  SingleRow,
		cost:   cost{requests: 2, bytes: 1 << 10},
		test: func(ctx context.Context, t *trial) error {
			row := t.row("absent")
			matched, err := t.check(ctx, row, exact(family1, "a"), nil, set("b", 1, "v"))
			if err != nil {
				return brokenf("a conditional mutation of an absent row is refused: %v", err)
			}
			if matched {
				return brokenf("a predicate matched an absent row")
			}
			return t.expect(ctx, "after a conditional mutation of an absent row", row, nil, cell{family1, "b", 1, "v"})
		},
	},
	{
		ID: "conditional-atomic", Group: "Conditional mutations", Class: Required,
		Title:  "Predicate and changes are one step: no other change of the row happens between them.",
		Used:   "every prewrite and commit; hazards 1 to 6 (`txn/prewrite.go`, `txn/commit.go`)",
		Source: writes + "#conditional",
		Breaks: "Two transactions lock the same cell, and both commit: updates are lost.",
		Advice: routing,
		needs:  SingleRow,
		cost:   cost{loops: true, bytes: 4 << 20},
		test:   testConditionalAtomic,
	},
	{
		ID: "conditional-whole", Group: "Conditional mutations", Class: Required,
		Title:  "Readers see all changes of a conditional mutation, or none.",
		Used:   "value and lock of a prewrite, record and lock of a commit (`txn/internal/store/mutations.go`)",
		Source: writes + "#conditional",
		Breaks: "Readers see a value without its lock: they read data that is not committed.",
		Advice: otherService,
		needs:  SingleRow,
		cost:   cost{loops: true, bytes: 32 << 20},
		test: func(ctx context.Context, t *trial) error {
			all := bigtable.InterleaveFilters(wholeFamily(family1), wholeFamily(family2))
			return t.torn(ctx, 10, all, func(ctx context.Context, row string, c *change) error {
				_, err := t.check(ctx, row, all, c, nil)
				return err
			})
		},
	},
	{
		ID: "conditional-100000", Group: "Conditional mutations", Class: Required,
		Title:  "A conditional mutation may have 100,000 changes.",
		Used:   "the client fills requests up to that number (`MaxMutations` in `txn/format/limits.go`)",
		Source: dataAPI + "#checkandmutaterowrequest",
		Breaks: "Transactions that write many columns of a row fail.",
		Advice: "Write fewer columns of one row in a transaction.",
		needs:  SingleRow,
		cost:   cost{requests: 2, bytes: 8 << 20},
		test: func(ctx context.Context, t *trial) error {
			row, err := seed(ctx, t)
			if err != nil {
				return err
			}
			if _, err := t.check(ctx, row, exact(family1, "none"), nil, removals(maxChanges)); err != nil {
				return brokenf("a conditional mutation with 100,000 changes fails: %v", err)
			}
			return nil
		},
	},
	{
		ID: "increment-atomic", Group: "Conditional mutations", Class: Required,
		Title:  "Concurrent increments of a cell all count, and each gets another result.",
		Used:   "timestamps of the direct oracle (`tso/internal/row/row.go`)",
		Source: dataAPI + "#readmodifywriterowrequest",
		Breaks: "Two transactions get the same timestamp.",
		Advice: routing + " A served oracle (percctl tso serve) does not need increments.",
		needs:  SingleRow,
		cost:   cost{loops: true, bytes: 4 << 20},
		test:   testIncrements,
	},
	{
		ID: "increment-refuses-other-sizes", Group: "Conditional mutations", Class: Required,
		Title:  "An increment of a value that does not have 8 bytes fails and changes nothing.",
		Used:   "a damaged oracle row is an error (`tso/internal/row/row.go`)",
		Source: dataAPI + "#readmodifywriterule",
		Breaks: "If the oracle's row is damaged, timestamps start again at 0.",
		Advice: otherService,
		needs:  SingleRow,
		cost:   cost{requests: 3, bytes: 1 << 10},
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			if err := t.apply(ctx, row, set("n", 1, "abc")); err != nil {
				return err
			}
			if n, err := t.increment(ctx, row, "n", 1); err == nil {
				return brokenf("an increment of the value %q is accepted, with the result %d", "abc", n)
			}
			return t.expect(ctx, "after a refused increment", row, nil, cell{family1, "n", 1, "abc"})
		},
	},
}

// seed makes a row with the column seed.
func seed(ctx context.Context, t *trial) (row string, err error) {
	row = t.row("r")
	return row, t.apply(ctx, row, set("seed", 1, "s"))
}

// testConditionalAtomic: in each round, concurrent conditional mutations claim a column that
// must not exist. Exactly one may succeed.
func testConditionalAtomic(ctx context.Context, t *trial) error {
	t.begin()
	for round := 0; t.more(ctx); round++ {
		// A row of its own for some rounds, so that rows stay small.
		row, column := t.row(fmt.Sprintf("r%d", round/20)), fmt.Sprintf("claim%d", round)
		if round%20 == 0 {
			if err := t.apply(ctx, row, set("seed", 1, "s")); err != nil {
				return err
			}
		}
		var won atomic.Int64
		err := t.workers(ctx, t.cfg.Concurrency, func(ctx context.Context, i int) error {
			matched, err := t.check(ctx, row, exact(family1, column), nil, set(column, int64(i+1), "mine"))
			if err == nil && !matched {
				won.Add(1)
			}
			return err
		})
		if err != nil {
			return err
		}
		if n := won.Load(); n != 1 {
			return brokenf("in round %d, %d of %d concurrent conditional mutations claimed the same column; exactly one may", round, n, t.cfg.Concurrency)
		}
		stored, err := t.read(ctx, row, exact(family1, column))
		if err != nil {
			return err
		}
		if len(stored) != 1 {
			return brokenf("in round %d, the claimed column has %d cells: %v", round, len(stored), some(stored))
		}
	}
	return ctx.Err()
}

// testIncrements: concurrent increments have results from 1 to their number.
func testIncrements(ctx context.Context, t *trial) error {
	t.begin()
	seen := make([][]int64, t.cfg.Concurrency)
	err := t.workers(ctx, t.cfg.Concurrency, func(ctx context.Context, i int) error {
		for t.more(ctx) {
			n, err := t.increment(ctx, t.row("counter"), "n", 1)
			if err != nil {
				return err
			}
			seen[i] = append(seen[i], n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	got := map[int64]bool{}
	largest := int64(0)
	for _, s := range seen {
		for i, n := range s {
			if got[n] {
				return brokenf("two increments returned %d", n)
			}
			if i > 0 && n <= s[i-1] {
				return brokenf("an increment returned %d after %d", n, s[i-1])
			}
			got[n], largest = true, max(largest, n)
		}
	}
	if int64(len(got)) != largest {
		return brokenf("%d increments led to the value %d", len(got), largest)
	}
	return ctx.Err()
}
