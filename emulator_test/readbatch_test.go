package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A fanOut holds the first read of a snapshot while more reads arrive, so that it is
// certain which of them share a request.
type fanOut struct {
	*testing.T
	env    *txntest.Env
	c      *txn.Client
	faults *txntest.Faults
	first  *txntest.Rule
	view   *txn.View
	wg     sync.WaitGroup
}

func newFanOut(t *testing.T, cfg txn.Config) *fanOut {
	cfg.TokenTTL = -1
	if cfg.BatchReads == 0 {
		cfg.BatchReads = 1
	}
	env, c, faults := budgetEnv(t, cfg)
	_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for i := range 200 {
			tx.Table("a").Set(fmt.Sprintf("row%d", i), "f", "q", fmt.Append(nil, i))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	f := &fanOut{T: t, env: env, c: c, faults: faults, view: takeSnapshot(t, c).Table("a")}
	putValue(t, env.Client, "row3", "later")
	faults.Reset()
	f.first = faults.On("the first read", stepOn(txntest.StepRead, "row0"), txntest.Hold, 1)
	f.get("row0", "0")
	<-f.first.Fired()
	return f
}

// get reads f:q of a row and waits until the read is under way.
func (f *fanOut) get(row, want string) {
	f.wg.Go(func() {
		b, ok, err := f.view.Get(f.Context(), row, "f", "q")
		if got := string(b); err != nil || got != want || ok != (want != "") {
			f.Errorf("%s is %q, %v, want %q", row, got, err, want)
		}
	})
	synctest.Wait()
}

// requests returns the read requests, as the numbers of rows that they ask for.
func (f *fanOut) requests() (rows []int) {
	for _, c := range f.faults.Calls() {
		if c.Step == txntest.StepRead {
			rows = append(rows, rowsAsked(c))
		}
	}
	return rows
}

// Reads that arrive while a request is under way share the next request, up to the
// limit of its size. Each row is in it once.
func TestReadBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFanOut(t, txn.Config{})
		for i := range 150 {
			f.get(fmt.Sprintf("row%d", i), fmt.Sprint(i)) // includes row0 once more
		}
		f.get("none", "")
		f.get("row7", "7")
		f.get("row149", "149") // once more
		f.first.Release()
		f.wg.Wait()
		if got, want := fmt.Sprint(f.requests()), "[1 128 24]"; got != want {
			t.Errorf("requests of %v rows, want %v", got, want)
		}
		if s := f.c.Stats(); s.ReadBatches != 2 || s.BatchedReads != 153 {
			t.Errorf("%+v", s.ReadStats)
		}
		// A read that is alone sends a request for its row.
		f.get("row9", "9")
		f.wg.Wait()
		if got, want := fmt.Sprint(f.requests()), "[1 128 24 1]"; got != want {
			t.Errorf("requests of %v rows, want %v", got, want)
		}
	})
}

// A read that Bigtable does not answer is tried again alone. Reads of other rows do not wait
// until its caller gives up.
func TestReadBatchBesideUnansweredRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFanOut(t, txn.Config{RPCTimeout: time.Second})
		f.get("row1", "1")
		f.faults.On("further reads of the first row", stepOn(txntest.StepRead, "row0"), txntest.Crash, 10)
		began := time.Now()
		f.get("row2", "2")
		advance(1500 * time.Millisecond)
		requests := f.requests()
		slices.Sort(requests)
		if got, want := fmt.Sprint(requests), "[1 1 2]"; got != want {
			t.Errorf("requests of %v rows, want %v", got, want)
		}
		f.wg.Wait() // the first row is answered in the end
		if took := time.Since(began); took < 10*time.Second {
			t.Errorf("the first row was answered after %v", took)
		}
	})
}

// Several shared requests may be under way. Other columns of a row join its request;
// another snapshot has requests of its own.
func TestReadBatchOfColumns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFanOut(t, txn.Config{BatchReads: 2})
		second := f.faults.On("the second read", stepOn(txntest.StepRead, "row1"), txntest.Hold, 1)
		f.get("row1", "1")
		<-second.Fired()
		for i := range 12 {
			f.wg.Go(func() {
				_, ok, err := f.view.Get(t.Context(), "row2", "f", fmt.Sprintf("none%d", i))
				if ok || err != nil {
					t.Errorf("%v, %v", ok, err)
				}
			})
			synctest.Wait()
		}
		f.get("row3", "3")
		other := takeSnapshot(t, f.c).Table("a")
		if _, _, err := other.Get(t.Context(), "row4", "f", "q"); err != nil {
			t.Error(err)
		}
		second.Release()
		synctest.Wait()
		f.first.Release()
		f.wg.Wait()
		// One request for eight columns of row2, and one for four columns and row3.
		if got, want := fmt.Sprint(f.requests()), "[1 1 1 1 2]"; got != want {
			t.Errorf("requests of %v rows, want %v", got, want)
		}
	})
}

// A caller that leaves does not disturb the other callers, neither before its request
// is sent nor after. If all leave, the request ends.
func TestReadBatchLeavers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFanOut(t, txn.Config{})
		errs := make(chan error, 10)
		leaver := func(row string) context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			f.wg.Go(func() {
				_, _, err := f.view.Get(ctx, row, "f", "q")
				errs <- err
			})
			synctest.Wait()
			return cancel
		}
		left := func() {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-errs:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%v", err)
				}
			default:
				t.Error("a caller waits although its context has ended")
			}
		}
		cancel1, cancel2 := leaver("row1"), leaver("row2")
		f.get("row3", "3")
		cancel1()
		left()
		held := f.faults.On("the batch", stepOn(txntest.StepRead, "row2"), txntest.Hold, 1)
		f.first.Release()
		<-held.Fired()
		cancel2() // the caller for which the request was sent
		left()
		held.Release()
		f.wg.Wait()
		if got, want := fmt.Sprint(f.requests()), "[1 2]"; got != want {
			t.Errorf("requests of %v rows, want %v", got, want)
		}

		// All callers leave: the request ends, and the next one can be sent.
		abandoned := f.faults.On("an abandoned read", stepOn(txntest.StepRead, "row4"), txntest.Hold, 1)
		inFront := f.faults.On("in front", stepOn(txntest.StepRead, "row0"), txntest.Hold, 1)
		f.get("row0", "0")
		<-inFront.Fired()
		cancel4, cancel5 := leaver("row4"), leaver("row5")
		inFront.Release()
		<-abandoned.Fired()
		f.get("row6", "6")
		cancel4()
		left()
		cancel5()
		left()
		f.wg.Wait()
	})
}

// The context of the first caller of a batch may end when its turn has come to send
// the batch: the others get their answers all the same.
func TestReadBatchFirstLeavesUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFanOut(t, txn.Config{})
		f.first.Release()
		f.wg.Wait()
		// Each time, it has the choice between sending and leaving.
		for range 20 {
			f.faults.Reset()
			inFront := f.faults.On("in front", stepOn(txntest.StepRead, "row0"), txntest.Hold, 1)
			f.get("row0", "0")
			<-inFront.Fired()
			var answered <-chan outcome
			ctx := &endsAtDone{Context: t.Context(), done: make(chan struct{}), before: func() {
				answered = inBackground(func() error {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					_, _, err := f.view.Get(ctx, "row2", "f", "q")
					return err
				})
				synctest.Wait()
				inFront.Release()
				synctest.Wait()
			}}
			if _, _, err := f.view.Get(ctx, "row1", "f", "q"); !errors.Is(err, context.Canceled) {
				t.Fatalf("%v, want Canceled", err)
			}
			if o := <-answered; o.err != nil {
				t.Fatal(o.err)
			}
			f.wg.Wait()
			if got, want := fmt.Sprint(f.requests()), "[1 2]"; got != want {
				t.Fatalf("requests of %v rows, want %v", got, want)
			}
		}
	})
}

// An endsAtDone ends when its end is first waited for.
type endsAtDone struct {
	context.Context
	once   sync.Once
	before func()
	done   chan struct{}
}

func (c *endsAtDone) Done() <-chan struct{} {
	c.once.Do(func() {
		c.before()
		close(c.done)
	})
	return c.done
}

func (c *endsAtDone) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// If a shared request fails, each caller reads again by itself. A lock in one row does
// not delay the reads of other rows.
func TestReadBatchKeepsErrorsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFanOut(t, txn.Config{RPCTimeout: time.Second})
		f.get("row1", "1")
		f.get("row2", "2")
		drop := f.faults.On("the batch", func(c txntest.Call) bool { return c.Step == txntest.StepRead && rowsAsked(c) == 2 }, txntest.DropRequest, 0)
		f.first.Release()
		f.wg.Wait()
		<-drop.Fired()
	})

	synctest.Test(t, func(t *testing.T) {
		f := newFanOut(t, txn.Config{})
		faults := txntest.NewFaults(t)
		owner := f.env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		hold := faults.OnStep(txntest.StepCommit, txntest.Hold)
		tx, done := begin(t, owner), make(chan error)
		tx.Table("a").Set("row1", "f", "q", []byte("locked"))
		go func() {
			_, err := tx.Commit(t.Context())
			done <- err
		}()
		<-hold.Fired()
		f.view = takeSnapshot(t, f.c).Table("a")
		f.first.Release()
		f.wg.Wait()
		first := f.faults.On("the first read", stepOn(txntest.StepRead, "row0"), txntest.Hold, 1)
		f.get("row0", "0")
		<-first.Fired()
		got := make(chan string, 1)
		go func() {
			b, _, err := f.view.Get(t.Context(), "row1", "f", "q")
			if err != nil {
				t.Error(err)
			}
			got <- string(b)
		}()
		synctest.Wait()
		f.get("row2", "2")
		first.Release()
		f.wg.Wait() // the read of row2 has returned
		select {
		case v := <-got:
			t.Errorf("%q of a locked cell", v)
		default:
		}
		hold.Release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if v := <-got; v != "locked" {
			t.Errorf("%q, want what was committed before the read began", v)
		}
	})
}

// A read that shares a request waits for up to one round trip more. A read that is
// alone does not wait.
func TestReadBatchLatency(t *testing.T) {
	const delay = 10 * time.Millisecond
	for _, tt := range []struct{ batch, callers, trips, requests int }{
		{0, 16, 1, 16}, {1, 1, 1, 1}, {1, 16, 2, 2}, {4, 16, 2, 5}, {16, 16, 1, 16},
	} {
		t.Run(fmt.Sprintf("%d of %d", tt.batch, tt.callers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.CreateTable("a", "f")
				faults := txntest.NewFaults(t)
				c := env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour, BatchReads: tt.batch}, append(slow(delay), faults.DialOptions()...)...)
				if err := c.CheckTable(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				s := takeSnapshot(t, c)
				faults.Reset()
				begun := time.Now()
				var wg sync.WaitGroup
				for i := range tt.callers {
					wg.Go(func() {
						if _, _, err := s.Table("a").Get(t.Context(), fmt.Sprint(i), "f", "q"); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if got := int(time.Since(begun) / delay); got != tt.trips {
					t.Errorf("%d round trips, want %d", got, tt.trips)
				}
				if got := faults.Count()[txntest.StepRead]; got != tt.requests {
					t.Errorf("%d requests, want %d", got, tt.requests)
				}
			})
		})
	}
}

// rowsAsked returns how many rows a read asks for by key.
func rowsAsked(c txntest.Call) int {
	r, ok := c.Request.(*btpb.ReadRowsRequest)
	if !ok {
		return 0
	}
	return len(r.GetRows().GetRowKeys())
}

// Many goroutines read the same rows in one transaction, with all options by which
// reads share work.
func TestConcurrentReads(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	ctx := t.Context()
	columns := []string{"a", "b", "c"}
	_, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for r := range 8 {
			for _, q := range columns {
				tx.Table("a").Set(fmt.Sprint(r), "f", q, fmt.Append(nil, r, q))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, batch := range []int{0, 1, 3} {
		c := env.NewClient(txn.Config{BatchReads: batch})
		for range 6 {
			tx := begin(t, c, txn.Named("many"))
			var wg sync.WaitGroup
			for g := range 12 {
				wg.Go(func() {
					for i := range 8 {
						row := fmt.Sprint((i + g) % 8)
						for j := range columns {
							q := columns[(j+g/8)%3]
							b, ok, err := tx.Table("a").Get(ctx, row, "f", q)
							if want := row + q; err != nil || !ok || string(b) != want {
								t.Errorf("%q, %v, want %q", b, err, want)
							}
							clear(b) // the caller may change its value
						}
					}
				})
			}
			wg.Wait()
			tx.Rollback()
		}
		if s := c.Stats(); s.PrefetchUsed == 0 || batch > 0 && s.BatchedReads == 0 {
			t.Errorf("BatchReads %d: %+v", batch, s.ReadStats)
		}
	}
}

// If some callers of a shared request have left and the remaining ones were
// answered, the request ends. Before the fix only those that left were counted: the request and all
// reads after it waited until Config.RPCTimeout.
func TestReadBatchOfWhichSomeAreAnswered(t *testing.T) {
	for name, leavesFirst := range map[string]bool{"one leaves, another is answered": true, "one is answered, another leaves": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { leaveReadBatch(t, leavesFirst) })
		})
	}
}

func leaveReadBatch(t *testing.T, leavesFirst bool) {
	f := newFanOut(t, txn.Config{RPCTimeout: 20 * time.Second})
	// The second row of the shared request does not arrive.
	stall := &stall{begun: make(chan struct{}), first: make(chan struct{}), second: make(chan struct{})}
	c := f.env.NewClient(txn.Config{TokenTTL: -1, BatchReads: 1, SchemaMaxAge: time.Hour}, append(f.faults.DialOptions(), grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := streamer(ctx, desc, cc, method, opts...)
			return &stalledStream{ClientStream: s, stall: stall}, err
		}))...)
	f.first.Release()
	f.wg.Wait()
	f.view = takeSnapshot(t, c).Table("a")
	first := f.faults.On("in front", stepOn(txntest.StepRead, "row0"), txntest.Hold, 1)
	f.get("row0", "0")
	<-first.Fired()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	answered := inBackground(func() error {
		_, _, err := f.view.Get(t.Context(), "row1", "f", "q")
		return err
	})
	synctest.Wait()
	go func() {
		_, _, err := f.view.Get(ctx, "row2", "f", "q")
		left <- err
	}()
	synctest.Wait()
	first.Release()
	<-stall.begun
	leave := func() {
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if leavesFirst {
		leave()
	}
	close(stall.first)
	<-stall.second
	if o := <-answered; o.err != nil {
		t.Error(o.err)
	}
	if !leavesFirst {
		synctest.Wait()
		if got := f.requests(); got[len(got)-1] != 2 {
			t.Errorf("requests of %v rows: the shared one has ended while a caller waits", got)
		}
		leave()
	}
	later := make(chan error, 1)
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	go func() {
		_, _, err := f.view.Get(ctx, "row3", "f", "q")
		later <- err
	}()
	if err := <-later; err != nil {
		t.Errorf("a read waits for a request without callers: %v", err)
	}
	f.wg.Wait()
}

// A stall disturbs the answer to the request for two rows. It closes begun, sends the
// first row when first is closed, then closes second and sends nothing more.
type stall struct{ begun, first, second chan struct{} }

type stalledStream struct {
	grpc.ClientStream
	stall    *stall
	two      bool
	received int
}

func (s *stalledStream) SendMsg(m any) error {
	r, ok := m.(*btpb.ReadRowsRequest)
	s.two = ok && len(r.GetRows().GetRowKeys()) == 2 && string(r.Rows.RowKeys[0]) == "row1"
	return s.ClientStream.SendMsg(m)
}

func (s *stalledStream) RecvMsg(m any) error {
	switch s.received++; {
	case s.two && s.received == 1:
		close(s.stall.begun)
		<-s.stall.first
	case s.two && s.received == 2:
		close(s.stall.second)
		<-s.Context().Done()
		return status.FromContextError(s.Context().Err()).Err()
	}
	return s.ClientStream.RecvMsg(m)
}
