package changes_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestFirstSweepIsStoredOnce: of a table that got its journal later, the first call stores when the first
// sweep begins. Later calls do not put it off.
func TestFirstSweepIsStoredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithoutJournal(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("docs", "d")
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "docs", Families: []string{"d"}}); err != nil {
			t.Fatal(err)
		}
		c := env.NewClient(txn.Config{TokenTTL: -1})
		calls := 0
		broken := errors.New("broken on purpose")
		look := func(err error) ([]changes.SweepPosition, error) {
			return changes.SweepPositions(t.Context(), c, func(context.Context) (time.Duration, error) {
				calls++
				return time.Hour, err
			}, "docs")
		}
		if all, err := look(broken); !errors.Is(err, broken) || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		first, err := look(nil)
		if err != nil || len(first) != 1 || first[0].Complete || first[0].Missed || first[0].DueTS-first[0].BegunTS < 3600e6 || calls != 2 {
			t.Fatalf("%+v, %v, %d calls", first, err, calls)
		}
		<-time.After(time.Minute)
		second, err := look(nil)
		if d := cmp.Diff(first, second, cmpopts.IgnoreUnexported(changes.SweepPosition{})); err != nil || d != "" || calls != 2 {
			t.Errorf("%v, %d calls (-first +second):\n%s", err, calls, d)
		}
		if all, err := changes.SweepPositions(t.Context(), c, nil); all != nil || err != nil {
			t.Errorf("without tables: %v, %v", all, err)
		}
	})
}
