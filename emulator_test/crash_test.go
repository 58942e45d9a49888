package emulator_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

const crashTTL = 2 * time.Second

var crashTables = []string{"left", "right"}

// A crash is one client that dies at one of its requests, in virtual time.
type crash struct {
	t   *testing.T
	env *txntest.Env
	// at is the request, counted from 1; 0: it does not die. after: its request is
	// applied, and the answer lost; else the request is not sent.
	at    int
	after bool
}

// run runs f in a client of its own that dies where the crash says, and returns
// the steps of its requests.
func (c crash) run(f func(context.Context, *txn.Client)) []txntest.Step {
	c.t.Helper()
	faults := txntest.NewFaults(c.t)
	// One request after the other, so that they always have the same numbers.
	client := c.env.NewClient(txn.Config{LockTTL: crashTTL, TokenTTL: -1, Parallelism: 1, SyncSecondaries: true}, faults.DialOptions()...)
	for _, table := range crashTables {
		if err := client.OpenTable(c.t.Context(), table); err != nil {
			c.t.Fatal(err)
		}
	}
	// So that its oracle knows where it stands, and asks once each time.
	if _, err := client.Timestamp(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	faults.Reset()
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	done := make(chan struct{})
	if c.at == 0 {
		go func() { defer close(done); f(ctx, client) }()
		<-done
	} else {
		action := txntest.Crash
		if c.after {
			action = txntest.HoldResponse
		}
		rule := faults.On(fmt.Sprintf("request %d", c.at), func(call txntest.Call) bool { return call.N == c.at }, action, 1)
		go func() { defer close(done); f(ctx, client) }()
		select {
		case <-rule.Fired():
		case <-done:
			c.t.Fatalf("ended before its request %d", c.at)
		}
		synctest.Wait()
		faults.Kill()
		cancel()
		<-done
	}
	var steps []txntest.Step
	for _, call := range faults.Calls() {
		steps = append(steps, call.Step)
	}
	return steps
}

// crashCells are n cells over several rows of two tables; name keeps those of
// one crash apart from those of others. Those beyond 20 are in one wide row of each
// table.
func crashCells(name string, n int) []txn.Cell {
	var cells []txn.Cell
	for i := range n {
		// Two cells of a row of ten, so that rows with several cells are among them.
		row, column := strconv.Itoa(i/4), i%4
		if i >= 20 {
			row, column = "wide", i
		}
		cells = append(cells, txn.Cell{Table: crashTables[i%2], Row: name + "/" + row, Family: "f", Qualifier: "q" + strconv.Itoa(column)})
	}
	return cells
}

// write buffers a put, delete or lock of each cell.
func crashWrite(tx *txn.Txn, cells []txn.Cell) {
	for i, c := range cells {
		t := tx.Table(c.Table)
		switch i % 5 {
		case 3:
			t.Delete(c.Row, c.Family, c.Qualifier)
		case 4:
			t.Lock(c.Row, c.Family, c.Qualifier)
		default:
			t.Set(c.Row, c.Family, c.Qualifier, []byte("new"))
		}
	}
}

// crashState is what a reader sees of the cells: old, new, or a mixture, which
// is told cell by cell.
func crashState(get func(txn.Cell) (string, error), cells []txn.Cell) (string, error) {
	var saw, before, after []string
	for i, c := range cells {
		v, err := get(c)
		if err != nil {
			return "", err
		}
		saw, before = append(saw, v), append(before, "old")
		after = append(after, []string{"new", "new", "new", "absent", "old"}[i%5])
	}
	switch {
	case slices.Equal(saw, before):
		return "old", nil
	case slices.Equal(saw, after):
		return "new", nil
	}
	return strings.Join(saw, " "), nil
}

func getter(ctx context.Context, table func(string) *txn.View) func(txn.Cell) (string, error) {
	return func(c txn.Cell) (string, error) {
		v, ok, err := table(c.Table).Get(ctx, c.Row, c.Family, c.Qualifier)
		if !ok {
			v = []byte("absent")
		}
		return string(v), err
	}
}

// recoveries are the ways in which others go on after a crash. Each returns what
// it saw of the cells, or "" if it does not look.
var recoveries = []struct {
	name string
	run  func(context.Context, *testing.T, *txn.Client, []txn.Cell) string
}{
	{"a reader", func(ctx context.Context, t *testing.T, c *txn.Client, cells []txn.Cell) string {
		s, err := c.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		state, err := crashState(getter(ctx, func(n string) *txn.View { return s.Table(n) }), cells)
		if err != nil {
			t.Fatal(err)
		}
		return state
	}},
	{"a writer", func(ctx context.Context, t *testing.T, c *txn.Client, cells []txn.Cell) (state string) {
		_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) (err error) {
			state, err = crashState(getter(ctx, func(n string) *txn.View { return &tx.Table(n).View }), cells)
			for _, c := range cells {
				tx.Table(c.Table).Lock(c.Row, c.Family, c.Qualifier)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return state
	}},
	{"resolve", func(ctx context.Context, t *testing.T, c *txn.Client, cells []txn.Cell) string {
		resolveRows(ctx, t, c, cells)
		return ""
	}},
	{"two at once", func(ctx context.Context, t *testing.T, c *txn.Client, cells []txn.Cell) (state string) {
		var wg sync.WaitGroup
		wg.Go(func() { resolveRows(ctx, t, c, cells) })
		wg.Go(func() {
			s, err := c.Snapshot(ctx)
			if err == nil {
				state, err = crashState(getter(ctx, func(n string) *txn.View { return s.Table(n) }), cells)
			}
			if err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		return state
	}},
}

func resolveRows(ctx context.Context, t *testing.T, c *txn.Client, cells []txn.Cell) {
	for _, table := range crashTables {
		for l, err := range admin.Locks(ctx, c, table, rowsOf(cells, table)) {
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := admin.Resolve(ctx, c, l); err != nil {
				t.Error(err)
			}
		}
	}
}

func rowsOf(cells []txn.Cell, table string) bigtable.RowList {
	rows := bigtable.RowList{}
	for _, c := range cells {
		if c.Table == table && !slices.Contains(rows, c.Row) {
			rows = append(rows, c.Row)
		}
	}
	return rows
}

func locksLeft(ctx context.Context, t *testing.T, c *txn.Client, cells []txn.Cell) (n int) {
	for _, table := range crashTables {
		for _, err := range admin.Locks(ctx, c, table, rowsOf(cells, table)) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	return n
}

// crashEnv runs f in virtual time with two tables and two clients that stay
// alive.
func crashEnv(t *testing.T, f func(t *testing.T, env *txntest.Env, a, b *txn.Client)) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		for _, table := range crashTables {
			env.CreateTable(table, "f")
		}
		cfg := txn.Config{LockTTL: crashTTL, TokenTTL: -1}
		f(t, env, env.NewClient(cfg), env.NewClient(cfg))
	})
}

func mustWriteOld(t *testing.T, c *txn.Client, cells []txn.Cell) {
	t.Helper()
	_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for _, c := range cells {
			tx.Table(c.Table).Set(c.Row, c.Family, c.Qualifier, []byte("old"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // until the background has committed its secondaries
}

// TestCrashMatrix kills a client before and after every one of its requests, for
// transactions of several sizes, and lets others go on in every way. All of the
// transaction is visible then or nothing, as its commit point says, and nobody
// waits any more.
func TestCrashMatrix(t *testing.T) {
	points := 0
	sizes := []int{1, 2, 5, 20, 40}
	if testing.Short() {
		sizes = sizes[:2]
	}
	for _, size := range sizes {
		t.Run(fmt.Sprintf("%d cells", size), func(t *testing.T) {
			crashEnv(t, func(t *testing.T, env *txntest.Env, a, b *txn.Client) {
				transaction := func(cells []txn.Cell) func(context.Context, *txn.Client) {
					return func(ctx context.Context, c *txn.Client) {
						tx, err := c.Begin(ctx)
						if err != nil {
							return
						}
						crashWrite(tx, cells)
						_, _ = tx.Commit(ctx)
					}
				}
				dry := crashCells("dry", size)
				mustWriteOld(t, a, dry)
				steps := crash{t: t, env: env}.run(transaction(dry))
				commit := 1 + slices.Index(steps, txntest.StepCommit)
				if want := []txntest.Step{txntest.StepOracle, txntest.StepPrewrite}; commit < 4 || !slices.Equal(steps[:2], want) {
					t.Fatalf("the requests of the transaction are %v", steps)
				}
				for at := 1; at <= len(steps); at++ {
					for _, after := range []bool{false, true} {
						for r, recovery := range recoveries {
							name := fmt.Sprintf("%d-%v-%d", at, after, r)
							cells := crashCells(name, size)
							mustWriteOld(t, a, cells)
							crash{t: t, env: env, at: at, after: after}.run(transaction(cells))
							want := "old"
							if at > commit || at == commit && after {
								want = "new"
							}
							<-time.After(crashTTL + time.Second) // virtual
							at := fmt.Sprintf("request %d of %v, after: %v, then %s", at, steps, after, recovery.name)
							if got := recovery.run(t.Context(), t, a, cells); got != "" && got != want {
								t.Errorf("%s: saw %s, want %s", at, got, want)
							}
							synctest.Wait()
							if n := locksLeft(t.Context(), t, b, cells); n > 0 && recovery.name != "a reader" {
								t.Errorf("%s: %d locks left", at, n)
							}
							if got := recoveries[0].run(t.Context(), t, b, cells); got != want {
								t.Errorf("%s: in the end %s, want %s", at, got, want)
							}
							points++
						}
					}
				}
				for _, table := range crashTables {
					if _, err := workload.ResolveAll(t.Context(), b, table); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
	t.Logf("%d crashes", points)
}

// TestCrashOfResolver kills whoever settles the locks of a dead client, before and
// after every one of its requests: of a client that died before its commit
// point, of one that died behind it, and of one whose primary was never written.
func TestCrashOfResolver(t *testing.T) {
	const size = 5
	for _, tc := range []struct {
		name  string
		step  txntest.Step // where the first client dies, before this request
		skip  int          // but for so many of them
		final string
	}{
		{"uncommitted", txntest.StepCommit, 0, "old"},
		{"committed", txntest.StepSecondaries, 0, "new"},
		{"half prewritten", txntest.StepPrewrite, 1, "old"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			crashEnv(t, func(t *testing.T, env *txntest.Env, a, b *txn.Client) {
				leave := func(name string) []txn.Cell {
					cells := crashCells(name, size)
					mustWriteOld(t, a, cells)
					begin := func(ctx context.Context, c *txn.Client) {
						tx, err := c.Begin(ctx)
						if err != nil {
							return
						}
						crashWrite(tx, cells)
						_, _ = tx.Commit(ctx)
					}
					dry := crashCells("dry "+name, size)
					mustWriteOld(t, a, dry)
					steps := crash{t: t, env: env}.run(func(ctx context.Context, c *txn.Client) {
						tx, err := c.Begin(ctx)
						if err == nil {
							crashWrite(tx, dry)
							_, _ = tx.Commit(ctx)
						}
					})
					at := 1 + slices.Index(steps, tc.step) + tc.skip
					crash{t: t, env: env, at: at}.run(begin)
					<-time.After(crashTTL + time.Second) // virtual
					return cells
				}
				resolver := func(cells []txn.Cell) func(context.Context, *txn.Client) {
					return func(ctx context.Context, c *txn.Client) {
						for _, table := range crashTables {
							for l, err := range admin.Locks(ctx, c, table, rowsOf(cells, table)) {
								if err == nil {
									_, err = admin.Resolve(ctx, c, l)
								}
								if err != nil {
									return
								}
							}
						}
					}
				}
				steps := crash{t: t, env: env}.run(resolver(leave("dry")))
				for at := 1; at <= len(steps); at++ {
					for _, after := range []bool{false, true} {
						cells := leave(fmt.Sprintf("%d-%v", at, after))
						crash{t: t, env: env, at: at, after: after}.run(resolver(cells))
						for _, r := range recoveries {
							if got := r.run(t.Context(), t, b, cells); got != "" && got != tc.final {
								t.Errorf("resolver dead at request %d of %v, after: %v: %s saw %s, want %s", at, steps, after, r.name, got, tc.final)
							}
						}
						synctest.Wait()
						if n := locksLeft(t.Context(), t, b, cells); n > 0 {
							t.Errorf("resolver dead at request %d of %v, after: %v: %d locks left", at, steps, after, n)
						}
					}
				}
				t.Logf("%d crashes", 2*len(steps))
			})
		})
	}
}
