package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// forUpdate is the option for f:q of a row of table a.
func forUpdate(row string) txn.TxnOption {
	return txn.ForUpdate(txn.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"})
}

// getForUpdate reads f:q of row r of table a; "" means that it is absent.
func getForUpdate(t *testing.T, tx *txn.Txn) string {
	t.Helper()
	v, _, err := tx.Table("a").GetForUpdate(t.Context(), "r", "f", "q")
	if err != nil {
		t.Fatal(err)
	}
	return string(v)
}

// TestForUpdateRoundTrips: with the option, a transaction that reads a cell and writes its row
// waits for four round trips instead of five. It sends the same requests.
func TestForUpdateRoundTrips(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for _, c := range []struct {
		name string
		opts []txn.TxnOption
		want int
	}{
		{"without the option", nil, 5},
		{"with the option", []txn.TxnOption{forUpdate("r")}, 4},
		{"of another cell", []txn.TxnOption{forUpdate("other")}, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.CreateTable("a", "f")
				delay, faults := 10*time.Millisecond, txntest.NewFaults(t)
				client := env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour}, append(faults.DialOptions(), slow(delay)...)...)
				mustSet(t, client, "1", "r")
				for _, want := range []string{"1", "2", "2"} { // the first one learns nothing that the others need
					synctest.Wait()
					<-time.After(time.Second)
					faults.Reset()
					begun := time.Now()
					if _, err := client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
						if got := getForUpdate(t, tx); got != want {
							t.Errorf("read %q, want %q", got, want)
						}
						set(tx, "2", "r")
						return nil
					}, c.opts...); err != nil {
						t.Fatal(err)
					}
					if got := int(time.Since(begun) / delay); got != c.want {
						t.Errorf("%d sequential requests, want %d", got, c.want)
					}
				}
				reads := 1
				if c.name == "of another cell" {
					reads = 2
				}
				if n := faults.Count(); n[txntest.StepRead] != reads || n[txntest.StepPrewrite] != 1 || n[txntest.StepCommit] != 1 {
					t.Errorf("requests: %v", n)
				}
			})
		})
	}
}

// A gatedOracle hands out no timestamp while its gate is closed.
type gatedOracle struct {
	tso.Oracle
	gate chan struct{}
}

func (o *gatedOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	<-o.gate
	return o.Oracle.Timestamp(ctx)
}

// lateStart begins a transaction that reads r for its update, and has the value "1". Between the
// read and the transaction's start timestamp, it calls meanwhile.
func lateStart(t *testing.T, meanwhile func(*testing.T, *txntest.Env)) *txn.Txn {
	t.Helper()
	local := tso.NewLocal(tso.LocalConfig{})
	env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{Oracle: local, TokenTTL: -1}))
	env.InitTable(admin.TableSpec{Name: "a", Families: []string{"f"}, Observed: []txn.Column{{Family: "f", Qualifier: "observed"}}})
	o := &gatedOracle{local, make(chan struct{})}
	close(o.gate)
	c := env.NewClient(txn.Config{Oracle: o, TokenTTL: -1})
	mustSet(t, c, "1", "r", "s")
	synctest.Wait()
	o.gate = make(chan struct{})
	begun := make(chan *txn.Txn, 1)
	go func() {
		tx, err := c.Begin(t.Context(), forUpdate("r"))
		if err != nil {
			t.Error(err)
		}
		begun <- tx
	}()
	synctest.Wait()
	meanwhile(t, env)
	close(o.gate)
	return <-begun
}

// wantCommit wants a commit, or a conflict.
func wantCommit(t *testing.T, tx *txn.Txn, conflict bool) {
	t.Helper()
	if _, err := tx.Commit(t.Context()); errors.Is(err, txn.ErrConflict) != conflict || err != nil && !conflict {
		t.Errorf("Commit: %v; want a conflict: %v", err, conflict)
	}
}

// TestForUpdateMissesACommit: a transaction read a cell before another one committed it, and has
// a start timestamp above that commit. It must not overwrite what it has not seen.
func TestForUpdateMissesACommit(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	for name, change := range map[string]func(*txn.Txn){
		"nothing":           nil,
		"value":             func(tx *txn.Txn) { set(tx, "2", "r") },
		"delete":            func(tx *txn.Txn) { tx.Table("a").Delete("r", "f", "q") },
		"value of a column": func(tx *txn.Txn) { tx.Table("a").Set("r", "f", "other", nil) },
		"lock":              func(tx *txn.Txn) { tx.Table("a").Lock("r", "f", "q") },
	} {
		changed := name == "value" || name == "delete"
		for _, columns := range []int{1, 20} { // 20 are a wide row
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tx := lateStart(t, func(t *testing.T, env *txntest.Env) {
						if change == nil {
							return
						}
						other := begin(t, env.Client)
						change(other)
						wantCommit(t, other, false)
					})
					if got := getForUpdate(t, tx); got != "1" {
						t.Errorf("read %q", got)
					}
					set(tx, "3", "r")
					for i := range columns - 1 {
						tx.Table("a").Set("r", "f", string(rune('a'+i)), nil)
					}
					wantCommit(t, tx, changed)
				})
			})
		}
	}
}

// TestForUpdateAfterAWrite: a transaction has written other rows before it reads for its update, so
// another row is the primary. It reads at its start timestamp.
func TestForUpdateAfterAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tx := lateStart(t, func(t *testing.T, env *txntest.Env) { mustSet(t, env.Client, "2", "r") })
		set(tx, "x", "b", "c", "d")
		if got := getForUpdate(t, tx); got != "2" {
			t.Errorf("read %q, want 2", got)
		}
		set(tx, "3", "r")
		wantCommit(t, tx, false)
	})
}

// TestForUpdateOfTheFuture: the read may show a commit above the start timestamp. Then the
// transaction reads at its start timestamp.
func TestForUpdateOfTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
		mustSet(t, c, "1", "r")
		read := faults.OnStep(txntest.StepRead, txntest.Hold)
		begun := make(chan *txn.Txn, 1)
		go func() {
			tx, err := c.Begin(t.Context(), forUpdate("r"))
			if err != nil {
				t.Error(err)
			}
			begun <- tx
		}()
		<-read.Fired()
		synctest.Wait()
		mustSet(t, env.Client, "2", "r")
		read.Release()
		tx := <-begun
		if got := getForUpdate(t, tx); got != "1" {
			t.Errorf("read %q at %d, want 1", got, tx.StartTS())
		}
		wantCommit(t, tx, true)
	})
}

// TestForUpdateThenAnotherRead: a second read must not show another state than the first. If
// nothing was read for the update, there is nothing to check.
func TestForUpdateThenAnotherRead(t *testing.T) {
	both := func(t *testing.T, env *txntest.Env) { mustSet(t, env.Client, "2", "r", "s") }
	for _, c := range []struct {
		name      string
		meanwhile func(*testing.T, *txntest.Env)
		first     bool
		want      string
	}{
		{"nothing", func(*testing.T, *txntest.Env) {}, true, "1"},
		{"both", both, true, "conflict"},
		{"both, other cell first", both, false, "2"},
		{"deleted", func(t *testing.T, env *txntest.Env) {
			other := begin(t, env.Client)
			other.Table("a").Delete("r", "f", "q")
			wantCommit(t, other, false)
		}, true, "conflict"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tx := lateStart(t, c.meanwhile)
				if c.first {
					getForUpdate(t, tx)
				}
				for range 2 {
					v, _, err := tx.Table("a").Get(t.Context(), "s", "f", "q")
					switch {
					case c.want == "conflict" && !errors.Is(err, txn.ErrConflict), c.want != "conflict" && err != nil, err == nil && string(v) != c.want:
						t.Errorf("read %q, %v; want %s", v, err, c.want)
					}
				}
				if c.want == "conflict" {
					return
				}
				if got := getForUpdate(t, tx); got != c.want {
					t.Errorf("read %q for the update, want %s", got, c.want)
				}
				set(tx, "3", "r")
				wantCommit(t, tx, false)
			})
		})
	}
}

// TestForUpdateThenObserve: an observation shows the same state as what was read for the update.
func TestForUpdateThenObserve(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			observed := txn.Cell{Table: "a", Row: "r", Family: "f", Qualifier: "observed"}
			tx := lateStart(t, func(t *testing.T, env *txntest.Env) {
				other := begin(t, env.Client)
				set(other, "2", "r")
				other.Table("a").Set("r", "f", "observed", []byte("2"))
				wantCommit(t, other, false)
			})
			if first {
				getForUpdate(t, tx)
			}
			o, err := changes.Observe(t.Context(), tx, observed)
			if errors.Is(err, txn.ErrConflict) != first || !first && o.ChangeTS == 0 {
				t.Errorf("GetForUpdate first: %v; Observe: %+v, %v", first, o, err)
			}
			if !first {
				if got := getForUpdate(t, tx); got != "2" {
					t.Errorf("read %q for the update, after the observation of its commit", got)
				}
			}
		})
	}
}

// TestForUpdateThenReadsAtOnce: of two reads at once, one reads the first cell again. The other
// waits for it, but only until its own context ends.
func TestForUpdateThenReadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		mustSet(t, c, "1", "r", "other")
		tx := begin(t, c, forUpdate("r"))
		if got := getForUpdate(t, tx); got != "1" {
			t.Fatalf("read %q", got)
		}
		held := faults.On("the first cell again", stepOn(txntest.StepRead, "r"), txntest.HoldResponse, 1)
		read := func(ctx context.Context) error {
			_, _, err := tx.Table("a").Get(ctx, "other", "f", "q")
			return err
		}
		first := inBackground(func() error { return read(t.Context()) })
		<-held.Fired()
		ctx, cancel := context.WithCancel(t.Context())
		second := inBackground(func() error { return read(ctx) })
		synctest.Wait()
		cancel()
		if o := <-second; !errors.Is(o.err, context.Canceled) {
			t.Errorf("the second read: %v", o.err)
		}
		third := inBackground(func() error { return read(t.Context()) })
		synctest.Wait()
		held.Release()
		for _, done := range []<-chan outcome{first, third} {
			if o := <-done; o.err != nil {
				t.Error(o.err)
			}
		}
		set(tx, "2", "r")
		wantCommit(t, tx, false)
		wantNoLocks(t, env.Client)
	})
}

// TestForUpdateOfALockedCell: a cell with a lock is read at the start timestamp. So the read shows
// a commit that is under way.
func TestForUpdateOfALockedCell(t *testing.T) {
	for name, write := range map[string]func(*txn.Txn){
		"2": func(tx *txn.Txn) { set(tx, "2", "r") },
		"1": func(tx *txn.Txn) { tx.Table("a").Lock("r", "f", "q") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1})
				mustSet(t, c, "1", "r")
				holding := txntest.NewFaults(t)
				owner := env.NewClient(txn.Config{}, holding.DialOptions()...)
				commit := holding.OnStep(txntest.StepCommit, txntest.Hold)
				other := begin(t, owner)
				write(other)
				ended := commitInBackground(t.Context(), other)
				<-commit.Fired()
				tx, err := c.Begin(t.Context(), forUpdate("r"))
				if err != nil {
					t.Fatal(err)
				}
				faults.Reset()
				commit.Release()
				if o := <-ended; o.err != nil {
					t.Fatal(o.err)
				}
				v, _, err := tx.Table("a").GetForUpdate(t.Context(), "r", "f", "q")
				if err != nil || faults.Count()[txntest.StepRead] == 0 {
					t.Errorf("read %q, %v, with %v; want requests", v, err, faults.Count())
				}
				set(tx, "3", "r")
				_, err = tx.Commit(t.Context())
				if string(v) != name && err == nil {
					t.Errorf("read %q and committed, but %q was committed before", v, name)
				}
			})
		})
	}
}

// TestForUpdateBesideACollection: between the read and the start timestamp, another transaction
// deletes the cell, and a collector removes the delete. Then the prewrite finds nothing.
func TestForUpdateBesideACollection(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		tx := lateStart(t, func(t *testing.T, env *txntest.Env) {
			other := begin(t, env.Client)
			other.Table("a").Delete("r", "f", "q")
			wantCommit(t, other, false)
			for range 4 {
				<-time.After(2 * retention)
				if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: retention}); err != nil {
					t.Fatal(err)
				}
			}
			raw, err := env.Bigtable.Open("a").ReadRow(t.Context(), "r")
			if err != nil || len(raw) > 0 {
				t.Errorf("%v, %v: the delete is not collected", raw, err)
			}
		})
		getForUpdate(t, tx)
		set(tx, "2", "r")
		wantCommit(t, tx, true)
	})
}

func TestForUpdateRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := budgetEnv(t, txn.Config{TokenTTL: -1})
		for _, opts := range [][]txn.TxnOption{{forUpdate("")}} {
			if _, err := c.Begin(t.Context(), opts...); !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("Begin: %v, want ErrInvalid", err)
			}
		}
		tx, err := c.Begin(t.Context(), txn.ForUpdate(txn.Cell{Table: "a", Row: "r", Family: "unknown", Qualifier: "q"}))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := tx.Table("a").GetForUpdate(t.Context(), "r", "unknown", "q"); err == nil {
			t.Error("a family that does not exist")
		}
		tx.Rollback()
	})
}

// The newest data of a cell need not be that of its newest commit: a client that died may have left
// data without a lock. The first read then reads the committed version.
func TestForUpdateBesideOrphanData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck())
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "1", "r")
		m := bigtable.NewMutation()
		m.Set("f", "q", begin(t, env.Client).StartTS().Cell(), []byte("orphan"))
		if err := env.Bigtable.Open("a").Apply(t.Context(), "r", m); err != nil {
			t.Fatal(err)
		}
		tx := begin(t, env.Client, forUpdate("r"))
		if v, ok, err := tx.Table("a").GetForUpdate(t.Context(), "r", "f", "q"); err != nil || !ok || string(v) != "1" {
			t.Errorf("%q %t, %v; want 1", v, ok, err)
		}
	})
}

// TestForUpdateReadsAhead: what the client reads beside its request for a start timestamp, and what the
// function then reads. If the first read is of no use, the function reads at the start timestamp.
func TestForUpdateReadsAhead(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	for _, tt := range []struct {
		name         string
		fresh        bool          // a client without a timestamp
		idle         time.Duration // before the transaction
		absent       bool
		cell         txn.Cell
		dropped      bool // the first read
		ahead, after int  // reads before and after the start timestamp
		want         string
	}{
		{name: "a value", ahead: 1, want: "1"},
		{name: "no value", absent: true, ahead: 1},
		{name: "a new client", fresh: true, after: 1, want: "1"},
		{name: "an idle client", idle: time.Hour, after: 1, want: "1"},
		{name: "the read is lost", dropped: true, ahead: 1, after: 1, want: "1"},
		{name: "unknown family", cell: txn.Cell{Table: "a", Row: "r", Family: "unknown", Qualifier: "q"}, after: 1, want: "1"},
		{name: "unknown table", cell: txn.Cell{Table: "none", Row: "r", Family: "f", Qualifier: "q"}, after: 1, want: "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
				if !tt.absent {
					mustSet(t, env.Client, "1", "r")
				}
				if tt.fresh {
					c = env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
				}
				<-time.After(tt.idle)
				faults.Reset()
				if tt.dropped {
					faults.On("the first read", stepOn(txntest.StepRead, "r"), txntest.Crash, 1)
				}
				opt := forUpdate("r")
				if tt.cell.Table != "" {
					opt = txn.ForUpdate(tt.cell)
				}
				tx := begin(t, c, opt)
				if n := faults.Count()[txntest.StepRead]; n != tt.ahead {
					t.Errorf("%d reads ahead, want %d", n, tt.ahead)
				}
				if got := getForUpdate(t, tx); got != tt.want {
					t.Errorf("read %q, want %q", got, tt.want)
				}
				if n := faults.Count()[txntest.StepRead]; n != tt.ahead+tt.after {
					t.Errorf("%d reads, want %d", n, tt.ahead+tt.after)
				}
				set(tx, "2", "r")
				wantCommit(t, tx, false)
			})
		})
	}
}

// TestForUpdateVerifiesOnce: the first of several other reads reads the cell again, and no later one does.
// If that fails, so does the read.
func TestForUpdateVerifiesOnce(t *testing.T) {
	for _, row := range []string{"r", "absent"} {
		synctest.Test(t, func(t *testing.T) {
			_, c, faults := budgetEnv(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
			mustSet(t, c, "1", "r", "s", "u")
			synctest.Wait()
			faults.Reset()
			tx := begin(t, c, forUpdate(row))
			if _, ok, err := tx.Table("a").GetForUpdate(t.Context(), row, "f", "q"); ok != (row == "r") || err != nil {
				t.Error(ok, err)
			}
			hung := faults.On("the first cell again", stepOn(txntest.StepRead, row), txntest.Crash, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, _, err := tx.Table("a").Get(ctx, "s", "f", "q"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, txn.ErrConflict) {
				t.Errorf("while the first cell cannot be read: %v", err)
			}
			<-hung.Fired()
			for _, other := range []string{"s", "u"} {
				if v, _, err := tx.Table("a").Get(t.Context(), other, "f", "q"); string(v) != "1" || err != nil {
					t.Errorf("%s: %q, %v", other, v, err)
				}
			}
			if n := faults.Count()[txntest.StepRead]; n != 5 { // ahead, twice again, and two others
				t.Errorf("%d reads", n)
			}
			set(tx, "2", row)
			wantCommit(t, tx, false)
		})
	}
}

// TestForUpdateOfAnExpiringCell: whether a value has expired depends on the start timestamp, so the
// function reads at that.
func TestForUpdateOfAnExpiringCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, faults := newExpiryEnv(t, time.Hour), txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		mustSet(t, c, "1", "r")
		synctest.Wait()
		faults.Reset()
		tx := begin(t, c, forUpdate("r"))
		if got := getForUpdate(t, tx); got != "1" {
			t.Errorf("read %q", got)
		}
		if n := faults.Count()[txntest.StepRead]; n != 2 {
			t.Errorf("%d reads, want one ahead and one at the start timestamp", n)
		}
		set(tx, "2", "r")
		wantCommit(t, tx, false)
	})
}
