// Package bench is the command lab bench, which measures the library on this machine.
//
// Each measurement has its own file; those of observers are in package observers.
// Package rig starts the processes of a measurement. pairs.go compares operations with
// raw ones. report.go runs all measurements, and writes docs/performance.md with
// markdown.go.
package bench

import (
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/bench/observers"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

// NewCmd returns the bench command.
func NewCmd(s *cli.Streams) *cobra.Command {
	group := cli.Group("observers", "Measure observers: latency, throughput, and the paper's Figure 7",
		`Measure observers on this machine. Each measurement starts an emulator of Bigtable
and worker processes of its own, and stops them; it connects to no other deployment.
docs/reference/performance.md has results.`,
		observers.NewLatencyCmd(s), observers.NewThroughputCmd(s), observers.NewFigure7Cmd(s))
	cmd := cli.Group("bench", "Measure the library on this machine",
		`Measure the library on this machine. Each command starts the emulator and the processes
that it needs, and stops them. "Raw" is Bigtable without transactions, "ours" is this
library.`,
		newCompareCmd(s), newRowsCmd(s), newScaleCmd(s), newContentionCmd(s), newBrokerageCmd(s), newCPUCmd(s), newProfileCmd(s), newDelayCmd(s), newTripsCmd(s),
		newPlanCmd(s), newReportCmd(s), group)
	group.Example = `  lab bench observers latency`
	cmd.Example = `  lab bench compare
  lab bench report --docs docs --only compare,trips`
	cmd.AddCommand(rig.Commands(s)...)
	return cmd
}
