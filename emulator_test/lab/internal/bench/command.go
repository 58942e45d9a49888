// Package bench is lab bench: measurements on this machine.
//
// Package rig starts the processes of a measurement and says what they do. pairs.go
// compares operations with raw ones. Each measurement is in a file of its own, those
// of observers in package observers; report.go runs them all and writes
// docs/performance.md with markdown.go and package charts.
package bench

import (
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/bench/observers"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
	"github.com/percolator-bigtable/percolator/internal/cli"
)

// NewCmd returns the bench command.
func NewCmd(s *cli.Streams) *cobra.Command {
	group := cli.Group("observers", "Measure observers: latency, throughput, and the paper's Figure 7",
		`Measure observers on this machine. Each measurement starts an emulator of Bigtable
and worker processes of its own, and ends them; it touches no other deployment.
docs/observers-performance.md has numbers and says what they mean.`,
		observers.NewLatencyCmd(s), observers.NewThroughputCmd(s), observers.NewFigure7Cmd(s))
	cmd := cli.Group("bench", "Measure on this machine",
		`Measure on this machine, with processes that the command starts and ends.`,
		newCompareCmd(s), newRowsCmd(s), newScaleCmd(s), newContentionCmd(s), newBrokerageCmd(s), newCPUCmd(s), newProfileCmd(s), newDelayCmd(s), newTripsCmd(s),
		newPlanCmd(s), newReportCmd(s), group)
	cmd.AddCommand(rig.Commands(s)...)
	return cmd
}
