// Command percctl is the operator's tool for Percolator transactions on
// Bigtable. See percctl --help.
package main

import (
	"os"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checkcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/configcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/conformancecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/consolecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/demo"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/doctorcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/indexcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/lockcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/movecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/notifycmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/observercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/plancmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/repaircmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tablecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/topcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/topics"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/txncmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/workercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/writecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
)

func main() { os.Exit(telemetry.Main(program)) }

var program = cli.Program{
	Name:  "percctl",
	Short: "Percolator transactions on Bigtable: the operator's tool",
	Long: `percctl is the operator's tool for Percolator transactions on Bigtable.

To see what the transactions do, run percctl demo: it needs only Go. To try another
command without a Bigtable, add --embedded.

Commands find the Bigtable instance by --project and --instance, by environment
variables, or by ~/.cbtrc: see percctl help environment.

Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 a check found a problem
or work is left, 5 unavailable or timed out, 6 transactions are not safe on this
service, 7 what repair apply leaves to you, 130 interrupted.`,
	Example: `  percctl demo                  # an index of real files, built by observers while workers are killed
  percctl demo --limit 500 -o json
  percctl doctor                # is everything in order, and if not, how to fix it?
  percctl lock list --all       # which locks are there, and what would resolving them do?
  percctl check --all           # is what is stored consistent?
  percctl history accounts bob  # what happened to a row?`,
	Commands: append([]cli.Command{
		checkcmd.NewCmd, configcmd.NewCmd, conformancecmd.NewCmd, consolecmd.NewCmd, demo.NewCmd, doctorcmd.NewCmd, gccmd.NewCmd, indexcmd.NewCmd, lockcmd.NewCmd, notifycmd.NewCmd, observercmd.NewCmd, plancmd.NewCmd, repaircmd.NewCmd, tablecmd.NewCmd, topcmd.NewCmd, tsocmd.NewCommand, txncmd.NewCmd, workercmd.NewCmd,
		readcmd.NewGetCmd, readcmd.NewHistoryCmd, readcmd.NewScanCmd,
		writecmd.NewSetCmd, writecmd.NewDeleteCmd,
		movecmd.NewExportCmd, movecmd.NewImportCmd,
		cli.NewVersionCmd,
	}, topics.All()...),
}
