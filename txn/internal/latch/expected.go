package latch

import (
	"slices"
	"sync"
)

// Expected remembers which slots a function given to Update will need: a function that changes
// one hot cell needs the same ones each time. Its transaction queues for them before its first
// run. Otherwise that run takes its start_ts while other transactions are before it in the queue, and
// conflicts with their commits.
//
// A wrong guess costs time, but does no harm: the commit queues for the slots that it needs.
type Expected struct {
	mu    sync.Mutex
	known map[uintptr]*expectation // by the function's code; only of functions that had to wait
}

type expectation struct {
	slots []uint16
	times int // in a row that the function needed these slots
}

const (
	// maxExpected is how many functions a client remembers.
	maxExpected = 256
	// sureAfter is how often in a row a function must have needed the same slots.
	sureAfter = 4
)

// Of returns the slots to queue for before the first run. It is nil if they are not known, or if
// the function does not need to wait.
func (e *Expected) Of(function uintptr) []uint16 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k := e.known[function]; k != nil && k.times >= sureAfter {
		return k.slots
	}
	return nil
}

// Note remembers the slots that a call needed. contended says that it had to wait for them.
func (e *Expected) Note(function uintptr, slots []uint16, contended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.known[function]
	switch {
	case !contended || len(slots) == 0:
		delete(e.known, function)
	case k != nil && slices.Equal(k.slots, slots):
		k.times++
	default:
		if e.known == nil || len(e.known) >= maxExpected {
			e.known = map[uintptr]*expectation{}
		}
		e.known[function] = &expectation{slots: slices.Clone(slots), times: 1}
	}
}
