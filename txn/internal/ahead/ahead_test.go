package ahead

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// TestStarts: a client asks ahead only while transactions follow each other in less than maxStartAge.
// It keeps the newest answers, and gives each to one transaction, the newest first.
func TestStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Starts
		take := func(after time.Duration, want *Start) {
			t.Helper()
			<-time.After(after)
			if got := s.Take(); got != want {
				t.Errorf("after %v: got %v, want %v", after, got, want)
			}
		}
		for _, tt := range []struct {
			after time.Duration
			busy  bool
		}{{0, false}, {maxStartAge - 1, true}, {maxStartAge, false}, {1, true}, {maxStartAge + 1, false}, {0, true}} {
			take(tt.after, nil)
			if n := s.add(); (n != nil) != tt.busy {
				t.Errorf("a transaction that begins %v after another one: asks ahead %t", tt.after, n != nil)
			}
			s.waiting = nil
		}
		var all []*Start
		for range maxStartsAhead + 1 {
			all = append(all, s.add())
		}
		if len(s.waiting) != maxStartsAhead {
			t.Errorf("%d answers wait", len(s.waiting))
		}
		for _, want := range slices.Backward(all[1:]) {
			take(time.Millisecond, want)
		}
		take(time.Millisecond, nil)
	})
}

// TestUsable: a timestamp is of use if it is young and above what the client has committed.
func TestUsable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c store.Clock
		c.NoteCommit(100, time.Now())
		for _, tt := range []struct {
			ts   tso.Timestamp
			age  time.Duration
			err  error
			want bool
		}{
			{101, 0, nil, true}, {100, 0, nil, false}, {101, maxStartAge - 1, nil, true},
			{101, maxStartAge, nil, false}, {101, 0, errors.New("no answer"), false},
		} {
			if got := (&Start{TS: tt.ts, Asked: time.Now().Add(-tt.age), err: tt.err}).Usable(&c); got != tt.want {
				t.Errorf("%d, %v old, %v: %t", tt.ts, tt.age, tt.err, got)
			}
		}
	})
}

// TestAwait: a transaction waits for an answer for at most maxStartAge, and takes one that is there
// also if its context has ended.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		const never = time.Hour
		for _, tt := range []struct {
			name     string
			ctx      context.Context
			answered time.Duration
			want     bool
			took     time.Duration
		}{
			{"there", t.Context(), 0, true, 0},
			{"there, context ended", ended, 0, true, 0},
			{"soon", t.Context(), maxStartAge / 2, true, maxStartAge / 2},
			{"late", t.Context(), never, false, maxStartAge},
			{"late, context ended", ended, never, false, 0},
		} {
			for range 20 { // a select with two ready cases chooses at random
				s, began := &Start{done: make(chan struct{})}, time.Now()
				if tt.answered == 0 {
					close(s.done)
				} else if tt.answered < never {
					time.AfterFunc(tt.answered, func() { close(s.done) })
				}
				if got := s.Await(tt.ctx); got != tt.want || time.Since(began) != tt.took {
					t.Fatalf("%s: %t after %v", tt.name, got, time.Since(began))
				}
			}
		}
	})
}
