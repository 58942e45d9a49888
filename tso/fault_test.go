package tso_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestOneFaultAtEveryRPC runs a workload of two processes repeatedly, with one
// fault at its k-th RPC, for all k.
func TestOneFaultAtEveryRPC(t *testing.T) {
	long.RacedAtNight(t)
	for _, fault := range tsotest.Faults {
		t.Run(fault.Name, func(t *testing.T) {
			methods := map[string]int{}
			k := 0
			for fired := true; fired; k++ {
				fired = false
				tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
					n := 0
					e.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
						n++
						if n-1 != k || method == tsotest.ReadRows && fault.Name[:3] == "dup" { // a stream cannot be read twice
							fired = fired || n-1 == k
							return call()
						}
						fired = true
						methods[method]++
						return fault.Do(call)
					})
					h := tsotest.NewHistory(t)
					a, b := e.Direct(tso.DirectConfig{}), e.Direct(tso.DirectConfig{})
					work := []*tso.Direct{a, a, b, b, a, b, a, b, a, a, a}
					for i, d := range work {
						h.Ask(t.Context(), d)
						if i%3 == 0 {
							tsotest.Advance(20 * time.Second)
						}
					}
					tsotest.Advance(2 * time.Minute)
					h.Ask(t.Context(), b)
					e.On(nil)
					h.Check(len(work) + 1)
					if h.Highest() > tsotest.Now()+20 {
						t.Errorf("k=%d: overshot: %d at %d", k, h.Highest(), tsotest.Now())
					}
					e.CheckRow(h.Highest())
				})
				if t.Failed() {
					t.Fatalf("with the fault at RPC %d", k)
				}
			}
			for _, m := range []string{tsotest.CheckAndMutate, tsotest.ReadModifyWrite, tsotest.MutateRow} {
				if methods[m] == 0 {
					t.Errorf("never fired at %s", m)
				}
			}
			t.Logf("%d RPCs: %v", k-1, methods)
		})
	}
}

// TestDelayedRPC applies a write after its caller gave up on it and other callers
// continued.
func TestDelayedRPC(t *testing.T) {
	for _, method := range []string{tsotest.CheckAndMutate, tsotest.ReadModifyWrite} {
		t.Run(method, func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				h := tsotest.NewHistory(t)
				a, b := e.Direct(tso.DirectConfig{}), e.Direct(tso.DirectConfig{})
				h.Ask(t.Context(), a)
				if method == tsotest.ReadModifyWrite {
					h.Ask(t.Context(), b)
					h.Ask(t.Context(), a) // a notices b, and increments from now on
				}
				var late func() (any, error)
				e.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
					if m == method && late == nil {
						late = call
						return nil, status.Error(codes.DeadlineExceeded, "delayed")
					}
					return call()
				})
				h.Ask(t.Context(), a)
				if late == nil {
					t.Fatal("the fault did not fire")
				}
				h.Ask(t.Context(), b)
				if _, err := late(); err != nil {
					// The server may refuse to work for an ended request.
					t.Fatalf("late: %v", err)
				}
				for range 3 {
					h.Ask(t.Context(), a)
					h.Ask(t.Context(), b)
				}
				e.CheckRow(h.Highest())
			})
		})
	}
}

// TestStormOfFaults drops, before or after, every third RPC of a crowd.
func TestStormOfFaults(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		h := tsotest.NewHistory(t)
		n := make(chan int, 1)
		n <- 0
		fired := 0
		e.On(func(_ context.Context, _ string, call func() (any, error)) (any, error) {
			i := <-n
			if i%3 == 0 {
				fired++
			}
			n <- i + 1
			if i%3 == 0 {
				return tsotest.Faults[i/3%2].Do(call)
			}
			return call()
		})
		done := make(chan struct{})
		const processes, callers, each = 3, 5, 10
		for range processes {
			d := e.Direct(tso.DirectConfig{})
			for range callers {
				go func() {
					for range each {
						h.Ask(t.Context(), d)
					}
					done <- struct{}{}
				}()
			}
		}
		for range processes * callers {
			<-done
		}
		e.On(nil)
		if fired < 10 {
			t.Errorf("only %d faults fired", fired)
		}
		h.Check(processes * callers * each)
		e.CheckRow(h.Highest())
	})
}
