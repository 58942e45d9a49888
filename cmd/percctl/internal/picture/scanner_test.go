package picture_test

import (
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
)

var unbounded = picture.Options{Limit: 100, Transactions: 10}

// TestComplete: one frame has everything, and says where its limits cut it off.
func TestComplete(t *testing.T) {
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
	if p.Locks.Locks != 5 || p.Locks.Listed[0].Outcome != inspect.Forward {
		t.Errorf("%+v", p.Locks)
	}
	// One piece of work may take more than its time; the pause comes after it.
	elapsed := time.Since(began).Seconds()
	if most := 40*elapsed + 60; float64(p.Scan.TotalRequests) > most {
		t.Errorf("%d requests in %.1f s, at most %.0f", p.Scan.TotalRequests, elapsed, most)
	}
}
