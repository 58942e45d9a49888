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
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

const crashTTL = 2 * time.Second

var crashTables = []string{"left", "right"}

// A crash is one client that dies at one of its requests, in virtual time.
type crash struct {
	t   *testing.T
	env *txntest.Env
	// at is the number of the request, from 1; 0: the client does not die. With
	// after, the request is applied and its answer lost; else it is not sent.
	at    int
	after bool
	// varies says that the client may send fewer requests than another time.
	varies bool
}

// run runs f with a client of its own, which dies where the crash says. It returns the
// steps of the client's requests.
func (c crash) run(f func(context.Context, *txn.Client)) []txntest.Step {
	c.t.Helper()
	faults := txntest.NewFaults(c.t)
	// Requests go out one after the other, so that they always have the same numbers.
	client := c.env.NewClient(txn.Config{LockTTL: crashTTL, TokenTTL: -1, Parallelism: 1, SyncSecondaries: true}, faults.DialOptions()...)
	for _, table := range crashTables {
		if err := client.CheckTable(c.t.Context(), table); err != nil {
			c.t.Fatal(err)
		}
	}
	// The oracle reads its row now, so that it sends one request each time later.
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
		if c.varies {
			rule.Optional()
		}
		go func() { defer close(done); f(ctx, client) }()
		select {
		case <-rule.Fired():
		case <-done:
			if c.varies {
				break
			}
			c.t.Fatalf("the client ended before its request %d", c.at)
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

// crashCells returns n cells over several rows of two tables. The name keeps the cells
// of different crashes apart. All cells after the first 20 are in one wide row of each
// table.
func crashCells(name string, n int) []txn.Cell {
	var cells []txn.Cell
	for i := range n {
		// Of ten cells two are in the same row, so that rows with several cells occur.
		row, column := strconv.Itoa(i/4), i%4
		if i >= 20 {
			row, column = "wide", i
		}
		cells = append(cells, txn.Cell{Table: crashTables[i%2], Row: name + "/" + row, Family: "f", Qualifier: "q" + strconv.Itoa(column)})
	}
	return cells
}

// crashWrite buffers a put, delete or lock of each cell.
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

// crashState returns what a reader sees of the cells: old, new, or for a mixture the
// state of each cell.
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

// recoveries are what other clients do after a crash. Each returns what it saw of the
// cells, or "" if it does not read them.
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

// crashEnv runs f in virtual time, with two tables and two clients that do not die.
func crashEnv(t *testing.T, f func(t *testing.T, env *txntest.Env, a, b *txn.Client)) {
	crashEnvOf(t, f)
}

// crashEnvOf is crashEnv with options.
func crashEnvOf(t *testing.T, f func(t *testing.T, env *txntest.Env, a, b *txn.Client), opts ...txntest.Option) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, append(opts, txntest.WithoutTransport())...)
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
	synctest.Wait() // the background has committed the secondaries now
}

// TestCrashMatrix kills a client before and after every request of transactions of
// several sizes, and runs every recovery after each crash. Then all of the transaction
// is visible or nothing of it, as its commit point says, and no lock is left to wait
// for.
func TestCrashMatrix(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	points := 0
	sizes := []int{2, 20, 1, 5, 40}
	if long.Reduced() {
		sizes = sizes[:2]
	}
	for _, size := range sizes {
		t.Run(fmt.Sprintf("%d cells", size), func(t *testing.T) {
			crashEnvOf(t, func(t *testing.T, env *txntest.Env, a, b *txn.Client) {
				transaction := func(cells []txn.Cell) func(context.Context, *txn.Client) {
					return func(ctx context.Context, c *txn.Client) {
						tx, err := c.Begin(ctx)
						if err != nil {
							return
						}
						defer tx.Rollback()
						crashWrite(tx, cells)
						_, _ = tx.Commit(ctx)
					}
				}
				dry := crashCells("dry", size)
				mustWriteOld(t, a, dry)
				steps := crash{t: t, env: env}.run(transaction(dry))
				commit := 1 + slices.Index(steps, txntest.StepCommit)
				before := steps[:slices.Index(steps, txntest.StepPrewrite)]
				want := []txntest.Step{txntest.StepOracle}
				if slices.Sort(before); commit < 4 || !slices.Equal(before, want) {
					t.Fatalf("the requests of the transaction are %v", steps)
				}
				n := 0
				for at := 1; at <= len(steps); at++ {
					for _, after := range []bool{false, true} {
						for r, recovery := range recoveries {
							if n++; long.Reduced() && n%3 != 0 { // every third still comes to each recovery
								continue
							}
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
								t.Errorf("%s: at the end %s, want %s", at, got, want)
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

// TestCrashOfResolver kills a client that resolves the locks of a dead client, before
// and after every request. The dead client died before its commit point, after it, or
// before it wrote its primary.
func TestCrashOfResolver(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	const size = 5
	for _, tc := range []struct {
		name  string
		step  txntest.Step // the first client dies before this request
		skip  int          // after this many requests of the step
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
								t.Errorf("resolver killed at request %d of %v, after: %v: %s saw %s, want %s", at, steps, after, r.name, got, tc.final)
							}
						}
						synctest.Wait()
						if n := locksLeft(t.Context(), t, b, cells); n > 0 {
							t.Errorf("resolver killed at request %d of %v, after: %v: %d locks left", at, steps, after, n)
						}
					}
				}
				t.Logf("%d crashes", 2*len(steps))
			})
		})
	}
}
