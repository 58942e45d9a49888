package tablecmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checks"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
)

type verifyOptions struct {
	session.Options
	names []string
	all   bool
}

func newVerifyCmd(s *cli.Streams) *cobra.Command {
	o := &verifyOptions{}
	cmd := &cobra.Command{
		Use:   "verify TABLE… | --all",
		Short: "Check the families, policies and schema records of tables",
		Long: `Check that tables are as transactions need them: a schema record, the metadata
families, no garbage-collection policies, no unfinished adoption. The command reads
no rows and changes nothing. percctl check reads rows, and percctl doctor checks the
whole deployment.

Exit status 4: there are errors or warnings.`,
		Example: `  percctl table verify --all
  percctl table verify accounts -o json`,
		Args: cli.AnyArgs(func(args []string) error {
			o.names = args
			if o.all == (len(args) > 0) {
				return cli.Usagef("name tables or add --all, not both")
			}
			return nil
		}),
		RunE: o.Runs(session.Bare, o.run),
	}
	o.Setup(cmd, s, 5*time.Minute, cli.ObjectOf[checks.Report]())
	cmd.Flags().BoolVar(&o.all, "all", false, "all transactional tables of the deployment")
	cmd.ValidArgsFunction = o.CompleteTables(0)
	return cmd
}

func (o *verifyOptions) run(ctx context.Context, s *session.Session) error {
	d, end, err := checks.Deployment(ctx, s, 0)
	if err != nil {
		return err
	}
	defer end()
	if d.Client == nil {
		return d.NoClient
	}
	if o.all {
		o.names = nil
	}
	for _, name := range o.names {
		// A table without a schema record, or a record without a table, is a finding.
		_, err := admin.Describe(ctx, d.Client, name)
		if errors.Is(err, txn.ErrNotInitialized) {
			if err := s.Exists(ctx, name); err != nil {
				return err
			}
		}
	}
	if err := checks.Run(ctx, &o.Options, s, d, doctor.Tables(), o.names); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Streams.Err, "no errors and no warnings in %s\n", cli.Count(len(d.Tables), "table"))
	return err
}
