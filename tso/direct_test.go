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
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
)

// warm gives the oracle its first batch, after which a lone process needs one
// RPC per batch, and forgets the RPCs.
func warm(t *testing.T, e *tsotest.Emulator, oracles ...*tso.Direct) {
	t.Helper()
	for _, d := range oracles {
		if _, err := d.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	e.Counted()
}

func TestBatchesFormWhileOneIsInFlight(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		warm(t, e, d)
		before := d.Stats()

		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		e.On(g.Hook)
		first := tsotest.Async(t.Context(), d)
		<-g.Held
		const k = 50
		var rest []<-chan tsotest.Result
		for range k {
			rest = append(rest, tsotest.Async(t.Context(), d))
		}
		synctest.Wait()
		e.Expect("CheckAndMutateRow:1") // one in flight, however many wait
		close(g.Open)

		f := <-first
		seen := map[tso.Timestamp]bool{}
		for _, c := range rest {
			r := <-c
			if r.Err != nil || r.TS <= f.TS || seen[r.TS] {
				t.Errorf("got %v after %v", r, f)
			}
			seen[r.TS] = true
		}
		e.Expect("CheckAndMutateRow:1") // and exactly one more for all of them
		got := d.Stats()
		if got.Batches-before.Batches != 2 || got.Timestamps-before.Timestamps != k+1 || got.RPCs-before.RPCs != 2 || got.Retries != 0 {
			t.Errorf("stats %+v, before %+v", got, before)
		}
		e.CheckRow(f.TS + k)
	})
}

// TestLateRequestNotInBatchInFlight is the real-time guarantee: a reserves and
// its answer is on the way, b reserves above it and answers. A caller of a that
// asks then, and knows b's timestamp, must get a larger one.
func TestLateRequestNotInBatchInFlight(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		a, b := e.Direct(tso.DirectConfig{}), e.Direct(tso.DirectConfig{})
		warm(t, e, a)

		g := tsotest.NewGate(tsotest.CheckAndMutate, true)
		e.On(g.Hook)
		// Three callers, one of whom leaves: a spare number lies in the batch.
		leaving, leave := context.WithCancel(t.Context())
		first := []<-chan tsotest.Result{tsotest.Async(t.Context(), a), tsotest.Async(t.Context(), a)}
		gone := tsotest.Async(leaving, a)
		<-g.Held
		synctest.Wait()
		leave()
		if r := <-gone; !errors.Is(r.Err, context.Canceled) {
			t.Fatalf("the caller that left: %v", r)
		}
		e.On(nil)
		tb, err := b.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		late := tsotest.Async(t.Context(), a)
		synctest.Wait()
		close(g.Open)
		for _, c := range first {
			if r := <-c; r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		if r := <-late; r.Err != nil || r.TS <= tb {
			t.Errorf("asked for after %d was received, got %v", tb, r)
		}
	})
}

func TestConcurrentProcessesKeepRealTimeOrder(t *testing.T) {
	for _, processes := range []int{1, 2, 5} {
		for seed := range uint64(4) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				var mu sync.Mutex
				rnd := rand.New(rand.NewPCG(seed, 1))
				latency := func() {
					mu.Lock()
					d := time.Duration(rnd.IntN(8000)) * time.Microsecond
					mu.Unlock()
					<-time.After(d)
				}
				e.On(func(_ context.Context, _ string, call func() (any, error)) (any, error) {
					latency()
					defer latency()
					return call()
				})
				h := tsotest.NewHistory(t)
				var wg sync.WaitGroup
				const callers, each = 10, 20
				for range processes {
					d := e.Direct(tso.DirectConfig{})
					for range callers {
						wg.Go(func() {
							for range each {
								h.Ask(t.Context(), d)
							}
						})
					}
				}
				wg.Wait()
				e.On(nil)
				h.Check(processes * callers * each)
				if h.Highest() > tsotest.Now()+callers*tso.Timestamp(processes) {
					t.Errorf("overshot: %d at %d", h.Highest(), tsotest.Now())
				}
				e.CheckRow(h.Highest())
			})
		}
	}
}

func TestCancelOfOneCallerLeavesTheOthers(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		warm(t, e, d)
		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		e.On(g.Hook)
		first := tsotest.Async(t.Context(), d)
		<-g.Held

		ctx, cancel := context.WithCancel(t.Context())
		inNext := tsotest.Async(ctx, d)
		synctest.Wait() // it has the first place
		stays := tsotest.Async(t.Context(), d)
		synctest.Wait()
		cancel()
		if r := <-inNext; !errors.Is(r.Err, context.Canceled) || r.TS != 0 {
			t.Errorf("cancelled caller: %v", r)
		}
		close(g.Open)
		r1, r2 := <-first, <-stays
		if r1.Err != nil || r2.Err != nil || r2.TS != r1.TS+2 {
			t.Errorf("others: %v, %v; the number of a caller who left is lost, and nothing else", r1, r2)
		}
		e.Expect("CheckAndMutateRow:2")
	})
}

func TestAllCallersLeaveCancelsTheRPC(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{RPCTimeout: time.Hour})
		warm(t, e, d)
		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		e.On(g.Hook)
		r0 := tsotest.Async(t.Context(), d)
		<-g.Held
		cancelled := make(chan error, 1)
		held := make(chan struct{})
		e.On(func(ctx context.Context, _ string, _ func() (any, error)) (any, error) {
			close(held)
			<-ctx.Done()
			cancelled <- ctx.Err()
			return nil, ctx.Err()
		})
		c1, cancel1 := context.WithCancel(t.Context())
		c2, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		r1, r2 := tsotest.Async(c1, d), tsotest.Async(c2, d) // in one batch, since r0 is in flight
		synctest.Wait()
		close(g.Open)
		<-r0
		<-held
		cancel1()
		if r := <-r1; !errors.Is(r.Err, context.Canceled) || errors.Is(r.Err, context.DeadlineExceeded) {
			t.Errorf("cancelled: %v", r.Err)
		}
		synctest.Wait()
		select {
		case <-cancelled:
			t.Error("the RPC was cancelled while a caller waited")
		default:
		}
		if r := <-r2; !errors.Is(r.Err, context.DeadlineExceeded) || errors.Is(r.Err, context.Canceled) {
			t.Errorf("expired: %v", r.Err)
		}
		<-cancelled
		synctest.Wait()
		if n := tsotest.DirectGoroutines(); n != 0 {
			t.Errorf("%d goroutines while nobody waits", n)
		}
		e.On(nil)
		warm(t, e, d) // works again
	})
}

func TestDeadlineCarriesLastError(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		warm(t, e, d)
		e.On(func(context.Context, string, func() (any, error)) (any, error) {
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
		e.On(nil)
		warm(t, e, d)
	})
}

func TestRPCTimeoutIsRetried(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		warm(t, e, d)
		hung := 0
		e.On(func(ctx context.Context, method string, call func() (any, error)) (any, error) {
			if hung == 0 && method == tsotest.CheckAndMutate {
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
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			d := e.Direct(tso.DirectConfig{})
			warm(t, e, d)
			fired := 0
			e.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
				if method == tsotest.ReadRows {
					return call()
				}
				fired++
				return nil, status.Error(code, "no")
			})
			a, b := tsotest.Async(t.Context(), d), tsotest.Async(t.Context(), d)
			for _, r := range []tsotest.Result{<-a, <-b} {
				if status.Code(r.Err) != code || r.TS != 0 {
					t.Errorf("want %s, got %v", code, r)
				}
			}
			if fired == 0 || d.Stats().Retries != 0 {
				t.Errorf("fired %d times, %d retries", fired, d.Stats().Retries)
			}
			e.On(nil)
			warm(t, e, d)
		})
	}
}

func TestClosedClientIsPermanent(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		conn := e.Dial()
		d := tso.NewDirect(e.TableOver(conn, "percolator"), tso.DirectConfig{})
		warm(t, e, d)
		_ = conn.Close()
		if _, err := d.Timestamp(t.Context()); err == nil || !strings.Contains(err.Error(), "closing") {
			t.Errorf("over a closed connection: %v", err)
		}
	})
}

func TestClose(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{RPCTimeout: time.Hour})
		warm(t, e, d)
		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		e.On(g.Hook)
		inFlight := tsotest.Async(t.Context(), d)
		<-g.Held
		inNext := tsotest.Async(t.Context(), d)
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
		if n := tsotest.DirectGoroutines(); n != 0 {
			t.Errorf("%d goroutines after Close", n)
		}
		for _, r := range []tsotest.Result{<-inFlight, <-inNext} {
			if !errors.Is(r.Err, tso.ErrClosed) {
				t.Errorf("waiting at Close: %v", r)
			}
		}
		if _, err := d.Timestamp(t.Context()); !errors.Is(err, tso.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Timestamp(ended); !errors.Is(err, context.Canceled) { // whose context comes first
			t.Errorf("after Close, in a context that has ended: %v", err)
		}
		e.Expect("CheckAndMutateRow:1")
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
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		slow := slowTable{e.Table("percolator"), make(chan struct{}), make(chan struct{})}
		d := tso.NewDirect(slow, tso.DirectConfig{})
		r := tsotest.Async(t.Context(), d)
		<-slow.held
		closed := make(chan struct{})
		go func() {
			_ = d.Close()
			close(closed)
		}()
		if got := <-r; !errors.Is(got.Err, tso.ErrClosed) { // at once
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
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		failed := make(chan struct{}, 100)
		e.On(func(context.Context, string, func() (any, error)) (any, error) {
			failed <- struct{}{}
			return nil, status.Error(codes.Internal, "no")
		})
		r := tsotest.Async(t.Context(), d)
		<-failed
		synctest.Wait() // in its pause
		start := time.Now()
		_ = d.Close()
		if got := <-r; !errors.Is(got.Err, tso.ErrClosed) {
			t.Errorf("waiting at Close: %v", got)
		}
		if !time.Now().Equal(start) {
			t.Errorf("Close took %s", time.Since(start))
		}
	})
}

func TestNoGoroutineWhenIdle(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		e.On(g.Hook)
		r := tsotest.Async(t.Context(), d)
		<-g.Held
		if n := tsotest.DirectGoroutines(); n != 1 {
			t.Errorf("%d goroutines while one waits: the check below would prove nothing", n)
		}
		close(g.Open)
		<-r
		synctest.Wait()
		if n := tsotest.DirectGoroutines(); n != 0 {
			t.Errorf("%d goroutines while nobody waits", n)
		}
	})
}

func TestEndedContextCostsNothing(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Timestamp(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		e.Expect("")
	})
}

// TestPausesOfDirect: after failures the oracle waits from 5 ms on, twice as long each time. A caller who
// leaves ends that.
func TestPausesOfDirect(t *testing.T) {
	const ms = time.Millisecond
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		var at []time.Time
		e.On(func(_ context.Context, _ string, call func() (any, error)) (any, error) {
			if at = append(at, time.Now()); len(at) <= 5 {
				return nil, status.Error(codes.ResourceExhausted, "injected")
			}
			return call()
		})
		ctx, cancel := context.WithTimeout(t.Context(), ms)
		defer cancel()
		if _, err := d.Timestamp(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "injected") {
			t.Error(err)
		}
		tsotest.Advance(time.Minute)
		if s := d.Stats(); s != (tso.DirectStats{RPCs: 1, Retries: 1}) {
			t.Errorf("after the caller left: %+v", s)
		}
		if _, err := d.Timestamp(t.Context()); err != nil {
			t.Error(err)
		}
		e.On(nil)
		for i, least := range []time.Duration{5 * ms, 10 * ms, 20 * ms, 40 * ms} {
			if got := at[i+2].Sub(at[i+1]); got < least || got >= 2*least {
				t.Errorf("pause %d is %v, want %v to %v", i, got, least, 2*least)
			}
		}
	})
}
