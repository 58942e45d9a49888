package tso

import (
	"sync"
	"testing"
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
