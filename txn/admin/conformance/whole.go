package conformance

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
)

// whole are assumptions about concurrent reads and writes of one row, and about time.
var whole = []Assumption{
	{
		ID: "linearizable", Group: "One row at a time", Class: Required,
		Title:  "A read sees every change of the row that was acknowledged before the read began, and never goes back.",
		Used:   "reads find the locks of acknowledged prewrites (`txn/reads.go`); oracle and safe point",
		Source: replication + "#consistency-model",
		Breaks: "Snapshots miss committed data, or change while they are open.",
		Advice: routing,
		cost:   cost{loops: true, bytes: 4 << 20},
		test:   testLinearizable,
	},
	{
		ID: "mutations-not-lost", Group: "One row at a time", Class: Required,
		Title:  "Concurrent mutations of a row are all applied.",
		Used:   "commits of secondaries, notifications, worker tokens (`txn/internal/store/writes.go`)",
		Source: writes,
		Breaks: "Acknowledged commits disappear.",
		Advice: otherService + " On an emulator: remove garbage-collection policies, which make it lose writes.",
		cost:   cost{loops: true, bytes: 8 << 20},
		test:   testNotLost,
	},
	{
		ID: "row-mutation-whole", Group: "One row at a time", Class: Required,
		Title:  "Readers see all changes of a mutation of one row, or none.",
		Used:   "value and lock of a prewrite, record and lock of a commit (`txn/internal/store/mutations.go`)",
		Source: writes,
		Breaks: "Readers see a value without its lock: they read data that is not committed.",
		Advice: otherService,
		cost:   cost{loops: true, bytes: 32 << 20},
		test: func(ctx context.Context, t *trial) error {
			return t.torn(ctx, 10, bigtable.InterleaveFilters(wholeFamily(family1), wholeFamily(family2)), t.apply)
		},
	},
	{
		ID: "read-interleave-whole", Group: "One row at a time", Class: Required,
		Title:  "A read with an Interleave at the top of its filter is never torn.",
		Used:   "reads of locks and outcomes (`txn/internal/store/filter.go`)",
		Source: reads,
		Breaks: "A reader misses a lock: it reads data that is not committed.",
		Advice: otherService,
		cost:   cost{loops: true, bytes: 32 << 20},
		test: func(ctx context.Context, t *trial) error {
			return t.torn(ctx, 3, bigtable.InterleaveFilters(bigtable.PassAllFilter(), bigtable.BlockAllFilter()), t.apply)
		},
	},
	{
		ID: "read-chain-whole", Group: "One row at a time", Class: Required,
		Title:  "A read with a Chain that ends with an Interleave is never torn.",
		Used:   "reads of transactions and snapshots (`VisibleAt` in `txn/internal/store/filter.go`)",
		Source: reads,
		Breaks: "A reader misses a lock: it reads data that is not committed.",
		Advice: otherService,
		cost:   cost{loops: true, bytes: 32 << 20},
		test: func(ctx context.Context, t *trial) error {
			return t.torn(ctx, 3, readFilter, t.apply)
		},
	},
	{
		ID: "read-plain-whole", Group: "One row at a time", Class: Optional,
		Title:  "A read without a filter is never torn.",
		Used:   "nothing: Bigtable's emulator tears such reads (`docs/design/reads.md`)",
		Source: reads,
		Breaks: "Nothing. Plain reads of your own may miss a column, or show one twice.",
		Advice: avoided,
		cost:   cost{loops: true, bytes: 32 << 20},
		test: func(ctx context.Context, t *trial) error {
			return t.torn(ctx, 3, nil, t.apply)
		},
	},
	{
		ID: "scan-fresh", Group: "One row at a time", Class: Required,
		Title:  "A scan sees every row that was acknowledged before the scan began.",
		Used:   "scans (`txn/scan.go`), garbage collection (`txn/gc/locks.go`), workers (`notify/scanner.go`)",
		Source: replication + "#consistency-model",
		Breaks: "Scans miss committed rows. Garbage collection misses locks and deletes what they need; hazard 8.",
		Advice: routing,
		cost:   cost{requests: 80, bytes: 1 << 20},
		test: func(ctx context.Context, t *trial) error {
			for i := range 40 {
				if err := t.apply(ctx, t.row(fmt.Sprintf("s%02d", 97*i%40)), set("a", 1, "v")); err != nil {
					return err
				}
				keys, err := t.scan(ctx, bigtable.PrefixRange(t.row("s")))
				if err != nil {
					return err
				}
				if len(keys) != i+1 {
					return brokenf("a scan returned %d rows after %d had been written", len(keys), i+1)
				}
			}
			return nil
		},
	},
	{
		ID: "fresh-after-each-write", Group: "One row at a time", Class: Required,
		Title:  "After the acknowledgment of a write of any kind, reads of every kind see it, and so do conditional mutations.",
		Used:   "reads and prewrites find locks and commits (`txn/reads.go`, `txn/scan.go`, `txn/prewrite.go`)",
		Source: replication + "#consistency-model",
		Breaks: "Snapshots miss committed data, and a transaction locks what another one has locked: updates are lost.",
		Advice: routing,
		needs:  SingleRow,
		cost:   cost{loops: true, times: 10, patience: 20, bytes: 32 << 20},
		test:   testFresh,
	},
	{
		ID: "late-requests", Group: "One row at a time", Class: Required,
		Title:  "A request does not take effect long after its deadline.",
		Used:   "the fence of garbage collection allows 30 s (`txn/internal/gctime/gctime.go`); hazards 9 and 17",
		Source: "assumed: gRPC ends a request at its deadline, and docs/guarantees.md says how late it may be. The test waits for --duration only",
		Breaks: "A late request revives a deleted version after garbage collection.",
		Advice: "Keep versions for longer: percctl gc run --retention. " + otherService,
		cost:   cost{requests: 90, bytes: 1 << 20, waits: 2},
		test:   testLate,
	},
}

// maxMillis is the largest timestamp in milliseconds.
const maxMillis = int64(^uint64(0)>>1) / 1000

// testLinearizable: one writer for each row, and several readers.
func testLinearizable(ctx context.Context, t *trial) error {
	t.begin()
	var acknowledged, seen atomic.Int64
	row, column := t.row("register"), "v"
	f := bigtable.InterleaveFilters(exact(family1, column), bigtable.BlockAllFilter())
	if err := t.apply(ctx, row, set(column, 1, "1")); err != nil {
		return err
	}
	acknowledged.Store(1)
	return t.workers(ctx, t.cfg.Concurrency, func(ctx context.Context, i int) error {
		if i == 0 {
			for n := int64(2); t.more(ctx); n++ {
				if err := t.apply(ctx, row, set(column, n, strconv.FormatInt(n, 10)).remove(family1, column, n-1, n)); err != nil {
					return err
				}
				acknowledged.Store(n)
			}
			return nil
		}
		for t.more(ctx) {
			least := max(acknowledged.Load(), seen.Load())
			got, err := t.read(ctx, row, f)
			if err != nil {
				return err
			}
			newest := int64(0)
			for _, c := range got {
				newest = max(newest, c.ms)
			}
			if newest < least {
				return brokenf("a read returned version %d, although version %d had been acknowledged or read before", newest, least)
			}
			for old := seen.Load(); newest > old && !seen.CompareAndSwap(old, newest); old = seen.Load() {
			}
		}
		return nil
	})
}

func testNotLost(ctx context.Context, t *trial) error {
	t.begin()
	for round := 0; t.more(ctx); round++ {
		row := t.row(fmt.Sprintf("r%d", round))
		const each = 5
		err := t.workers(ctx, t.cfg.Concurrency, func(ctx context.Context, i int) error {
			for n := range each {
				if err := t.apply(ctx, row, set(fmt.Sprintf("c%d-%d", i, n), 1, "v")); err != nil {
					return err
				}
				if !t.more(ctx) {
					return errSpent
				}
			}
			return nil
		})
		if err == errSpent {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		got, err := t.read(ctx, row, bigtable.InterleaveFilters(bigtable.PassAllFilter(), bigtable.BlockAllFilter()))
		if err != nil {
			return err
		}
		if want := each * t.cfg.Concurrency; len(got) != want {
			return brokenf("%d of %d acknowledged concurrent mutations of a row are not there", want-len(got), want)
		}
	}
	return ctx.Err()
}

// testLate sends requests with a short deadline, waits, and then looks twice: what
// appears in between was late by at least the time that it waited.
func testLate(ctx context.Context, t *trial) error {
	const n = 40
	failed := 0
	rows := make(bigtable.RowList, n)
	for i := range n {
		rows[i] = t.row(fmt.Sprintf("late%02d", i))
		if err := t.spend(64); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, time.Millisecond/2<<(i%8))
		// Whether it fails does not matter: it must take effect soon, or never.
		if t.table.Apply(short, rows[i], set("a", 1, "v").m) != nil {
			failed++
		}
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if err := wait(ctx, t.cfg.Duration); err != nil {
		return err
	}
	before, err := t.scan(ctx, rows)
	if err != nil {
		return err
	}
	if err := wait(ctx, t.cfg.Duration); err != nil {
		return err
	}
	after, err := t.scan(ctx, rows)
	if err != nil {
		return err
	}
	if late := len(after) - len(before); late != 0 {
		return brokenf("%d of %d requests took effect more than %v after their deadline (%d had failed)", late, n, t.cfg.Duration, failed)
	}
	return nil
}
