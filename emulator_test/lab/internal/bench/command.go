// Package bench is lab bench: measurements on this machine.
//
// processes.go starts the processes of a run: an emulator, an oracle, and
// workers, which count their requests as rpcs.go does. Workers run observers
// (worker.go, load.go) or carry out tasks (measure.go) that repeat an operation
// (operations.go). pairs.go compares operations with raw ones. Each measurement
// is in a file of its own; report.go runs them all and writes docs/performance.md
// with markdown.go and charts.go.
package bench

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// NewCmd returns the bench command.
func NewCmd(s *cli.Streams) *cobra.Command {
	observers := cli.Group("observers", "Measure observers: latency, throughput, and the paper's Figure 7",
		`Measure observers on this machine. Each measurement starts an emulator of Bigtable
and worker processes of its own, and ends them; it touches no other deployment.
docs/observers-performance.md has numbers and says what they mean.`,
		newLatencyCmd(s), newThroughputCmd(s), newFigure7Cmd(s))
	return cli.Group("bench", "Measure on this machine",
		`Measure on this machine, with processes that the command starts and ends.`,
		newCompareCmd(s), newRowsCmd(s), newScaleCmd(s), newContentionCmd(s), newBrokerageCmd(s), newCPUCmd(s), newProfileCmd(s), newDelayCmd(s), newTripsCmd(s),
		newPlanCmd(s), newReportCmd(s), observers, newWorkerCmd(s), newEmulatorCmd(s), newOracleCmd(s), newStubCmd(s))
}

// numbers is a flag of whole numbers, separated by commas.
func numbers(flag, value string, least, most int) ([]int, error) {
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

func checkDuration(flag string, d time.Duration) error {
	if d < 10*time.Millisecond || d > time.Hour {
		return cli.Usagef("--%s %v: it has to be from 10ms to 1h", flag, d)
	}
	return nil
}

// A quantiles is a distribution in a few numbers, in milliseconds.
type quantiles struct {
	P5  float64 `json:"p5_ms"`
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

func newQuantiles(all []time.Duration) quantiles {
	all = slices.Sorted(slices.Values(all))
	at := func(q float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return ms(all[min(int(q*float64(len(all))), len(all)-1)])
	}
	return quantiles{at(.05), at(.5), at(.95), at(.99), at(1)}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
