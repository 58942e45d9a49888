// Command percctl is the operator's tool for Percolator transactions on
// Bigtable. See percctl --help.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/benchcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checkcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/configcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/consolecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/demo"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/doctorcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/lockcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/movecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/notifycmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/observercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/repaircmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/soak"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tablecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/telemetry"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/topcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/topics"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/txncmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/workercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/writecmd"
)

func main() {
	os.Exit(execute())
}

func execute() int {
	s := cli.System()
	stop, err := telemetry.Start(context.Background(), s.Err)
	if err != nil {
		fmt.Fprintf(s.Err, "percctl: %v\n", err)
		return cli.ExitUsage
	}
	defer stop()
	return cli.Main(os.Args[1:], s, commands()...)
}

// commands are all there are, and the help topics.
func commands() []cli.Command {
	all := []cli.Command{
		benchcmd.NewCmd, checkcmd.NewCmd, configcmd.NewCmd, consolecmd.NewCmd, demo.NewCmd, doctorcmd.NewCmd, gccmd.NewCmd, lockcmd.NewCmd, notifycmd.NewCmd, observercmd.NewCmd, repaircmd.NewCmd, soak.NewCmd, tablecmd.NewCmd, topcmd.NewCmd, tsocmd.NewCommand, txncmd.NewCmd, workercmd.NewCmd,
		readcmd.NewGetCmd, readcmd.NewHistoryCmd, readcmd.NewScanCmd,
		writecmd.NewSetCmd, writecmd.NewDeleteCmd,
		movecmd.NewExportCmd, movecmd.NewImportCmd,
	}
	return append(all, topics.All()...)
}
