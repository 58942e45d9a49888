// Command percctl is the operator's tool for Percolator transactions on
// Bigtable. See percctl --help.
package main

import (
	"os"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/demo"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tablecmd"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.System(), demo.NewCmd, tablecmd.NewCmd))
}
