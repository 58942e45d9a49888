package index_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestCrash: Create and Drop die at each of their requests, while the index is in use. Another
// process finishes them.
func TestCrash(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for _, call := range []string{"create", "drop"} {
		t.Run(call, func(t *testing.T) {
			total := 0
			run := func(t *testing.T, at int, action txntest.Action) {
				env, x, c := newEnv(t)
				for i := range 5 {
					mustSet(t, c, fmt.Sprint(i), map[txn.Column]string{email: fmt.Sprint(i)})
				}
				f := x.Create
				if call == "drop" {
					create(t, x, c, "email")
					f = func(ctx context.Context, c *txn.Client, name string, _ func(jobs.Status)) error {
						return x.Drop(ctx, c, name)
					}
				}
				faults := txntest.NewFaults(t)
				dying := env.NewClient(txn.Config{LockTTL: 2 * time.Second, TokenTTL: -1, SyncSecondaries: true, SchemaMaxAge: time.Hour}, faults.DialOptions()...)
				n := 0
				rule := faults.On(fmt.Sprint("request ", at), func(txntest.Call) bool { n++; return n == at }, action, 1).Optional()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan struct{})
				go func() { defer close(done); _ = f(ctx, dying, "email", nil) }()
				select {
				case <-rule.Fired():
					synctest.Wait()
					faults.Kill()
					cancel()
					<-done
				case <-done:
					total = n
				}
				mustSet(t, c, "3", map[txn.Column]string{email: "33"})
				if err := f(t.Context(), c, "email", nil); err != nil {
					t.Fatalf("request %d, %v: %v", at, action, err)
				}
				mustSet(t, c, "4", map[txn.Column]string{email: "44"})
				if call == "create" {
					wantScan(t, x.At(snapshot(t, c)), "email", index.Query{}, "0=0", "1=1", "2=2", "33=3", "44=4")
					wantCorrect(t, x, c, "email")
					wantRows(t, c, "!state/email", "email/0\x00\x01", "email/1\x00\x01", "email/2\x00\x01", "email/33\x00\x01", "email/44\x00\x01")
					return
				}
				wantRows(t, c)
			}
			synctest.Test(t, func(t *testing.T) { run(t, 0, txntest.Crash) })
			if total < 20 {
				t.Errorf("only %d requests", total)
			}
			stride := 1
			if long.Reduced() {
				stride = 3
			}
			for at := 1; at <= total; at += stride {
				for _, action := range []txntest.Action{txntest.Crash, txntest.HoldResponse} {
					synctest.Test(t, func(t *testing.T) { run(t, at, action) })
				}
			}
		})
	}
}

// TestCrashedWriter: a client dies at each request of a commit that changes keys. Whatever took
// effect, the indexes agree with the table.
func TestCrashedWriter(t *testing.T) {
	long.RacedAtNight(t)
	total, committed := 0, 0
	run := func(t *testing.T, at int, action txntest.Action) {
		env, x, c := newEnv(t)
		create(t, x, c, "email", "place")
		mustSet(t, c, "1", map[txn.Column]string{email: "old", city: "Bern", name: "Bob"})
		faults := txntest.NewFaults(t)
		dying := keeping(env, x, txn.Config{LockTTL: 2 * time.Second, TokenTTL: -1, SyncSecondaries: true, SchemaMaxAge: time.Hour}, faults.DialOptions()...)
		n := 0
		rule := faults.On(fmt.Sprint("request ", at), func(txntest.Call) bool { n++; return n == at }, action, 1).Optional()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = set(ctx, dying, "1", map[txn.Column]string{email: "new", city: "Basel"})
		}()
		select {
		case <-rule.Fired():
			synctest.Wait()
			faults.Kill()
			cancel()
			<-done
		case <-done:
			total = n
		}
		row, ok, err := snapshot(t, c).Table("users").Get(t.Context(), "1", "f", "email")
		if err != nil || !ok {
			t.Fatalf("request %d, %v: the row is gone, error %v", at, action, err)
		}
		want := "Bern,Bob=1"
		if string(row) == "new" {
			want = "Basel,Bob=1"
			committed++
		}
		wantScan(t, x.At(snapshot(t, c)), "email", index.Query{}, string(row)+"=1")
		wantScan(t, x.At(snapshot(t, c)), "place", index.Query{}, want)
		mustSet(t, c, "2", map[txn.Column]string{email: map[string]string{"old": "new", "new": "old"}[string(row)]})
		wantCorrect(t, x, c, "email")
		wantCorrect(t, x, c, "place")
	}
	synctest.Test(t, func(t *testing.T) { run(t, 0, txntest.Crash) })
	if total < 8 {
		t.Errorf("only %d requests", total)
	}
	for at := 1; at <= total; at++ {
		for _, action := range []txntest.Action{txntest.Crash, txntest.HoldResponse} {
			synctest.Test(t, func(t *testing.T) { run(t, at, action) })
		}
	}
	if committed < 3 || committed > total {
		t.Errorf("%d commits of %d crashes took effect", committed, 2*total)
	}
}
