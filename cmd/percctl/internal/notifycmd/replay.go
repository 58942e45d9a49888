package notifycmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
)

type replayOptions struct {
	flags   session.Flags
	chosen  choice
	all     bool
	consent cli.Consent
	format  cli.Format
}

func newReplayCmd(s *cli.Streams) *cobra.Command {
	o := &replayOptions{}
	cmd := &cobra.Command{
		Use:   "replay CELL… | --observer ID | --all",
		Short: "Give dead letters another try",
		Long: `Give dead letters another try: notify their cells again, forget the failures, and
remove the letters. Observers run for the newest state of their cells, like for
any change; one that has acknowledged it in the meantime does not run. What fails
again becomes a dead letter again.

The plan is shown first, and it asks before it changes anything: at a terminal;
elsewhere it needs --yes. To replay a letter twice is harmless: after an interrupt
run it again.`,
		Example: `  percctl notify replay --observer parser --dry-run
  percctl notify replay documents/d7/contents:raw --yes`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.chosen.cells, err = parseCells(args); err != nil {
				return err
			}
			switch named := len(args) > 0 || o.chosen.observer != ""; {
			case o.all && named:
				return cli.Usagef("--all and cells or --observer: give one or the other")
			case !o.all && !named:
				return cli.Usagef("no dead letter: name cells or --observer, or give --all")
			}
			return o.flags.Run(cmd.Context(), s, session.Changes, txn.Config{}, o.run)
		},
	}
	o.flags.Add(cmd, walkTimeout)
	observerFlag(cmd, &o.flags, &o.chosen.observer, "only dead letters of this observer")
	cmd.Flags().BoolVar(&o.all, "all", false, "all dead letters")
	o.consent.Add(cmd)
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

func (o *replayOptions) run(ctx context.Context, s *session.Session) error {
	p, err := planLetters(ctx, s, &o.flags.Connect, o.chosen, "replay")
	if err != nil {
		return err
	}
	return p.carryOut(ctx, s, o.format, o.consent, o.chosen, "replayed", s.Client().Replay)
}

type dropOptions struct {
	flags   session.Flags
	chosen  choice
	consent cli.Consent
	format  cli.Format
}

func newDropCmd(s *cli.Streams) *cobra.Command {
	o := &dropOptions{}
	cmd := &cobra.Command{
		Use:   "drop CELL --observer ID",
		Short: "Drop a dead letter for good",
		Long: `Drop an observer's dead letter for good. Its change stays without effect until the
cell changes again: the observer runs then as ever, for the newest state.`,
		Example: `  percctl notify drop documents/d7/contents:raw --observer parser`,
		Args:    cli.ExactArgs(1, "one, CELL"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.chosen.cells, err = parseCells(args); err != nil {
				return err
			}
			if o.chosen.observer == "" {
				return cli.Usagef("no observer: name it by --observer")
			}
			return o.flags.Run(cmd.Context(), s, session.Changes, txn.Config{}, o.run)
		},
	}
	o.flags.Add(cmd, pointTimeout)
	observerFlag(cmd, &o.flags, &o.chosen.observer, "the observer that failed")
	o.consent.Add(cmd)
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

func (o *dropOptions) run(ctx context.Context, s *session.Session) error {
	p, err := planLetters(ctx, s, &o.flags.Connect, o.chosen, "drop")
	if err != nil {
		return err
	}
	return p.carryOut(ctx, s, o.format, o.consent, o.chosen, "dropped", s.Client().DropDeadLetter)
}
