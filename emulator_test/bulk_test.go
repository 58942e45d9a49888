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
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// bulkRows returns the rows r0000 to r(n-1), with two columns of binary values each.
func bulkRows(n int) iter.Seq2[admin.BulkRow, error] {
	return func(yield func(admin.BulkRow, error) bool) {
		for i := range n {
			row := admin.BulkRow{Row: fmt.Sprintf("r%04d", i), Cells: []admin.BulkCell{
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

// A bulk load is visible from its commit timestamp on, and writes notifications.
func TestBulkLoad(t *testing.T) {
	t.Parallel()
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprintf("idle=%v", idle), func(t *testing.T) {
			t.Parallel()
			env := newBulk(t)
			before := takeSnapshot(t, env.Client)
			const n = 1100
			r, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(n), admin.BulkConfig{Idle: idle})
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
			if items := raw[format.NotifyFamily]; len(items) != 1 || items[0].Timestamp != r.CommitTS.Cell() {
				t.Errorf("notify cells %v", items)
			}
			// Transactions can write the loaded rows.
			mustSet(t, env.Client, "changed", "r0007")
			wantValue(t, takeSnapshot(t, env.Client), "r0007", "changed")
			wantValue(t, now, "r0007", "value 7")
		})
	}
}

// BulkLoad refuses a range with data or locks in it, before it writes anything.
func TestBulkLoadRefuses(t *testing.T) {
	t.Parallel()
	env := newBulk(t)
	plain := bigtable.NewMutation()
	plain.Set("f", "other", bigtable.Now(), []byte("x"))
	if err := env.Bigtable.Open("a").Apply(t.Context(), "r0500", plain); err != nil {
		t.Fatal(err)
	}
	var notIdle *admin.NotIdleError
	_, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(10), admin.BulkConfig{})
	if !errors.As(err, &notIdle) || notIdle.Cell.Row != "r0500" || notIdle.What != admin.VersionPlain || !errors.Is(err, admin.ErrNotIdle) {
		t.Errorf("a range with plain data: %v", err)
	}
	// It loads a range beside the data, or with Idle.
	if _, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(10), admin.BulkConfig{Rows: bigtable.NewRange("", "r0010")}); err != nil {
		t.Error(err)
	}
	if _, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(600), admin.BulkConfig{Idle: true}); err != nil {
		t.Error(err)
	}
	wantValue(t, takeSnapshot(t, env.Client), "r0500", "value 500")

	for name, rows := range map[string][]admin.BulkRow{
		"outside":       {{Row: "s", Cells: []admin.BulkCell{{Family: "f"}}}},
		"twice":         {{Row: "q", Cells: []admin.BulkCell{{Family: "f"}}}, {Row: "q", Cells: []admin.BulkCell{{Family: "f"}}}},
		"order":         {{Row: "qb", Cells: []admin.BulkCell{{Family: "f"}}}, {Row: "qa", Cells: []admin.BulkCell{{Family: "f"}}}},
		"column twice":  {{Row: "q", Cells: []admin.BulkCell{{Family: "f"}, {Family: "f"}}}},
		"no cells":      {{Row: "q"}},
		"no family":     {{Row: "q", Cells: []admin.BulkCell{{Family: "nowhere"}}}},
		"metadata":      {{Row: "q", Cells: []admin.BulkCell{{Family: format.LockFamily}}}},
		"no row":        {{Row: "", Cells: []admin.BulkCell{{Family: "f"}}}},
		"acknowledging": {{Row: "q", Cells: []admin.BulkCell{{Family: format.AckFamily, Qualifier: "f:q/o", Value: make([]byte, 8)}}}},
		"large value":   {{Row: "q", Cells: []admin.BulkCell{{Family: "f", Value: make([]byte, 101<<20)}}}},
	} {
		in := func(yield func(admin.BulkRow, error) bool) {
			for _, r := range rows {
				if !yield(r, nil) {
					return
				}
			}
		}
		if _, err := admin.BulkLoad(t.Context(), env.Client, "a", in, admin.BulkConfig{Rows: bigtable.NewRange("p", "r"), Idle: true}); !errors.Is(err, txn.ErrInvalid) && !errors.Is(err, txn.ErrSchema) && !errors.Is(err, txn.ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A load at timestamps that no load can have had is refused. Before the fix, rows that were
// loaded with equal timestamps could not be read: the commit timestamp hid the data.
func TestBulkLoadTimestamps(t *testing.T) {
	t.Parallel()
	env := newBulk(t)
	ts, err := env.Client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range [][2]tso.Timestamp{{ts, ts}, {ts, ts - 1}, {ts, 0}, {0, ts}, {-ts, ts}, {5, 7}, {5, ts}} {
		r, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(1), admin.BulkConfig{StartTS: at[0], CommitTS: at[1]})
		if !errors.Is(err, txn.ErrInvalid) || r.Rows != 0 {
			t.Errorf("load at %d: %+v, %v", at, r, err)
		}
	}
	if _, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(1), admin.BulkConfig{StartTS: ts - 1, CommitTS: ts}); err != nil {
		t.Fatal(err)
	}
	wantValue(t, takeSnapshot(t, env.Client), "r0000", "value 0")
}

// A transaction writes during a load. Without Idle the later one of the two fails; with
// Idle the load notices at its end.
func TestBulkLoadMeetsWriter(t *testing.T) {
	t.Parallel()
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprintf("idle=%v", idle), func(t *testing.T) {
			t.Parallel()
			var opts []txntest.Option
			if idle {
				opts = append(opts, txntest.WithoutCheck()) // Idle promises that this does not happen
			}
			env := newBulk(t, opts...)
			other := env.NewClient(txn.Config{TokenTTL: -1})
			// It begins before the load, and commits after the load has checked
			// the range and before its first write.
			tx := beginSet(t, other, "live", "r0003")
			late := beginSet(t, other, "late", "r0005")
			defer late.Rollback()
			_, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(10), admin.BulkConfig{Idle: idle, Started: func(_, _ tso.Timestamp) {
				if _, err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}
			}})
			var notIdle *admin.NotIdleError
			if !errors.As(err, &notIdle) || notIdle.Cell.Row != "r0003" {
				t.Errorf("load: %v", err)
			}
			wantValue(t, takeSnapshot(t, other), "r0003", "live")
			if !idle {
				// The transaction did not see the load, and must not overwrite it.
				loaded := len(stored(t, env, "r0005")) > 0
				if _, err := late.Commit(t.Context()); loaded != errors.Is(err, txn.ErrConflict) {
					t.Errorf("loaded: %v; transaction that began before the load: %v", loaded, err)
				}
			}
		})
	}
}

// A request of a load whose answer is lost, or which is applied twice, changes nothing.
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
				r, err := admin.BulkLoad(t.Context(), c, "a", bulkRows(50), admin.BulkConfig{Idle: idle})
				if err != nil || r.Rows != 50 {
					t.Errorf("%+v, %v", r, err)
				}
				wantValue(t, takeSnapshot(t, env.Client), "r0049", "value 49")
			})
		}
	}
}

// A load that was interrupted continues with the same timestamps, so that all of its
// rows become visible together.
func TestBulkLoadGoesOn(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	t.Parallel()
	for _, idle := range []bool{false, true} {
		env := newBulk(t)
		cut := errors.New("interrupted")
		n := 200
		if idle {
			n = 2 * 1200 // more rows than one request holds are written before the load is interrupted
		}
		half := func(yield func(admin.BulkRow, error) bool) {
			i := 0
			for row := range bulkRows(n) {
				if i++; i > n/2 {
					yield(admin.BulkRow{}, cut)
					return
				}
				if !yield(row, nil) {
					return
				}
			}
		}
		r, err := admin.BulkLoad(t.Context(), env.Client, "a", half, admin.BulkConfig{Idle: idle})
		if !errors.Is(err, cut) || r.Rows == 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(n), admin.BulkConfig{}); !errors.Is(err, admin.ErrNotIdle) {
			t.Errorf("a new load of the same range: %v", err)
		}
		again, err := admin.BulkLoad(t.Context(), env.Client, "a", bulkRows(n), admin.BulkConfig{Idle: idle, StartTS: r.StartTS, CommitTS: r.CommitTS})
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
		if _, err := admin.BulkLoad(ctx, env.Client, "a", bulkRows(3), admin.BulkConfig{}); !errors.Is(err, context.Canceled) {
			t.Errorf("load with a context that has ended: %v", err)
		}
	}
}
