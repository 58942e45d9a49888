// Package lockcmd is percctl lock: inspecting and resolving the locks of
// transactions that have not ended.
package lockcmd

import (
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// NewCmd returns the lock command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("lock", "Inspect and resolve the locks of transactions",
		`Inspect and resolve the locks of transactions.

A client that dies leaves its locks behind. The next reader or writer of such a
cell resolves the lock: it looks up the outcome of the transaction at its primary
and rolls the cell forward or back. Operators need not do anything. These commands
show the locks, and resolve them before a reader or writer has to.`,
		newListCmd(s), newShowCmd(s), newWatchCmd(s), newResolveCmd(s))
}
