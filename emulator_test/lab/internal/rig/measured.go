package rig

import (
	"slices"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
)

// A Measured is the result of a task.
type Measured struct {
	Ops      int
	Elapsed  time.Duration
	CPU      time.Duration // of the worker process
	Mallocs  uint64
	Bytes    uint64          // allocated
	P50, P95 time.Duration   // of single operations
	P99, Max time.Duration   //
	Fastest  time.Duration   //
	Stats    txn.Stats       // what the task added to the client's counts
	RPCs     rpcs            // requests that the process sent
	Oracle   uint64          // requests to a served oracle
	Emulator time.Duration   // CPU time of the emulator; set by Run.Measure
	Samples  []time.Duration // of single operations, if the task names a Count
}

func (m *Measured) quantiles(sorted []time.Duration) {
	if len(sorted) == 0 {
		return
	}
	at := func(q float64) time.Duration { return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)] }
	m.Fastest, m.P50, m.P95, m.P99, m.Max = sorted[0], at(.5), at(.95), at(.99), at(1)
}

// PerSecond returns operations a second.
func (m Measured) PerSecond() float64 { return float64(m.Ops) / m.Elapsed.Seconds() }

// Micros returns a duration divided by the number of operations, in microseconds.
func (m Measured) Micros(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1000 / float64(max(m.Ops, 1))
}

// Quantile returns a quantile of values in any order, or 0 if there are none.
func Quantile(q float64, values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 == len(sorted) {
		return sorted[low]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// Median returns the median of values in any order, or 0 if there are none.
func Median(values []float64) float64 { return Quantile(.5, values) }
