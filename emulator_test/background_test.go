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

// While a request for secondaries is under way, the secondaries of later transactions
// wait, and then share one request.
func TestBackgroundJoinsTransactions(t *testing.T) {
	const commits = 40
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		mustSet(t, a, "2", "p", "s")
		synctest.Wait()
		wantNoLocks(t, env.Client) // the secondaries are sent at once
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
		if n := faults.Count()[txntest.StepSecondaries]; n != 3 {
			t.Errorf("%d requests for the secondaries of %d transactions, want 3", n, 2+commits)
		}
		if s := a.Stats(); s.BackgroundRequests != 3 || s.BackgroundCells != 0 || s.BackgroundBytes != 0 {
			t.Errorf("stats say %+v", s)
		}
	})
}

// An entryFault answers the entries of a MutateRows request for one row with an error,
// without applying them, as Bigtable does when one tablet is unavailable.
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
	at    int64 // index of the chosen row's entry; -1: none
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
			// The entry is sent as a mutation that changes nothing.
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

// A row that Bigtable cannot write for a while delays only its own transaction's
// secondaries. Before the fix it also delayed the rows in the same request and all
// later requests: the Bigtable client retries the row within the request, and then
// reports the whole request as failed.
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
		mustSet(t, a, "3", "p2", "s2") // queued after the failing request
		advance(6 * time.Second)
		mustSet(t, a, "3", "p3", "s3") // while the client retries it
		advance(time.Second)
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil || l.Cell.Row != "bad" {
				t.Errorf("lock on %s, %v", l.Cell, err)
			}
		}
		// Secondaries of the same transaction may wait, those of other ones may not.
		if s := a.Stats(); s.BackgroundCells != 4 || s.BackgroundDropped != 0 {
			t.Errorf("%d changes queued, %d rows dropped; want the 4 changes of one transaction and no rows", s.BackgroundCells, s.BackgroundDropped)
		}
		advance(time.Minute)
		if s := a.Stats(); s.BackgroundCells != 0 || s.BackgroundBytes != 0 || s.BackgroundDropped == 0 || s.BackgroundDropped > 2 {
			t.Errorf("%d changes of %d bytes queued, %d rows dropped; want none queued and the failing transaction's rows dropped", s.BackgroundCells, s.BackgroundBytes, s.BackgroundDropped)
		}
		if bad.fired < 3 {
			t.Errorf("the row failed %d times", bad.fired)
		}
		wantValue(t, takeSnapshot(t, env.Client), "bad", "3") // the reader resolves the lock
	})
}

// If a request with rows of several transactions is lost after Bigtable applied a part
// of it, the client sends all rows again. This is safe because every entry is
// idempotent.
func TestBackgroundPartlyApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
		first := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		mustSet(t, a, "3", "p", "s")
		<-first.Fired()
		// Bigtable applies all of the batch, but its answer is lost.
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
			t.Errorf("stats %+v; want one request for each transaction after the failed request", s)
		}
		for i := range 10 {
			wantValue(t, takeSnapshot(t, env.Client), fmt.Sprint("s", i), "3")
		}
	})
}

// BackgroundBytes bounds the queue even if names are long.
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
			<-hung.Fired() // by the first commit's request, before later ones are sent
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

// If Bigtable refuses a request because of one transaction's row, the client sends each
// transaction's rows again by themselves. Before the fix it dropped the rows of all
// transactions in the request, and left their locks to readers.
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
			t.Errorf("%d rows dropped, %d changes queued, %d requests refused; want 1, 0 and 2", s.BackgroundDropped, s.BackgroundCells, refused)
		}
		wantValue(t, takeSnapshot(t, env.Client), "bad", "3") // the reader resolves the lock
	})
}

// Each row in the queue has the deadline of its own transaction. Before the fix, rows
// of several transactions with the same key shared one deadline, so that a row written
// often was never dropped.
func TestBackgroundDeadlinesAreTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, BackgroundTimeout: 5 * time.Second, RPCTimeout: time.Second})
		faults.On("secondaries", step(txntest.StepSecondaries), txntest.DropRequest, 0)
		for i := range 10 {
			mustSet(t, a, "3", fmt.Sprint("p", i), "s")
			advance(2 * time.Second)
		}
		// The last five seconds had three commits of two changes each.
		if s := a.Stats(); s.BackgroundCells > 6 || s.BackgroundDropped < 7 {
			t.Errorf("%d changes queued, %d rows dropped; want those dropped that are older than 5s", s.BackgroundCells, s.BackgroundDropped)
		}
		advance(6 * time.Second)
		if s := a.Stats(); s.BackgroundCells != 0 || s.BackgroundDropped != 10 {
			t.Errorf("%d changes queued, %d rows dropped; want 0 and 10", s.BackgroundCells, s.BackgroundDropped)
		}
	})
}

// The client sends no row after its deadline. Before the fix it did if a request was
// under way at the deadline, and for rows queued after such a request.
func TestBackgroundSendsNothingLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 1500 * time.Millisecond // shorter than the timeout of one request
		var mu sync.Mutex
		committed := map[string]time.Time{}
		sent := 0
		watch := txntest.Intercept(func(c txntest.Call) error {
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
		commit("p2", "s2") // queued after it, with the same deadline
		advance(time.Second)
		commit("p3", "s3") // its deadline is a second later
		advance(15 * time.Second)
		hung.Release()
		advance(time.Minute)
		if s := a.Stats(); s.BackgroundCells != 0 || s.BackgroundDropped != 2 || sent != 1 {
			t.Errorf("%d changes queued, %d rows dropped, %d requests; want s1 and s2 dropped and s3 sent", s.BackgroundCells, s.BackgroundDropped, sent)
		}
	})
}

// If the Bigtable client gives a request up after its own retries, the rows are sent
// again until their deadline.
func TestBackgroundSendsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
		faults.On("secondaries", step(txntest.StepSecondaries), txntest.Crash, 2)
		mustSet(t, a, "3", "bob", "joe", "sue")
		advance(10 * time.Second)
		wantNoLocks(t, env.Client)
		if s, n := a.Stats(), faults.Count()[txntest.StepSecondaries]; s.BackgroundCells != 0 || s.BackgroundDropped != 0 || n != 3 {
			t.Errorf("%d changes queued, %d rows dropped, %d requests; want the third to succeed", s.BackgroundCells, s.BackgroundDropped, n)
		}
	})
}

// A row is dropped at once if Bigtable refuses it with an error that no retry can help.
func TestBackgroundGivesUpWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1}, refuse(step(txntest.StepSecondaries))...)
		mustSet(t, a, "3", "bob", "joe")
		advance(10 * time.Second)
		if s, n := a.Stats(), faults.Count()[txntest.StepSecondaries]; s.BackgroundCells != 0 || s.BackgroundDropped != 1 || n != 1 {
			t.Errorf("%d changes queued, %d rows dropped, %d requests; want one row dropped after one request", s.BackgroundCells, s.BackgroundDropped, n)
		}
		wantValue(t, takeSnapshot(t, env.Client), "joe", "3") // the reader resolves the lock
	})
}

// A commit that finds the queue full commits its secondaries itself. BackgroundBytes
// counts bytes, including names and messages; before the fix the queue counted rows of
// any size.
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
			<-hung.Fired() // by the first commit's request, before the second is sent
		}
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil || l.Cell.Row != "s0" {
				t.Errorf("lock on %s, %v; the second commit has to remove its own locks", l.Cell, err)
			}
		}
		hung.Release()
		synctest.Wait()
		wantNoLocks(t, env.Client)
	})
}

// A goroutine that has sent rows again pauses before it looks for more. It is none of
// the work that Close waits for, and ends with it (close, background.go). synctest
// fails the test where it does not.
func TestCloseEndsPausingSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		faults.On("secondaries", step(txntest.StepSecondaries), txntest.Crash, 2)
		mustSet(t, a, "3", "bob", "joe", "sue")
		for a.Stats().BackgroundCells > 0 {
			advance(100 * time.Microsecond) // less than a pause
		}
		if n := faults.Count()[txntest.StepSecondaries]; n != 3 {
			t.Errorf("%d requests, want the third to succeed", n)
		}
		before := time.Now()
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(before); d > 0 {
			t.Errorf("Close waited %v", d)
		}
	})
}
