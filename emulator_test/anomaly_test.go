package emulator_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// The tests of this file are Hermitage's interleavings (Kleppmann,
// github.com/ept/hermitage), which give an isolation level its profile:
// snapshot isolation prevents everything but write skew, and what this library
// offers against write skew prevents that.

// hermitage is a table t with rows x = 10 and y = 20. Each transaction has a
// client of its own, as if it were another process.
type hermitage struct {
	t   *testing.T
	env *txntest.Env
}

func newHermitage(t *testing.T) *hermitage {
	t.Helper()
	h := &hermitage{t, txntest.New(t)}
	h.env.CreateTable("t", "f")
	w := h.begin()
	w.set("x", "10")
	w.set("y", "20")
	w.commit()
	return h
}

// A session is one manual transaction.
type session struct {
	h  *hermitage
	tx *txn.Txn
}

func (h *hermitage) begin(opts ...txn.TxnOption) *session {
	h.t.Helper()
	return h.beginOn(h.env.Client, opts...)
}

func (h *hermitage) beginOn(c *txn.Client, opts ...txn.TxnOption) *session {
	h.t.Helper()
	tx, err := c.Begin(h.t.Context(), opts...)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(tx.Rollback)
	return &session{h, tx}
}

func (s *session) table() *txn.Table { return s.tx.Table("t") }

func (s *session) set(row, value string) { s.table().Set(row, "f", "q", []byte(value)) }

func (s *session) get(row string) string {
	s.h.t.Helper()
	v, ok, err := s.table().Get(s.h.t.Context(), row, "f", "q")
	if err != nil {
		s.h.t.Fatalf("get %s: %v", row, err)
	}
	if !ok {
		return "absent"
	}
	return string(v)
}

// scan returns all rows whose value satisfies where, as "row=value …".
func (s *session) scan(where func(string) bool) string {
	s.h.t.Helper()
	var found []string
	for row, err := range s.table().ReadRows(s.h.t.Context(), nil) {
		if err != nil {
			s.h.t.Fatalf("scan: %v", err)
		}
		if v := string(row["f"][0].Value); where == nil || where(v) {
			found = append(found, row.Key()+"="+v)
		}
	}
	return strings.Join(found, " ")
}

func (s *session) want(row, value string) {
	s.h.t.Helper()
	if got := s.get(row); got != value {
		s.h.t.Errorf("%s is %s at %d, want %s", row, got, s.tx.StartTS(), value)
	}
}

func (s *session) wantScan(where func(string) bool, want string) {
	s.h.t.Helper()
	if got := s.scan(where); got != want {
		s.h.t.Errorf("scan at %d found %q, want %q", s.tx.StartTS(), got, want)
	}
}

func (s *session) commit() tso.Timestamp {
	s.h.t.Helper()
	ts, err := s.tx.Commit(s.h.t.Context())
	if err != nil {
		s.h.t.Fatalf("commit of the transaction that started at %d: %v", s.tx.StartTS(), err)
	}
	return ts
}

// conflict commits and expects a conflict on one of rows. Rows are prewritten in
// parallel, and Commit returns the first conflict.
func (s *session) conflict(rows ...string) {
	s.h.t.Helper()
	ts, err := s.tx.Commit(s.h.t.Context())
	var c *txn.ConflictError
	switch {
	case err == nil:
		s.h.t.Errorf("the transaction that started at %d committed at %d, want a conflict", s.tx.StartTS(), ts)
	case !errors.Is(err, txn.ErrConflict) || !errors.As(err, &c):
		s.h.t.Errorf("commit: %v, want a conflict", err)
	case !slices.Contains(rows, c.Cell.Row) || c.StartTS != s.tx.StartTS() || c.Reason == format.ConflictWrite && c.ConflictTS <= c.StartTS:
		s.h.t.Errorf("conflict %+v, want one on %v of the transaction that started at %d", c, rows, s.tx.StartTS())
	}
}

func (h *hermitage) wantFinally(state string) {
	h.t.Helper()
	h.begin().wantScan(nil, state)
}

// waitFired waits until a rule fires. It fails the test if the operation that the rule
// should stop has ended before.
func waitFired[T any](t *testing.T, r *txntest.Rule, ended <-chan T) {
	t.Helper()
	select {
	case <-r.Fired():
	case result := <-ended:
		t.Fatalf("the operation ended with %v before the rule could stop it", result)
	case <-time.After(20 * time.Second):
		t.Fatal("the rule stopped nothing within 20 s")
	}
}

// G0: the second of two transactions that write the same rows fails.
func TestDirtyWrite(t *testing.T) {
	h := newHermitage(t)
	t1, t2 := h.begin(), h.begin()
	t1.set("x", "11")
	t2.set("x", "12")
	t1.set("y", "21")
	t1.commit()
	h.wantFinally("x=11 y=21")
	t2.set("y", "22")
	t2.conflict("x", "y")
	h.wantFinally("x=11 y=21")
}

// G0 between two commits that both have prewritten a cell: the second finds the lock of
// the first, not its write record.
func TestDirtyWriteBetweenPrewrites(t *testing.T) {
	h := newHermitage(t)
	faults := txntest.NewFaults(t)
	held := faults.OnStep(txntest.StepCommit, txntest.Hold)
	t1 := h.beginOn(h.env.NewClient(txn.Config{}, faults.DialOptions()...))
	t2 := h.begin()
	t1.set("x", "11")
	t1.set("y", "21")
	t2.set("z", "32") // first: its primary is free
	t2.set("y", "22")
	first := make(chan error, 1)
	go func() {
		_, err := t1.tx.Commit(t.Context())
		first <- err
	}()
	waitFired(t, held, first)
	t2.conflict("y")
	held.Release()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	h.wantFinally("x=11 y=21")
}

// G1a: no read shows a write of a transaction that rolled back.
func TestAbortedRead(t *testing.T) {
	t.Run("rollback", func(t *testing.T) {
		h := newHermitage(t)
		t1, t2 := h.begin(), h.begin()
		t1.set("x", "101")
		t2.want("x", "10")
		t1.tx.Rollback()
		t2.want("x", "10")
		t2.commit()
		h.wantFinally("x=10 y=20")
	})
	t.Run("conflict", func(t *testing.T) {
		// x is prewritten before the transaction finds the conflict on y.
		h := newHermitage(t)
		faults := txntest.NewFaults(t)
		cfg := txn.Config{Parallelism: 1}
		t1 := h.beginOn(h.env.NewClient(cfg, faults.DialOptions()...))
		t1.set("x", "101")
		t1.set("y", "102")
		t2 := h.begin()
		t2.set("y", "21")
		t2.commit()
		t1.conflict("y")
		if n := faults.Count()[txntest.StepPrewrite]; n != 2 {
			t.Errorf("%d prewrites, want that of x too", n)
		}
		h.wantFinally("x=10 y=21")
	})
}

// A read that finds the locks of a transaction in the middle of its commit waits. Then
// it sees all of the transaction or nothing, as the timestamps say.
func TestDirtyRead(t *testing.T) {
	for _, tc := range []struct {
		name string
		// hold is the step at which the writer waits while the reader begins.
		hold txntest.Step
		want string
	}{
		{"reader starts before commit_ts", txntest.StepOracle, "x=10 y=20"},
		{"reader starts after commit_ts", txntest.StepCommit, "x=11 y=21"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHermitage(t)
			writes, reads := txntest.NewFaults(t), txntest.NewFaults(t)
			t1 := h.beginOn(h.env.NewClient(txn.Config{TokenTTL: -1}, writes.DialOptions()...))
			held := writes.OnStep(tc.hold, txntest.Hold) // the oracle's first answer was for start_ts
			t1.set("x", "11")
			t1.set("y", "21")
			first := make(chan error, 1)
			go func() {
				_, err := t1.tx.Commit(t.Context())
				first <- err
			}()
			waitFired(t, held, first)

			reader := h.env.NewClient(txn.Config{TokenTTL: -1}, reads.DialOptions()...)
			t2 := h.beginOn(reader)
			// A reader that waits for a lock asks the oracle for the time.
			waits := reads.OnStep(txntest.StepOracle, txntest.Hold)
			second := make(chan string, 1)
			go func() { second <- t2.scan(nil) }()
			waitFired(t, waits, second)
			held.Release()
			if err := <-first; err != nil {
				t.Fatal(err)
			}
			waits.Release()
			if got := <-second; got != tc.want {
				t.Errorf("read %q, want %q", got, tc.want)
			}
			h.wantFinally("x=11 y=21")
		})
	}
}

// G1b: no read shows a value that its transaction overwrote before it committed.
func TestIntermediateRead(t *testing.T) {
	h := newHermitage(t)
	t1, t2 := h.begin(), h.begin()
	t1.set("x", "101")
	t2.want("x", "10")
	t1.set("x", "11")
	t1.commit()
	t2.want("x", "10")
	h.wantFinally("x=11 y=20")
}

// G1c: two transactions that each read what the other writes do not both see the
// other's write.
func TestCircularInformationFlow(t *testing.T) {
	h := newHermitage(t)
	t1, t2 := h.begin(), h.begin()
	t1.set("x", "11")
	t2.set("y", "22")
	t1.want("y", "20")
	t2.want("x", "10")
	t1.commit()
	t2.commit()
	h.wantFinally("x=11 y=22")
}

// OTV: what a transaction has seen of another one does not vanish.
func TestObservedTransactionVanishes(t *testing.T) {
	h := newHermitage(t)
	t1, t2 := h.begin(), h.begin()
	t1.set("x", "11")
	t1.set("y", "19")
	t2.set("x", "12")
	t1.commit()
	t3 := h.begin()
	t3.want("x", "11")
	t2.set("y", "18")
	t3.want("y", "19")
	t2.conflict("x", "y")
	t3.want("x", "11")
	t3.want("y", "19")
}

// A transaction reads the same value of a row again, even if another one has
// overwritten or deleted the row.
func TestNonRepeatableRead(t *testing.T) {
	h := newHermitage(t)
	t1 := h.begin()
	t1.want("x", "10")
	t1.want("z", "absent")
	t2 := h.begin()
	t2.set("x", "11")
	t2.table().Delete("y", "f", "q")
	t2.set("z", "31")
	t2.commit()
	t1.want("x", "10")
	t1.want("y", "20")
	t1.want("z", "absent")
	h.wantFinally("x=11 z=31")
}

// PMP (predicate-many-preceders): a scan that is repeated finds the same rows.
func TestPhantom(t *testing.T) {
	thirty := func(v string) bool { return v == "30" }
	h := newHermitage(t)
	t1, t2 := h.begin(), h.begin()
	t1.wantScan(thirty, "")
	t2.set("z", "30")
	t2.commit()
	t1.wantScan(thirty, "")
	t1.wantScan(nil, "x=10 y=20")
	t1.commit()
	h.begin().wantScan(thirty, "z=30")

	// The same if a transaction writes the rows that match a predicate, and another
	// one changes which rows match.
	t3, t4 := h.begin(), h.begin()
	t3.set("x", "20")
	t3.set("y", "30")
	t4.wantScan(func(v string) bool { return v == "20" }, "y=20")
	t4.table().Delete("y", "f", "q")
	t3.commit()
	t4.conflict("y")
	h.wantFinally("x=20 y=30 z=30")
}

// P4: of two transactions that read and write the same cell, one fails.
func TestLostUpdate(t *testing.T) {
	h := newHermitage(t)
	t1, t2 := h.begin(), h.begin()
	t1.want("x", "10")
	t2.want("x", "10")
	t1.set("x", "11")
	t2.set("x", "12")
	t1.commit()
	t2.conflict("x")
	h.wantFinally("x=11 y=20")
}

// A delete is an update too: of two transactions that read a cell, then one deletes and
// one writes it, one fails.
func TestLostDelete(t *testing.T) {
	h := newHermitage(t)
	t1, t2, t3 := h.begin(), h.begin(), h.begin()
	t1.table().Delete("x", "f", "q")
	t2.set("x", "12")
	t3.table().Delete("x", "f", "q")
	t1.commit()
	t2.conflict("x")
	t3.conflict("x")
	h.wantFinally("y=20")
}

// G-single: a transaction sees all of another transaction or nothing of it.
func TestReadSkew(t *testing.T) {
	update := func(h *hermitage) {
		t2 := h.begin()
		t2.want("x", "10")
		t2.want("y", "20")
		t2.set("x", "12")
		t2.set("y", "18")
		t2.commit()
	}
	t.Run("items", func(t *testing.T) {
		h := newHermitage(t)
		t1 := h.begin()
		t1.want("x", "10")
		update(h)
		t1.want("y", "20")
		t1.commit()
	})
	t.Run("predicate", func(t *testing.T) {
		h := newHermitage(t)
		t1 := h.begin()
		t1.wantScan(func(v string) bool { return v == "10" || v == "20" }, "x=10 y=20")
		update(h)
		t1.wantScan(func(v string) bool { return v == "12" || v == "18" }, "")
		t1.commit()
	})
	t.Run("write", func(t *testing.T) {
		h := newHermitage(t)
		t1 := h.begin()
		t1.want("x", "10")
		update(h)
		t1.wantScan(func(v string) bool { return v == "20" }, "y=20")
		t1.table().Delete("y", "f", "q")
		t1.conflict("y")
		h.wantFinally("x=12 y=18")
	})
}

// guards are the ways to read a cell on which a decision depends.
var guards = []struct {
	name string
	opts []txn.TxnOption
	read func(*session, string) string
	skew bool
}{
	{"snapshot isolation", nil, (*session).get, true},
	{"lock", nil, func(s *session, row string) string {
		s.table().Lock(row, "f", "q")
		return s.get(row)
	}, false},
	{"get for update", nil, func(s *session, row string) string {
		s.h.t.Helper()
		v, ok, err := s.table().GetForUpdate(s.h.t.Context(), row, "f", "q")
		if err != nil {
			s.h.t.Fatal(err)
		}
		if !ok {
			return "absent"
		}
		return string(v)
	}, false},
	{"serializable", []txn.TxnOption{txn.Serializable()}, (*session).get, false},
	{"serializable read of rows", []txn.TxnOption{txn.Serializable()}, func(s *session, row string) string {
		s.h.t.Helper()
		for r, err := range s.table().ReadRows(s.h.t.Context(), bigtable.RowList{row}, txn.Columns(txn.Column{Family: "f", Qualifier: "q"})) {
			if err != nil {
				s.h.t.Fatal(err)
			}
			return string(r["f"][0].Value)
		}
		return "absent"
	}, false},
}
