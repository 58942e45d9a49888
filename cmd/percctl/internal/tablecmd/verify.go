package tablecmd

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checks"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin"
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
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.names = args
			if o.all == (len(args) > 0) {
				return cli.Usagef("name tables or add --all, not both")
			}
			return o.RunBare(cmd.Context(), s, o.run)
		},
	}
	o.Setup(cmd, s, 5*time.Minute, cli.ObjectOf[checks.Report]())
	cmd.Flags().BoolVar(&o.all, "all", false, "all transactional tables of the deployment")
	cmd.ValidArgsFunction = o.CompleteTables(0)
	return cmd
}

func (o *verifyOptions) run(ctx context.Context, s *session.Session) error {
	env, end, err := session.NewCheckEnv(ctx, s, 0)
	if err != nil {
		return err
	}
	defer end()
	if env.Client == nil {
		return env.NoClient
	}
	if env.Tables = o.names; o.all {
		if env.Tables, err = admin.Tables(ctx, env.Client); err != nil {
			return err
		}
	}
	report := checks.NewReport(env, checks.Run(ctx, env, checks.Tables(), func(int) {}))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := report.Print(o.Streams.Out, o.Format); err != nil {
		return err
	}
	if err := report.Verdict(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Streams.Err, "no errors and no warnings in %s\n", cli.Count(len(env.Tables), "table"))
	return err
}
