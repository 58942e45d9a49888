package tso_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
)

func ExampleLocal() {
	frozen := time.Date(2026, 11, 20, 5, 30, 0, 0, time.UTC)
	oracle := tso.NewLocal(tso.LocalConfig{Clock: func() time.Time { return frozen }})
	for range 3 {
		ts, err := oracle.Timestamp(context.Background())
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(ts, ts.Time())
	}
	// Output:
	// 1795152600000000 2026-11-20 05:30:00 +0000 UTC
	// 1795152600000001 2026-11-20 05:30:00.000001 +0000 UTC
	// 1795152600000002 2026-11-20 05:30:00.000002 +0000 UTC
}

func TestLocalFollowsClock(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	l := tso.NewLocal(tso.LocalConfig{Clock: func() time.Time { return now }})
	base := tso.FromTime(now)
	for _, step := range []struct {
		move time.Duration
		want tso.Timestamp
	}{
		{0, base},
		{0, base + 1},
		{time.Second, base + 1e6},
		{-time.Hour, base + 1e6 + 1},
		{time.Hour, base + 1e6 + 2}, // back where it was
		{time.Millisecond, base + 1e6 + 1000},
	} {
		now = now.Add(step.move)
		got, err := l.Timestamp(t.Context())
		if err != nil || got != step.want {
			t.Fatalf("after %s: %d, %v, want %d", step.move, got, err, step.want)
		}
	}
}

func TestLocalZeroValueConcurrent(t *testing.T) {
	var l tso.Local
	h := tsotest.NewHistory(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				h.Ask(t.Context(), &l)
			}
		})
	}
	wg.Wait()
	h.Check(8000)
}

func TestLocalErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var l tso.Local
	if _, err := l.Timestamp(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	end := tso.NewLocal(tso.LocalConfig{Clock: tso.Max.Time})
	if got, err := end.Timestamp(t.Context()); got != tso.Max || err != nil {
		t.Errorf("at the end of time: %d, %v", got, err)
	}
	if got, err := end.Timestamp(t.Context()); !errors.Is(err, tso.ErrExhausted) {
		t.Errorf("after the end of time: %d, %v", got, err)
	}
}
