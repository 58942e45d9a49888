package pace_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn/internal/pace"
)

// A service takes at least rest for each piece of work, and does one after the other in work.
type service struct {
	mu         sync.Mutex
	rest, work time.Duration
	until      time.Time
}

func (s *service) do() time.Duration {
	began := time.Now()
	s.mu.Lock()
	if s.until.Before(began) {
		s.until = began
	}
	s.until = s.until.Add(s.work)
	done := s.until.Add(s.rest)
	s.mu.Unlock()
	<-time.After(time.Until(done))
	return time.Since(began)
}

// run does pieces of work with 100 goroutines for some time. It returns how many were done, and
// how many ran at most during the second half of the time.
func run(t *testing.T, p *pace.Pacer, s *service, d time.Duration) (pieces, most int64) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	half := time.Now().Add(d / 2)
	var done, running, top atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for {
				turn, err := p.Begin(ctx)
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					return
				}
				if n := running.Add(1); time.Now().After(half) && n > top.Load() {
					top.Store(n)
				}
				took := s.do()
				running.Add(-1)
				done.Add(1)
				turn.End(100, took)
			}
		})
	}
	all.Wait()
	return done.Load(), top.Load()
}

// TestIdleService: a service with time for all gets as many pieces as allowed.
func TestIdleService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, most := run(t, pace.New(20), &service{rest: 10 * time.Millisecond}, 10*time.Second)
		if most != 20 || n < 19_000 {
			t.Errorf("%d pieces, at most %d at a time, want 20", n, most)
		}
	})
}

// TestBusyService: a service that can do 100 pieces a second gets nearly as many, and they wait
// for each other only as long as one takes.
func TestBusyService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, most := run(t, pace.New(50), &service{rest: 20 * time.Millisecond, work: 10 * time.Millisecond}, 30*time.Second)
		if n < 2500 || most > 8 {
			t.Errorf("%d pieces, at most %d at a time", n, most)
		}
	})
}

// TestSlowdown: when the service becomes slower, there are fewer pieces at a time; when it
// recovers, as many as before.
func TestSlowdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{rest: 20 * time.Millisecond, work: time.Millisecond}
		p := pace.New(50)
		_, before := run(t, p, s, 10*time.Second)
		s.work = 40 * time.Millisecond
		_, slow := run(t, p, s, 60*time.Second)
		s.work = time.Millisecond
		_, after := run(t, p, s, 60*time.Second)
		if before < 20 || slow > 4 || after < 20 {
			t.Errorf("%d pieces at a time, then %d, then %d", before, slow, after)
		}
	})
}

// TestOneSlowServer: pieces on several servers differ. They are about as fast as they should be on
// average, so no piece is taken away.
func TestOneSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 12
		p := pace.New(most)
		for i := range 250 {
			turn, err := p.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			took := 10 * time.Millisecond
			if i >= 50 && i%10 == 0 {
				took *= 6
			}
			turn.End(100, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for i := range most {
			if _, err := p.Begin(ctx); err != nil {
				t.Fatalf("%d pieces at a time, want %d", i, most)
			}
		}
	})
}

// TestUncounted: pieces without requests, and pieces of other sizes, do not disturb.
func TestUncounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pace.New(20)
		for range 100 {
			for size, took := range map[int]time.Duration{0: 0, 1: time.Millisecond, 1000: time.Second} {
				turn, err := p.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				turn.End(size, took)
			}
		}
		if n, most := run(t, p, &service{rest: 10 * time.Millisecond}, 10*time.Second); most != 20 {
			t.Errorf("%d pieces, at most %d at a time, want 20", n, most)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		one := pace.New(0)
		if _, err := one.Begin(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := one.Begin(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("an ended context: %v", err)
		}
	})
}

// TestScans: how many scans run depends on small reads beside them. Errors make it one, and never more.
func TestScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 16
		p := pace.Scans(most)
		// scans lets scans run, with a read beside each that takes so long if n run, and returns how many may.
		scans := func(rounds int, read func(n int) (time.Duration, error)) int {
			for range rounds {
				n := p.Limit()
				var all sync.WaitGroup
				for range n {
					turn, err := p.Begin(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					all.Go(func() {
						began := time.Now()
						took, err := read(n)
						<-time.After(took)
						turn.Note(began, err)
						<-time.After(time.Second - took)
						turn.End(0, 0)
					})
				}
				all.Wait()
			}
			return p.Limit()
		}
		quick := func(int) (time.Duration, error) { return 10 * time.Millisecond, nil }
		crowded := func(n int) (time.Duration, error) { return time.Duration(5+5*n) * time.Millisecond, nil }
		failing := func(int) (time.Duration, error) { return time.Millisecond, errors.New("unavailable") }
		if n := scans(20, failing); n != 1 {
			t.Errorf("%d scans at a time before the first answer, want 1", n)
		}
		if n := scans(200, quick); n != most {
			t.Errorf("%d scans at a time if nobody waits, want %d", n, most)
		}
		if n := scans(200, crowded); n > 2 {
			t.Errorf("%d scans at a time if each makes reads slower, want 1 or 2", n)
		}
		if n := scans(700, quick); n != most {
			t.Errorf("%d scans at a time if nobody waits any more, want %d", n, most)
		}
		if n := scans(100, failing); n != 1 {
			t.Errorf("%d scans at a time if reads fail, want 1", n)
		}
	})
}

// TestDo: a piece that waits ends with its context, and one that fails gives its turn back.
func TestDo(t *testing.T) {
	p := pace.New(1)
	failed := errors.New("failed")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		err := p.Do(t.Context(), 1, func() error {
			cancel()
			if err := p.Do(ctx, 1, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("a piece whose context ends: %v", err)
			}
			return failed
		})
		if !errors.Is(err, failed) {
			t.Error(err)
		}
	}
}

// TestOrder: pieces run in the order of Begin. One whose context ends gives up its place.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pace.New(1)
		turn, err := p.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		order := make(chan int, 20)
		for i := range 20 {
			go func() {
				waits := t.Context()
				if i%5 == 3 {
					waits = ctx
				}
				turn, err := p.Begin(waits)
				if err != nil {
					if i%5 != 3 || !errors.Is(err, context.Canceled) {
						t.Errorf("piece %d: %v", i, err)
					}
					return
				}
				order <- i
				turn.End(1, time.Millisecond)
			}()
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		turn.End(1, time.Millisecond)
		synctest.Wait()
		for i := range 20 {
			if i%5 == 3 {
				continue
			}
			if got := <-order; got != i {
				t.Errorf("piece %d ran, want %d", got, i)
			}
		}
	})
}
