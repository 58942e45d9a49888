package notify_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// startElsewhere runs a worker of observer o in a process of its own, which no hint reaches, until
// it has nothing to do.
func startElsewhere(t *testing.T, env *txntest.Env, cfg notify.Config, faults *txntest.Faults, opts ...grpc.DialOption) (w *notify.Worker, stop func() error) {
	t.Helper()
	w = newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}, append(faults.DialOptions(), opts...)...), cfg)
	handle(t, w, "o", input, observeEffect)
	stop = start(t, w)
	pass(2 * time.Minute) // the first sweep
	return w, stop
}

// commit commits a write of a row by a client of its own, in the background.
func commit(t *testing.T, env *txntest.Env, row string, faults *txntest.Faults) (done chan error) {
	t.Helper()
	long := time.Hour
	c := env.NewClient(txn.Config{TokenTTL: time.Minute, LockTTL: long, RPCTimeout: long, SchemaMaxAge: long}, faults.DialOptions()...)
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx.Table("docs").Set(row, input.Family, input.Qualifier, []byte("v"))
	done = make(chan error, 1)
	go func() {
		_, err := tx.Commit(t.Context())
		done <- err
	}()
	return done
}

func wantEffects(t *testing.T, env *txntest.Env, row string, want int) {
	t.Helper()
	if n := effects(t, env.Client)[row]; n != want {
		t.Errorf("%d effects of row %q, want %d", n, row, want)
	}
}

// TestJournalFindsChange: a change of another process is found within seconds, and while nothing happens
// nobody reads the table.
func TestJournalFindsChange(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		faults := txntest.NewFaults(t)
		register(t, env.Client, input, "o", false)
		startElsewhere(t, env, notify.Config{}, faults)
		faults.Reset()
		pass(20 * time.Minute)
		if n := faults.Count(); n[txntest.StepRead] > 0 || n[txntest.StepJournalRead] > 20*60+1 {
			t.Errorf("an idle worker sent %v in 20 minutes", n)
		}
		put(t, env.Client, input, "row", "v")
		pass(2 * time.Second)
		wantEffects(t, env, "row", 1)
		pass(time.Minute)
		wantLeft(t, env.Client, 0, 0)
		wantEntries(t, faults, 0)
	})
}

// wantEntries checks how many notifications the next read of the journal returns.
func wantEntries(t *testing.T, faults *txntest.Faults, want int) {
	t.Helper()
	faults.Reset()
	pass(3 * time.Minute)
	if n := faults.Count(); (n[txntest.StepRead] > 0) != (want > 0) || n[txntest.StepJournalRead] == 0 {
		t.Errorf("the worker sent %v in three minutes; want entries: %d", n, want)
	}
}

// TestCommitWaitsForEntry: a commit is sent only after its entries are stored. If they cannot be
// stored, nothing is committed.
func TestCommitWaitsForEntry(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		held := faults.OnStep(txntest.StepJournal, txntest.HoldResponse)
		done := commit(t, env, "held", faults)
		pass(time.Second)
		<-held.Fired()
		if n := faults.Count(); n[txntest.StepCommit] > 0 || n[txntest.StepPrewrite] == 0 {
			t.Errorf("before its entry was stored, the transaction sent %v", n)
		}
		held.Release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		faults = txntest.NewFaults(t)
		faults.On("journal", func(c txntest.Call) bool { return c.Step == txntest.StepJournal }, txntest.DropRequest, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...)
		if _, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("docs").Set("refused", input.Family, input.Qualifier, []byte("v"))
			return nil
		}); err == nil {
			t.Error("a transaction without an entry was committed")
		}
		if v := value(t, env.Client, input, "refused"); v != "" {
			t.Errorf("it wrote %q", v)
		}
	})
}

// TestSlowJournal: a request with entries that is not answered holds up other transactions of the
// client for a few seconds only.
func TestSlowJournal(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...)
		put(t, c, input, "before", "v")
		faults.OnStep(txntest.StepJournal, txntest.Crash)
		began := time.Now()
		put(t, c, input, "row", "v")
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the commit took %v", took)
		}
	})
}

// TestEntryOfOpenTransaction: while a transaction is open, and its prewrite is late, workers remove
// other notifications of the cell and check its entry again and again. Its own change is found
// nevertheless.
func TestEntryOfOpenTransaction(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		startElsewhere(t, env, notify.Config{}, txntest.NewFaults(t))
		for _, row := range []string{"new", "old"} {
			before := 0
			if row == "old" {
				put(t, env.Client, input, row, "before")
				pass(time.Minute)
				before = 1
			}
			faults := txntest.NewFaults(t)
			late := faults.OnStep(txntest.StepPrewrite, txntest.Hold)
			done := commit(t, env, row, faults)
			<-late.Fired()
			pass(time.Second)
			// Its timestamp is above the transaction's start, and no commit has it.
			if err := changes.Notify(t.Context(), env.Client, txn.Cell{Table: "docs", Row: row, Family: input.Family, Qualifier: input.Qualifier}); err != nil {
				t.Fatal(err)
			}
			pass(30 * time.Minute)
			wantEffects(t, env, row, before)
			wantLeft(t, env.Client, 0, 0)
			late.Release()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
			wantEffects(t, env, row, before+1)
		}
	})
}

// TestEntriesAreRemovedLast: a worker that could not remove a notification keeps its entry.
func TestEntriesAreRemovedLast(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		_, stop := startElsewhere(t, env, notify.Config{}, faults)
		refused := faults.On("clear", func(c txntest.Call) bool { return c.Step == txntest.StepClear }, txntest.DropRequest, 0)
		put(t, env.Client, input, "row", "v")
		pass(time.Minute)
		<-refused.Fired()
		if n := faults.Count(); n[txntest.StepJournalClear] > 0 {
			t.Errorf("the worker sent %v", n)
		}
		faults.Kill()
		_ = stop()
		startElsewhere(t, env, notify.Config{}, txntest.NewFaults(t))
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestStrandedSecondaryInJournal: a client that dies after its commit point leaves locks. Their
// entries lead workers to them.
func TestStrandedSecondaryInJournal(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		startElsewhere(t, env, notify.Config{}, txntest.NewFaults(t))
		faults := txntest.NewFaults(t)
		dead := faults.OnStep(txntest.StepSecondaries, txntest.Crash)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("effects").Set("primary", "e", "x", nil)
			tx.Table("docs").Set("row", input.Family, input.Qualifier, []byte("v"))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		<-dead.Fired()
		faults.Kill()
		pass(2 * time.Minute)
		wantEffects(t, env, "row", 1)
	})
}

// TestTableGetsJournal: while clients may not know yet that a table has a journal, workers sweep
// it as before.
func TestTableGetsJournal(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		old := faults.OnStep(txntest.StepPrewrite, txntest.Hold)
		done := commit(t, env, "old", faults) // it has read the schema
		<-old.Fired()
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "docs", Families: []string{"d"}}); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		startElsewhere(t, env, notify.Config{}, txntest.NewFaults(t))
		old.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := faults.Count()[txntest.StepJournal]; n != 0 {
			t.Errorf("the transaction wrote %d entries", n)
		}
		pass(2 * time.Minute)
		wantEffects(t, env, "old", 1)
	}, txntest.WithoutJournal())
}

// TestOldClients: while a client of a release without a journal is running, workers sweep as
// before.
func TestOldClients(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		putToken(t, env, "old", false)
		faults := txntest.NewFaults(t)
		startElsewhere(t, env, notify.Config{}, faults)
		faults.Reset()
		pass(10 * time.Minute)
		if n := faults.Count()[txntest.StepRead]; n < 10 {
			t.Errorf("beside a client of an old release the worker sent %d reads in 10 minutes", n)
		}
	})
}

// TestDailySweep: a notification without an entry is found within a day, also if workers start again
// and again.
func TestDailySweep(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		_, stop := startElsewhere(t, env, notify.Config{}, txntest.NewFaults(t))
		put(t, env.Client, input, "row", "v")
		pass(time.Minute)
		notifyWithoutEntry(t, env, "row")
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		for range 14 { // the table has up to two pieces
			_, stop := startElsewhere(t, env, notify.Config{Finder: &notify.Scanner{MinInterval: 4 * time.Minute, MaxInterval: 20 * time.Minute}}, txntest.NewFaults(t))
			pass(3*time.Hour + 30*time.Minute)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestSweepContinues: the pieces of a table are swept one after the other, all within a day, by
// whichever workers run.
func TestSweepContinues(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		client := env.Client
		pass(time.Second)
		var read []string
		for range 4 {
			all, err := changes.SweepPositions(t.Context(), client, nil, "docs")
			if err != nil || len(all) != 1 || !all[0].Complete {
				t.Fatalf("%+v: %v", all, err)
			}
			p := all[0]
			read = append(read, p.Row)
			pass(time.Second)
			moved, ok, err := changes.MoveSweep(t.Context(), client, p, p.Row, false, time.Minute)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			// Another worker that has seen the same position does not get the piece.
			if _, ok, err := changes.MoveSweep(t.Context(), client, p, p.Row, false, time.Minute); ok || err != nil {
				t.Error("two workers got one piece", err)
			}
			if _, ok, err := changes.MoveSweep(t.Context(), client, moved, p.Row+"x", len(p.Row) == 2, time.Hour); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if len(p.Row) == 2 {
				if all, err = changes.SweepPositions(t.Context(), client, nil, "docs"); err != nil || all[0].BegunTS <= p.BegunTS {
					t.Errorf("%+v after %+v: %v", all, p, err)
				}
			}
		}
		if d := cmp.Diff([]string{"", "x", "xx", "xxx"}, read); d != "" {
			t.Error(d)
		}
	})
}
