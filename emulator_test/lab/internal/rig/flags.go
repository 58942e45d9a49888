package rig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// Numbers parses a flag with whole numbers that are separated by commas.
func Numbers(flag, value string, least, most int) ([]int, error) {
	var all []int
	for _, part := range strings.Split(value, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < least || n > most {
			return nil, cli.Usagef("--%s %s: it has to be whole numbers from %d to %d, separated by commas", flag, value, least, most)
		}
		all = append(all, n)
	}
	return all, nil
}

// CheckDuration checks a flag with the duration of a measurement.
func CheckDuration(flag string, d time.Duration) error {
	if d < 10*time.Millisecond || d > time.Hour {
		return cli.Usagef("--%s %v: it has to be from 10ms to 1h", flag, d)
	}
	return nil
}

// Quantiles describe a distribution, in milliseconds.
type Quantiles struct {
	P5  float64 `json:"p5_ms"`
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

// NewQuantiles returns the quantiles of durations in any order.
func NewQuantiles(all []time.Duration) Quantiles {
	all = slices.Sorted(slices.Values(all))
	at := func(q float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return MS(all[min(int(q*float64(len(all))), len(all)-1)])
	}
	return Quantiles{at(.05), at(.5), at(.95), at(.99), at(1)}
}

// MS returns a duration in milliseconds.
func MS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Between checks a flag with a whole number.
func Between(flag string, value, least, most int) error {
	if value < least || value > most {
		return cli.Usagef("--%s %d: it has to be from %d to %d", flag, value, least, most)
	}
	return nil
}

// Progress writes to standard error what is measured next.
func Progress(s *cli.Streams, format string, args ...any) {
	fmt.Fprintf(s.Err, "measuring: "+format+"\n", args...)
}
