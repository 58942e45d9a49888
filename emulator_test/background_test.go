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
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Secondaries that are to be committed while a request is under way go in one
// request, of whichever transactions they are.
func TestBackgroundJoinsTransactions(t *testing.T) {
	const commits = 40
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
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
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, BackgroundTimeout: time.Minute}, bad.dialOption())
		first := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		mustSet(t, a, "3", "p", "s")
		<-first.Fired()
		mustSet(t, a, "3", "p0", "bad", "beside")
		mustSet(t, a, "3", "p1", "s1")
		first.Release()
		advance(time.Second)
		mustSet(t, a, "3", "p2", "s2") // behind the failing request
		advance(6 * time.Second)
		mustSet(t, a, "3", "p3", "s3") // while it is tried again
		advance(time.Second)
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil || l.Cell.Row != "bad" {
				t.Errorf("lock on %s, %v", l.Cell, err)
			}
		}
		// Those of the same transaction may wait, those of others may not.
		if s := a.Stats(); s.BackgroundCells != 4 || s.BackgroundDropped != 0 {
			t.Errorf("%d changes queued, %d rows given up, want the 4 of one transaction and none", s.BackgroundCells, s.BackgroundDropped)
		}
		advance(time.Minute)
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
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
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
		advance(10 * time.Second)
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
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, BackgroundBytes: 20_000})
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
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1}, refuse(func(c txntest.Call) bool {
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
		advance(10 * time.Second)
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

// Rows of several transactions with the same key shared one deadline, so that a
// row written often was never given up; closed by rowMutation.deadline (table.go).
func TestBackgroundDeadlinesAreTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, BackgroundTimeout: 5 * time.Second, RPCTimeout: time.Second})
		faults.On("secondaries", step(txntest.StepSecondaries), txntest.DropRequest, 0)
		for i := range 10 {
			mustSet(t, a, "3", fmt.Sprint("p", i), "s")
			advance(2 * time.Second)
		}
		// Three commits are younger than five seconds, of two changes each.
		if s := a.Stats(); s.BackgroundCells > 6 || s.BackgroundDropped < 7 {
			t.Errorf("%d changes queued, %d rows given up; the oldest were to be given up after 5s", s.BackgroundCells, s.BackgroundDropped)
		}
		advance(6 * time.Second)
		if s := a.Stats(); s.BackgroundCells != 0 || s.BackgroundDropped != 10 {
			t.Errorf("%d changes queued, %d rows given up; want 0 and 10", s.BackgroundCells, s.BackgroundDropped)
		}
	})
}

// Rows were sent after their deadline, by a request under way at it and from
// the queue behind such a request; closed by try and drop (background.go).
func TestBackgroundSendsNothingLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 1500 * time.Millisecond // less than one request may take
		var mu sync.Mutex
		committed := map[string]time.Time{}
		sent := 0
		watch := intercept(func(c txntest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if r, ok := c.Request.(*btpb.MutateRowsRequest); ok && c.Step == txntest.StepSecondaries {
				sent++
				for _, e := range r.Entries {
					if d := time.Since(committed[string(e.RowKey)]); d > timeout {
						t.Errorf("row %s was sent %v after its commit", e.RowKey, d)
					}
				}
			}
			return nil
		})
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, BackgroundTimeout: timeout}, watch...)
		commit := func(primary, secondary string) {
			mustSet(t, a, "3", primary, secondary)
			mu.Lock()
			defer mu.Unlock()
			committed[secondary] = time.Now()
		}
		hung := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		commit("p1", "s1")
		<-hung.Fired()
		commit("p2", "s2") // queued behind it, with the same deadline
		advance(time.Second)
		commit("p3", "s3") // with a second more
		advance(15 * time.Second)
		hung.Release()
		advance(time.Minute)
		if s := a.Stats(); s.BackgroundCells != 0 || s.BackgroundDropped != 2 || sent != 1 {
			t.Errorf("%d changes queued, %d rows given up, %d requests; want s1 and s2 given up and s3 sent", s.BackgroundCells, s.BackgroundDropped, sent)
		}
	})
}

// Rows whose request failed for good in the Bigtable client, after its own
// retries, have to be sent again (send, background.go).
func TestBackgroundSendsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
		faults.On("secondaries", step(txntest.StepSecondaries), txntest.Crash, 2)
		mustSet(t, a, "3", "bob", "joe", "sue")
		advance(10 * time.Second)
		wantNoLocks(t, env.Client)
		if s, n := a.Stats(), faults.Count()[txntest.StepSecondaries]; s.BackgroundCells != 0 || s.BackgroundDropped != 0 || n != 3 {
			t.Errorf("%d changes queued, %d rows given up, %d requests; want the third to succeed", s.BackgroundCells, s.BackgroundDropped, n)
		}
	})
}

// Background work that Bigtable refuses for good is given up at once
// (permanent, in drop, background.go).
func TestBackgroundGivesUpWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1}, refuse(step(txntest.StepSecondaries))...)
		mustSet(t, a, "3", "bob", "joe")
		advance(10 * time.Second)
		if s, n := a.Stats(), faults.Count()[txntest.StepSecondaries]; s.BackgroundCells != 0 || s.BackgroundDropped != 1 || n != 1 {
			t.Errorf("%d changes queued, %d rows given up, %d requests; want one request", s.BackgroundCells, s.BackgroundDropped, n)
		}
		wantValue(t, takeSnapshot(t, env.Client), "joe", "3") // whoever meets the lock
	})
}

// The queue was bounded in rows, whatever their size; closed by counting
// bytes (BackgroundBytes), names and messages included. A commit that finds no room commits its
// secondaries itself.
func TestBackgroundIsBoundedInCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, BackgroundBytes: 15_000})
		hung := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		for i := range 2 {
			tx := beginSet(t, a, "3", fmt.Sprint("p", i))
			for q := range 20 {
				tx.Table("a").Set(fmt.Sprint("s", i), "f", fmt.Sprint("q", q), []byte("3"))
			}
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := a.Stats().BackgroundCells; got != 40 {
				t.Errorf("after commit %d, %d changes are queued, want 40", i, got)
			}
			<-hung.Fired() // by the first commit's, before the second sends its own
		}
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil || l.Cell.Row != "s0" {
				t.Errorf("lock on %s, %v; the second commit was to clear its own", l.Cell, err)
			}
		}
		hung.Release()
		synctest.Wait()
		wantNoLocks(t, env.Client)
	})
}
