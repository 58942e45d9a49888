package admin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestReadHistory: snapshots read what it says, at the first and the last timestamp of each reading:
// beside plain writes after a commit, expired values, deletions, locks, and a safe point.
func TestReadHistory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var ahead atomic.Int64
	oracle := tso.NewLocal(tso.LocalConfig{Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	faults := txntest.NewFaults(t)
	env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{Oracle: oracle, SyncSecondaries: true}))
	env.CreateTable("a", "f", "brief")
	if err := admin.SetExpiry(ctx, env.Client, "a", "brief", time.Hour); err != nil {
		t.Fatal(err)
	}
	plain := func(qualifier, value string) {
		m := bigtable.NewMutation()
		m.Set("f", qualifier, bigtable.Now(), []byte(value))
		if err := env.Bigtable.Open("a").Apply(ctx, "r", m); err != nil {
			t.Fatal(err)
		}
	}
	update := func(change func(tx *txn.Txn)) {
		t.Helper()
		if _, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error { change(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	plain("adopted", "old")
	plain("q", "before")
	for i := range 3 {
		update(func(tx *txn.Txn) {
			tx.Table("a").Set("r", "f", "q", fmt.Append(nil, 99+i))
			tx.Table("a").Set("r", "brief", "q", fmt.Append(nil, i))
		})
		if i == 1 {
			safe, err := env.Client.Timestamp(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := access.ResolverOf(env.Client).SafePoint.Publish(ctx, safe, safe, time.Hour, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	plain("q", "999") // no transaction reads it
	update(func(tx *txn.Txn) { tx.Table("a").Set("r", "f", "gone", []byte("x")) })
	update(func(tx *txn.Txn) { tx.Table("a").Delete("r", "f", "gone") })
	ahead.Store(int64(2 * time.Hour))
	update(func(tx *txn.Txn) { tx.Table("a").Set("r", "brief", "fresh", []byte("y")) })
	now, err := env.Client.Timestamp(ctx)
	if err != nil {
		t.Fatal(err)
	}
	h, err := admin.ReadHistory(ctx, env.Client, "a", "r", now)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for i, r := range h.Readings {
		if i > 0 && h.Readings[i-1].Cell != r.Cell {
			got.WriteString("\n")
		}
		if r.Shown == admin.ShownValue || r.Shown == admin.ShownPlain {
			fmt.Fprintf(&got, "%s %s %s, ", r.Cell.Column(), r.Shown, r.Value)
		} else {
			fmt.Fprintf(&got, "%s %s, ", r.Cell.Column(), r.Shown)
		}
		for _, ts := range []tso.Timestamp{r.From, r.To - 1} {
			if r.To == 0 && ts != r.From {
				ts = now
			}
			s, err := env.Client.Snapshot(ctx, txn.At(ts))
			if err != nil {
				t.Fatal(err)
			}
			row, err := s.Table("a").ReadRow(ctx, "r", txn.Columns(r.Cell.Column()))
			if err != nil {
				t.Fatal(err)
			}
			items := row[r.Cell.Family]
			if len(items) > 0 != (r.Shown == admin.ShownValue || r.Shown == admin.ShownPlain) || len(items) > 0 && (string(items[0].Value) != string(r.Value) || tso.Timestamp(items[0].Timestamp) != r.CommitTS) {
				t.Errorf("%s at %d: a snapshot reads %v, the history says %s %q of %d", r.Cell, ts, items, r.Shown, r.Value, r.CommitTS)
			}
		}
	}
	want := `brief:fresh nothing, brief:fresh value y, 
brief:q value 1, brief:q value 2, brief:q expired, 
f:adopted plain value old, 
f:gone nothing, f:gone value x, f:gone deleted, 
f:q value 100, f:q value 101, `
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
	if _, err := env.Client.Snapshot(ctx, txn.At(h.SafePoint-1)); !errors.Is(err, txn.ErrTooOld) {
		t.Errorf("below the safe point: %v", err)
	}

	// A lock: what a read does first, and what it shows if the lock's transaction is rolled back.
	rule := faults.OnStep(txntest.StepCommit, txntest.Crash)
	dying := env.NewClient(txn.Config{Oracle: oracle, TokenTTL: -1}, faults.DialOptions()...)
	tx, err := dying.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tx.Table("a").Set("r", "f", "q", []byte("perhaps"))
	tx.Table("a").Set("r", "f", "adopted", []byte("perhaps"))
	cctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { _, err := tx.Commit(cctx); ended <- err }()
	<-rule.Fired()
	faults.Kill()
	cancel()
	if err := <-ended; !errors.Is(err, txn.ErrUndetermined) {
		t.Fatalf("commit of a killed client: %v", err)
	}
	if now, err = env.Client.Timestamp(ctx); err != nil {
		t.Fatal(err)
	}
	if h, err = admin.ReadHistory(ctx, env.Client, "a", "r", now); err != nil {
		t.Fatal(err)
	}
	locked := 0
	for _, r := range h.Readings {
		if r.Lock == nil {
			continue
		}
		locked++
		if want := map[string]string{"q": "101", "adopted": "old"}[r.Cell.Qualifier]; string(r.Value) != want || r.Lock.StartTS != tx.StartTS() || r.From != tx.StartTS() || r.To != 0 {
			t.Errorf("under the lock: %+v", r)
		}
	}
	if locked != 2 {
		t.Errorf("%d of 2 locks", locked)
	}
}
