// Package lockcmd is percctl lock: looking at the locks of unfinished
// transactions, and settling them.
package lockcmd

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// Defaults of --timeout: a look at one cell should not take long; a walk over
// all tables may take as long as it takes.
const (
	pointTimeout = time.Minute
	walkTimeout  = 0
)

// NewCmd returns the lock command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("lock", "Look at locks of unfinished transactions, and settle them",
		`Look at locks of unfinished transactions, and settle them.

A client that dies leaves locks. Whoever meets one settles it, as the
transaction's primary decides, so that nobody has to do so by hand; these
commands show what is there, and do it ahead of others.`,
		newListCmd(s), newShowCmd(s), newResolveCmd(s))
}
