package conformance

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"
)

// cells are assumptions about timestamps, values and deletes.
var cells = []Assumption{
	{
		ID: "timestamp-exact", Group: "Cells", Class: Required,
		Title:  "A cell keeps its timestamp to the millisecond, and cells one millisecond apart are different cells.",
		Used:   "start_ts and commit_ts are cell timestamps (`tso/timestamp.go`)",
		Source: dataAPI + "#setcell",
		Breaks: "Transactions with close timestamps overwrite each other's locks and records.",
		Advice: "Use tables with a timestamp granularity of milliseconds. " + otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			now := time.Now().UnixMilli()/1000*1_000_000 + 136 // as large as timestamps of transactions
			want := []cell{{family1, "a", now, "0"}, {family1, "a", now + 1, "1"}, {family1, "a", now + 2, "2"}}
			for _, c := range want {
				if err := t.apply(ctx, row, set(c.qualifier, c.ms, c.value)); err != nil {
					return err
				}
			}
			if err := t.expect(ctx, "after three cells one millisecond apart", row, nil, want...); err != nil {
				return err
			}
			return t.expect(ctx, "a read of one millisecond", row, between(now+1, now+2), want[1])
		},
	},
	{
		ID: "timestamp-largest", Group: "Cells", Class: Required,
		Title:  "The largest timestamp, 2^63 rounded down to milliseconds, is allowed.",
		Used:   "timestamps of transactions are about 1.8e18 µs (`tso/timestamp.go`)",
		Source: dataAPI + "#setcell",
		Breaks: "Transactions cannot write, now or in some years.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			for i, ms := range []int64{1_800_000_000_000_000, 1 << 52, maxMillis - 1, maxMillis} {
				if err := t.apply(ctx, row, set(fmt.Sprint("q", i), ms, "v")); err != nil {
					return brokenf("a cell at %d ms is refused: %v", ms, err)
				}
				if err := t.expect(ctx, "a large timestamp", row, exact(family1, fmt.Sprint("q", i)), cell{family1, fmt.Sprint("q", i), ms, "v"}); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		ID: "timestamp-zero", Group: "Cells", Class: Required,
		Title:  "The timestamp 0 is allowed, and ranges that start at 0 contain it.",
		Used:   "data of an adopted table may have it (`DataUpTo` in `txn/internal/store/filter.go`)",
		Source: dataAPI + "#timestamprange",
		Breaks: "Data from before the adoption may be invisible.",
		Advice: otherService,
		cost:   simple,
		test: shows(set("a", 0, "zero").set(family1, "a", 5, "five"),
			reading{"a read of [0, 5 ms)", between(0, 5), []cell{{family1, "a", 0, "zero"}}}),
	},
	{
		ID: "timestamp-range-open", Group: "Cells", Class: Required,
		Title:  "A timestamp range contains its start and not its end. Without an end it is infinite.",
		Used:   "conflicts at or above start_ts (`From` in `txn/internal/store/filter.go`)",
		Source: dataAPI + "#timestamprange",
		Breaks: "A prewrite does not see newer commits: updates are lost.",
		Advice: otherService,
		cost:   simple,
		test: shows(set("a", 3, "3").set(family1, "a", 4, "4").set(family1, "a", 5, "5"),
			reading{"a read from 4 ms", between(4, 0), []cell{{family1, "a", 4, "4"}, {family1, "a", 5, "5"}}},
			reading{"a read of [3 ms, 5 ms)", between(3, 5), []cell{{family1, "a", 3, "3"}, {family1, "a", 4, "4"}}}),
	},
	{
		ID: "timestamp-server", Group: "Cells", Class: Required,
		Title:  "The service sets the timestamp of a cell on request, by a clock that is roughly right.",
		Used:   "the oracle compares its clock with Bigtable's (`tso/internal/row/row.go`)",
		Source: dataAPI + "#setcell",
		Breaks: "The oracle refuses to start, because a clock seems to be wrong.",
		Advice: "Correct the clock of this machine, or of the service.",
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			c := changes()
			c.m.Set(family1, "a", bigtable.ServerTime, []byte("v"))
			if err := t.apply(ctx, row, c); err != nil {
				return err
			}
			got, err := t.read(ctx, row, nil)
			if err != nil {
				return err
			}
			if len(got) != 1 {
				return brokenf("a cell with the service's timestamp: the row has %v", some(got))
			}
			if off := time.Since(time.UnixMilli(got[0].ms)).Abs(); off > time.Hour {
				return brokenf("the service's clock and this machine's differ by %v", off.Round(time.Second))
			}
			return nil
		},
	},
	{
		ID: "set-idempotent", Group: "Cells", Class: Required,
		Title:  "A cell that is set again at its timestamp is one cell, with the newer value.",
		Used:   "requests that were sent twice, heartbeats (`txn/heartbeat.go`); hazard 15",
		Source: dataAPI + "#setcell",
		Breaks: "A retried request leaves two locks or two records.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			for _, v := range []string{"one", "one", "two"} {
				if err := t.apply(ctx, row, set("a", 7, v)); err != nil {
					return err
				}
			}
			return t.expect(ctx, "after three changes of one cell", row, nil, cell{family1, "a", 7, "two"})
		},
	},
	{
		ID: "delete-range", Group: "Cells", Class: Required,
		Title:  "A delete of a timestamp range deletes the range's start and not its end.",
		Used:   "every removal of a lock, garbage collection (`RemoveCell` in `txn/internal/store/mutations.go`)",
		Source: dataAPI + "#deletefromcolumn",
		Breaks: "A commit removes a value of another transaction.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			c := changes()
			for ms := int64(2); ms <= 6; ms++ {
				c.set(family1, "a", ms, "v")
			}
			if err := t.apply(ctx, row, c.set(family1, "b", 3, "v")); err != nil {
				return err
			}
			if err := t.apply(ctx, row, changes().remove(family1, "a", 3, 5)); err != nil {
				return err
			}
			return t.expect(ctx, "after a delete of [3 ms, 5 ms)", row, nil,
				cell{family1, "a", 2, "v"}, cell{family1, "a", 5, "v"}, cell{family1, "a", 6, "v"}, cell{family1, "b", 3, "v"})
		},
	},
	{
		ID: "delete-absent", Group: "Cells", Class: Required,
		Title:  "A delete of cells that do not exist succeeds.",
		Used:   "requests that were sent twice; an abort after a prewrite with an unknown outcome (`txn/prewrite.go`); hazard 15",
		Source: "assumed: Bigtable's client repeats such requests, so they cannot be errors",
		Breaks: "A retried commit or rollback never succeeds.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			if err := t.apply(ctx, t.row("r"), changes().remove(family1, "none", 8, 9)); err != nil {
				return brokenf("a delete in an absent row is refused: %v", err)
			}
			if err := t.apply(ctx, t.row("s"), set("a", 1, "v")); err != nil {
				return err
			}
			if err := t.apply(ctx, t.row("s"), changes().remove(family1, "none", 8, 9)); err != nil {
				return brokenf("a delete of an absent column is refused: %v", err)
			}
			return nil
		},
	},
	{
		ID: "delete-column-and-row", Group: "Cells", Class: Required,
		Title:  "A delete of a column or of a row deletes all of its cells.",
		Used:   "failures of observers, schema records, modes of the oracle (`txn/changes/notification.go`, `tso/internal/row/row.go`)",
		Source: dataAPI + "#mutation",
		Breaks: "Removed observers and adoptions stay registered.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			if err := t.apply(ctx, row, set("a", 1, "v").set(family1, "a", 2, "w").set(family1, "b", 1, "v")); err != nil {
				return err
			}
			c := changes()
			c.m.DeleteCellsInColumn(family1, "a")
			if err := t.apply(ctx, row, c); err != nil {
				return err
			}
			if err := t.expect(ctx, "after a delete of column a", row, nil, cell{family1, "b", 1, "v"}); err != nil {
				return err
			}
			c = changes()
			c.m.DeleteRow()
			if err := t.apply(ctx, row, c); err != nil {
				return err
			}
			return t.expect(ctx, "after a delete of the row", row, nil)
		},
	},
	{
		ID: "mutation-order", Group: "Cells", Class: Required,
		Title:  "The changes of one request apply in their order.",
		Used:   "a schema record replaces an older one: delete, then set (`tso/internal/row/row.go`, `txn/admin/adopt.go`)",
		Source: dataAPI + "#mutaterowrequest",
		Breaks: "A changed registration disappears.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			if err := t.apply(ctx, row, set("a", 4, "old")); err != nil {
				return err
			}
			c := changes()
			c.m.DeleteCellsInColumn(family1, "a")
			c.set(family1, "a", 9, "new").set(family1, "b", 9, "gone")
			c.m.DeleteCellsInColumn(family1, "b")
			if err := t.apply(ctx, row, c); err != nil {
				return err
			}
			return t.expect(ctx, "after delete a, set a, set b, delete b", row, nil, cell{family1, "a", 9, "new"})
		},
	},
	{
		ID: "values-any-bytes", Group: "Cells", Class: Required,
		Title:  "Values may be empty and hold any bytes.",
		Used:   "notify cells without a trace are empty (`txn/format/record.go`); records are protobuf messages",
		Source: dataAPI + "#setcell",
		Breaks: "Notifications are lost, or records are damaged.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row, all := t.row("r"), make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			c, want := changes(), []cell{{family1, "empty", 1, ""}, {family1, "all", 1, string(all)}, {family1, "zero", 1, "\x00"}}
			for _, w := range want {
				c.set(w.family, w.qualifier, w.ms, w.value)
			}
			if err := t.apply(ctx, row, c); err != nil {
				return err
			}
			return t.expect(ctx, "values with any bytes", row, nil, want...)
		},
	},
	{
		ID: "versions-kept", Group: "Cells", Class: Required,
		Title:  "A family without a garbage-collection policy keeps all versions.",
		Used:   "every stored record (`txn/admin/policy.go`)",
		Source: garbage,
		Breaks: "Live versions, locks and commit records disappear.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row, c := t.row("r"), changes()
			const n = 200
			for ms := int64(1); ms <= n; ms++ {
				c.set(family1, "a", ms*10, "v")
			}
			if err := t.apply(ctx, row, c); err != nil {
				return err
			}
			got, err := t.read(ctx, row, nil)
			if err != nil {
				return err
			}
			if len(got) != n {
				return brokenf("%d of %d versions of a column are there", len(got), n)
			}
			return nil
		},
	},
	{
		ID: "cells-newest-first", Group: "Cells", Class: Required,
		Title:  "A read returns the cells of a column from the newest to the oldest.",
		Used:   "what a row shows at a timestamp (`txn/internal/recovery/read.go`)",
		Source: dataAPI + "#column",
		Breaks: "Reads return old values.",
		Advice: otherService,
		cost:   simple,
		test: func(ctx context.Context, t *trial) error {
			row := t.row("r")
			for _, ms := range []int64{20, 40, 10, 30} {
				if err := t.apply(ctx, row, set("a", ms, "v")); err != nil {
					return err
				}
			}
			got, err := t.read(ctx, row, nil)
			if err != nil {
				return err
			}
			if len(got) != 4 {
				return brokenf("4 cells of a column arrive as %v", some(got))
			}
			for i, c := range got {
				if want := int64(40 - 10*i); c.ms != want {
					return brokenf("the cells of a column arrive as %v", some(got))
				}
			}
			return nil
		},
	},
}
