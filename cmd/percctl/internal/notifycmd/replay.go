package notifycmd

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// lettersOptions are those of replay and drop.
type lettersOptions struct {
	session.Options
	chosen choice
	all    bool
}

func (o *lettersOptions) add(cmd *cobra.Command, s *cli.Streams, timeout time.Duration, observer string) {
	o.Setup(cmd, s, timeout, cli.ObjectOf[lettersResult](), cli.ObjectOf[lettersPlan]().If("with `--dry-run`"))
	observerFlag(cmd, &o.Flags, &o.chosen.observer, observer)
	o.Consent.Add(cmd)
}

func newReplayCmd(s *cli.Streams) *cobra.Command {
	o := &lettersOptions{}
	cmd := &cobra.Command{
		Use:   "replay CELL… | --observer ID | --all",
		Short: "Run the observers of dead letters again",
		Long: `Notify the cells of dead letters again, forget the failures, and remove the dead
letters. The observers run for the newest state of the cells, as for any change. An
observer that has acknowledged the change meanwhile does not run. A change that
fails too often again becomes a dead letter again.

` + cli.AsksFirst + `

To replay a dead letter twice is harmless: after an interrupt, run the command
again.`,
		Example: `  percctl notify replay --observer parser --dry-run
  percctl notify replay documents/d7/contents:raw --yes`,
		Args: cli.AnyArgs(cellArgs(&o.chosen.cells)),
		RunE: o.Runs(session.Changes, o.apply("replay", "replayed", changes.Replay)),
	}
	o.add(cmd, s, session.WalkTimeout, "only dead letters of this observer")
	cmd.Flags().BoolVar(&o.all, "all", false, "all dead letters")
	o.Require(func() error {
		switch named := len(o.chosen.cells) > 0 || o.chosen.observer != ""; {
		case o.all && named:
			return cli.Usagef("--all does not go with cells or --observer")
		case !o.all && !named:
			return cli.Usagef("no dead letter chosen: name cells, or add --observer or --all")
		}
		return nil
	})
	return cmd
}

func newDropCmd(s *cli.Streams) *cobra.Command {
	o := &lettersOptions{}
	cmd := &cobra.Command{
		Use:   "drop CELL --observer ID",
		Short: "Delete a dead letter",
		Long: `Delete the dead letter of an observer. The observer does not run for that change. When
the cell changes again, the observer runs for the newest state, as usual.

` + cli.AsksFirst + `

Exit status 3: the cell has no dead letter of the observer.`,
		Example: `  percctl notify drop documents/d7/contents:raw --observer parser`,
		Args:    cli.ExactArgs(1, "one, CELL", cellArgs(&o.chosen.cells)),
		RunE:    o.Runs(session.Changes, o.apply("drop", "dropped", changes.Drop)),
	}
	o.add(cmd, s, session.PointTimeout, "id of the observer; required")
	o.Require(required(&o.chosen.observer))
	return cmd
}
