package tso_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
)

// Faults of one RPC, as a network makes them.
var faults = []struct {
	name string
	do   func(call func() (any, error)) (any, error)
}{
	{"dropped before it is applied", func(func() (any, error)) (any, error) {
		return nil, status.Error(codes.Unavailable, "dropped before")
	}},
	{"answer dropped after it was applied", func(call func() (any, error)) (any, error) {
		if _, err := call(); err != nil {
			return nil, err
		}
		return nil, status.Error(codes.Unavailable, "dropped after")
	}},
	{"applied, then aborted", func(call func() (any, error)) (any, error) {
		_, _ = call()
		return nil, status.Error(codes.Aborted, "aborted")
	}},
	{"duplicated, last answer", func(call func() (any, error)) (any, error) {
		_, _ = call()
		return call()
	}},
	{"duplicated, first answer", func(call func() (any, error)) (any, error) {
		res, err := call()
		_, _ = call()
		return res, err
	}},
}

// TestOneFaultAtEveryRPC runs a workload of two processes over and over, with
// one fault at its k-th RPC, for all k.
func TestOneFaultAtEveryRPC(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			methods := map[string]int{}
			k := 0
			for fired := true; fired; k++ {
				fired = false
				bubble(t, func(t *testing.T, e *emulator) {
					n := 0
					e.on(func(_ context.Context, method string, call func() (any, error)) (any, error) {
						n++
						if n-1 != k || method == read && fault.name[:3] == "dup" { // a stream cannot be read twice
							fired = fired || n-1 == k
							return call()
						}
						fired = true
						methods[method]++
						return fault.do(call)
					})
					h := newHistory(t)
					a, b := e.direct(tso.DirectConfig{}), e.direct(tso.DirectConfig{})
					work := []*tso.Direct{a, a, b, b, a, b, a, b, a, a, a}
					for i, d := range work {
						h.ask(t.Context(), d)
						if i%3 == 0 {
							advance(20 * time.Second)
						}
					}
					advance(2 * time.Minute)
					h.ask(t.Context(), b)
					e.on(nil)
					h.check(len(work) + 1)
					if h.highest() > now()+20 {
						t.Errorf("k=%d: overshot: %d at %d", k, h.highest(), now())
					}
					e.checkRow(h.highest())
				})
				if t.Failed() {
					t.Fatalf("with the fault at RPC %d", k)
				}
			}
			for _, m := range []string{cam, rmw, mutate} {
				if methods[m] == 0 {
					t.Errorf("never fired at %s", m)
				}
			}
			t.Logf("%d RPCs: %v", k-1, methods)
		})
	}
}

// TestDelayedRPC lets a write land after its caller has given up on it and
// others have gone on.
func TestDelayedRPC(t *testing.T) {
	for _, method := range []string{cam, rmw} {
		t.Run(method, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *emulator) {
				h := newHistory(t)
				a, b := e.direct(tso.DirectConfig{}), e.direct(tso.DirectConfig{})
				h.ask(t.Context(), a)
				if method == rmw {
					h.ask(t.Context(), b)
					h.ask(t.Context(), a) // a notices b, and increments from now on
				}
				var late func() (any, error)
				e.on(func(_ context.Context, m string, call func() (any, error)) (any, error) {
					if m == method && late == nil {
						late = call
						return nil, status.Error(codes.DeadlineExceeded, "delayed")
					}
					return call()
				})
				h.ask(t.Context(), a)
				if late == nil {
					t.Fatal("the fault did not fire")
				}
				h.ask(t.Context(), b)
				if _, err := late(); err != nil {
					// The server may refuse to work for an ended request.
					t.Fatalf("late: %v", err)
				}
				for range 3 {
					h.ask(t.Context(), a)
					h.ask(t.Context(), b)
				}
				e.checkRow(h.highest())
			})
		})
	}
}

// TestStormOfFaults drops, before or after, every third RPC of a crowd.
func TestStormOfFaults(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		h := newHistory(t)
		n := make(chan int, 1)
		n <- 0
		fired := 0
		e.on(func(_ context.Context, _ string, call func() (any, error)) (any, error) {
			i := <-n
			if i%3 == 0 {
				fired++
			}
			n <- i + 1
			if i%3 == 0 {
				return faults[i/3%2].do(call)
			}
			return call()
		})
		done := make(chan struct{})
		const processes, callers, each = 3, 5, 10
		for range processes {
			d := e.direct(tso.DirectConfig{})
			for range callers {
				go func() {
					for range each {
						h.ask(t.Context(), d)
					}
					done <- struct{}{}
				}()
			}
		}
		for range processes * callers {
			<-done
		}
		e.on(nil)
		if fired < 10 {
			t.Errorf("only %d faults fired", fired)
		}
		h.check(processes * callers * each)
		e.checkRow(h.highest())
	})
}
