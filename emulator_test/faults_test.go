package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestRequestFaults loses, duplicates or delays one request of each kind that the
// protocol sends, with and without a deadline of the caller. After the network has
// healed and every lock is resolved, both accounts of the transfer have their new
// balance or both have their old one. The outcome that the client reported says which.
func TestRequestFaults(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	steps := []struct {
		step  txntest.Step
		setup func(*transfer) // makes the step happen in client a
	}{
		{txntest.StepPrewrite, nil},
		{txntest.StepCommit, nil},
		{txntest.StepSecondaries, nil},
		{txntest.StepOracle, nil},
		{txntest.StepRead, nil},
		{txntest.StepToken, nil},
		{txntest.StepAbort, (*transfer).conflictInTheWay},
		{txntest.StepHeartbeat, (*transfer).longCommit},
		{txntest.StepRollPrimary, (*transfer).deadLocksInTheWay},
		{txntest.StepRollBackCell, (*transfer).deadLocksInTheWay},
		{txntest.StepRollForward, (*transfer).committedLocksInTheWay},
	}
	actions := []txntest.Action{txntest.DropRequest, txntest.DropResponse, txntest.Duplicate, txntest.Echo, txntest.Delay, txntest.Hold, txntest.HoldResponse}
	variant := 0
	for _, s := range steps {
		for _, action := range actions {
			for _, timeout := range []time.Duration{0, 100 * time.Millisecond} {
				if variant++; long.Reduced() && variant%5 != 0 { // every fifth still comes to each step, action and timeout
					continue
				}
				if timeout == 0 && (action == txntest.Hold || action == txntest.HoldResponse) {
					continue // without a deadline they would only wait for Release below
				}
				t.Run(fmt.Sprintf("%s/%v/%v", s.step, action, timeout), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						tr := newTransfer(t)
						if s.setup != nil {
							s.setup(tr)
						}
						rule := tr.faults.OnStep(s.step, action)
						if s.step == txntest.StepHeartbeat {
							timeout *= 50 // the first heartbeat comes after a second
						}
						tr.run(timeout)
						rule.Release()
						tr.verify()
					})
				})
				if action != txntest.Echo && action != txntest.Delay {
					continue
				}
				// The same, but the request arrives after all locks were resolved.
				t.Run(fmt.Sprintf("%s/%v past the resolution/%v", s.step, action, timeout), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						tr := newTransfer(t)
						if s.setup != nil {
							s.setup(tr)
						}
						rule := tr.faults.OnStep(s.step, action)
						if s.step == txntest.StepHeartbeat {
							timeout *= 50
						}
						tr.run(timeout)
						tr.resolveAll()
						rule.Release()
						tr.verify()
					})
				})
			}
		}
	}
}

// TestSecondariesAreRetried makes the bulk mutation that commits secondaries fail
// several times. The background retries it until no lock is left.
func TestSecondariesAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTransfer(t)
		tr.faults.On("secondaries", func(c txntest.Call) bool { return c.Step == txntest.StepSecondaries }, txntest.DropRequest, 3)
		tr.run(0)
		<-time.After(30 * time.Second) // virtual time, for the Bigtable client's backoff and ours
		synctest.Wait()
		for l, err := range admin.Locks(t.Context(), tr.b, "bank", nil) {
			t.Errorf("lock left: %v, %v", l, err)
		}
		tr.verify()
	})
}

// TestReadsCutShort breaks every streamed answer after two messages, again and again.
// Reads still return every row exactly once.
func TestReadsCutShort(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		const rows = 700 // more than two pages
		_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for i := range rows {
				tx.Table("a").Set(fmt.Sprintf("row%04d", i), "f", "q", []byte(strconv.Itoa(i)))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{RPCTimeout: time.Hour}, faults.DialOptions()...)
		s, err := c.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		faults.On("read", func(c txntest.Call) bool { return c.Step == txntest.StepRead }, txntest.CutStream, 20)
		for _, opts := range [][]txn.ReadOption{nil, {txn.Reverse()}} {
			n := 0
			for r, err := range s.Table("a").ReadRows(t.Context(), nil, opts...) {
				if err != nil {
					t.Fatal(err)
				}
				i := n
				if opts != nil {
					i = rows - 1 - n
				}
				if want := fmt.Sprintf("row%04d", i); r.Key() != want {
					t.Fatalf("row %d is %q, want %q", n, r.Key(), want)
				}
				n++
			}
			if n != rows {
				t.Errorf("%d rows, want %d", n, rows)
			}
		}
	})
}

// TestReadsFailFirst: reads whose first requests fail, before or after the first row, return every row
// exactly once, whichever rows they name, in both directions. Bigtable's client repeats a request for
// the rows that are left, and forgets all of them if the rows are a list in reverse.
func TestReadsFailFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		keys := []string{"a", "a\x00", "b", "c", "d"}
		mustSet(t, env.Client, "v", keys...)
		for _, action := range []txntest.Action{txntest.DropRequest, txntest.DropResponse, txntest.CutStream} {
			faults := txntest.NewFaults(t)
			s := takeSnapshot(t, env.NewClient(txn.Config{}, faults.DialOptions()...))
			for _, rows := range []bigtable.RowSet{nil, bigtable.RowList(keys), bigtable.NewRange("a", "e"), bigtable.RowRangeList{bigtable.NewRange("a", "b"), bigtable.NewRange("b", "e")}} {
				for _, reverse := range []bool{false, true} {
					var opts []txn.ReadOption
					want := slices.Clone(keys)
					if reverse {
						opts = append(opts, txn.Reverse())
						slices.Reverse(want)
					}
					faults.On("read", func(c txntest.Call) bool { return c.Step == txntest.StepRead && c.Table == "a" }, action, 2)
					var got []string
					for row, err := range s.Table("a").ReadRows(t.Context(), rows, opts...) {
						if err != nil {
							t.Fatal(err)
						}
						got = append(got, row.Key())
					}
					if !slices.Equal(got, want) {
						t.Errorf("%v, %T, reverse %v: rows %q, want %q", action, rows, reverse, got, want)
					}
				}
			}
		}
	})
}

// A transfer is one transaction of client a, which moves 40 from alice in table bank to
// bob in table other. Faults disturb it.
type transfer struct {
	t      *testing.T
	env    *txntest.Env
	a, b   *txn.Client
	faults *txntest.Faults
	err    error
	opts   []txn.TxnOption
}

func newTransfer(t *testing.T) *transfer {
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("bank", "bal")
	env.CreateTable("other", "bal")
	tr := &transfer{t: t, env: env, faults: txntest.NewFaults(t)}
	tr.a = env.NewClient(txn.Config{LockTTL: 3 * time.Second}, tr.faults.DialOptions()...)
	tr.b = env.NewClient(txn.Config{LockTTL: 3 * time.Second})
	tr.mustUpdate(tr.b, 100, 0)
	return tr
}

func (tr *transfer) mustUpdate(c *txn.Client, alice, bob int) {
	tr.t.Helper()
	_, err := c.Update(tr.t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tr.set(tx, alice, bob)
		return nil
	})
	if err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *transfer) set(tx *txn.Txn, alice, bob int) {
	tx.Table("bank").Set("alice", "bal", "usd", []byte(strconv.Itoa(alice)))
	tx.Table("other").Set("bob", "bal", "usd", []byte(strconv.Itoa(bob)))
}

// conflictInTheWay makes another transaction write alice between a's start and its
// commit.
func (tr *transfer) conflictInTheWay() {
	tx, err := tr.b.Begin(tr.t.Context())
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.faults.On("let the other one win", func(c txntest.Call) bool {
		if c.Step != txntest.StepPrewrite || tx == nil {
			return false
		}
		tx.Table("bank").Set("alice", "bal", "usd", []byte("100")) // a locks bob meanwhile
		if _, err := tx.Commit(tr.t.Context()); err != nil {
			tr.t.Error(err)
		}
		tx = nil
		return false
	}, txntest.DropRequest, 1).Optional()
}

// longCommit makes the commit wait until the first heartbeat.
func (tr *transfer) longCommit() {
	tr.faults.On("slow commit", func(c txntest.Call) bool { return c.Step == txntest.StepCommit }, txntest.Crash, 1)
	tr.opts = append(tr.opts, txn.MaxAttempts(3))
}

// deadLocksInTheWay leaves the locks of a client that died before its commit point.
func (tr *transfer) deadLocksInTheWay() { tr.leaveLocks(txntest.StepCommit, 90, 10) }

// committedLocksInTheWay leaves the secondaries' locks of a client that died after its
// commit point.
func (tr *transfer) committedLocksInTheWay() { tr.leaveLocks(txntest.StepSecondaries, 100, 0) }

func (tr *transfer) leaveLocks(died txntest.Step, alice, bob int) {
	faults := txntest.NewFaults(tr.t)
	rule := faults.OnStep(died, txntest.Crash)
	victim := tr.env.NewClient(txn.Config{LockTTL: time.Second, TokenTTL: -1}, faults.DialOptions()...)
	ctx, cancel := context.WithCancel(tr.t.Context())
	tx, err := victim.Begin(ctx)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.set(tx, alice, bob)
	done := make(chan struct{})
	go func() { _, _ = tx.Commit(ctx); close(done) }()
	<-rule.Fired()
	faults.Kill()
	cancel()
	<-done
	<-time.After(2 * time.Second) // virtual time
}

// run makes the transfer and keeps the error that it returned.
func (tr *transfer) run(timeout time.Duration) {
	ctx := tr.t.Context()
	if timeout == 0 {
		timeout = time.Hour // longer than longCommit waits
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, tr.err = tr.a.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		for _, acct := range []struct{ table, row string }{{"bank", "alice"}, {"other", "bob"}} {
			if _, ok, err := tx.Table(acct.table).Get(ctx, acct.row, "bal", "usd"); err != nil || !ok {
				return fmt.Errorf("reading %s: %v, %w", acct.row, ok, err)
			}
		}
		tr.set(tx, 60, 40)
		return nil
	}, tr.opts...)
}

// resolveAll resolves every lock, long after its owner is dead.
func (tr *transfer) resolveAll() {
	t, ctx := tr.t, tr.t.Context()
	t.Helper()
	<-time.After(2 * time.Minute) // virtual time: every ttl and background deadline has passed
	synctest.Wait()
	for _, table := range []string{"bank", "other"} {
		for l, err := range admin.Locks(ctx, tr.b, table, nil) {
			if err != nil {
				t.Fatal(err)
			}
			if s, err := admin.Resolve(ctx, tr.b, l); err != nil || (s.State != txn.StateCommitted && s.State != txn.StateRolledBack) {
				t.Errorf("lock on %s: %v, %v", l.Cell, s.State, err)
			}
		}
	}
}

// verify heals the network, resolves all locks, runs the check, and compares the
// balances with the outcome that the client reported.
func (tr *transfer) verify() {
	t, ctx := tr.t, tr.t.Context()
	t.Helper()
	state, known := "", true
	switch err := tr.err; {
	case err == nil:
		state = "60/40"
	case errors.Is(err, txn.ErrUndetermined):
		var u *txn.UndeterminedError
		if !errors.As(err, &u) {
			t.Fatalf("error %v is not an UndeterminedError", err)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("undetermined, but not because of the deadline: %v", err)
		}
		s, err := tr.b.Settle(ctx, u)
		if err != nil {
			t.Fatal(err)
		}
		if state = "100/0"; s.State == txn.StateCommitted {
			state = "60/40"
		}
	case errors.Is(err, txn.ErrConflict), errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		state = "100/0"
	default:
		known = false
		t.Errorf("unexpected outcome: %v", err)
	}
	tr.resolveAll()
	tr.env.Check()
	s, err := tr.b.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	alice, _, err1 := s.Table("bank").Get(ctx, "alice", "bal", "usd")
	bob, _, err2 := s.Table("other").Get(ctx, "bob", "bal", "usd")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if got := fmt.Sprintf("%s/%s", alice, bob); known && got != state {
		t.Errorf("balances %s, but Update returned %v", got, tr.err)
	}
	tr.mustUpdate(tr.b, 1, 99) // no lock is left that a writer would wait for
}
