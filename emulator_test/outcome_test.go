package emulator_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// countCells counts the cells that Bigtable returns to reads.
func countCells(n *atomic.Int64) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &cellCounter{s, n}, err
	})}
}

type cellCounter struct {
	grpc.ClientStream
	cells *atomic.Int64
}

func (s *cellCounter) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*btpb.ReadRowsResponse); ok && err == nil {
		s.cells.Add(int64(len(r.Chunks)))
	}
	return err
}

// writeLater writes n later versions of bob's cell, half of them lock-only, as n later
// transactions do, and returns the oracle's time before them. encode changes each record's
// bytes.
func writeLater(t *testing.T, env *txntest.Env, n int, encode func([]byte) []byte) tso.Timestamp {
	t.Helper()
	before, err := env.Client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := bigtable.NewMutation()
	for i := range tso.Timestamp(n) {
		start := before + 1 + 2*i
		kind := []format.Kind{format.KindDelete, format.KindLock}[i%2]
		family, record := format.EncodeCommit(cellOf("bob"), cellOf("bob"), kind, start)
		m.Set(family, "f:q", (start + 1).Cell(), encode(record))
	}
	if err := env.Bigtable.Open("a").Apply(t.Context(), "bob", m); err != nil {
		t.Fatal(err)
	}
	advance(time.Minute)
	return before
}

// The outcome of a transaction takes as many cells to read as its primary holds of it, however
// often the primary was written since. Before the fix a read returned all later versions.
func TestOutcomeAmongLaterVersions(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for _, tt := range []struct {
		name  string
		write func(*txn.Table)
		died  txntest.Step
		want  format.State
	}{
		{"put", func(a *txn.Table) { a.Set("bob", "f", "q", []byte("9")) }, txntest.StepSecondaries, format.StateCommitted},
		{"delete", func(a *txn.Table) { a.Delete("bob", "f", "q") }, txntest.StepSecondaries, format.StateCommitted},
		{"lock", func(a *txn.Table) { a.Lock("bob", "f", "q") }, txntest.StepSecondaries, format.StateCommitted},
		{"rolled back", func(a *txn.Table) { a.Set("bob", "f", "q", []byte("9")) }, txntest.StepCommit, format.StateRolledBack},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, victim, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
				crash := faults.OnStep(tt.died, txntest.Crash)
				tx := begin(t, victim)
				tt.write(tx.Table("a"))
				set(tx, "9", "joe")
				ctx, cancel := context.WithCancel(t.Context())
				owner := commitInBackground(ctx, tx)
				<-crash.Fired()
				faults.Kill()
				cancel()
				<-owner
				advance(time.Minute)
				// Resolves bob, but not joe.
				if _, _, err := takeSnapshot(t, env.Client).Table("a").Get(t.Context(), "bob", "f", "q"); err != nil {
					t.Fatal(err)
				}
				locked := stored(t, env, "bob")[format.LockFamily]
				if len(locked) > 0 { // a read does not wait for a lock-only lock
					t.Fatalf("bob is still locked: %v", locked)
				}
				writeLater(t, env, 5000, slices.Clone)

				var cells atomic.Int64
				c := env.NewClient(txn.Config{TokenTTL: -1}, countCells(&cells)...)
				if _, err := admin.TransactionStatus(t.Context(), c, cellOf("bob"), tx.StartTS()); err != nil {
					t.Fatal(err) // opens the table
				}
				cells.Store(0)
				s, err := admin.TransactionStatus(t.Context(), c, cellOf("bob"), tx.StartTS())
				if err != nil || s.State != tt.want {
					t.Errorf("the outcome is %v (%v), want %v", s.State, err, tt.want)
				}
				if n := cells.Load(); n != 1 {
					t.Errorf("%d cells were read, want 1", n)
				}
				want := ""
				if tt.want == format.StateCommitted {
					want = "9"
				}
				wantValue(t, takeSnapshot(t, c), "joe", want)
			})
		})
	}
}

// Records of later versions may have other bytes than this library writes: their fields in
// another order, or padded numbers. A resolver decodes each to distinguish it from the record of
// the transaction, which is there or not.
func TestOutcomeAmongReorderedRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.WithoutTransport())
		env.CreateTable("a", "f")
		leaveLocks(t, env, txntest.StepSecondaries)
		writeLater(t, env, 4, func(record []byte) []byte {
			return slices.Concat(record[4:], record[2:4], record[:2]) // start_ts, kind, format_version
		})
		wantValue(t, takeSnapshot(t, env.Client), "joe", "9")
		s, err := admin.TransactionStatus(t.Context(), env.Client, cellOf("bob"), 1)
		if err != nil || s.State != format.StateUnknown {
			t.Errorf("a transaction that left nothing: %v, %v; want unknown", s.State, err)
		}
	})
}

// A prewrite that fails reads why, and not every version that is newer. It still finds the
// rollback marker of its own transaction below them.
func TestConflictAmongLaterVersions(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for _, rolledBack := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			env := txntest.New(t, txntest.WithoutTransport())
			env.CreateTable("a", "f")
			var cells atomic.Int64
			c := env.NewClient(txn.Config{TokenTTL: -1}, countCells(&cells)...)
			mustSet(t, c, "1", "bob")
			synctest.Wait()
			tx := begin(t, c)
			set(tx, "2", "bob")
			want := format.ConflictWrite
			if rolledBack {
				want = format.ConflictRolledBack
				m := bigtable.NewMutation()
				m.Set(format.MarkFamily, "f:q", tx.StartTS().Cell(), format.EncodeRollback(tx.StartTS()))
				if err := env.Bigtable.Open("a").Apply(t.Context(), "bob", m); err != nil {
					t.Fatal(err)
				}
			}
			writeLater(t, env, 5000, slices.Clone)
			cells.Store(0)
			_, err := tx.Commit(t.Context())
			var conflict *txn.ConflictError
			if !errors.As(err, &conflict) || conflict.Reason != want {
				t.Errorf("commit: %v, want a conflict for reason %v", err, want)
			}
			if n := cells.Load(); n > 4 {
				t.Errorf("%d cells were read, want at most 4", n)
			}
		})
	}
}
