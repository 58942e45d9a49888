package tso_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
)

// gate holds RPCs of one method back, before or after they are applied, until
// it is opened. It proves that it fired.
type gate struct {
	method string
	after  bool
	held   chan struct{} // one element per RPC that arrived
	open   chan struct{}
}

func newGate(method string, after bool) *gate {
	return &gate{method: method, after: after, held: make(chan struct{}, 1000), open: make(chan struct{})}
}

func (g *gate) hook(ctx context.Context, method string, call func() (any, error)) (any, error) {
	if method != g.method {
		return call()
	}
	var res any
	var err error
	if g.after {
		res, err = call()
	}
	g.held <- struct{}{}
	select {
	case <-g.open:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if !g.after {
		res, err = call()
	}
	return res, err
}

// warm gives the oracle its first batch, after which a lone process needs one
// RPC per batch, and forgets the RPCs.
func warm(t *testing.T, e *emulator, oracles ...*tso.Direct) {
	t.Helper()
	for _, d := range oracles {
		if _, err := d.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	e.counted()
}

func TestBatchesFormWhileOneIsInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		d := e.direct(tso.DirectConfig{})
		warm(t, e, d)
		before := d.Stats()

		g := newGate(cam, false)
		e.on(g.hook)
		first := async(t.Context(), d)
		<-g.held
		const k = 50
		var rest []<-chan result
		for range k {
			rest = append(rest, async(t.Context(), d))
		}
		synctest.Wait()
		e.expect("CheckAndMutateRow:1") // one in flight, however many wait
		close(g.open)

		f := <-first
		seen := map[tso.Timestamp]bool{}
		for _, c := range rest {
			r := <-c
			if r.err != nil || r.ts <= f.ts || seen[r.ts] {
				t.Errorf("got %v after %v", r, f)
			}
			seen[r.ts] = true
		}
		e.expect("CheckAndMutateRow:1") // and exactly one more for all of them
		got := d.Stats()
		if got.Batches-before.Batches != 2 || got.Timestamps-before.Timestamps != k+1 || got.RPCs-before.RPCs != 2 || got.Retries != 0 {
			t.Errorf("stats %+v, before %+v", got, before)
		}
		e.checkRow(f.ts + k)
	})
}

// TestLateRequestNotInBatchInFlight is the real-time guarantee: a reserves and
// its answer is on the way, b reserves above it and answers; whoever asks a
// then, knowing b's timestamp, has to get a larger one.
func TestLateRequestNotInBatchInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		a, b := e.direct(tso.DirectConfig{}), e.direct(tso.DirectConfig{})
		warm(t, e, a)

		g := newGate(cam, true)
		e.on(g.hook)
		// Three callers, one of whom leaves: a spare number lies in the batch.
		leaving, leave := context.WithCancel(t.Context())
		first := []<-chan result{async(t.Context(), a), async(t.Context(), a)}
		gone := async(leaving, a)
		<-g.held
		synctest.Wait()
		leave()
		if r := <-gone; !errors.Is(r.err, context.Canceled) {
			t.Fatalf("the caller that left: %v", r)
		}
		e.on(nil)
		tb, err := b.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		late := async(t.Context(), a)
		synctest.Wait()
		close(g.open)
		for _, c := range first {
			if r := <-c; r.err != nil {
				t.Fatal(r.err)
			}
		}
		if r := <-late; r.err != nil || r.ts <= tb {
			t.Errorf("asked for after %d was received, got %v", tb, r)
		}
	})
}

func TestConcurrentProcessesKeepRealTimeOrder(t *testing.T) {
	for _, processes := range []int{1, 2, 5} {
		for seed := range uint64(4) {
			bubble(t, func(t *testing.T, e *emulator) {
				var mu sync.Mutex
				rnd := rand.New(rand.NewPCG(seed, 1))
				latency := func() {
					mu.Lock()
					d := time.Duration(rnd.IntN(8000)) * time.Microsecond
					mu.Unlock()
					<-time.After(d)
				}
				e.on(func(_ context.Context, _ string, call func() (any, error)) (any, error) {
					latency()
					defer latency()
					return call()
				})
				h := newHistory(t)
				var wg sync.WaitGroup
				const callers, each = 10, 20
				for range processes {
					d := e.direct(tso.DirectConfig{})
					for range callers {
						wg.Go(func() {
							for range each {
								h.ask(t.Context(), d)
							}
						})
					}
				}
				wg.Wait()
				e.on(nil)
				h.check(processes * callers * each)
				if h.highest() > now()+callers*tso.Timestamp(processes) {
					t.Errorf("overshot: %d at %d", h.highest(), now())
				}
				e.checkRow(h.highest())
			})
		}
	}
}

func TestCancelOfOneCallerLeavesTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		d := e.direct(tso.DirectConfig{})
		warm(t, e, d)
		g := newGate(cam, false)
		e.on(g.hook)
		first := async(t.Context(), d)
		<-g.held

		ctx, cancel := context.WithCancel(t.Context())
		inNext, stays := async(ctx, d), async(t.Context(), d)
		synctest.Wait()
		cancel()
		if r := <-inNext; !errors.Is(r.err, context.Canceled) || r.ts != 0 {
			t.Errorf("cancelled caller: %v", r)
		}
		close(g.open)
		r1, r2 := <-first, <-stays
		if r1.err != nil || r2.err != nil || r2.ts != r1.ts+1 {
			t.Errorf("others: %v, %v; the place of a caller who left before sending is not reserved", r1, r2)
		}
		e.expect("CheckAndMutateRow:2")
	})
}

func TestAllCallersLeaveCancelsTheRPC(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		d := e.direct(tso.DirectConfig{RPCTimeout: time.Hour})
		warm(t, e, d)
		g := newGate(cam, false)
		e.on(g.hook)
		r0 := async(t.Context(), d)
		<-g.held
		cancelled := make(chan error, 1)
		held := make(chan struct{})
		e.on(func(ctx context.Context, _ string, _ func() (any, error)) (any, error) {
			close(held)
			<-ctx.Done()
			cancelled <- ctx.Err()
			return nil, ctx.Err()
		})
		c1, cancel1 := context.WithCancel(t.Context())
		c2, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		r1, r2 := async(c1, d), async(c2, d) // in one batch, since r0 is in flight
		synctest.Wait()
		close(g.open)
		<-r0
		<-held
		cancel1()
		if r := <-r1; !errors.Is(r.err, context.Canceled) || errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("cancelled: %v", r.err)
		}
		synctest.Wait()
		select {
		case <-cancelled:
			t.Error("the RPC was cancelled while somebody waited")
		default:
		}
		if r := <-r2; !errors.Is(r.err, context.DeadlineExceeded) || errors.Is(r.err, context.Canceled) {
			t.Errorf("expired: %v", r.err)
		}
		<-cancelled
		synctest.Wait()
		if n := directGoroutines(); n != 0 {
			t.Errorf("%d goroutines while nobody waits", n)
		}
		e.on(nil)
		warm(t, e, d) // works again
	})
}

func TestDeadlineCarriesLastError(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		d := e.direct(tso.DirectConfig{})
		warm(t, e, d)
		e.on(func(context.Context, string, func() (any, error)) (any, error) {
			return nil, status.Error(codes.Unavailable, "tablet is on holiday")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := d.Timestamp(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("not a deadline: %v", err)
		}
		if !strings.Contains(err.Error(), "waiting for a timestamp: context deadline exceeded (last error: ") || !strings.Contains(err.Error(), "tablet is on holiday") {
			t.Errorf("the error does not tell why: %v", err)
		}
		synctest.Wait()
		if s := d.Stats(); s.Retries < 4 || s.Retries > 12 {
			t.Errorf("%d retries in 5 s", s.Retries)
		}
		e.on(nil)
		warm(t, e, d)
	})
}

func TestRPCTimeoutIsRetried(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		d := e.direct(tso.DirectConfig{})
		warm(t, e, d)
		hung := 0
		e.on(func(ctx context.Context, method string, call func() (any, error)) (any, error) {
			if hung == 0 && method == cam {
				hung++
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return call()
		})
		start := time.Now()
		if _, err := d.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); hung != 1 || took < 10*time.Second || took > 11*time.Second {
			t.Errorf("took %s with %d hung RPCs", took, hung)
		}
	})
}

func TestPermanentErrorsAreReturned(t *testing.T) {
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented, codes.NotFound} {
		bubble(t, func(t *testing.T, e *emulator) {
			d := e.direct(tso.DirectConfig{})
			warm(t, e, d)
			fired := 0
			e.on(func(_ context.Context, method string, call func() (any, error)) (any, error) {
				if method == read {
					return call()
				}
				fired++
				return nil, status.Error(code, "no")
			})
			a, b := async(t.Context(), d), async(t.Context(), d)
			for _, r := range []result{<-a, <-b} {
				if status.Code(r.err) != code || r.ts != 0 {
					t.Errorf("want %s, got %v", code, r)
				}
			}
			if fired == 0 || d.Stats().Retries != 0 {
				t.Errorf("fired %d times, %d retries", fired, d.Stats().Retries)
			}
			e.on(nil)
			warm(t, e, d)
		})
	}
}

func TestClosedClientIsPermanent(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		conn := e.dial()
		d := tso.NewDirect(e.tableOver(conn, "percolator"), tso.DirectConfig{})
		warm(t, e, d)
		_ = conn.Close()
		if _, err := d.Timestamp(t.Context()); err == nil || !strings.Contains(err.Error(), "closing") {
			t.Errorf("over a closed connection: %v", err)
		}
	})
}

func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		d := e.direct(tso.DirectConfig{RPCTimeout: time.Hour})
		warm(t, e, d)
		g := newGate(cam, false)
		e.on(g.hook)
		inFlight := async(t.Context(), d)
		<-g.held
		inNext := async(t.Context(), d)
		synctest.Wait()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := d.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		wg.Wait()
		if n := directGoroutines(); n != 0 {
			t.Errorf("%d goroutines after Close", n)
		}
		for _, r := range []result{<-inFlight, <-inNext} {
			if !errors.Is(r.err, tso.ErrClosed) {
				t.Errorf("waiting at Close: %v", r)
			}
		}
		if _, err := d.Timestamp(t.Context()); !errors.Is(err, tso.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		e.expect("CheckAndMutateRow:1")
	})
}

// slowTable answers a write only when it is told to, even if its context ended.
type slowTable struct {
	bigtable.TableAPI
	held, release chan struct{}
}

func (s slowTable) Apply(ctx context.Context, _ string, _ *bigtable.Mutation, _ ...bigtable.ApplyOption) error {
	s.held <- struct{}{}
	<-s.release
	return ctx.Err()
}

func TestCloseWaitsForTheWorker(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		slow := slowTable{e.table("percolator"), make(chan struct{}), make(chan struct{})}
		d := tso.NewDirect(slow, tso.DirectConfig{})
		r := async(t.Context(), d)
		<-slow.held
		closed := make(chan struct{})
		go func() {
			_ = d.Close()
			close(closed)
		}()
		if got := <-r; !errors.Is(got.err, tso.ErrClosed) { // at once
			t.Errorf("waiting at Close: %v", got)
		}
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close returned before its worker ended")
		default:
		}
		close(slow.release)
		<-closed
	})
}

func TestCloseDuringBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		d := e.direct(tso.DirectConfig{})
		failed := make(chan struct{}, 100)
		e.on(func(context.Context, string, func() (any, error)) (any, error) {
			failed <- struct{}{}
			return nil, status.Error(codes.Internal, "no")
		})
		r := async(t.Context(), d)
		<-failed
		synctest.Wait() // in its pause
		start := time.Now()
		_ = d.Close()
		if got := <-r; !errors.Is(got.err, tso.ErrClosed) {
			t.Errorf("waiting at Close: %v", got)
		}
		if !time.Now().Equal(start) {
			t.Errorf("Close took %s", time.Since(start))
		}
	})
}

func TestNoGoroutineWhenIdle(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		d := e.direct(tso.DirectConfig{})
		g := newGate(cam, false)
		e.on(g.hook)
		r := async(t.Context(), d)
		<-g.held
		if n := directGoroutines(); n != 1 {
			t.Errorf("%d goroutines while one waits: the check below would prove nothing", n)
		}
		close(g.open)
		<-r
		synctest.Wait()
		if n := directGoroutines(); n != 0 {
			t.Errorf("%d goroutines while nobody waits", n)
		}
	})
}

func TestEndedContextCostsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		d := e.direct(tso.DirectConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Timestamp(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		e.expect("")
	})
}
