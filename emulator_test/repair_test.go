package emulator_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// deadBefore makes a client die before a step of a transaction that sets the rows, and
// returns the transaction's start_ts.
func deadBefore(t *testing.T, env *txntest.Env, s txntest.Step, rows ...string) tso.Timestamp {
	t.Helper()
	faults := txntest.NewFaults(t)
	rule := faults.OnStep(s, txntest.Crash)
	c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tx := beginSet(t, c, "dead", rows...)
	done := commitInBackground(ctx, tx)
	<-rule.Fired()
	faults.Kill()
	cancel()
	<-done
	closeNow(c)
	return tx.StartTS()
}

// put writes a stored cell as it is, without a transaction.
func put(t *testing.T, env *txntest.Env, row, family, qualifier string, at bigtable.Timestamp, value []byte) {
	t.Helper()
	m := bigtable.NewMutation()
	m.Set(family, qualifier, at, value)
	if err := env.Bigtable.Open("a").Apply(context.Background(), row, m); err != nil {
		t.Error(err)
	}
}

// resolveLocks resolves all locks of table a.
func resolveLocks(t *testing.T, c *txn.Client) {
	t.Helper()
	for l, err := range admin.Locks(t.Context(), c, "a", nil) {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Resolve(t.Context(), c, l); err != nil {
			t.Fatal(err)
		}
	}
}

func planRepairs(t *testing.T, c *txn.Client) *admin.RepairPlan {
	t.Helper()
	p, err := admin.PlanRepairs(t.Context(), c, "a", nil, admin.RepairConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wantPlan(t *testing.T, p *admin.RepairPlan, repairs, undecided []string) {
	t.Helper()
	list := func(all []admin.Repair) (out []string) {
		for _, r := range all {
			out = append(out, fmt.Sprintf("%s %s", r.Cell, r.Kind))
		}
		return out
	}
	if got := list(p.Repairs); fmt.Sprint(got) != fmt.Sprint(repairs) {
		t.Errorf("repairs %q, want %q", got, repairs)
	}
	if got := list(p.Undecided); fmt.Sprint(got) != fmt.Sprint(undecided) {
		t.Errorf("undecided %q, want %q", got, undecided)
	}
}

func apply(t *testing.T, c *txn.Client, r admin.Repair, want bool) {
	t.Helper()
	if done, err := admin.ApplyRepair(t.Context(), c, r); err != nil || done != want {
		t.Errorf("repair of %s: done %v, %v; want %v", r.Cell, done, err, want)
	}
}

// Each kind of damage is repaired, and the consistency check at the end finds nothing.
func TestRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{TokenTTL: -1})
		mustSet(t, c, "kept", "r0", "r1", "r2", "r3", "r4", "r5")
		wantPlan(t, planRepairs(t, c), nil, nil)

		// A lock that was rolled forward, and appears again.
		committed := deadBefore(t, env, txntest.StepSecondaries, "r0", "r1")
		forward := stored(t, env, "r1")[format.LockFamily][0]
		resolveLocks(t, c)
		// The same after a rollback, and a marker.
		rolledBack := deadBefore(t, env, txntest.StepCommit, "r2")
		lock := stored(t, env, "r2")[format.LockFamily][0]
		advance(time.Minute)
		resolveLocks(t, c)
		put(t, env, "r1", format.LockFamily, "f:q", forward.Timestamp, forward.Value)
		put(t, env, "r2", format.LockFamily, "f:q", lock.Timestamp, lock.Value)
		put(t, env, "r2", "f", "q", lock.Timestamp, []byte("dead"))
		// Data without a record, and data whose record was lost.
		put(t, env, "r3", "f", "q", (committed - 1).Cell(), []byte("orphan"))
		put(t, env, "r4", "f", "q", committed.Cell(), []byte("lost record"))
		deadBefore(t, env, txntest.StepCommit, "r5")
		advance(time.Minute)
		wantPlan(t, planRepairs(t, c), []string{"a/r1/f:q redundant lock", "a/r2/f:q redundant lock", "a/r3/f:q orphan data"}, []string{"a/r4/f:q orphan data"})

		p := planRepairs(t, c)
		if p.Repairs[0].CommitTS == 0 || p.Repairs[1].StartTS != rolledBack || p.Repairs[1].CommitTS != 0 {
			t.Errorf("%+v", p.Repairs)
		}
		for _, r := range p.Repairs {
			apply(t, c, r, true)
			apply(t, c, r, false)
		}
		apply(t, c, admin.Repair{Kind: admin.RepairOrphanData, Cell: p.Undecided[0].Cell, StartTS: 5}, false)
		s := takeSnapshot(t, c)
		wantValue(t, s, "r1", "dead")
		wantValue(t, s, "r2", "kept")
		wantValue(t, s, "r3", "kept")

		// A marker that is a day old, when its transaction has no locks any more.
		resolveLocks(t, c)
		wantPlan(t, planRepairs(t, c), nil, []string{"a/r4/f:q orphan data"})
		advance(25 * time.Hour)
		p = planRepairs(t, c)
		wantPlan(t, p, []string{"a/r2/f:q old rollback marker", "a/r5/f:q old rollback marker"}, []string{"a/r4/f:q orphan data"})
		for _, r := range p.Repairs {
			apply(t, c, r, true)
			apply(t, c, r, false)
		}
		if marks := stored(t, env, "r2")[format.MarkFamily]; len(marks) > 0 {
			t.Errorf("marks %v", marks)
		}
		// An operator has to decide about what is left.
		m := bigtable.NewMutation()
		m.DeleteTimestampRange("f", "q", committed.Cell(), (committed + 1).Cell())
		if err := env.Bigtable.Open("a").Apply(t.Context(), "r4", m); err != nil {
			t.Fatal(err)
		}
	})
}

// A marker stays as long as its transaction has a lock.
func TestRepairKeepsMarkerInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{TokenTTL: -1})
		deadBefore(t, env, txntest.StepCommit, "r1", "r2")
		advance(time.Minute)
		for l, err := range admin.Locks(t.Context(), c, "a", bigtable.RowList{"r1"}) {
			if err != nil {
				t.Fatal(err)
			}
			if _, err := admin.Resolve(t.Context(), c, l); err != nil {
				t.Fatal(err)
			}
		}
		advance(25 * time.Hour)
		wantPlan(t, planRepairs(t, c), nil, []string{"a/r1/f:q old rollback marker"})
		resolveLocks(t, c)
		wantPlan(t, planRepairs(t, c), []string{"a/r1/f:q old rollback marker"}, nil)
	})
}

// A repair deletes nothing if the row has changed since it was read.
func TestRepairMeetsChange(t *testing.T) {
	t.Parallel()
	env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck())
	env.CreateTable("a", "f")
	mustSet(t, env.Client, "first", "r1")
	startTS := deadBefore(t, env, txntest.StepCommit, "r1")
	row := stored(t, env, "r1")
	lock := row[format.LockFamily][0]
	drop := bigtable.NewMutation()
	drop.DeleteCellsInFamily(format.LockFamily)
	if err := env.Bigtable.Open("a").Apply(t.Context(), "r1", drop); err != nil {
		t.Fatal(err)
	}
	back := false
	c := env.NewClient(txn.Config{TokenTTL: -1}, intercept(func(call txntest.Call) error {
		if call.Table == "a" && call.Method == "CheckAndMutateRow" {
			back = true
			put(t, env, "r1", format.LockFamily, "f:q", lock.Timestamp, lock.Value)
		}
		return nil
	})...)
	p := planRepairs(t, c)
	wantPlan(t, p, []string{"a/r1/f:q orphan data"}, nil)
	apply(t, c, p.Repairs[0], false)
	if data := stored(t, env, "r1")["f"]; len(data) != 2 || tso.FromCell(data[0].Timestamp) != startTS || !back {
		t.Errorf("data %v; the lock appeared in between: %v", data, back)
	}
}

// Plain cells with timestamps in nanoseconds look like cells of transactions. No repair
// deletes them.
func TestRepairLeavesForeignCells(t *testing.T) {
	t.Parallel()
	env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck())
	env.CreateTable("a", "f")
	before, err := env.Client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustSet(t, env.Client, "1", "r1")
	put(t, env, "r1", "f", "nanoseconds", before.Cell(), []byte("x"))
	put(t, env, "r2", "f", "nanoseconds", (before + 1e6).Cell(), []byte("x"))
	put(t, env, "r1", "f", "future", (before + 1e12).Cell(), []byte("x"))
	p := planRepairs(t, env.Client)
	wantPlan(t, p, nil, []string{"a/r1/f:future orphan data", "a/r1/f:nanoseconds orphan data", "a/r2/f:nanoseconds orphan data"})
	for _, r := range p.Undecided {
		apply(t, env.Client, r, false)
	}
}
