package conformance

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A latencies collects how long requests took, by kind: a sample of each.
type latencies struct {
	mu  sync.Mutex
	all map[string]*sample
}

type sample struct {
	n    int
	kept []time.Duration
}

const sampleSize = 2000

func (l *latencies) add(kind string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.all[kind]
	if s == nil {
		s = &sample{}
		l.all[kind] = s
	}
	s.n++
	if len(s.kept) < sampleSize {
		s.kept = append(s.kept, d)
	} else if i := rand.IntN(s.n); i < sampleSize {
		s.kept[i] = d
	}
}

func (l *latencies) summary() []Latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []Latency{}
	for _, kind := range slices.Sorted(maps.Keys(l.all)) {
		s := l.all[kind]
		slices.Sort(s.kept)
		at := func(p float64) float64 {
			return float64(s.kept[int(p*float64(len(s.kept)-1))].Round(time.Microsecond)) / float64(time.Millisecond)
		}
		all = append(all, Latency{kind, s.n, at(0.5), at(0.99)})
	}
	return all
}
