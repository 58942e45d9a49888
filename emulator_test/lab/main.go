// Command lab has the commands that only developers of this project need: benchmarks,
// soak tests, and planted bugs. See go run ./emulator_test/lab --help.
package main

import (
	"os"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/bench"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/mutate"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/oracle"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/scale"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/soak"
)

func main() { os.Exit(telemetry.Main(program)) }

var program = cli.Program{
	Name:  "lab",
	Short: "Measure and test Percolator transactions on this machine",
	Long: `lab has the commands that only developers of the project need: benchmarks, soak tests,
and planted bugs. Each command starts the emulators and processes that it needs, and stops
them; it connects to no other deployment.

Exit codes: 0 ok, 1 failed, 2 wrong usage, 4 something was found, 130 interrupted.`,
	Example: `  go run ./emulator_test/lab bench compare
  go run ./emulator_test/lab soak --duration 60m --faults all
  go run ./emulator_test/lab oracle
  go run ./emulator_test/lab mutate --part --budget 60s`,
	Commands: []cli.Command{bench.NewCmd, mutate.NewCmd, oracle.NewCmd, scale.NewCmd, soak.NewCmd},
}
