// Package observercmd is percctl observer: which columns are observed, by whom,
// and how far behind they are.
package observercmd

import (
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// NewCmd returns the observer command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("observer", "Show observers and their backlogs; register and remove them",
		`Show observers and their backlogs; register and remove them.

The registry says which columns are observed: commits of every client leave
notifications there. A worker registers its observers itself when it starts.`,
		newListCmd(s), newAddCmd(s), newRemoveCmd(s))
}
