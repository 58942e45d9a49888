// Package observercmd is percctl observer: which columns are observed, by whom,
// and how far behind they are.
package observercmd

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// Defaults of --timeout.
const (
	pointTimeout = time.Minute
	walkTimeout  = 0
)

// NewCmd returns the observer command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("observer", "Look at observers and how far behind they are; register and remove them",
		`Look at observers and how far behind they are; register and remove them.

The registry says which columns are observed, so that every client's commits leave
notifications there. Workers register the observers they run by themselves.`,
		newListCmd(s), newAddCmd(s), newRemoveCmd(s))
}
