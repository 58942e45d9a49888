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

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
	"github.com/percolator-bigtable/percolator/txn/txntest/model"
)

// newLeaving adopts table a and makes table b. Then transactions write, overwrite and delete
// values, values expire, clients die at several points of their commits, and a plain writer
// writes over a transaction's value. It returns what transactions see in the end.
func newLeaving(t *testing.T) (env *txntest.Env, contents map[string]string) {
	t.Helper()
	env = newPlainRows(t, 12, txntest.WithoutTransport())
	mustAdopt(t, env, adoptA(env))
	env.CreateTable("b", "f")
	c := env.NewClient(txn.Config{TokenTTL: -1})
	if err := admin.SetExpiry(t.Context(), c, "a", "g", 100*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	mustSet(t, c, "1", "r001", "r002", "r003", "r004", "new")
	mustSet(t, c, "2", "r002")
	_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("a").Delete("r003", "f", "q")
		tx.Table("a").Delete("r005", "f", "q") // a plain value
		tx.Table("a").Set("r004", "f", "empty", nil)
		tx.Table("a").Lock("r006", "f", "q")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m := bigtable.NewMutation()
	m.Set("f", "q", bigtable.Time(time.Now().Add(time.Minute)).TruncateToMilliseconds(), []byte("hidden"))
	if err := env.Bigtable.Open("a").Apply(t.Context(), "r002", m); err != nil {
		t.Fatal(err)
	}
	die := func(at txntest.Step, tx func(*txn.Txn)) {
		faults := txntest.NewFaults(t)
		dying := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		x := begin(t, dying)
		tx(x)
		killed := faults.On("kill", step(at), txntest.DropRequest, 0)
		ctx, cancel := context.WithCancel(t.Context())
		ended := commitInBackground(ctx, x)
		<-killed.Fired()
		faults.Kill()
		cancel()
		<-ended
		closeNow(dying)
	}
	die(txntest.StepSecondaries, func(tx *txn.Txn) { set(tx, "committed", "r007", "r008") })
	die(txntest.StepCommit, func(tx *txn.Txn) { set(tx, "rolled back", "r009", "new too") })
	die(txntest.StepSecondaries, func(tx *txn.Txn) { // the primary leaves, the secondary stays
		set(tx, "committed", "r010")
		tx.Table("b").Set("r", "f", "q", []byte("committed"))
	})
	advance(time.Hour) // the locks have expired
	// The read resolves the locks of one of them; the others stay.
	wantValue(t, takeSnapshot(t, c), "r007", "committed")
	return env, map[string]string{
		"r000": "value 0", "r001": "1", "r002": "2", "r004": "1", "r006": "value 6", "r007": "committed", "r008": "committed",
		"r009": "value 9", "r010": "committed", "r011": "value 11", "new": "1",
	}
}

func leave(ctx context.Context, t *testing.T, env *txntest.Env, adminClient *bigtable.AdminClient, bt *bigtable.Client) (admin.LeaveReport, error) {
	c, err := txn.NewClient(ctx, bt, txn.Config{TokenTTL: -1, Admin: adminClient})
	if err != nil {
		return admin.LeaveReport{}, err
	}
	defer closeNow(c)
	return admin.Leave(ctx, adminClient, bt, c, admin.LeaveConfig{Table: "a"})
}

// wantLeft checks what plain programs see after the table has left.
func wantLeft(t *testing.T, env *txntest.Env, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	err := env.Bigtable.Open("a").ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		for family, items := range r {
			for _, item := range items {
				if item.Timestamp >= format.PlainBefore || format.IsMetadataFamily(family) {
					t.Errorf("row %s still has %s at %d", r.Key(), item.Column, item.Timestamp)
				}
				if _, newer := got[r.Key()]; item.Column == "f:q" && !newer {
					got[r.Key()] = string(item.Value)
				}
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("plain programs see %v, want %v", got, want)
	}
	// The consistency check of the other table does not miss a primary any more once garbage
	// collection has passed its transaction.
	advance(retention + time.Minute)
	runGC(t, env.NewClient(txn.Config{TokenTTL: -1}), gc.Config{})
	info, err := env.Admin.TableInfo(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	policies := map[string]string{}
	for _, f := range info.FamilyInfos {
		policies[f.Name] = f.GCPolicy
	}
	if len(policies) != 2 || policies["f"] != "<never>" || policies["g"] != "(versions() > 5 || age() > 100d)" {
		t.Errorf("families with policies %v", policies)
	}
}

// A table leaves with what its transactions committed, and nothing else. Another table that
// shared transactions with it keeps its part. Then it can be adopted again.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, want := newLeaving(t)
		report, err := leave(t.Context(), t, env, env.Admin, env.Bigtable)
		if err != nil || report.Rows != 13 || report.Changed != 11 || report.Cells != 8 || report.Locks != 4 {
			t.Fatalf("%+v, %v", report, err)
		}
		wantLeft(t, env, want)
		c := env.NewClient(txn.Config{TokenTTL: -1})
		if _, _, err := takeSnapshot(t, c).Table("a").Get(t.Context(), "r", "f", "q"); !errors.Is(err, txn.ErrNotInitialized) {
			t.Errorf("a transaction in the table: %v", err)
		}
		if v, _, err := takeSnapshot(t, c).Table("b").Get(t.Context(), "r", "f", "q"); err != nil || string(v) != "committed" {
			t.Errorf("the other table has %q, %v", v, err)
		}
		checkTable(t, env, "b")
		mustAdopt(t, env, adoptA(env))
		for row, value := range want {
			wantValue(t, takeSnapshot(t, c), row, value)
		}
		checkTable(t, env, "a")
	})
}

// metadataRows returns how many rows of the metadata table have one of the prefixes.
func metadataRows(t *testing.T, env *txntest.Env, prefixes ...string) (n int) {
	t.Helper()
	for _, p := range prefixes {
		if err := env.Bigtable.Open("percolator").ReadRows(t.Context(), bigtable.PrefixRange(p), func(bigtable.Row) bool {
			n++
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// beginSweep stores a position of a table's sweep.
func beginSweep(t *testing.T, c *txn.Client, table string) {
	t.Helper()
	all, err := changes.SweepPositions(t.Context(), c, nil, table)
	if err == nil {
		_, _, err = changes.MoveSweep(t.Context(), c, all[0], "", true, time.Hour)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestJournalOfPlainTable: nothing of the journal of a table stays when the table is plain again.
func TestJournalOfPlainTable(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			env := newPlain(t)
			mustAdopt(t, env, adoptA(env))
			env.CreateTable("b", "f")
			c := env.NewClient(txn.Config{TokenTTL: -1})
			column := txn.Column{Family: "f", Qualifier: "q"}
			for _, table := range []string{"a", "b"} {
				if err := changes.RegisterObserver(t.Context(), c, table, column, "o", false); err != nil {
					t.Fatal(err)
				}
				beginSweep(t, c, table)
			}
			if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("b").Set("r", "f", "q", nil)
				if leaves {
					tx.Table("a").Set("r", "f", "q", nil)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			var err error
			if leaves {
				if _, err = changes.UnregisterObserver(t.Context(), c, "a", "o"); err == nil {
					_, err = leave(t.Context(), t, env, env.Admin, env.Bigtable)
				}
			} else {
				err = admin.UndoAdoption(t.Context(), env.Admin, env.Bigtable, adoptA(env), 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := metadataRows(t, env, "journal/", "sweep/"); n != 2 {
				t.Errorf("%d rows of the journal, want 2 of the other table", n)
			}
		})
	}
}

// An operator dies at any request, and leaves again. Nothing is lost, and nothing comes back.
func TestCrashOfLeave(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	crashes := 0
	for k, more := 1, true; more; k += 2 * reducedTo(9) {
		for _, after := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				env, want := newLeaving(t)
				more = killedAt(t, env, k, after, func(ctx context.Context, adminClient *bigtable.AdminClient, bt *bigtable.Client) error {
					_, err := leave(ctx, t, env, adminClient, bt)
					return err
				})
				advance(3 * time.Minute)
				if _, err := leave(t.Context(), t, env, env.Admin, env.Bigtable); err != nil && !errors.Is(err, txn.ErrNotInitialized) {
					t.Error(err)
				}
				wantLeft(t, env, want)
				if t.Failed() {
					t.Fatalf("killed at request %d, after: %v", k, after)
				}
			})
			crashes++
		}
	}
	t.Logf("%d crashes", crashes)
}

// An operator dies when a part of the rows has left. The next call rewrites the others only, but
// searches all of them: it finds a cell that came back to a row that had left.
func TestLeaveResumes(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	synctest.Test(t, func(t *testing.T) {
		const rows = 400
		cluster := model.New(model.Config{Tables: map[string]model.Table{"a": {Bytes: 1e6, Splits: model.HexSplits("", 20)}}})
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck())
		env.CreateTable("a", "f")
		var keys []string
		for i := range rows {
			keys = append(keys, fmt.Sprintf("%08x", uint64(i)<<32/rows))
		}
		c := env.NewClient(txn.Config{TokenTTL: -1})
		mustSet(t, c, "v", keys...)
		closeNow(env.Client)
		advance(time.Minute)
		// try leaves, and dies when so many parts have left.
		try := func(parts int) (admin.LeaveReport, error) {
			faults := txntest.NewFaults(t)
			bt, adminClient := env.Open(append(faults.DialOptions(), cluster.Client("operator")...)...)
			leaving, err := txn.NewClient(t.Context(), bt, txn.Config{TokenTTL: -1, Admin: adminClient, Parallelism: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer closeNow(leaving)
			n := 0
			killed := faults.On("kill", func(call txntest.Call) bool {
				if call.Row == "adoption/a" && call.Method == "MutateRows" {
					n++
				}
				return n > parts+1 // the first one says that the table leaves
			}, txntest.DropRequest, 0).Optional()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				select {
				case <-killed.Fired():
					faults.Kill()
					cancel()
				case <-ctx.Done():
				}
			}()
			return admin.Leave(ctx, adminClient, bt, leaving, admin.LeaveConfig{Table: "a"})
		}
		if r, err := try(10); err == nil || r.Changed < 200 || r.Changed > 260 {
			t.Fatalf("first call: %+v, error %v; want a death after half of the rows", r, err)
		}
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "a"}); !errors.Is(err, txn.ErrSchema) || !strings.Contains(err.Error(), "percctl table leave") {
			t.Errorf("to initialize a table that is leaving: %v", err)
		}
		if leaving, err := admin.UnfinishedAdoptions(t.Context(), env.NewClient(txn.Config{TokenTTL: -1})); err != nil || !leaving["a"] {
			t.Errorf("unfinished: %v, error %v", leaving, err)
		}
		advance(3 * time.Minute)
		m := bigtable.NewMutation()
		m.Set(format.WriteFamily, "f:q", 1000, []byte("x"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), keys[0], m); err != nil {
			t.Fatal(err)
		}
		r, err := try(rows)
		if err == nil || !strings.Contains(err.Error(), keys[0]) || r.Rows < 140 || r.Rows > 200 {
			t.Fatalf("second call: %+v, error %v; want the cell in row %s, and the rows that were left", r, err, keys[0])
		}
		advance(3 * time.Minute)
		m = bigtable.NewMutation()
		m.DeleteRow()
		if err := env.Bigtable.Open("a").Apply(t.Context(), keys[0], m); err != nil {
			t.Fatal(err)
		}
		if r, err := try(rows); err != nil || r.Rows != rows-1 || r.Changed != 0 {
			t.Fatalf("third call: %+v, error %v", r, err)
		}
		n := 0
		err = env.Bigtable.Open("a").ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
			if n++; len(r) != 1 || len(r["f"]) != 1 || string(r["f"][0].Value) != "v" || r["f"][0].Timestamp >= format.PlainBefore {
				t.Errorf("row %v", r)
			}
			return true
		})
		if err != nil || n != rows-1 {
			t.Errorf("%d rows, error %v", n, err)
		}
	})
}

// A table is refused while clients are alive, and while observers or indexes need it.
func TestLeaveRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("a", "f")
		env.CreateTable("i", "e")
		c := env.Client
		alive := env.NewClient(txn.Config{})
		mustSet(t, alive, "v", "r")
		check := func(want string, cfg admin.LeaveConfig) {
			t.Helper()
			cfg.Table = "a"
			_, err := admin.CheckLeave(t.Context(), env.Admin, env.Bigtable, c, cfg)
			if _, lerr := admin.Leave(t.Context(), env.Admin, env.Bigtable, c, cfg); want != "" && fmt.Sprint(lerr) != fmt.Sprint(err) {
				t.Errorf("Leave: %v, CheckLeave: %v", lerr, err)
			}
			if (want == "") != (err == nil) || want != "" && !errors.Is(err, admin.ErrNotLeavable) {
				t.Errorf("%s: %v", want, err)
			}
		}
		check("a client is alive", admin.LeaveConfig{})
		column := txn.Column{Family: "f", Qualifier: "q"}
		if err := changes.RegisterObserver(t.Context(), c, "a", column, "o", false); err != nil {
			t.Fatal(err)
		}
		check("an observer", admin.LeaveConfig{ClientsStopped: true})
		if _, err := changes.UnregisterObserver(t.Context(), c, "a", "o"); err != nil {
			t.Fatal(err)
		}
		x := changes.Index{Name: "x", Columns: []txn.Column{column}, Entries: "i/e"}
		if err := changes.RegisterIndex(t.Context(), c, "a", x); err != nil {
			t.Fatal(err)
		}
		check("an index", admin.LeaveConfig{ClientsStopped: true})
		if err := changes.UnregisterIndex(t.Context(), c, "a", x); err != nil {
			t.Fatal(err)
		}
		x.Entries, x.Columns = "a/f", []txn.Column{{Family: "e", Qualifier: "q"}}
		if err := changes.RegisterIndex(t.Context(), c, "i", x); err != nil {
			t.Fatal(err)
		}
		check("entries of an index", admin.LeaveConfig{ClientsStopped: true})
		if err := changes.UnregisterIndex(t.Context(), c, "i", x); err != nil {
			t.Fatal(err)
		}
		closeNow(alive)
		if _, err := admin.CheckLeave(t.Context(), env.Admin, env.Bigtable, c, admin.LeaveConfig{Table: "a", ClientsStopped: true}); err != nil {
			t.Error(err)
		}
		if _, err := admin.CheckLeave(t.Context(), env.Admin, env.Bigtable, c, admin.LeaveConfig{Table: "none"}); !errors.Is(err, txn.ErrNotInitialized) && !errors.Is(err, admin.ErrNotLeavable) {
			t.Error(err)
		}
	})
}

// TestCheckBesideATableThatLeft: records of other tables name primaries in a table that has left and
// was adopted again. Its records are gone, and nothing is wrong.
func TestCheckBesideATableThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPlainRows(t, 1, txntest.WithoutTransport())
		mustAdopt(t, env, adoptA(env))
		env.CreateTable("b", "f")
		c := env.NewClient(txn.Config{TokenTTL: -1})
		tx := begin(t, c)
		set(tx, "v", "primary")
		tx.Table("b").Set("r", "f", "q", []byte("v"))
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		closeNow(c)
		if _, err := leave(t.Context(), t, env, env.Admin, env.Bigtable); err != nil {
			t.Fatal(err)
		}
		mustAdopt(t, env, adoptA(env))
		env.Check()
	})
}
