package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// describe prints versions with the names of their timestamps.
func describe(versions []admin.Version, names map[tso.Timestamp]string) string {
	name := func(ts tso.Timestamp) string {
		if n, ok := names[ts]; ok {
			return n
		}
		return ts.String()
	}
	var b strings.Builder
	for _, v := range versions {
		fmt.Fprintf(&b, "%s %s %s", name(v.TS), v.Cell.Column(), v.Kind)
		if v.Write != 0 {
			fmt.Fprintf(&b, " %v", v.Write)
		}
		if v.StartTS != 0 {
			fmt.Fprintf(&b, " start=%s", name(v.StartTS))
		}
		if v.CommitTS != 0 {
			fmt.Fprintf(&b, " commit=%s", name(v.CommitTS))
		}
		if v.Primary != (txn.Cell{}) {
			fmt.Fprintf(&b, " primary=%s", v.Primary)
		}
		if len(v.Value) > 0 {
			fmt.Fprintf(&b, " value=%s", v.Value)
		}
		if v.Err != nil {
			b.WriteString(" error")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// dump is every stored cell of a table, to compare before and after.
func dump(t *testing.T, env *txntest.Env, table string) []string {
	t.Helper()
	var cells []string
	err := env.Bigtable.Open(table).ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		for _, items := range r {
			for _, it := range items {
				cells = append(cells, fmt.Sprintf("%q %s %d %q", it.Row, it.Column, it.Timestamp, it.Value))
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(cells)
	return cells
}

func TestHistory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck(), txntest.WithConfig(txn.Config{SyncSecondaries: true}))
	env.InitTable(admin.TableSpec{Name: "a", Families: []string{"f"}, Observed: []txn.Column{{Family: "f", Qualifier: "seen"}}})
	plain := bigtable.NewMutation()
	plain.Set("f", "q", 1_000_000, []byte("old"))
	if err := env.Bigtable.Open("a").Apply(ctx, "r", plain); err != nil {
		t.Fatal(err)
	}

	names := map[tso.Timestamp]string{1_000_000: "adopted"}
	var first *txn.Txn
	commit := func(name string, f func(tx *txn.Txn)) {
		t.Helper()
		tx, err := env.Client.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		f(tx)
		ts, err := tx.Commit(ctx)
		if err != nil {
			t.Fatal(err)
		}
		names[tx.StartTS()], names[ts] = "s"+name, "c"+name
		if first == nil {
			first = tx
		}
	}
	commit("1", func(tx *txn.Txn) {
		tx.Table("a").Set("p", "f", "q", nil)
		tx.Table("a").Set("r", "f", "seen", []byte("v"))
		tx.Table("a").Delete("r", "f", "q")
	})
	commit("2", func(tx *txn.Txn) { tx.Table("a").Lock("r", "f", "q") })

	// A client that dies before its commit: its primary is rolled back.
	faults := txntest.NewFaults(t)
	rule := faults.OnStep(txntest.StepCommit, txntest.Crash)
	dying := env.NewClient(txn.Config{LockTTL: time.Millisecond, TokenTTL: -1}, faults.DialOptions()...)
	tx, err := dying.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tx.Table("a").Set("r", "f", "q", []byte("lost"))
	tx.Table("a").Set("r", "f", "seen", []byte("lost"))
	names[tx.StartTS()] = "s3"
	cctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { _, err := tx.Commit(cctx); ended <- err }()
	<-rule.Fired()
	faults.Kill()
	cancel()
	if err := <-ended; !errors.Is(err, txn.ErrUndetermined) {
		t.Fatalf("commit of a killed client: %v", err)
	}
	primary := txn.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "q"}
	for state := format.StateLocked; state == format.StateLocked; { // until its ttl of a millisecond has expired
		s, err := admin.Resolve(ctx, env.Client, format.Lock{Cell: primary, Primary: primary, StartTS: tx.StartTS()})
		if err != nil {
			t.Fatal(err)
		}
		state = s.State
	}
	// And a record that nobody can read.
	broken := bigtable.NewMutation()
	broken.Set(format.WriteFamily, "f:q", 7_000_000, []byte("?"))
	if err := env.Bigtable.Open("a").Apply(ctx, "r", broken); err != nil {
		t.Fatal(err)
	}

	before := dump(t, env, "a")
	got, err := admin.History(ctx, env.Client, "a", "r")
	if err != nil {
		t.Fatal(err)
	}
	want := `adopted f:q plain data value=old
7000 f:q unreadable value=? error
s1 f:seen data start=s1 value=v
c1 f:q write delete start=s1 commit=c1 primary=a/p/f:q
c1 f:seen write put start=s1 commit=c1 primary=a/p/f:q
c1 f:seen notify commit=c1
c2 f:q lock-only commit lock start=s2 commit=c2 primary=a/r/f:q
s3 f:q rollback start=s3
s3 f:seen data start=s3 value=lost
s3 f:seen lock put start=s3 primary=a/r/f:q
`
	if got := describe(got, names); got != want {
		t.Errorf("history:\n%s\nwant:\n%s", got, want)
	}
	if l := got[len(got)-1].Lock; l == nil || !l.Observed || l.TTL <= 0 {
		t.Errorf("the lock's own facts: %+v", l)
	}

	of := func(startTS, commitTS tso.Timestamp) string {
		t.Helper()
		var versions []admin.Version
		for v, err := range admin.TransactionVersions(ctx, env.Client, "a", nil, startTS, commitTS) {
			if err != nil {
				t.Fatal(err)
			}
			versions = append(versions, v)
		}
		return describe(versions, names)
	}
	var c1 tso.Timestamp
	for ts, name := range names {
		if name == "c1" {
			c1 = ts
		}
	}
	committed := `s1 f:q data start=s1
c1 f:q write put start=s1 commit=c1 primary=a/p/f:q
s1 f:seen data start=s1
c1 f:q write delete start=s1 commit=c1 primary=a/p/f:q
c1 f:seen write put start=s1 commit=c1 primary=a/p/f:q
c1 f:seen notify start=s1 commit=c1
`
	if got := of(first.StartTS(), c1); got != committed {
		t.Errorf("the committed transaction:\n%s\nwant:\n%s", got, committed)
	}
	// Not knowing where it committed, it is found all the same.
	unknown := strings.ReplaceAll(committed, "c1 f:seen notify start=s1 commit=c1\n", "")
	if got := of(first.StartTS(), 0); got != unknown {
		t.Errorf("the committed transaction without its commit_ts:\n%s\nwant:\n%s", got, unknown)
	}
	dead := `s3 f:q rollback start=s3
s3 f:seen data start=s3
s3 f:seen lock put start=s3 primary=a/r/f:q
`
	if got := of(tx.StartTS(), 0); got != dead {
		t.Errorf("the dead transaction:\n%s\nwant:\n%s", got, dead)
	}
	for range admin.TransactionVersions(ctx, env.Client, "a", nil, first.StartTS(), c1) {
		break // ends the read
	}
	if !slices.Equal(dump(t, env, "a"), before) {
		t.Error("looking changed what is stored")
	}
}

func TestHistoryOfNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("a", "f")
	if got, err := admin.History(ctx, env.Client, "a", "r"); err != nil || len(got) > 0 {
		t.Errorf("an empty row: %v, %v", got, err)
	}
	if _, err := admin.History(ctx, env.Client, "a", ""); !errors.Is(err, txn.ErrInvalid) {
		t.Errorf("no row: %v", err)
	}
	if _, err := admin.History(ctx, env.Client, "b", "r"); !errors.Is(err, txn.ErrNotInitialized) {
		t.Errorf("no table: %v", err)
	}
	for _, err := range admin.TransactionVersions(ctx, env.Client, "b", nil, 1, 2) {
		if !errors.Is(err, txn.ErrNotInitialized) {
			t.Errorf("no table: %v", err)
		}
	}
}

func TestOwnerState(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: time.Hour})) // it is not renewed here
	env.CreateTable("a", "f")
	if _, err := env.Client.Update(ctx, set("a", "r")); err != nil {
		t.Fatal(err)
	}
	now, err := env.Client.Timestamp(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got, err := admin.ReadOwner(ctx, env.Client, admin.Owner(env.Client), now)
	if err != nil || got.State != admin.OwnerFresh || got.ExpiresTS <= now || got.StartedTS >= now || got.PID == 0 {
		t.Errorf("a client that runs: %+v, %v", got, err)
	}
	// Exactly at its expiry it is stale, as Resolve judges it.
	for at, want := range map[tso.Timestamp]admin.OwnerState{got.ExpiresTS - 1: admin.OwnerFresh, got.ExpiresTS: admin.OwnerStale} {
		if s, err := admin.ReadOwner(ctx, env.Client, admin.Owner(env.Client), at); err != nil || s.State != want {
			t.Errorf("at %d, expiring at %d: %+v, %v; want %s", at, got.ExpiresTS, s, err, want)
		}
	}
	for owner, want := range map[string]admin.OwnerState{"": admin.OwnerMissing, "nobody": admin.OwnerEnded} {
		if s, err := admin.ReadOwner(ctx, env.Client, owner, now); err != nil || s != (admin.OwnerStatus{State: want}) {
			t.Errorf("owner %q: %+v, %v", owner, s, err)
		}
	}
}
