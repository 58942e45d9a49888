package pause_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso/pause"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := pause.For(t.Context(), time.Minute); err != nil || time.Since(begun) != time.Minute {
			t.Errorf("For returned %v after %v, want nil after a minute", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun = time.Now()
		if err := pause.For(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("For returned %v after %v, want the context's error after a second", err, time.Since(begun))
		}
	})
}

func TestJitter(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 2, 3, time.Second} {
		for range 100 {
			if got := pause.Jitter(d); got < d/2 || got > d {
				t.Fatalf("Jitter(%v) = %v", d, got)
			}
		}
	}
}
