package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// After a conflict, Update runs its function again, including the reads: concurrent
// increments of a counter are not lost.
func TestUpdateReadsAnew(t *testing.T) {
	h := newHermitage(t)
	const clients, each = 4, 10
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	errs := make(chan error)
	runs := make(chan int, clients)
	for range clients {
		c := h.env.NewClient(txn.Config{})
		go func() {
			n := 0
			var err error
			for i := 0; i < each && err == nil; i++ {
				_, err = c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
					n++
					v, _, err := tx.Table("t").Get(ctx, "n", "f", "q")
					tx.Table("t").Set("n", "f", "q", append(v, '+'))
					return err
				})
			}
			runs <- n
			errs <- err
		}()
	}
	total := 0
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
		total += <-runs
	}
	if got := h.begin().get("n"); got != strings.Repeat("+", clients*each) {
		t.Errorf("%d of %d updates took effect", len(got), clients*each)
	}
	t.Logf("%d runs for %d updates", total, clients*each)
}

// A snapshot at a past timestamp always shows the same state.
func TestSnapshotAt(t *testing.T) {
	h := newHermitage(t)
	want := map[tso.Timestamp]string{}
	for i := range 4 {
		w := h.begin()
		w.set("x", fmt.Sprint(i))
		if i == 2 {
			w.table().Delete("y", "f", "q")
		}
		c := w.commit()
		y := " y=20"
		if i >= 2 {
			y = ""
		}
		want[c] = fmt.Sprintf("x=%d%s", i, y)
		before := "x=10 y=20"
		if i > 0 {
			before = fmt.Sprintf("x=%d", i-1)
			if i <= 2 {
				before += " y=20"
			}
		}
		want[c-1] = before // a commit is visible from its commit_ts on, not before
		want[w.tx.StartTS()] = before
	}
	var order []tso.Timestamp
	for ts := range want {
		order = append(order, ts)
	}
	sort.Slice(order, func(i, j int) bool { return order[i] < order[j] })
	for _, ts := range order {
		s, err := h.env.Client.Snapshot(t.Context(), txn.At(ts))
		if err != nil {
			t.Fatal(err)
		}
		if s.ReadTS() != ts {
			t.Errorf("snapshot at %d reads at %d", ts, s.ReadTS())
		}
		var rows []string
		for row, err := range s.Table("t").ReadRows(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, row.Key()+"="+string(row["f"][0].Value))
		}
		if got := strings.Join(rows, " "); got != want[ts] {
			t.Errorf("at %d: %q, want %q", ts, got, want[ts])
		}
	}
	// Before the first commit.
	s, err := h.env.Client.Snapshot(t.Context(), txn.At(1))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Table("t").ReadRow(t.Context(), "x"); r != nil || err != nil {
		t.Errorf("before the first commit: %v, %v", r, err)
	}
}

// A snapshot at a future timestamp is refused.
func TestSnapshotInTheFuture(t *testing.T) {
	h := newHermitage(t)
	now, err := h.env.Client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, ts := range []tso.Timestamp{now.Add(time.Hour), tso.Max, -1} {
		if _, err := h.env.Client.Snapshot(t.Context(), txn.At(ts)); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("snapshot at %d: error %v, want ErrInvalid", ts, err)
		}
	}
}

// Cells from before an adoption are visible in every snapshot, however old its
// timestamp is, and At(0) is refused. Before the fix a snapshot older than the cells'
// own timestamps did not show them, and At(0) showed the present.
func TestAtBeforeAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, _ := newFaultyClient(t, txn.Config{TokenTTL: -1})
		m := bigtable.NewMutation()
		m.Set("f", "q", bigtable.Now(), []byte("old"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), "bob", m); err != nil {
			t.Fatal(err)
		}
		mustSet(t, a, "new", "bob")
		for _, ts := range []tso.Timestamp{1, 5e11, 1e14} {
			wantValue(t, takeSnapshot(t, a, txn.At(ts)), "bob", "old")
		}
		for _, ts := range []tso.Timestamp{0, -1} {
			if _, err := a.Snapshot(t.Context(), txn.At(ts)); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("snapshot at %d: %v, want ErrInvalid", ts, err)
			}
		}
	})
}
