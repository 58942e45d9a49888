package tso

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestSealedBatch: no caller joins after the seal, when the request may be under
// way, however early it loaded the batch.
func TestSealedBatch(t *testing.T) {
	b := newCallers()
	for want := range int64(3) {
		if place, ok := b.join(); !ok || place != want {
			t.Fatalf("join %d: %d, %t", want, place, ok)
		}
	}
	if n := b.seal(); n != 3 {
		t.Errorf("sealed with %d", n)
	}
	for range 3 {
		if _, ok := b.join(); ok {
			t.Error("joined a sealed batch")
		}
	}
}

// TestCallerAfterTheSeal: a caller that loaded a batch before the seal joins the next one.
func TestCallerAfterTheSeal(t *testing.T) {
	c := &Client{wake: make(chan struct{}, 1)}
	old, next := newCallers(), newCallers()
	old.seal()
	c.forming.Store(old)
	var ts Timestamp
	ended := make(chan error, 1)
	go func() {
		var err error
		ts, err = c.Timestamp(t.Context())
		ended <- err
	}()
	for old.joined.Load() == sealed {
		runtime.Gosched()
	}
	c.forming.Store(next)
	select {
	case <-c.wake: // by the first caller of a batch
		next.firsts = []Timestamp{7}
		next.finish(nil)
	case err := <-ended:
		t.Fatal(err)
	}
	if err := <-ended; err != nil || ts != 7 || next.seal() != 1 {
		t.Errorf("%d, %v", ts, err)
	}
}

// TestAbandonedBatch: a batch is abandoned when the last of its callers has left.
func TestAbandonedBatch(t *testing.T) {
	b := newCallers()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for want := range int64(2) {
		if place, ok := b.join(); place != want || !ok || b.abandoned(2) {
			t.Errorf("caller %d: place %d, %t; abandoned %t", want, place, ok, b.abandoned(2))
		}
		if ts, left, err := b.wait(ended, want); ts != 0 || !left || err != nil {
			t.Errorf("caller %d: %d, %t, %v", want, ts, left, err)
		}
	}
	if !b.abandoned(2) {
		t.Error("a caller waits")
	}
}

// TestSealWhileJoining: the seal counts exactly the callers that joined.
func TestSealWhileJoining(t *testing.T) {
	for range 200 {
		b := newCallers()
		var wg sync.WaitGroup
		var mu sync.Mutex
		places := map[int64]bool{}
		for range 8 {
			wg.Go(func() {
				for {
					place, ok := b.join()
					if !ok {
						return
					}
					mu.Lock()
					places[place] = true
					mu.Unlock()
				}
			})
		}
		n := b.seal()
		wg.Wait()
		if int64(len(places)) != n || n > 0 && !places[n-1] {
			t.Fatalf("sealed with %d, %d got in", n, len(places))
		}
	}
}

// TestGather: a request waits only for callers that were there a moment ago, while more come, and for
// gatherAtMost. A caller that is alone waits for nobody.
func TestGather(t *testing.T) {
	for _, tt := range []struct {
		name     string
		expected int64
		joined   []int64 // each time gather looks; then the last one
		takes    time.Duration
		looks    int
	}{
		{"nobody is expected", 0, []int64{1}, 0, 0},
		{"one is expected", 1, []int64{0}, 0, 0},
		{"the second comes", 2, []int64{1, 2}, 0, 2},
		{"all are there", 3, []int64{3}, 0, 1},
		{"more are there", 3, []int64{4}, 0, 1},
		{"nobody comes", 3, []int64{1}, 0, 1 + gatherTries},
		{"all come, one by one", 9, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}, 0, 9},
		{"one comes late", 3, []int64{1, 1, 1, 1, 2}, 0, 5 + gatherTries},
		{"the time has passed", 9, []int64{1}, gatherAtMost / 2, 2},
		{"the time has almost passed", 9, []int64{1}, gatherAtMost/2 - 1, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			looks := 0
			gather(func() int64 {
				<-time.After(tt.takes)
				looks++
				return tt.joined[min(looks, len(tt.joined))-1]
			}, tt.expected)
			if looks != tt.looks {
				t.Errorf("%s: it looked %d times, want %d", tt.name, looks, tt.looks)
			}
		})
	}
}

// TestLeaveBatch: a caller that leaves an answered batch still has its answer. The last one that
// leaves ends the request, if it is under way.
func TestLeaveBatch(t *testing.T) {
	for _, tt := range []struct {
		name                          string
		callers, leave                int
		sent, answered, left, cancels bool
	}{
		{"answered", 2, 1, true, true, false, true},
		{"answered before it was sent", 1, 1, false, true, false, false},
		{"another caller waits", 2, 1, true, false, true, false},
		{"nobody waits", 2, 2, true, false, true, true},
		{"not sent", 1, 1, false, false, true, false},
	} {
		b := &batch{done: make(chan struct{})}
		for want := range tt.callers {
			if got := b.add(); got != int64(want) {
				t.Errorf("%s: place %d, want %d", tt.name, got, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if tt.sent {
			b.cancel = cancel
		}
		if tt.answered {
			b.finish(7, nil)
			b.finish(8, ErrClosed) // only the first one answers
		}
		left := false
		for range tt.leave {
			left = b.remove()
		}
		ended := ctx.Err() != nil
		b.finish(9, ErrClosed)
		wantTS, wantErr := Timestamp(0), error(nil)
		switch {
		case tt.answered:
			wantTS = 7
		case tt.leave < tt.callers:
			wantTS, wantErr = 9, ErrClosed
		}
		if left != tt.left || ended != tt.cancels || b.first != wantTS || b.err != wantErr {
			t.Errorf("%s: left %t, request ended %t, answer %d, %v", tt.name, left, ended, b.first, b.err)
		}
	}
	(*batch)(nil).finish(1, nil)
}
