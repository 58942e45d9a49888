// Package txncmd is percctl txn: what happened to a transaction.
package txncmd

import (
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// NewCmd returns the txn command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("txn", "Find out the outcome of a transaction",
		`Find out the outcome of a transaction. Two arguments name it: its primary cell and
its start timestamp, as logs, errors and percctl lock list print them.`,
		newStatusCmd(s), newExplainCmd(s))
}

const transactionArgs = "two, PRIMARY and START_TS"
