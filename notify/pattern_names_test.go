package notify_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// longest is the longest qualifier of family d that an observer can acknowledge.
func longest(prefix, observer string) string {
	return prefix + strings.Repeat("x", format.MaxColumnKey-len("_ack:d:/")-len(prefix)-len(observer))
}

// TestPatternLongQualifiers: a write whose acknowledgment could not be stored fails, and not the
// observer without end.
func TestPatternLongQualifiers(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, patternOf("tag/"), "tags", false)
		write := func(q string) error {
			_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("docs").Set("r", "d", q, nil)
				return nil
			})
			return err
		}
		long := longest("tag/", "tags")
		if err := write(long); err != nil {
			t.Errorf("the longest qualifier: %v", err)
		}
		if err := write(long + "x"); !errors.Is(err, txn.ErrLimit) {
			t.Errorf("a longer one: %v", err)
		}
		if err := write("tog/" + long[len("tag/"):] + "x"); err != nil {
			t.Errorf("beside the pattern: %v", err)
		}
	})
}

// TestPatternOverLongQualifiers: a pattern is registered over cells that are there already, and whose
// names are too long for one of its observers, or for both. Backfill and Notify say so and lose no
// other cell, the cells can be deleted, an observer with a shorter id sees what it can, and nothing
// is left.
func TestPatternOverLongQualifiers(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		one := longest("tag/", "b") // too long for tags
		both := one + "x"           // too long for b, too
		putAll(t, env.Client, "r", "tag/a", one, both)
		putAll(t, env.Client, "s", "tag/a", one, both)
		log := newRunLog()
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}), notify.Config{})
		for _, id := range []string{"tags", "b"} {
			register(t, env.Client, patternOf("tag/"), id, false)
			handle(t, w, id, patternOf("tag/"), log.observer(id))
		}
		start(t, w)
		pass(2 * time.Minute)
		cells, err := notify.Backfill(t.Context(), env.Client, notify.BackfillConfig{Table: "docs", Column: txn.Pattern("d", "tag/")})
		first := fmt.Sprintf("The first is %s, observer tags", cellIn(columnOf("docs", "d", one), "r"))
		if !errors.Is(err, txn.ErrLimit) || !strings.Contains(err.Error(), "4 cells") || !strings.HasSuffix(err.Error(), first) || cells != 4 {
			t.Errorf("backfill of %d cells: %v", cells, err)
		}
		if cells, err := notify.Backfill(t.Context(), env.Client, notify.BackfillConfig{Table: "docs", Column: txn.Pattern("d", both), Rows: bigtable.RowList{"r"}}); !errors.Is(err, txn.ErrLimit) || cells != 0 {
			t.Errorf("backfill of one cell whose name is too long: %d, %v", cells, err)
		}
		refused := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(c txntest.Call) error {
			if c.Step == txntest.StepNotify {
				return status.Error(codes.PermissionDenied, "refused on purpose")
			}
			return nil
		})...)
		if cells, err := notify.Backfill(t.Context(), refused, notify.BackfillConfig{Table: "docs", Column: txn.Pattern("d", "tag/")}); status.Code(err) != codes.PermissionDenied || cells != 0 {
			t.Errorf("a backfill that is refused: %d, %v", cells, err)
		}
		if err := changes.Notify(t.Context(), env.Client, cellIn(columnOf("docs", "d", both), "r")); !errors.Is(err, txn.ErrLimit) {
			t.Errorf("a notification that no observer can acknowledge: %v", err)
		}
		pass(3 * time.Minute)
		log.want(t, "the backfill", "tags r/tag/a", "b r/tag/a", "b r/"+one, "tags s/tag/a", "b s/tag/a", "b s/"+one)
		wantLeft(t, env.Client, 0, 0)
		for _, q := range []string{one, both} {
			remove(t, env.Client, columnOf("docs", "d", q), "r")
		}
		pass(3 * time.Minute)
		log.want(t, "deletes", "b r/"+one)
		wantLeft(t, env.Client, 0, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := notify.Wait(ctx, env.Client, notify.WaitConfig{}); err != nil {
			t.Error(err)
		}
		if _, err := changes.UnregisterObserver(t.Context(), env.Client, "docs", "b"); err != nil {
			t.Fatal(err)
		}
		all, err := changes.ObservedColumns(t.Context(), env.Client, "docs")
		if _, ok := changes.Watching(all, "docs", txn.Column{Family: "d", Qualifier: one}); ok || err != nil {
			t.Errorf("%q is watched without b, %v", one, err)
		}
	})
}

// TestPatternBackfillRequests: Backfill sets the notify cells of a row by few mutations.
func TestPatternBackfillRequests(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		var qualifiers []string
		for i := range 1200 {
			qualifiers = append(qualifiers, fmt.Sprintf("tag/%04d", i))
		}
		putAll(t, env.Client, "wide", qualifiers...)
		putAll(t, env.Client, "narrow", "tag/a", "tag/b")
		register(t, env.Client, patternOf("tag/"), "tags", false)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		if cells, err := notify.Backfill(t.Context(), c, notify.BackfillConfig{Table: "docs", Column: txn.Pattern("d", "tag/")}); err != nil || cells != 1202 {
			t.Fatalf("%d cells, %v", cells, err)
		}
		var set []string
		for _, call := range faults.Calls() {
			if call.Table == "docs" && call.Method == "MutateRows" {
				var entries []string
				for _, e := range call.Request.(*btpb.MutateRowsRequest).Entries {
					entries = append(entries, fmt.Sprint(string(e.RowKey), " ", len(e.Mutations)))
				}
				set = append(set, fmt.Sprint(entries))
			}
		}
		if want := []string{"[narrow 2 wide 498]", "[wide 500]", "[wide 202]"}; !slices.Equal(set, want) {
			t.Errorf("requests %q, want %q", set, want)
		}
		wantLeft(t, env.Client, 1202, 0)
	})
}
