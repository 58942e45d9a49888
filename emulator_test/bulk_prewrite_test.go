package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// newBulkEnv makes table a, whose rows are prewritten in bulk if there are two of them beside the primary's,
// and a client whose requests the Faults can disturb.
func newBulkEnv(t *testing.T, cfg txn.Config) (*txntest.Env, *txn.Client, *txntest.Faults) {
	t.Helper()
	env := txntest.New(t, txntest.WithoutTransport(), txntest.WithBulkFrom(2))
	env.CreateTable("a", "f")
	faults := txntest.NewFaults(t)
	cfg.SchemaMaxAge = time.Hour // background requests must not be counted
	c := env.NewClient(cfg, faults.DialOptions()...)
	mustSet(t, c, "warm", "warm")
	synctest.Wait()
	faults.Reset()
	return env, c, faults
}

func isBulkPrewrite(c txntest.Call) bool {
	return c.Step == txntest.StepPrewrite && c.Method == "MutateRows"
}

func rowNames(n int) (rows []string) {
	for i := range n {
		rows = append(rows, fmt.Sprintf("row%04d", i))
	}
	return rows
}

func TestBulkPrewriteRequests(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	for _, n := range []int{3, 10, 100, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c, faults := newBulkEnv(t, txn.Config{})
				mustSet(t, c, "1", rowNames(n)...)
				synctest.Wait()
				want := map[txntest.Step]int{txntest.StepOracle: 2, txntest.StepPrewrite: 2, txntest.StepRead: 1, txntest.StepCommit: 1, txntest.StepSecondaries: 1}
				if d := cmp.Diff(want, faults.Count()); d != "" {
					t.Errorf("requests (-want +got):\n%s", d)
				}
				for _, row := range rowNames(n) {
					wantValue(t, takeSnapshot(t, c, txn.MaxStaleness(time.Hour)), row, "1")
				}
			})
		})
	}
}

// Without an option, transactions of four rows of a table and more lock rows in bulk. Of fewer rows, it would
// save no request.
func TestBulkPrewriteByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newFaultyClient(t, txn.Config{})
		env.CreateTable("b", "f")
		for _, tt := range []struct {
			inA, inB, prewrites int
			bulks               []int
		}{{3, 0, 3, nil}, {4, 0, 2, []int{3}}, {10, 0, 2, []int{9}}, {3, 2, 5, nil}, {3, 3, 4, []int{3}}, {4, 3, 3, []int{3, 3}}} {
			faults.Reset()
			tx := begin(t, c)
			for i, n := range []int{tt.inA, tt.inB} { // the primary is in a
				for _, row := range rowNames(n) {
					tx.Table([]string{"a", "b"}[i]).Set(row, "f", "q", []byte(fmt.Sprint(tt)))
				}
			}
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n, bulks := faults.Count()[txntest.StepPrewrite], bulkSizes(faults); n != tt.prewrites || !slices.Equal(bulks, tt.bulks) {
				t.Errorf("%d rows of one table and %d of another: %d prewrites, in bulk %v; want %d and %v", tt.inA, tt.inB, n, bulks, tt.prewrites, tt.bulks)
			}
		}
	})
}

// Of two transactions whose bulk prewrites meet, the younger one aborts, whichever comes first.
func TestBulkPrewritesMeet(t *testing.T) {
	for name, olderFirst := range map[string]bool{"older first": true, "younger first": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := newBulkEnv(t, txn.Config{})
				rows := rowNames(4)
				older := beginSet(t, c, "older", append([]string{"p1"}, rows...)...)
				other := env.NewClient(txn.Config{})
				younger := beginSet(t, other, "younger", append([]string{"p2"}, rows...)...)
				var first, second <-chan outcome
				if olderFirst {
					held := faults.On("primary", stepOn(txntest.StepPrewrite, "p1"), txntest.Hold, 1)
					first = commitInBackground(t.Context(), older)
					<-held.Fired()
					synctest.Wait()
					second = commitInBackground(t.Context(), younger)
					synctest.Wait()
					held.Release()
				} else {
					slow := txntest.NewFaults(t)
					held := slow.On("verification", stepOn(txntest.StepRead, rows[0]), txntest.HoldResponse, 1)
					other = env.NewClient(txn.Config{}, slow.DialOptions()...)
					younger = beginSet(t, other, "younger", append([]string{"p2"}, rows...)...)
					second = commitInBackground(t.Context(), younger)
					<-held.Fired()
					synctest.Wait()
					first = commitInBackground(t.Context(), older)
					synctest.Wait()
					held.Release()
				}
				if o := <-second; !olderFirst && o.err != nil {
					t.Errorf("the younger transaction, which verified first: %v", o.err)
				} else if olderFirst && !errors.Is(o.err, txn.ErrConflict) {
					t.Errorf("the younger transaction: %v, want a conflict", o.err)
				}
				if o := <-first; olderFirst != (o.err == nil) || o.err != nil && !errors.Is(o.err, txn.ErrConflict) {
					t.Errorf("the older transaction: %v", o.err)
				}
				synctest.Wait()
				s := takeSnapshot(t, c)
				for _, row := range rows {
					wantValue(t, s, row, map[bool]string{true: "older", false: "younger"}[olderFirst])
				}
				wantNoLocks(t, c)
			})
		})
	}
}

// Another transaction commits between the start of a transaction and its bulk prewrite.
func TestBulkPrewriteFindsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := newBulkEnv(t, txn.Config{})
		rows := rowNames(5)
		late := beginSet(t, c, "late", rows...)
		tx := begin(t, env.Client)
		tx.Table("a").Lock(rows[3], "f", "q")
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		var conflict *txn.ConflictError
		if _, err := late.Commit(t.Context()); !errors.As(err, &conflict) || conflict.Cell.Row != rows[3] {
			t.Errorf("commit beside a lock-only commit: %v, want a conflict in row %s", err, rows[3])
		}
		late = beginSet(t, c, "late", rows...)
		tx = beginSet(t, env.Client, "other", rows[2])
		tx.Table("a").Set(rows[4], "f", "another", nil) // no conflict: another column
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := late.Commit(t.Context()); !errors.As(err, &conflict) || conflict.Cell.Row != rows[2] {
			t.Errorf("commit beside a commit: %v, want a conflict in row %s", err, rows[2])
		}
		synctest.Wait()
		s := takeSnapshot(t, c)
		wantValue(t, s, rows[2], "other")
		wantValue(t, s, rows[3], "")
		wantNoLocks(t, c)
	})
}

// A snapshot that began before the bulk prewrite was acknowledged does not see its transaction, before
// or after the commit.
func TestBulkCommitTSAfterLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newBulkEnv(t, txn.Config{})
		rows := rowNames(4)
		tx := beginSet(t, c, "new", rows...)
		held := faults.On("bulk", isBulkPrewrite, txntest.Hold, 1)
		done := commitInBackground(t.Context(), tx)
		<-held.Fired()
		synctest.Wait()
		s := takeSnapshot(t, env.Client)
		wantValue(t, s, rows[2], "")
		held.Release()
		if o := <-done; o.err != nil {
			t.Fatal(o.err)
		}
		synctest.Wait()
		wantValue(t, s, rows[2], "")
		wantValue(t, takeSnapshot(t, env.Client), rows[2], "new")
	})
}

// A bulk prewrite arrives again after its transaction is committed, and after the primary's record
// was collected. The rollback of that lock must spare the committed value.
func TestDuplicateBulkPrewriteAfterCollection(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newBulkEnv(t, txn.Config{})
		rows := rowNames(4)
		bulk := faults.On("bulk", isBulkPrewrite, txntest.Echo, 1)
		mustSet(t, c, "1", rows...)
		<-bulk.Fired()
		synctest.Wait()
		mustSet(t, c, "2", rows[0], rows[1]) // the primary, and one secondary
		advance(3 * time.Hour)
		runGC(t, env.Client, gc.Config{Retention: time.Hour})
		bulk.Release()
		for _, row := range rows[1:] {
			if len(stored(t, env, row)[format.LockFamily]) != 1 {
				t.Errorf("row %s has no lock of the duplicate", row)
			}
		}
		s := takeSnapshot(t, env.Client)
		wantValue(t, s, rows[0], "2")
		wantValue(t, s, rows[1], "2")
		wantValue(t, s, rows[2], "1")
		wantValue(t, s, rows[3], "1")
		synctest.Wait()
		wantNoLocks(t, env.Client)
		if n := len(stored(t, env, rows[1])["f"]); n != 1 {
			t.Errorf("the overwritten row has %d values, want 1: the duplicate's goes", n)
		}
	})
}

// Rows with cells that have conflicted are prewritten one by one, and the others still in bulk.
func TestBulkPrewriteNotAfterConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newBulkEnv(t, txn.Config{})
		rows := rowNames(5)
		if _, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			set(tx, "1", rows...)
			if txn.AttemptOf(ctx) == 1 {
				return tryUpdate(t.Context(), env.Client, "other", rows[2])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if n, bulks := faults.Count()[txntest.StepPrewrite], len(bulkSizes(faults)); n != 2+3 || bulks != 2 {
			t.Errorf("%d prewrites, %d of them in bulk; want 5 and 2", n, bulks)
		}
		synctest.Wait()
		for _, row := range rows {
			wantValue(t, takeSnapshot(t, c), row, "1")
		}
	})
}
