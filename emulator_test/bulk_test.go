package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// bulkRows are rows r0000 to r(n-1) with two columns of binary values.
func bulkRows(n int) iter.Seq2[txn.BulkRow, error] {
	return func(yield func(txn.BulkRow, error) bool) {
		for i := range n {
			row := txn.BulkRow{Row: fmt.Sprintf("r%04d", i), Cells: []txn.BulkCell{
				{Family: "f", Qualifier: "q", Value: fmt.Appendf(nil, "value %d", i)},
				{Family: "f", Qualifier: "\x00/:\xff", Value: []byte{0, 0xff, byte(i)}},
			}}
			if !yield(row, nil) {
				return
			}
		}
	}
}

func newBulk(t *testing.T, opts ...txntest.Option) *txntest.Env {
	t.Helper()
	env := txntest.New(t, append(opts, txntest.Embedded())...)
	env.InitTable(observed)
	return env
}

// A load is visible from its commit timestamp on, and notifies.
func TestBulkLoad(t *testing.T) {
	t.Parallel()
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprintf("idle=%v", idle), func(t *testing.T) {
			t.Parallel()
			env := newBulk(t)
			before := takeSnapshot(t, env.Client)
			const n = 1100
			r, err := txn.LoadBulk(t.Context(), env.Client, "a", bulkRows(n), txn.BulkLoad{Idle: idle})
			if err != nil || r.Rows != n || r.Cells != 2*n || r.StartTS <= before.ReadTS() || r.CommitTS <= r.StartTS {
				t.Fatalf("%+v, %v", r, err)
			}
			wantValue(t, before, "r0007", "")
			now := takeSnapshot(t, env.Client)
			seen := 0
			for row, err := range now.Table("a").ReadRows(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				if len(row["f"]) != 2 || row["f"][1].Timestamp != bigtable.Timestamp(r.CommitTS) || string(row["f"][1].Value) != fmt.Sprintf("value %d", seen) || string(row["f"][0].Value) != string([]byte{0, 0xff, byte(seen)}) {
					t.Fatalf("row %v", row)
				}
				seen++
			}
			if seen != n {
				t.Errorf("%d rows", seen)
			}
			raw := stored(t, env, "r0001")
			if items := raw[txn.NotifyFamily]; len(items) != 1 || items[0].Timestamp != r.CommitTS.Cell() {
				t.Errorf("notify cells %v", items)
			}
			// Transactions go on from there.
			mustSet(t, env.Client, "changed", "r0007")
			wantValue(t, takeSnapshot(t, env.Client), "r0007", "changed")
			wantValue(t, now, "r0007", "value 7")
		})
	}
}

// What is in the range keeps a load out of it, before anything is written.
func TestBulkLoadRefuses(t *testing.T) {
	t.Parallel()
	env := newBulk(t)
	plain := bigtable.NewMutation()
	plain.Set("f", "other", bigtable.Now(), []byte("x"))
	if err := env.Bigtable.Open("a").Apply(t.Context(), "r0500", plain); err != nil {
		t.Fatal(err)
	}
	var notIdle *txn.NotIdleError
	_, err := txn.LoadBulk(t.Context(), env.Client, "a", bulkRows(10), txn.BulkLoad{})
	if !errors.As(err, &notIdle) || notIdle.Cell.Row != "r0500" || notIdle.What != txn.VersionPlain || !errors.Is(err, txn.ErrNotIdle) {
		t.Errorf("a range with plain data: %v", err)
	}
	// Beside it, or with the caller's word, it is let in.
	if _, err := txn.LoadBulk(t.Context(), env.Client, "a", bulkRows(10), txn.BulkLoad{Rows: bigtable.NewRange("", "r0010")}); err != nil {
		t.Error(err)
	}
	if _, err := txn.LoadBulk(t.Context(), env.Client, "a", bulkRows(600), txn.BulkLoad{Idle: true}); err != nil {
		t.Error(err)
	}
	wantValue(t, takeSnapshot(t, env.Client), "r0500", "value 500")

	for name, rows := range map[string][]txn.BulkRow{
		"outside":       {{Row: "s", Cells: []txn.BulkCell{{Family: "f"}}}},
		"twice":         {{Row: "q", Cells: []txn.BulkCell{{Family: "f"}}}, {Row: "q", Cells: []txn.BulkCell{{Family: "f"}}}},
		"order":         {{Row: "qb", Cells: []txn.BulkCell{{Family: "f"}}}, {Row: "qa", Cells: []txn.BulkCell{{Family: "f"}}}},
		"column twice":  {{Row: "q", Cells: []txn.BulkCell{{Family: "f"}, {Family: "f"}}}},
		"no cells":      {{Row: "q"}},
		"no family":     {{Row: "q", Cells: []txn.BulkCell{{Family: "nowhere"}}}},
		"metadata":      {{Row: "q", Cells: []txn.BulkCell{{Family: txn.LockFamily}}}},
		"no row":        {{Row: "", Cells: []txn.BulkCell{{Family: "f"}}}},
		"acknowledging": {{Row: "q", Cells: []txn.BulkCell{{Family: "f", Value: make([]byte, 101<<20)}}}},
	} {
		in := func(yield func(txn.BulkRow, error) bool) {
			for _, r := range rows {
				if !yield(r, nil) {
					return
				}
			}
		}
		if _, err := txn.LoadBulk(t.Context(), env.Client, "a", in, txn.BulkLoad{Rows: bigtable.NewRange("p", "r"), Idle: true}); !errors.Is(err, txn.ErrInvalid) && !errors.Is(err, txn.ErrSchema) && !errors.Is(err, txn.ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A transaction that writes beside a load: without Idle one of the two fails,
// whoever is later; with it, the load notices afterwards.
func TestBulkLoadMeetsWriter(t *testing.T) {
	t.Parallel()
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprintf("idle=%v", idle), func(t *testing.T) {
			t.Parallel()
			var opts []txntest.Option
			if idle {
				opts = append(opts, txntest.WithoutCheck()) // that is what the word is about
			}
			env := newBulk(t, opts...)
			other := env.NewClient(txn.Config{TokenTTL: -1})
			// It begins before the load, and commits between the load's look at
			// the range and its first write.
			tx := beginSet(t, other, "live", "r0003")
			late := beginSet(t, other, "late", "r0005")
			defer late.Rollback()
			_, err := txn.LoadBulk(t.Context(), env.Client, "a", bulkRows(10), txn.BulkLoad{Idle: idle, Started: func(_, _ tso.Timestamp) {
				if _, err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}
			}})
			var notIdle *txn.NotIdleError
			if !errors.As(err, &notIdle) || notIdle.Cell.Row != "r0003" {
				t.Errorf("load: %v", err)
			}
			wantValue(t, takeSnapshot(t, other), "r0003", "live")
			if !idle {
				// Whatever was loaded is not overwritten by who did not see it.
				loaded := len(stored(t, env, "r0005")) > 0
				if _, err := late.Commit(t.Context()); loaded != errors.Is(err, txn.ErrConflict) {
					t.Errorf("loaded: %v; the transaction that began before: %v", loaded, err)
				}
			}
		})
	}
}

// Requests whose answers are lost or that are applied twice change nothing.
func TestBulkLoadFaults(t *testing.T) {
	t.Parallel()
	for _, idle := range []bool{false, true} {
		for _, action := range []txntest.Action{txntest.DropRequest, txntest.DropResponse, txntest.Duplicate} {
			t.Run(fmt.Sprintf("idle=%v/%v", idle, action), func(t *testing.T) {
				t.Parallel()
				env := newBulk(t)
				faults := txntest.NewFaults(t)
				faults.On("load", func(c txntest.Call) bool {
					return c.Table == "a" && (c.Method == "CheckAndMutateRow" || c.Method == "MutateRows")
				}, action, 3)
				c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
				r, err := txn.LoadBulk(t.Context(), c, "a", bulkRows(50), txn.BulkLoad{Idle: idle})
				if err != nil || r.Rows != 50 {
					t.Errorf("%+v, %v", r, err)
				}
				wantValue(t, takeSnapshot(t, env.Client), "r0049", "value 49")
			})
		}
	}
}

// A load that was cut off goes on with its timestamps, and is one in the end.
func TestBulkLoadGoesOn(t *testing.T) {
	t.Parallel()
	for _, idle := range []bool{false, true} {
		env := newBulk(t)
		cut := errors.New("cut off")
		n := 200
		if idle {
			n = 2 * 1200 // more than a request holds is written by the time it is cut
		}
		half := func(yield func(txn.BulkRow, error) bool) {
			i := 0
			for row := range bulkRows(n) {
				if i++; i > n/2 {
					yield(txn.BulkRow{}, cut)
					return
				}
				if !yield(row, nil) {
					return
				}
			}
		}
		r, err := txn.LoadBulk(t.Context(), env.Client, "a", half, txn.BulkLoad{Idle: idle})
		if !errors.Is(err, cut) || r.Rows == 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := txn.LoadBulk(t.Context(), env.Client, "a", bulkRows(n), txn.BulkLoad{}); !errors.Is(err, txn.ErrNotIdle) {
			t.Errorf("begun anew: %v", err)
		}
		again, err := txn.LoadBulk(t.Context(), env.Client, "a", bulkRows(n), txn.BulkLoad{Idle: idle, StartTS: r.StartTS, CommitTS: r.CommitTS})
		if err != nil || again.Rows != n || again.CommitTS != r.CommitTS {
			t.Errorf("%+v, %v", again, err)
		}
		seen := 0
		for row, err := range takeSnapshot(t, env.Client).Table("a").ReadRows(t.Context(), nil) {
			if err != nil || row["f"][0].Timestamp != bigtable.Timestamp(r.CommitTS) {
				t.Fatal(row, err)
			}
			seen++
		}
		if seen != n {
			t.Errorf("%d rows", seen)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := txn.LoadBulk(ctx, env.Client, "a", bulkRows(3), txn.BulkLoad{}); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
	}
}
