package picture_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/format"
)

var unbounded = picture.Options{Limit: 100, Transactions: 10}

// TestComplete: one frame has everything, and says where its limits cut it off.
func TestComplete(t *testing.T) {
	t.Parallel()
	k, meter := keepMetered(t, 0)
	s := picture.NewScanner(k, unbounded, meter, picture.Limits{Requests: 1, Bytes: 1})
	p, err := s.Complete(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p.Locks.Locks != 5 || p.Locks.More || p.Locks.Transactions != 2 || p.Locks.Forward != 1 || p.Locks.Back != 1 || len(p.Tables) != 2 {
		t.Errorf("%+v", p.Locks)
	}
	if !p.Scan.Complete || p.Scan.Rows == 0 || p.Scan.TotalRequests == 0 || p.Scan.TotalBytes == 0 || p.Rates != nil {
		t.Errorf("%+v, %+v", p.Scan, p.Rates)
	}
	if p, err = s.Complete(t.Context()); err != nil || p.Rates == nil || *p.Rates.LocksSeen != 0 || *p.Rates.LocksGone != 0 {
		t.Errorf("second frame: %+v, %v", p.Rates, err)
	}
	bounded := picture.NewScanner(k, picture.Options{Limit: 1, Transactions: 1}, meter, picture.Limits{Requests: 1})
	p, err = bounded.Complete(t.Context())
	if err != nil || p.Locks.Locks != 1 || !p.Locks.More || !p.Notifications.More || p.Notifications.Cells > 1 || len(p.Locks.Listed) != 1 {
		t.Errorf("bounded: %+v, %+v, %v", p.Locks, p.Notifications, err)
	}
}

// TestLive: a scanner keeps its limits however often it is looked at, and finds what a
// complete scan finds.
func TestLive(t *testing.T) {
	t.Parallel()
	k, meter := keepMetered(t, 0)
	s := picture.NewScanner(k, unbounded, meter, picture.Limits{Requests: 40, Bytes: 1_000_000})
	s.Refresh = 100 * time.Millisecond
	go s.Run(t.Context())
	began := time.Now()
	var p *picture.Picture
	for p == nil || !p.Scan.Complete || len(p.Locks.Listed) < 2 {
		var err error
		if p, err = s.Picture(t.Context()); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("not complete after a minute: %+v", p)
		}
	}
	if p.Locks.Locks != 5 || p.Locks.Listed[0].Outcome != doctor.Forward {
		t.Errorf("%+v", p.Locks)
	}
	// One piece of work may take more than its time; the pause comes after it.
	elapsed := time.Since(began).Seconds()
	if most := 40*elapsed + 60; float64(p.Scan.TotalRequests) > most {
		t.Errorf("%d requests in %.1f s, at most %.0f", p.Scan.TotalRequests, elapsed, most)
	}
}

// TestTabs: three tabs that ask all the time cost what one costs: the requests and bytes of
// the limits.
func TestTabs(t *testing.T) {
	t.Parallel()
	k, meter := keepMetered(t, 0)
	limits := picture.Limits{Requests: 20, Bytes: 10_000}
	s := picture.NewScanner(k, unbounded, meter, limits)
	s.Refresh = 100 * time.Millisecond
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	began, before := time.Now(), meter.Used()
	go s.Run(t.Context())
	var tabs sync.WaitGroup
	for range 3 {
		tabs.Go(func() {
			for range time.Tick(5 * time.Millisecond) {
				if meter.Used().Minus(before).Requests >= 60 { // early, if a limit is not kept
					return
				}
				if st, err := s.State(t.Context(), 0); err != nil || st.Failure != "" || st.Scan.MaxBytes != limits.Bytes {
					t.Errorf("%v, %+v", err, st)
					return
				}
			}
		})
	}
	tabs.Wait()
	used, seconds := meter.Used().Minus(before), time.Since(began).Seconds()
	// The last piece of work may cost more than its share: its pause comes after it.
	if requests, bytes := float64(used.Requests), float64(used.Bytes); requests > 20*seconds+30 || bytes > 10_000*seconds+10_000 {
		t.Errorf("%.0f requests and %.0f bytes in %.1f s", requests, bytes, seconds)
	}
	t.Logf("%d requests, %d bytes in %.1f s", used.Requests, used.Bytes, seconds)
}

// TestSmallFirst: what else uses the connection, for example the checks, delays the reading of
// rows, and not what is small.
func TestSmallFirst(t *testing.T) {
	t.Parallel()
	k, meter := keepMetered(t, 0)
	s := picture.NewScanner(k, unbounded, meter, picture.Limits{Requests: 100, Bytes: 10_000_000})
	s.Refresh = 100 * time.Millisecond
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	go s.Run(t.Context())
	points := func() int {
		t.Helper()
		st, err := s.State(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(st.Points)
	}
	waitFor := func(n int) {
		t.Helper()
		for began := time.Now(); points() < n; <-time.After(10 * time.Millisecond) {
			if time.Since(began) > 15*time.Second {
				t.Fatalf("%d points after 15 s, not %d", points(), n)
			}
		}
	}
	// This is what the limits allow in 40 s, between pieces of the scanner's work.
	for range 2 {
		before, first := meter.Used(), points()
		if err := k.Do(t.Context(), func(ctx context.Context, at *session.Session) error {
			table := at.Bigtable.Open(format.DefaultMetadataTable)
			for range 2000 {
				if _, err := table.ReadRow(ctx, "none"); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if used := meter.Used().Minus(before); used.Requests < 2000 {
			t.Fatalf("%+v", used)
		}
		waitFor(first + 1)
	}
	waitFor(points() + 2)
}

// TestAges: a transaction grows older also while its primary is not read again.
func TestAges(t *testing.T) {
	t.Parallel()
	k, meter := keepMetered(t, 0)
	s := picture.NewScanner(k, unbounded, meter, picture.Limits{Requests: 1000, Bytes: 1_000_000})
	s.Refresh = time.Hour
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	go s.Run(t.Context())
	first := 0.0
	for began := time.Now(); ; <-time.After(10 * time.Millisecond) {
		st, err := s.State(t.Context(), 0)
		if err != nil || time.Since(began) > 30*time.Second {
			t.Fatalf("%v; the first age was %v s", err, first)
		}
		if len(st.Transactions) == 0 {
			continue
		}
		if age := st.Transactions[0].Transaction.Age; first == 0 {
			first = age
		} else if age > first+0.5 {
			return
		}
	}
}

// TestSilent: a state says how old Bigtable's last answer is, and when that is longer than two
// refreshes, also while a request hangs and has not failed.
func TestSilent(t *testing.T) {
	t.Parallel()
	k, meter := keepMetered(t, 0)
	s := picture.NewScanner(k, unbounded, meter, picture.Limits{Requests: 1e9, Bytes: 1e9})
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	for refresh, silent := range map[time.Duration]bool{time.Hour: false, time.Nanosecond: true} {
		s.Refresh = refresh // nothing is asked in this test
		st, err := s.State(t.Context(), 0)
		if err != nil || st.Silent != silent || st.Answered <= 0 || st.Failure != "" {
			t.Errorf("refreshes of %v: %v s, silent %v, %v", refresh, st.Answered, st.Silent, err)
		}
	}
}
