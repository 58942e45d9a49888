package emulator_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/admin"
)

// Secondaries that are to be committed while a request is under way go in one
// request, of whichever transactions they are.
func TestBackgroundJoinsTransactions(t *testing.T) {
	const commits = 40
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1})
		first := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		mustSet(t, a, "3", "p", "s")
		<-first.Fired()
		for i := range commits {
			mustSet(t, a, "3", fmt.Sprint("p", i), fmt.Sprint("s", i))
		}
		if s := a.Stats(); s.BackgroundCells != 2*(1+commits) {
			t.Errorf("%d changes are queued, want those of all transactions", s.BackgroundCells)
		}
		first.Release()
		synctest.Wait()
		wantNoLocks(t, env.Client)
		if n := faults.Count()[txntest.StepSecondaries]; n != 2 {
			t.Errorf("%d requests for the secondaries of %d transactions, want 2", n, 1+commits)
		}
		if s := a.Stats(); s.BackgroundRequests != 2 || s.BackgroundCells != 0 || s.BackgroundBytes != 0 {
			t.Errorf("stats say %+v", s)
		}
	})
}

// entryFault answers the entries of a MutateRows request for one row with an
// error, without applying them, as Bigtable does when one tablet is unavailable.
type entryFault struct {
	mu    sync.Mutex
	row   string
	fired int
}

func (f *entryFault) dialOption() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &entryStream{ClientStream: s, fault: f, at: -1}, err
	})
}

type entryStream struct {
	grpc.ClientStream
	fault *entryFault
	at    int64 // which entry is the chosen row's
}

func (s *entryStream) SendMsg(m any) error {
	r, ok := m.(*btpb.MutateRowsRequest)
	if !ok {
		return s.ClientStream.SendMsg(m)
	}
	s.fault.mu.Lock()
	defer s.fault.mu.Unlock()
	for i, e := range r.Entries {
		if string(e.RowKey) == s.fault.row {
			s.at = int64(i)
			s.fault.fired++
			// Sent as a change of nothing.
			copied := &btpb.MutateRowsRequest{TableName: r.TableName, AppProfileId: r.AppProfileId}
			copied.Entries = append(append(append(copied.Entries, r.Entries[:i]...), &btpb.MutateRowsRequest_Entry{RowKey: e.RowKey, Mutations: []*btpb.Mutation{
				{Mutation: &btpb.Mutation_DeleteFromColumn_{DeleteFromColumn: &btpb.Mutation_DeleteFromColumn{FamilyName: "f", ColumnQualifier: []byte("none")}}}}}), r.Entries[i+1:]...)
			return s.ClientStream.SendMsg(copied)
		}
	}
	return s.ClientStream.SendMsg(m)
}

func (s *entryStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*btpb.MutateRowsResponse); ok && err == nil {
		for _, e := range r.Entries {
			if e.Index == s.at {
				e.Status.Code = int32(codes.Unavailable)
			}
		}
	}
	return err
}

// A row that Bigtable cannot write for a while kept the rows that shared its
// request, and those behind it, waiting: the Bigtable client tries it again and
// again within one request and then reports the whole request failed; closed by
// freshTimeout and the lane of what failed (background.go).
func TestBackgroundOneRowFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := &entryFault{row: "bad"}
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1, BackgroundTimeout: time.Minute}, bad.dialOption())
		first := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		mustSet(t, a, "3", "p", "s")
		<-first.Fired()
		mustSet(t, a, "3", "p0", "bad", "beside")
		mustSet(t, a, "3", "p1", "s1")
		first.Release()
		pass(time.Second)
		mustSet(t, a, "3", "p2", "s2") // behind the failing request
		pass(6 * time.Second)
		mustSet(t, a, "3", "p3", "s3") // while it is tried again
		pass(time.Second)
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil || l.Cell.Row != "bad" {
				t.Errorf("lock on %s, %v", l.Cell, err)
			}
		}
		// Those of the same transaction may wait, those of others may not.
		if s := a.Stats(); s.BackgroundCells != 4 || s.BackgroundDropped != 0 {
			t.Errorf("%d changes queued, %d rows given up, want the 4 of one transaction and none", s.BackgroundCells, s.BackgroundDropped)
		}
		pass(time.Minute)
		if s := a.Stats(); s.BackgroundCells != 0 || s.BackgroundBytes != 0 || s.BackgroundDropped == 0 || s.BackgroundDropped > 2 {
			t.Errorf("%d changes of %d bytes queued, %d rows given up, want the failing transaction's", s.BackgroundCells, s.BackgroundBytes, s.BackgroundDropped)
		}
		if bad.fired < 3 {
			t.Errorf("the row failed %d times", bad.fired)
		}
		wantValue(t, takeSnapshot(t, env.Client), "bad", "3") // whoever meets the lock
	})
}

// Rows of several transactions in one request that is lost after a part of it
// was applied are all sent again: every entry is idempotent.
func TestBackgroundPartlyApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
		first := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		mustSet(t, a, "3", "p", "s")
		<-first.Fired()
		// All of the batch is applied and none of it answered, and then it is late.
		faults.On("batch", func(c txntest.Call) bool {
			r, ok := c.Request.(*btpb.MutateRowsRequest)
			return ok && c.Step == txntest.StepSecondaries && len(r.Entries) > 1
		}, txntest.HoldResponse, 1)
		for i := range 10 {
			mustSet(t, a, "3", fmt.Sprint("p", i), fmt.Sprint("s", i))
		}
		first.Release()
		pass(10 * time.Second)
		wantNoLocks(t, env.Client)
		if s := a.Stats(); s.BackgroundCells != 0 || s.BackgroundDropped != 0 || s.BackgroundRequests != 2+10 {
			t.Errorf("stats %+v; want one request for each transaction after the one that failed", s)
		}
		for i := range 10 {
			wantValue(t, takeSnapshot(t, env.Client), fmt.Sprint("s", i), "3")
		}
	})
}

// The queue is bounded in bytes too: names may be long.
func TestBackgroundIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1, BackgroundBytes: 20_000})
		hung := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		long := fmt.Sprintf("%04000d", 0)
		for i := range 6 {
			mustSet(t, a, "3", fmt.Sprint("p", i), long+fmt.Sprint(i))
			if got := a.Stats().BackgroundBytes; got > 20_000 || got < 4_000 {
				t.Errorf("after commit %d, %d bytes are queued", i, got)
			}
			<-hung.Fired() // by the first commit's, before others send their own
		}
		locks := 0
		for range admin.Locks(t.Context(), env.Client, "a", nil) {
			locks++
		}
		if locks != 4 {
			t.Errorf("%d commits were left to the background, want 4", locks)
		}
		hung.Release()
		synctest.Wait()
		wantNoLocks(t, env.Client)
	})
}

// A request that Bigtable refuses because of one transaction's row took the rows of
// all transactions in it along: their locks were left to whoever meets them; closed
// by trying each transaction by itself before it is given up (background.send).
func TestBackgroundOneRowIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := 0
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1}, refuse(func(c txntest.Call) bool {
			r, ok := c.Request.(*btpb.MutateRowsRequest)
			if !ok || c.Step != txntest.StepSecondaries {
				return false
			}
			for _, e := range r.Entries {
				if string(e.RowKey) == "bad" {
					refused++
					return true
				}
			}
			return false
		})...)
		first := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		mustSet(t, a, "3", "p", "s")
		<-first.Fired()
		mustSet(t, a, "3", "p0", "bad")
		mustSet(t, a, "3", "p1", "s1")
		first.Release()
		pass(10 * time.Second)
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil || l.Cell.Row != "bad" {
				t.Errorf("lock on %s, %v", l.Cell, err)
			}
		}
		if s := a.Stats(); s.BackgroundDropped != 1 || s.BackgroundCells != 0 || refused != 2 {
			t.Errorf("%d rows given up, %d changes queued, %d requests refused", s.BackgroundDropped, s.BackgroundCells, refused)
		}
		wantValue(t, takeSnapshot(t, env.Client), "bad", "3") // whoever meets the lock
	})
}
