package telemetry

import (
	"testing"
	"time"
)

// TestOldest: a lock counts for one window at least and for two at most.
func TestOldest(t *testing.T) {
	start := time.Unix(1e9, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	o := &oldest{}
	for _, step := range []struct {
		at   time.Duration
		age  time.Duration // of a lock found; 0: none
		want time.Duration
	}{
		{0, 0, 0},
		{time.Second, 5 * time.Minute, 5 * time.Minute},
		{2 * time.Second, time.Minute, 5 * time.Minute},
		{oldestWindow + time.Second, 0, 5 * time.Minute},
		{oldestWindow + 2*time.Second, time.Minute, 5 * time.Minute},
		{2*oldestWindow + 3*time.Second, 0, time.Minute},
		{9 * oldestWindow, 0, 0},
	} {
		if step.age > 0 {
			o.note(at(step.at), step.age)
		}
		if got := o.read(at(step.at)); got != step.want {
			t.Errorf("after %v: %v, want %v", step.at, got, step.want)
		}
	}
}
