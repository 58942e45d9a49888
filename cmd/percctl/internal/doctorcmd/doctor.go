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
)

type options struct {
	streams *cli.Streams
	flags   session.Flags
	rows    int
	format  cli.Format
}

// NewCmd returns the doctor command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{streams: s}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a whole deployment, and say how to mend what is found",
		Long: `Check a whole deployment: app profile, permissions, the oracle and its clock,
schema records, families and garbage-collection policies of all tables, stranded
locks, garbage collection, clients that died, observers that nobody runs or that
are behind, dead letters, writes that went past transactions, and the consistency
of a sample of rows. Of each finding it says what it is, why it matters, and the
command that mends it. It changes nothing; what cannot be checked here, on an
emulator or without permission, is skipped and says so.

Exit status 4: there are errors or warnings. 1: a check could not be made.`,
		Example: `  percctl doctor
  percctl doctor -o json --rows 100000`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.rows <= 0 {
				return cli.Usagef("--rows %d: it has to be positive", o.rows)
			}
			return o.flags.RunBare(cmd.Context(), s, o.run)
		},
	}
	o.flags.Add(cmd, 10*time.Minute)
	cmd.Flags().IntVar(&o.rows, "rows", 1000, "rows of each table to look at for raw writes and violations, and at most so many locks, notifications and dead letters")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

func (o *options) run(ctx context.Context, s *session.Session) error {
	env, end, err := session.NewCheckEnv(ctx, s, o.rows)
	if err != nil {
		return err
	}
	defer end()
	if env.Client != nil {
		if env.Tables, err = env.Client.Tables(ctx); err != nil {
			return err
		}
	}
	all := checks.All()
	results := checks.Run(ctx, env, all, func(done int) { s.Progress.Set("%d of %d checks done", done, len(all)) })
	s.Progress.End()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	report := checks.NewReport(env, results)
	if err := report.Print(o.streams.Out, o.format); err != nil {
		return err
	}
	if err := report.Verdict(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.streams.Err, "no errors and no warnings in %v\n", s.Where)
	return err
}
