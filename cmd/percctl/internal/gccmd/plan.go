package gccmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

type planOptions struct {
	session.Options
	gc gcFlags
}

func newPlanCmd(s *cli.Streams) *cobra.Command {
	o := &planOptions{}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what a collection would remove now",
		Long: `Read every transactional table, and show for each what a collection would remove
now, and which clients hold the safe point back. The command changes nothing and
does not wait for locks.

The columns of its table:

  VERSIONS  write records, those of deletes included
  DELETES   deletes that were the newest version of their column
  MARKS     rollback markers and lock-only commits
  DATA      data cells of transactions
  PLAIN     data cells written without transactions (--plain)
  CELLS     all of these
  SKIPPED   rows that cannot be judged; percctl check says why`,
		Example: `  percctl gc plan --retention 72h
  percctl gc plan -o json`,
		Args: cli.NoArgs,
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[report]())
	o.gc.add(cmd, &o.Checks)
	return cmd
}

func (o *planOptions) run(ctx context.Context, s *session.Session) error {
	r, err := plan(ctx, s, &o.Flags, o.gc.config())
	if err != nil {
		return err
	}
	return o.Print(r, r.text)
}

// plan counts what a collection would reclaim.
func plan(ctx context.Context, s *session.Session, flags *session.Flags, cfg gc.Config) (*report, error) {
	if _, err := s.AllTables(ctx); err != nil {
		return nil, err
	}
	cfg.Progress = progress(ctx, s)
	r, err := gc.Plan(ctx, s.Client(), cfg)
	s.Progress.End()
	if err != nil {
		return nil, err
	}
	return newReport(flags, r, nil), nil
}
