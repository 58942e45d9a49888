package txn

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn/internal/latch"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// latchClient returns a client of which only the latches are used.
func latchClient(t *testing.T, wait time.Duration) *Client {
	t.Helper()
	measure, err := telemetry.NewTransactions(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Client{latches: latch.New(wait), metrics: measure, resolver: &recovery.Resolver{Store: &store.Store{}}}
}

// After a conflict that needed a request, and after a second early one in a row, the next run waits for
// its backoff, and then for its turn. After an early conflict it waits only for its turn, and for the
// backoff if it does not get it. No run holds a latch while it waits for its backoff.
func TestWaitBeforeRetry(t *testing.T) {
	cells := []Cell{{Table: "t", Row: "r", Family: "f"}}
	for name, tt := range map[string]struct {
		early, previous bool
		keeps           bool // the attempt kept its latch
		busy            time.Duration
		pauses          int
		waits           time.Duration // for the latch
		granted         bool
		cells           []Cell
	}{
		"late":                             {pauses: 1, granted: true, cells: cells},
		"late, without cells":              {pauses: 1},
		"late, and others before it":       {pauses: 1, busy: 20 * time.Second, waits: 20 * time.Second, granted: true, cells: cells},
		"late after an early one":          {previous: true, pauses: 1, granted: true, cells: cells},
		"early":                            {early: true, granted: true, cells: cells},
		"early, with its latch":            {early: true, keeps: true, granted: true, cells: cells},
		"early, and others before it":      {early: true, busy: 20 * time.Second, waits: 20 * time.Second, granted: true, cells: cells},
		"early, and others stay":           {early: true, busy: 2 * time.Minute, waits: time.Minute, pauses: 1, cells: cells},
		"early, without cells":             {early: true, pauses: 1},
		"early twice":                      {early: true, previous: true, pauses: 1, granted: true, cells: cells},
		"early twice, with its latch":      {early: true, previous: true, keeps: true, pauses: 1, granted: true, cells: cells},
		"early twice, others before it":    {early: true, previous: true, busy: 20 * time.Second, pauses: 1, waits: 20 * time.Second, granted: true, cells: cells},
		"early twice, and others stay":     {early: true, previous: true, busy: 2 * time.Minute, pauses: 1, waits: time.Minute, cells: cells},
		"early twice, without the cells":   {early: true, previous: true, pauses: 1},
		"late, the latch of its last turn": {keeps: true, pauses: 1, granted: true, cells: cells},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := latchClient(t, time.Minute)
				run := &attempt{conflictedEarly: tt.early, previousConflictedEarly: tt.previous, read: tt.cells}
				if tt.keeps {
					run.latch, _, _ = c.latches.Acquire(t.Context(), cells)
				}
				if tt.busy > 0 {
					other, _, _ := c.latches.Acquire(t.Context(), cells)
					time.AfterFunc(tt.busy, other.Release)
				}
				// A pause is so short that the waits for latches hide in none of it.
				pause := store.Backoff{Min: time.Millisecond, Max: time.Millisecond}.Start()
				free := make(chan bool, 1)
				if tt.keeps {
					go func() { // takes the cell if the run gives it up
						l, _, _ := c.latches.Acquire(t.Context(), cells)
						free <- l != nil
						l.Release()
					}()
					synctest.Wait()
				}
				began := time.Now()
				if err := waitBeforeRetry(t.Context(), c, run, &pause, nil); err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				if paused := took - tt.waits; tt.pauses == 0 && paused != 0 || tt.pauses == 1 && tt.waits != 20*time.Second && (paused <= 0 || paused > time.Millisecond) || took > tt.waits+time.Millisecond {
					t.Errorf("it waited for %v, want %v and %d pauses", took, tt.waits, tt.pauses)
				}
				if got := run.latch != nil; got != tt.granted || run.previousConflictedEarly != tt.early {
					t.Errorf("it has its turn: %v, and the conflict before it was early: %v", got, run.previousConflictedEarly)
				}
				if waits := c.resolver.Counters.LatchWaits.Load(); waits != map[bool]int64{true: 1}[tt.waits > 0] || (run.latchWait > 0) != (tt.waits > 0) || run.latchWait > tt.waits {
					t.Errorf("it waited for its turn for %v; the client counts %d waits", run.latchWait, waits)
				}
				if tt.keeps && (len(free) > 0) != (tt.early && tt.previous) {
					t.Errorf("another one had its turn: %v", len(free) > 0)
				}
				latch := run.latch
				if run.releaseLatch(); run.latch != nil || (latch != nil) != tt.granted {
					t.Error("the latch is not released")
				}
				synctest.Wait()
				if l, waited, err := c.latches.Acquire(t.Context(), []Cell{{Table: "t", Row: "r", Family: "f"}}); tt.busy < 2*time.Minute && (l == nil || waited || err != nil) {
					t.Errorf("the next one has the cell: %v, waited: %v, %v", l != nil, waited, err)
				}
			})
		})
	}
}

// A run whose context ends stops, wherever it waits.
func TestWaitBeforeRetryEnds(t *testing.T) {
	for name, early := range map[string]bool{"in its backoff": false, "in its turn": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := latchClient(t, time.Hour)
				other, _, _ := c.latches.Acquire(t.Context(), []Cell{{Table: "t", Row: "r", Family: "f"}})
				ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
				defer cancel()
				run := &attempt{conflictedEarly: early, read: []Cell{{Table: "t", Row: "r", Family: "f"}}}
				pause := store.Backoff{Min: time.Hour, Max: time.Hour}.Start()
				if err := waitBeforeRetry(ctx, c, run, &pause, nil); !errors.Is(err, context.DeadlineExceeded) || run.latch != nil || (run.latchWait > 0) != early {
					t.Errorf("%v, with its turn: %v, waited for it for %v", err, run.latch != nil, run.latchWait)
				}
				other.Release()
			})
		})
	}
}

// The pause between two runs is bounded, whatever Config.Backoff is.
func TestRetryBackoff(t *testing.T) {
	for _, tt := range []struct{ config, want store.Backoff }{
		{store.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}, store.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}},
		{store.Backoff{Min: time.Millisecond, Max: time.Minute}, store.Backoff{Min: time.Millisecond, Max: maxRetryPause}},
		{store.Backoff{Min: time.Second, Max: time.Minute}, store.Backoff{Min: maxRetryPause, Max: maxRetryPause}},
	} {
		c := &Client{resolver: &recovery.Resolver{Store: &store.Store{Config: store.Config{Backoff: tt.config}}}}
		if got := retryBackoff(c); got != tt.want {
			t.Errorf("with %v: %v, want %v", tt.config, got, tt.want)
		}
	}
}

// The error of a function that ran another transaction, whose outcome is unknown, says everything but
// that. So does that of a function that called Commit, which must not run again.
func TestErrorsOfFunctions(t *testing.T) {
	unknown := &UndeterminedError{StartTS: 7, Err: context.Canceled}
	conflict := &ConflictError{StartTS: 7}
	for name, tt := range map[string]struct {
		err                                   error
		undetermined, conflict, done, context bool
	}{
		"an unknown outcome":                 {&functionError{unknown}, false, false, false, true},
		"a conflict beside it":               {&functionError{errors.Join(unknown, conflict)}, false, true, false, true},
		"commit inside":                      {commitInside(nil), false, false, true, false},
		"commit inside, and a conflict":      {commitInside(conflict), false, false, true, false},
		"commit inside, and another failure": {commitInside(context.Canceled), false, false, true, true},
	} {
		var u *UndeterminedError
		var c *ConflictError
		if errors.Is(tt.err, ErrUndetermined) != tt.undetermined || errors.As(tt.err, &u) != tt.undetermined || errors.Is(tt.err, ErrConflict) != tt.conflict || errors.As(tt.err, &c) != tt.conflict ||
			errors.Is(tt.err, ErrDone) != tt.done || errors.Is(tt.err, context.Canceled) != tt.context {
			t.Errorf("%s: %v", name, tt.err)
		}
	}
}
