package gc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// leaseLog is a lock service that notes what it is asked, in thirds of the lease's ttl.
type leaseLog struct {
	began  time.Time
	mu     sync.Mutex
	asked  []string
	answer func(n int) (bool, tso.Holder, error)
	asking atomic.Bool // for the lease
}

func (l *leaseLog) note(ctx context.Context, format string, args ...any) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	until, _ := ctx.Deadline()
	l.asked = append(l.asked, fmt.Sprintf("%d: ", 3*time.Since(l.began)/gctime.LeaseTTL())+fmt.Sprintf(format, args...)+fmt.Sprintf(" for %v", time.Until(until)))
	return len(l.asked)
}

func (l *leaseLog) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, tso.Holder, error) {
	l.asking.Store(true)
	defer l.asking.Store(false)
	return l.answer(l.note(ctx, "acquire %s %s %v", name, owner, ttl))
}

func (l *leaseLog) Release(ctx context.Context, name, owner string) error {
	if l.asking.Load() {
		l.note(ctx, "too early:")
	}
	l.note(ctx, "release %s %s %v", name, owner, ctx.Err())
	return nil
}

// TestLease: a collector renews its lease three times before that would end, also after an error, until it releases the
// lease or another one has it. Then its context ends.
func TestLease(t *testing.T) {
	for _, taken := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var logged bytes.Buffer
			c := &recovery.Resolver{Store: &store.Store{Log: slog.New(slog.NewTextHandler(&logged, nil))}}
			ttl := gctime.LeaseTTL()
			locks := &leaseLog{began: time.Now(), answer: func(n int) (bool, tso.Holder, error) {
				switch {
				case n == 2:
					return false, tso.Holder{}, errors.New("broken on purpose")
				case n == 4 && taken:
					return false, tso.Holder{Owner: "you", Left: time.Second}, nil
				case n == 5: // while it is released
					<-time.After(ttl / 6)
					return false, tso.Holder{}, errors.New("broken on purpose")
				}
				return true, tso.Holder{Owner: "me"}, nil
			}}
			l := &lease{locks: locks, owner: "me", stopped: make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			l.cancel = cancel
			go l.renew(ctx, c)
			<-time.After(ttl*4/3 + ttl/6)
			synctest.Wait()
			if (ctx.Err() != nil) != taken {
				t.Errorf("taken: %t, its context: %v", taken, ctx.Err())
			}
			ended := errors.New("ended")
			err := l.explain(ended)
			var busy *BusyError
			if errors.As(err, &busy) != taken || taken && *busy != (BusyError{Holder: "you", Left: time.Second, Lost: true}) || !taken && err != ended || l.explain(nil) != nil {
				t.Errorf("taken: %t, explained as %v", taken, err)
			}
			if !taken {
				<-time.After(ttl / 4)
			}
			over, stop := context.WithCancel(t.Context())
			stop()
			l.release(over)
			if ctx.Err() == nil {
				t.Error("released, and its context has not ended")
			}
			<-time.After(ttl)
			acquire := fmt.Sprintf("acquire gc me %v for %v", ttl, ttl/3)
			want := []string{"1: " + acquire, "2: " + acquire, "3: " + acquire, "4: " + acquire}
			if !taken {
				want = append(want, "5: "+acquire)
			}
			want = append(want, fmt.Sprintf("%d: release gc me <nil> for 2s", len(want)))
			if !slices.Equal(locks.asked, want) {
				t.Errorf("asked %q, want %q", locks.asked, want)
			}
			if n := strings.Count(logged.String(), "renewing the lease"); n != 1 {
				t.Errorf("logged %d times: %s", n, &logged)
			}
			if err := l.explain(ended); !taken && err != ended {
				t.Errorf("released, explained as %v", err)
			}
		})
	}
}

// TestRetries: a request is repeated until it succeeds, is refused, or its context ends.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &run{client: &recovery.Resolver{Store: &store.Store{Config: store.Config{Backoff: store.Backoff{Min: time.Second, Max: time.Second}}}}}
		unavailable, refused := status.Error(codes.Unavailable, "x"), status.Error(codes.PermissionDenied, "x")
		for _, tt := range []struct {
			errs []error
			want error
			n    int
		}{
			{[]error{nil}, nil, 1},
			{[]error{unavailable, unavailable, nil}, nil, 3},
			{[]error{unavailable, refused, nil}, refused, 2},
		} {
			n := 0
			if err := r.retry(t.Context(), func() error { n++; return tt.errs[n-1] }); err != tt.want || n != tt.n {
				t.Errorf("%v: %v after %d requests", tt.errs, err, n)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.retry(ctx, func() error { return unavailable }); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, unavailable) {
			t.Errorf("its context has ended: %v", err)
		}
		if now, err := (&lockResolver{run: r}).now(t.Context(), 0); now != 0 || err != nil {
			t.Errorf("without locks it is %d, %v", now, err)
		}
	})
}
