// Package doctorcmd is percctl doctor: the preflight of a whole deployment.
package doctorcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checks"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
)

type options struct {
	session.Options
	rows int
}

// NewCmd returns the doctor command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a whole deployment, and say how to fix each problem",
		Long: `Check a whole deployment. For each problem the command says what it is, why it
matters, and which command fixes it. It changes nothing. It skips, and says so, what
cannot be checked on an emulator or without permission. It checks:

  connection     app profile, permissions, the oracle and its clock
  tables         schema records, families, garbage-collection policies, adoptions
  clients        clients that died and their locks, garbage collection
  observers      observers without workers, changes pending for more than 10
                 minutes, dead letters
  data           in a sample of rows: consistency, writes without transactions

It does not see all writes without transactions. In an adopted table, it misses those
from before the adoption. In a table of percctl table init, which records no time, it
misses those in columns that no transaction has written.

Exit status 4: there are errors or warnings. 1: a check failed.`,
		Example: `  percctl doctor
  percctl doctor -o json --rows 100000`,
		Args: cli.NoArgs,
		RunE: o.Runs(session.Bare, o.run),
	}
	o.Setup(cmd, s, 10*time.Minute, cli.ObjectOf[checks.Report]())
	cmd.Flags().IntVar(&o.rows, "rows", 1000, "rows of each table to check for raw writes and violations; also the maximum of locks, notifications and dead letters to read")
	cli.AtLeast(&o.Checks, "rows", &o.rows, 1, "positive")
	return cmd
}

func (o *options) run(ctx context.Context, s *session.Session) error {
	d, end, err := checks.Deployment(ctx, s, o.rows)
	if err != nil {
		return err
	}
	defer end()
	if err := checks.Run(ctx, &o.Options, s, d, doctor.All(), nil); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Streams.Err, "no errors and no warnings in %v\n", s.Where)
	return err
}
