package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A column has three locks. The verification finds one of a dead transaction, and only then the one below
// it, of a transaction that is alive. That one has verified its rows before, and takes its commit_ts later.
func TestBulkVerificationBelowADeadLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newBulkEnv(t, txn.Config{TokenTTL: -1})
		rows := rowNames(3)
		oldest := beginSet(t, c, "oldest", append([]string{"p0"}, rows...)...)
		dying := txntest.NewFaults(t)
		dead := beginSet(t, env.NewClient(txn.Config{LockTTL: time.Second, TokenTTL: -1}, dying.DialOptions()...), "dead", append([]string{"p1"}, rows...)...)

		committing := faults.OnStep(txntest.StepOracle, txntest.Hold) // it has verified its rows by then
		first := commitInBackground(t.Context(), oldest)
		<-committing.Fired()
		synctest.Wait()
		verifying := dying.On("verification", stepOn(txntest.StepRead, rows[0]), txntest.Crash, 1)
		dies, cancel := context.WithCancel(t.Context())
		second := commitInBackground(dies, dead)
		<-verifying.Fired()
		dying.Kill()
		cancel()
		<-second
		advance(3 * time.Second) // the heartbeats of the oldest continue
		younger := beginSet(t, env.Client, "younger", append([]string{"p2"}, rows...)...)
		if n := len(stored(t, env, rows[1])["_lock"]); n != 2 {
			t.Fatalf("%d locks, want 2", n)
		}
		if _, err := younger.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
			t.Errorf("the youngest transaction, which started below the oldest one's commit_ts: %v", err)
		}
		committing.Release()
		if o := <-first; o.err != nil {
			t.Errorf("the oldest transaction: %v", o.err)
		}
		synctest.Wait()
		s := takeSnapshot(t, env.Client)
		for _, row := range rows {
			wantValue(t, s, row, "oldest")
		}
		wantNoLocks(t, env.Client)
	})
}

// The keys of a bulk prewrite do not fit into one read: the verification reads all of them.
func TestBulkVerificationOfManyLongKeys(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := newBulkEnv(t, txn.Config{})
		var rows []string
		for i := range 400 {
			rows = append(rows, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 3000)))
		}
		for _, i := range []int{1, 200, 399} {
			tx := beginSet(t, c, "late", rows...)
			mustSet(t, env.Client, "other", rows[i])
			var conflict *txn.ConflictError
			if _, err := tx.Commit(t.Context()); !errors.As(err, &conflict) || conflict.Cell.Row != rows[i] {
				t.Errorf("row %d: %v", i, errors.Is(err, txn.ErrConflict))
			}
		}
		synctest.Wait()
		wantNoLocks(t, c)
	})
}

// leftOut loses the last entry of the first bulk prewrite on its way, so the answer says nothing about it.
type leftOut struct {
	grpc.ClientStream
	once *sync.Once
}

func (l *leftOut) SendMsg(m any) error {
	if r, ok := m.(*btpb.MutateRowsRequest); ok && isBulkPrewrite(txntest.Classify("MutateRows", r)) {
		l.once.Do(func() {
			m = &btpb.MutateRowsRequest{TableName: r.TableName, AppProfileId: r.AppProfileId, Entries: r.Entries[:len(r.Entries)-1]}
		})
	}
	return l.ClientStream.SendMsg(m)
}

// An answer to a bulk prewrite that leaves out a row acknowledges it no more than an error does. The
// Bigtable client has to report that.
func TestBulkPrewriteAnswerLeavesOutARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows, faults, once := rowNames(5), txntest.NewFaults(t), &sync.Once{}
		env, _, _ := newBulkEnv(t, txn.Config{})
		loses := grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := streamer(ctx, desc, cc, method, opts...)
			return &leftOut{s, once}, err
		})
		mustSet(t, env.NewClient(txn.Config{}, append(faults.DialOptions(), loses)...), "1", rows...)
		if got := bulkSizes(faults); !slices.Equal(got, []int{4, 1}) {
			t.Errorf("prewrites of %v rows, want 4 and 1", got)
		}
		synctest.Wait()
		for _, row := range rows {
			wantValue(t, takeSnapshot(t, env.Client), row, "1")
		}
	})
}

// A client dies behind its commit point and leaves the locks of many rows. The next transaction that writes
// them resolves these locks beside each other, as it does without bulk prewrite.
func TestBulkVerificationResolvesManyLocks(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		env, _, _ := newBulkEnv(t, txn.Config{})
		const n, delay = 400, 5 * time.Millisecond
		rows := rowNames(n)
		faults := txntest.NewFaults(t)
		dead := env.NewClient(txn.Config{TokenTTL: -1, SyncSecondaries: true}, faults.DialOptions()...)
		dying := faults.OnStep(txntest.StepSecondaries, txntest.Crash)
		first := commitInBackground(t.Context(), beginSet(t, dead, "1", append([]string{"p"}, rows...)...))
		<-dying.Fired()
		faults.Kill()
		<-first
		if left := len(stored(t, env, rows[n-1])["_lock"]); left != 1 {
			t.Fatalf("%d locks, want 1", left)
		}
		c := env.NewClient(txn.Config{}, slow(delay)...)
		began := time.Now()
		mustSet(t, c, "2", append([]string{"q"}, rows...)...)
		if took := time.Since(began); took > 100*delay {
			t.Errorf("the commit took %v, as long as %d requests one after the other", took, took/delay)
		}
		advance(time.Second) // its secondaries are committed in the background
		wantNoLocks(t, c)
	})
}
