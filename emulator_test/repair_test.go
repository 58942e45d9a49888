package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
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

func planRepairs(t *testing.T, c *txn.Client, cfg ...admin.RepairConfig) *admin.RepairPlan {
	t.Helper()
	p, err := admin.PlanRepairs(t.Context(), c, "a", nil, append(cfg, admin.RepairConfig{})[0])
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
	long.NotUnderRace(t, "hours of virtual time")
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
		wantPlan(t, planRepairs(t, c), []string{"a/r1/f:q redundant lock", "a/r2/f:q redundant lock", "a/r3/f:q orphan data", "a/r4/f:q lost record"}, nil)

		p := planRepairs(t, c)
		if p.Repairs[0].CommitTS == 0 || p.Repairs[1].StartTS != rolledBack || p.Repairs[1].CommitTS != 0 {
			t.Errorf("%+v", p.Repairs)
		}
		for _, r := range p.Repairs {
			wantCheck(t, c, r, true)
			apply(t, c, r, true)
			apply(t, c, r, false)
			wantCheck(t, c, r, false)
		}
		apply(t, c, admin.Repair{Kind: admin.RepairOrphanData, Cell: p.Repairs[3].Cell, StartTS: 5}, false)
		s := takeSnapshot(t, c)
		wantValue(t, s, "r1", "dead")
		wantValue(t, s, "r2", "kept")
		wantValue(t, s, "r3", "kept")
		wantValue(t, s, "r4", "lost record")

		// A marker that is a day old, when its transaction has no locks any more.
		resolveLocks(t, c)
		wantPlan(t, planRepairs(t, c), nil, nil)
		advance(25 * time.Hour)
		p = planRepairs(t, c)
		wantPlan(t, p, []string{"a/r2/f:q old rollback marker", "a/r5/f:q old rollback marker"}, nil)
		for _, r := range p.Repairs {
			apply(t, c, r, true)
			apply(t, c, r, false)
		}
		if marks := stored(t, env, "r2")[format.MarkFamily]; len(marks) > 0 {
			t.Errorf("marks %v", marks)
		}
	})
}

// wantCheck: CheckRepair says what ApplyRepair would do.
func wantCheck(t *testing.T, c *txn.Client, r admin.Repair, want bool) {
	t.Helper()
	if ok, err := admin.CheckRepair(t.Context(), c, r); err != nil || ok != want {
		t.Errorf("check of the repair of %s: %v, %v; want %v", r.Cell, ok, err, want)
	}
}

// loseRecord deletes the write records of a row, and returns the newest.
func loseRecord(t *testing.T, env *txntest.Env, row string) bigtable.ReadItem {
	t.Helper()
	records := stored(t, env, row)[format.WriteFamily]
	m := bigtable.NewMutation()
	m.DeleteCellsInFamily(format.WriteFamily)
	if err := env.Bigtable.Open("a").Apply(t.Context(), row, m); err != nil {
		t.Fatal(err)
	}
	return records[0]
}

// A lost record is written again as it was, of a secondary and of the primary. The consistency
// check at the end finds nothing.
func TestRepairLostRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{TokenTTL: -1, SyncSecondaries: true})
		for _, rows := range [][]string{{"a1", "a2", "a3"}, {"b1", "b2"}, {"c1", "c2"}} {
			mustSet(t, c, "v", rows...)
		}
		before := map[string]string{}
		for _, row := range []string{"a2", "b1", "c2"} {
			before[row] = fmt.Sprint(stored(t, env, row))
			loseRecord(t, env, row)
		}
		wantValue(t, takeSnapshot(t, c), "a2", "")
		// A lock blocks the record in c2.
		now, err := c.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		putLock(t, env, format.Lock{Cell: cellOf("c2"), StartTS: now, TTL: time.Minute})
		p := planRepairs(t, c)
		wantPlan(t, p, []string{"a/a2/f:q lost record", "a/b1/f:q lost record"}, []string{"a/c2/f:q orphan data"})
		for i, want := range []string{"as the record of a/a1/f:q says", "as the record of a/b2/f:q says"} {
			if !strings.HasSuffix(p.Repairs[i].Why, want) {
				t.Errorf("%s: %q, want %q", p.Repairs[i].Cell, p.Repairs[i].Why, want)
			}
		}
		if len(p.Undecided) != 1 {
			t.Fatal(p)
		}
		if why := p.Undecided[0].Why; !strings.HasSuffix(why, "the cell is locked: resolve the lock first") {
			t.Errorf("c2: %q", why)
		}
		for _, r := range p.Repairs {
			wantCheck(t, c, r, true)
			apply(t, c, r, true)
			wantCheck(t, c, r, false)
			apply(t, c, r, false)
		}
		advance(2 * time.Minute)
		resolveLocks(t, c)
		// A version that contradicts the record blocks it, until it is gone.
		mark := format.EncodeRollback(p.Undecided[0].StartTS)
		put(t, env, "c2", format.MarkFamily, "f:q", p.Undecided[0].StartTS.Cell(), mark)
		wantPlan(t, planRepairs(t, c), nil, []string{"a/c2/f:q orphan data"})
		drop := bigtable.NewMutation()
		drop.DeleteCellsInFamily(format.MarkFamily)
		if err := env.Bigtable.Open("a").Apply(t.Context(), "c2", drop); err != nil {
			t.Fatal(err)
		}
		p = planRepairs(t, c)
		if wantPlan(t, p, []string{"a/c2/f:q lost record"}, nil); len(p.Repairs) != 1 {
			t.Fatal(p)
		}
		apply(t, c, p.Repairs[0], true)
		for _, row := range []string{"a2", "b1", "c2"} {
			if after := fmt.Sprint(stored(t, env, row)); after != before[row] {
				t.Errorf("row %s is %s, and was %s", row, after, before[row])
			}
		}
	})
}

// A repair writes no record if a prewrite has come since it read the row. The prewrite found no
// record that would have stopped it.
func TestRepairLostRecordMeetsPrewrite(t *testing.T) {
	t.Parallel()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("a", "f")
	early := begin(t, env.NewClient(txn.Config{})) // another client, which knows nothing of the commit below
	mustSet(t, env.NewClient(txn.Config{SyncSecondaries: true}), "v", "r1", "r2")
	loseRecord(t, env, "r2")
	set(early, "early", "r2")
	came := false
	c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
		if call.Table == "a" && call.Method == "CheckAndMutateRow" && !came {
			came = true
			if _, err := early.Commit(context.Background()); err != nil {
				t.Error(err)
			}
		}
		return nil
	})...)
	p := planRepairs(t, c)
	wantPlan(t, p, []string{"a/r2/f:q lost record"}, nil)
	apply(t, c, p.Repairs[0], false)
	if !came {
		t.Error("no transaction came in between")
	}
	// What the lost record allowed stays undecided.
	p = planRepairs(t, c)
	wantPlan(t, p, nil, []string{"a/r2/f:q orphan data"})
	if why := p.Undecided[0].Why; !strings.Contains(why, "blocks it") {
		t.Errorf("%q", why)
	}
	data := bigtable.NewMutation()
	data.DeleteTimestampRange("f", "q", p.Undecided[0].StartTS.Cell(), (p.Undecided[0].StartTS + 1).Cell())
	if err := env.Bigtable.Open("a").Apply(t.Context(), "r2", data); err != nil {
		t.Fatal(err)
	}
}

// Below the safe point, a record may have been collected if no older version is left, or if a newer one
// is: nothing is restored.
func TestRepairLostRecordBelowSafePoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{TokenTTL: -1, SyncSecondaries: true})
		mustSet(t, c, "v", "r3")
		mustSet(t, c, "v", "r1", "r2", "r3")
		mustSet(t, c, "v", "r3")
		r3 := stored(t, env, "r3")
		advance(time.Hour)
		if _, err := gc.Run(t.Context(), c, gc.Config{Retention: 10 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		lost := loseRecord(t, env, "r2")
		oldest := r3[format.WriteFamily][2]
		put(t, env, "r3", format.WriteFamily, "f:q", oldest.Timestamp, oldest.Value)
		for _, data := range r3["f"][1:] {
			put(t, env, "r3", "f", "q", data.Timestamp, data.Value)
		}
		p := planRepairs(t, c)
		wantPlan(t, p, nil, []string{"a/r2/f:q orphan data", "a/r3/f:q orphan data"})
		for _, u := range p.Undecided {
			if !strings.Contains(u.Why, "is not above the safe point") {
				t.Errorf("%s: %q", u.Cell, u.Why)
			}
		}
		put(t, env, "r2", format.WriteFamily, "f:q", lost.Timestamp, lost.Value)
		for _, data := range r3["f"][1:] {
			m := bigtable.NewMutation()
			m.DeleteTimestampRange("f", "q", data.Timestamp, data.Timestamp+1000)
			m.DeleteTimestampRange(format.WriteFamily, "f:q", oldest.Timestamp, oldest.Timestamp+1000)
			if err := env.Bigtable.Open("a").Apply(t.Context(), "r3", m); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Markers and records above the oracle's time block writers. The markers can go as locks can.
// Records can go if the oracle was never behind; without them nothing says that it is.
func TestRepairAbove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{TokenTTL: -1})
		mustSet(t, c, "1", "marker", "soon", "record")
		now, err := c.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const hour = tso.Timestamp(time.Hour / time.Microsecond)
		put(t, env, "marker", format.MarkFamily, "f:q", (now + 50*hour).Cell(), format.EncodeRollback(now+50*hour))
		put(t, env, "soon", format.MarkFamily, "f:q", (now + hour/2).Cell(), format.EncodeRollback(now+hour/2))
		p := planRepairs(t, c)
		wantPlan(t, p, []string{"a/marker/f:q marker above the oracle"}, nil)
		marker := p.Repairs[0]

		family, record := format.EncodeCommit(cellOf("record"), cellOf("record"), format.KindPut, now+60*hour)
		put(t, env, "record", family, "f:q", (now + 61*hour).Cell(), record)
		put(t, env, "record", "f", "q", (now + 60*hour).Cell(), []byte("never committed"))
		p = planRepairs(t, c)
		wantPlan(t, p, nil, []string{"a/marker/f:q marker above the oracle", "a/record/f:q record above the oracle"})
		p = planRepairs(t, c, admin.RepairConfig{TrustOracle: true})
		wantPlan(t, p, []string{"a/marker/f:q marker above the oracle", "a/record/f:q record above the oracle"}, nil)
		for _, row := range []string{"marker", "record"} {
			if _, err := beginSet(t, c, "2", row).Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
				t.Errorf("write of row %s: %v, want a conflict", row, err)
			}
		}
		for _, r := range p.Repairs {
			wantCheck(t, c, r, true)
			apply(t, c, r, true)
			apply(t, c, r, false)
		}
		apply(t, c, marker, false)
		apply(t, c, admin.Repair{Kind: admin.RepairMarkerAbove, Cell: cellOf("soon"), StartTS: now + hour/2}, false)
		// A client remembers the conflict with the record.
		c = env.NewClient(txn.Config{TokenTTL: -1})
		mustSet(t, c, "3", "marker", "record")
		wantValue(t, takeSnapshot(t, c), "record", "3")
		if data := stored(t, env, "record")["f"]; len(data) != 2 {
			t.Errorf("data of record: %v", data)
		}
		advance(time.Hour)
		mustSet(t, c, "3", "soon")
	})
}

// A client whose oracle is as far ahead proves that this one is behind, or another deployment's.
func TestRepairAboveOfLiveClient(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		c := env.NewClient(txn.Config{TokenTTL: -1})
		other := env.NewClient(txn.Config{Oracle: &oracleAhead{c, 10 * time.Hour}, SyncSecondaries: true})
		mustSet(t, other, "1", "r1")
		for _, cfg := range []admin.RepairConfig{{}, {TrustOracle: true}} {
			p := planRepairs(t, c, cfg)
			wantPlan(t, p, nil, []string{"a/r1/f:q record above the oracle"})
			apply(t, c, p.Undecided[0], false)
		}
		if why := planRepairs(t, c, admin.RepairConfig{TrustOracle: true}).Undecided[0].Why; !strings.Contains(why, "has an oracle that is as far ahead") {
			t.Errorf("%q", why)
		}
		advance(11 * time.Hour)
		wantValue(t, takeSnapshot(t, c), "r1", "1")
	})
}

// A marker stays as long as its transaction has a lock.
func TestRepairKeepsMarkerInUse(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
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
	c := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
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
