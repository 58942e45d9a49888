package index_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestTwoAtOnce: two processes create, and then drop, an index at the same time.
func TestTwoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		for i := range 30 {
			mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{email: fmt.Sprint(i)})
		}
		both := func(f func(*txn.Client) error) {
			t.Helper()
			var all sync.WaitGroup
			for range 2 {
				c := env.NewClient(txn.Config{})
				all.Go(func() {
					if err := f(c); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		both(func(c *txn.Client) error { return x.Create(t.Context(), c, "email", nil) })
		wantCorrect(t, x, c, "email")
		both(func(c *txn.Client) error { return x.Drop(t.Context(), c, "email") })
		wantRows(t, c)
	})
}

// TestDuplicates: Create names two rows with one key. After one of them changes, it continues.
func TestDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, x, c := newEnv(t)
		for i := range 20 {
			mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{email: fmt.Sprint(i)})
		}
		mustSet(t, c, "7twice", map[txn.Column]string{email: "7"})
		err := x.Create(t.Context(), c, "email", nil)
		var taken *index.UniqueError
		if !errors.As(err, &taken) || !slices.Contains([]string{taken.Row, taken.Other}, "7") || !slices.Contains([]string{taken.Row, taken.Other}, "7twice") {
			t.Fatalf("Create: %v", err)
		}
		if s, err := x.State(t.Context(), c, "email"); s != index.Building || err != nil {
			t.Errorf("state %q, error %v", s, err)
		}
		if _, _, err := x.At(snapshot(t, c)).Get(t.Context(), "email", "7"); !errors.Is(err, index.ErrState) {
			t.Errorf("Get while it is being built: %v", err)
		}
		// One of the two has the entry, at the latest after it was written twice. The other one
		// changes, and the entry stays.
		entry := func() string {
			row, _, err := snapshot(t, c).Table("indexes").Get(t.Context(), "email/7\x00\x01", "e", "row")
			if err != nil {
				t.Fatal(err)
			}
			return string(row)
		}
		one, other := "7", "7twice"
		if entry() == other {
			one, other = other, one
		}
		mustSet(t, c, one, map[txn.Column]string{email: "another"})
		mustSet(t, c, one, map[txn.Column]string{email: "7"})
		mustSet(t, c, other, map[txn.Column]string{email: "eight"})
		if got := entry(); got != one {
			t.Errorf("the entry is of row %q, want %q", got, one)
		}
		create(t, x, c, "email")
		wantCorrect(t, x, c, "email")
		if row, _, err := x.At(snapshot(t, c)).Get(t.Context(), "email", "7"); row != one || err != nil {
			t.Errorf("Get: %q, error %v", row, err)
		}
	})
}

// TestDropDuringBuild: Drop stops a build under way in another process, and leaves nothing.
func TestDropDuringBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		for i := range 5 {
			mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{email: fmt.Sprint(i)})
		}
		faults := txntest.NewFaults(t)
		building := env.NewClient(txn.Config{}, faults.DialOptions()...)
		held := faults.On("read of the rows", func(call txntest.Call) bool {
			return call.Step == txntest.StepRead && call.Table == "users"
		}, txntest.Hold, 1)
		done := make(chan error, 1)
		go func() { done <- x.Create(t.Context(), building, "email", nil) }()
		<-held.Fired()
		// Drop removes the entries and the record. Before it removes the progress of the
		// build, which would stop it too, the build continues.
		dropFaults := txntest.NewFaults(t)
		dropping := env.NewClient(txn.Config{}, dropFaults.DialOptions()...)
		commits := 0
		swept := dropFaults.On("read of the progress", func(call txntest.Call) bool {
			if call.Step == txntest.StepCommit && call.Row == "!state/email" {
				commits++
			}
			return commits == 2 && call.Step == txntest.StepRead
		}, txntest.Hold, 1)
		dropped := make(chan error, 1)
		go func() { dropped <- x.Drop(t.Context(), dropping, "email") }()
		<-swept.Fired()
		held.Release()
		if err := <-done; err == nil {
			t.Error("Create succeeds, although the index was dropped")
		}
		swept.Release()
		if err := <-dropped; err != nil {
			t.Fatal(err)
		}
		s := snapshot(t, c)
		for row, err := range s.Table("indexes").ReadRows(t.Context(), jobs.Prefix("email/").Rows()) {
			t.Errorf("Drop left %q, error %v", row.Key(), err)
		}
		if _, _, err := x.At(s).Get(t.Context(), "email", "1"); !errors.Is(err, index.ErrState) {
			t.Errorf("Get: %v", err)
		}
		create(t, x, c, "email")
		wantCorrect(t, x, c, "email")
	})
}
