// Command percctl is the operator's tool for Percolator transactions on
// Bigtable. See percctl --help.
package main

import (
	"os"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checkcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/configcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/demo"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/doctorcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/lockcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/movecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/repaircmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tablecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/topics"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/txncmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/writecmd"
)

func main() {
	commands := []cli.Command{
		checkcmd.NewCmd, configcmd.NewCmd, demo.NewCmd, gccmd.NewCmd, lockcmd.NewCmd, tablecmd.NewCmd, tsocmd.NewCommand, txncmd.NewCmd, doctorcmd.NewCmd,
		readcmd.NewGetCmd, readcmd.NewHistoryCmd, readcmd.NewScanCmd,
		writecmd.NewSetCmd, writecmd.NewDeleteCmd,
		movecmd.NewExportCmd, movecmd.NewImportCmd, repaircmd.NewCmd,
	}
	os.Exit(cli.Main(os.Args[1:], cli.System(), append(commands, topics.All()...)...))
}
