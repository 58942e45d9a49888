package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// bulkSizes returns how many rows each bulk prewrite locks.
func bulkSizes(faults *txntest.Faults) (n []int) {
	for _, c := range faults.Calls() {
		if isBulkPrewrite(c) {
			n = append(n, len(c.Request.(*btpb.MutateRowsRequest).Entries))
		}
	}
	return n
}

// failingEntries lets the entries of a row in bulk mutations fail, so many times. Bigtable applies
// them nevertheless.
type failingEntries struct {
	grpc.ClientStream
	row   string
	code  codes.Code
	times *int
	rows  []string
}

func failEntries(row string, code codes.Code, times int) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &failingEntries{s, row, code, &times, nil}, err
	})
}

func (f *failingEntries) SendMsg(m any) error {
	if r, ok := m.(*btpb.MutateRowsRequest); ok {
		for _, e := range r.Entries {
			f.rows = append(f.rows, string(e.RowKey))
		}
	}
	return f.ClientStream.SendMsg(m)
}

func (f *failingEntries) RecvMsg(m any) error {
	err := f.ClientStream.RecvMsg(m)
	if r, ok := m.(*btpb.MutateRowsResponse); ok && err == nil {
		for _, e := range r.Entries {
			if f.rows[e.Index] == f.row && *f.times > 0 {
				*f.times--
				e.Status.Code, e.Status.Message = int32(f.code), "injected"
			}
		}
	}
	return err
}

// A transaction commits although requests of its bulk prewrite or of its verification fail.
func TestBulkPrewriteFaults(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	rows := rowNames(6)
	verification := stepOn(txntest.StepRead, rows[1])
	for _, tt := range []struct {
		name   string
		match  func(txntest.Call) bool
		action txntest.Action
		sizes  []int
	}{
		{"prewrite is lost", isBulkPrewrite, txntest.DropRequest, []int{5, 5}},
		{"answer to the prewrite is lost", isBulkPrewrite, txntest.DropResponse, []int{5, 5}},
		{"prewrite is doubled", isBulkPrewrite, txntest.Duplicate, []int{5}},
		{"prewrite is applied in part", isBulkPrewrite, txntest.Partial, []int{5, 3}},
		{"prewrite is late", isBulkPrewrite, txntest.Delay, []int{5, 5}},
		{"prewrite arrives again", isBulkPrewrite, txntest.Echo, []int{5}},
		{"verification is lost", verification, txntest.DropRequest, []int{5}},
		{"answer to the verification is lost", verification, txntest.DropResponse, []int{5}},
		{"answer to the verification is cut", verification, txntest.CutStream, []int{5}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := newBulkEnv(t, txn.Config{})
				tx := beginSet(t, c, "1", rows...)
				// What is in other columns makes the answer to the verification long.
				if _, err := env.Client.Update(t.Context(), func(_ context.Context, other *txn.Txn) error {
					for _, row := range rows {
						other.Table("a").Set(row, "f", "other", []byte("2"))
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				faults.Reset()
				fails := faults.On(tt.name, tt.match, tt.action, 1)
				if _, err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				<-fails.Fired()
				fails.Release()
				if got := bulkSizes(faults); !slices.Equal(got, tt.sizes) {
					t.Errorf("prewrites of %v rows, want %v", got, tt.sizes)
				}
				for _, row := range rows {
					wantValue(t, takeSnapshot(t, c), row, "1")
				}
			})
		})
	}
}

// An answer to a bulk prewrite says that one row has failed. If another try may help, the client sends that
// row again, until other clients may have begun to roll the transaction back.
func TestBulkPrewriteOfOneRowFails(t *testing.T) {
	for _, tt := range []struct {
		name  string
		code  codes.Code
		times int
		err   string
		sizes []int
	}{
		{"for a moment", codes.Internal, 2, "", []int{4, 1, 1}},
		{"for good", codes.FailedPrecondition, 1, "FailedPrecondition", []int{4}},
		{"for long", codes.Internal, 1 << 30, "gave up its locks", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows := rowNames(5)
				env, _, _ := newBulkEnv(t, txn.Config{})
				mustSet(t, env.Client, "old", rows...)
				faults := txntest.NewFaults(t)
				c := env.NewClient(txn.Config{LockTTL: 5 * time.Second}, append(faults.DialOptions(), failEntries(rows[3], tt.code, tt.times))...)
				_, err := beginSet(t, c, "new", rows...).Commit(t.Context())
				want := "new"
				if tt.err != "" {
					want = "old"
				}
				if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("the commit: %v, want %q", err, tt.err)
				}
				if got := bulkSizes(faults); tt.sizes != nil && !slices.Equal(got, tt.sizes) {
					t.Errorf("prewrites of %v rows, want %v", got, tt.sizes)
				}
				synctest.Wait()
				if tt.err != "" {
					wantNoLocks(t, env.Client)
				}
				for _, row := range rows {
					wantValue(t, takeSnapshot(t, env.Client), row, want)
				}
			})
		})
	}
}

// Large values take several requests.
func TestBulkPrewriteIsSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, faults := newBulkEnv(t, txn.Config{})
		rows, value := rowNames(8), strings.Repeat("x", 1<<20)
		lost := faults.On("second part", func(c txntest.Call) bool { return isBulkPrewrite(c) && c.Row == rows[4] }, txntest.DropRequest, 1)
		mustSet(t, c, value, rows...)
		<-lost.Fired()
		if got := bulkSizes(faults); !slices.Equal(got, []int{3, 3, 3, 1}) {
			t.Errorf("prewrites of %v rows", got)
		}
		wantValue(t, takeSnapshot(t, c), rows[7], value)
	})
}

// The caller's context ends while the client locks rows in bulk, or verifies them.
func TestBulkPrewriteEndsWithItsContext(t *testing.T) {
	rows := rowNames(5)
	for _, tt := range []struct {
		name   string
		match  func(txntest.Call) bool
		action txntest.Action
	}{
		{"before the prewrite arrives", isBulkPrewrite, txntest.Hold},
		{"before the answer to the prewrite", isBulkPrewrite, txntest.HoldResponse},
		{"before the prewrite arrives late", isBulkPrewrite, txntest.Delay},
		{"during the verification", stepOn(txntest.StepRead, rows[1]), txntest.HoldResponse},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := newBulkEnv(t, txn.Config{})
				mustSet(t, c, "old", rows...)
				synctest.Wait()
				held := faults.On(tt.name, tt.match, tt.action, 0)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				tx := beginSet(t, c, "new", rows...)
				o := <-commitInBackground(ctx, tx)
				if !errors.Is(o.err, context.DeadlineExceeded) || errors.Is(o.err, txn.ErrUndetermined) {
					t.Errorf("the commit: %v, want that its deadline has passed", o.err)
				}
				<-held.Fired()
				synctest.Wait()
				held.Release() // locks may appear now, whose owner is alive
				s := takeSnapshot(t, env.Client)
				for _, row := range rows {
					wantValue(t, s, row, "old")
				}
				mustSet(t, env.Client, "newer", rows...)
				for _, row := range rows {
					wantValue(t, takeSnapshot(t, env.Client), row, "newer")
				}
				synctest.Wait()
				wantNoLocks(t, env.Client)
			})
		})
	}
}

// A transaction writes two tables, one or both of them in bulk.
func TestBulkPrewriteOfTwoTables(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprint("both=", both), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := newBulkEnv(t, txn.Config{})
				env.CreateTable("b", "f")
				rows := rowNames(4)
				if !both {
					txntest.BulkFrom(c, 4) // the primary is in b
				}
				write := func(c *txn.Client, value string) *txn.Txn {
					tx := begin(t, c)
					for _, table := range []string{"b", "a"} {
						for _, row := range rows {
							tx.Table(table).Set(row, "f", "q", []byte(value))
						}
					}
					return tx
				}
				if _, err := write(c, "0").Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				faults.Reset()
				if _, err := write(c, "1").Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				want := map[bool][]int{false: {4}, true: {3, 4}}[both]
				got := bulkSizes(faults)
				slices.Sort(got)
				reads, prewrites := faults.Count()[txntest.StepRead], faults.Count()[txntest.StepPrewrite]-len(got)
				if wantPrewrites := map[bool]int{false: 4, true: 1}[both]; !slices.Equal(got, want) || reads != len(want) || prewrites != wantPrewrites {
					t.Errorf("bulk prewrites of %v rows, %d others, %d reads; want %v, %d, %d", got, prewrites, reads, want, wantPrewrites, len(want))
				}
				// In either table another transaction's commit is found.
				for _, table := range []string{"a", "b"} {
					late := write(c, "late")
					other := begin(t, env.Client)
					other.Table(table).Set(rows[2], "f", "q", []byte("other"))
					if _, err := other.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
					var conflict *txn.ConflictError
					if _, err := late.Commit(t.Context()); !errors.As(err, &conflict) || conflict.Cell.Table != table {
						t.Errorf("beside a commit in table %s: %v", table, err)
					}
				}
				synctest.Wait()
				wantNoLocks(t, c)
				s := takeSnapshot(t, c)
				for _, row := range rows {
					want := map[bool]string{true: "other", false: "1"}[row == rows[2]]
					wantValue(t, s, row, want)
					if v, _, err := s.Table("b").Get(t.Context(), row, "f", "q"); err != nil || string(v) != want {
						t.Errorf("row %s of table b is %q, %v; want %q", row, v, err, want)
					}
				}
			})
		})
	}
}

// A bulk prewrite locks one row in each of two tables.
func TestBulkPrewriteOfOneRowInEachTable(t *testing.T) {
	for _, table := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			env, c, faults := newBulkEnv(t, txn.Config{})
			env.CreateTable("b", "f")
			txntest.BulkFrom(c, 1)
			late := beginSet(t, c, "late", "primary", "row")
			late.Table("b").Set("row", "f", "q", []byte("late"))
			other := begin(t, env.Client)
			other.Table(table).Set("row", "f", "q", []byte("other"))
			if _, err := other.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			var conflict *txn.ConflictError
			if _, err := late.Commit(t.Context()); !errors.As(err, &conflict) || conflict.Cell.Table != table {
				t.Errorf("beside a commit in table %s: %v", table, err)
			}
			if got := bulkSizes(faults); !slices.Equal(got, []int{1, 1}) {
				t.Errorf("bulk prewrites of %v rows", got)
			}
			synctest.Wait()
			wantNoLocks(t, c)
		})
	}
}

// After a bulk prewrite, the verification or the request for commit_ts is refused: the transaction
// does not commit.
func TestBulkPrewriteThenRefused(t *testing.T) {
	rows := rowNames(4)
	for name, match := range map[string]func(txntest.Call) bool{
		"verification": stepOn(txntest.StepRead, rows[1]),
		"commit_ts":    func(c txntest.Call) bool { return c.Step == txntest.StepOracle },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, _, _ := newBulkEnv(t, txn.Config{})
				mustSet(t, env.Client, "old", rows...)
				var armed, refused atomic.Bool
				c := env.NewClient(txn.Config{}, refuse(func(c txntest.Call) bool {
					if isBulkPrewrite(c) {
						armed.Store(true)
					}
					if !armed.Load() || !match(c) {
						return false
					}
					refused.Store(true)
					return true
				})...)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if _, err := beginSet(t, c, "new", rows...).Commit(ctx); status.Code(err) != codes.PermissionDenied || errors.Is(err, txn.ErrUndetermined) || !refused.Load() {
					t.Errorf("commit: %v; refused: %t", err, refused.Load())
				}
				synctest.Wait()
				wantNoLocks(t, env.Client)
				for _, row := range rows {
					wantValue(t, takeSnapshot(t, env.Client), row, "old")
				}
			})
		})
	}
}

// After the primary's prewrite has failed, the client sends no further part of the bulk prewrite.
func TestBulkPrewriteStopsAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newBulkEnv(t, txn.Config{})
		rows, value := rowNames(20), strings.Repeat("x", 1<<20)
		tx := beginSet(t, c, value, rows...)
		mustSet(t, env.Client, "other", rows[0])
		// The primary's request waits for the first part, which would not be sent after it.
		primary := faults.On("primary", stepOn(txntest.StepPrewrite, rows[0]), txntest.Hold, 1)
		first := faults.On("first part", isBulkPrewrite, txntest.Hold, 1)
		done := commitInBackground(t.Context(), tx)
		<-first.Fired()
		primary.Release()
		synctest.Wait()
		first.Release()
		if o := <-done; !errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("commit: %v", o.err)
		}
		if got := bulkSizes(faults); len(got) != 1 {
			t.Errorf("parts of %v rows, want one; the primary's prewrite failed during the first", got)
		}
		synctest.Wait()
		wantNoLocks(t, c)
	})
}
