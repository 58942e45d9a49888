// Package gccmd is percctl gc: garbage collection of old versions.
package gccmd

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// NewCmd returns the gc command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("gc", "Remove old versions: garbage collection",
		`Remove versions that no reader can see any more: garbage collection.

Every commit leaves the version before it in place, so that older snapshots can
read it. Old versions take space and slow reads of rows that change often.
Bigtable's own garbage collection cannot distinguish them from live versions, and
has to stay off. These commands remove them.

A collection moves the safe point: reads at a timestamp below it fail. Therefore,
choose a retention longer than your longest read. Open transactions and snapshots
with a hold (txn.Hold) keep the safe point below their timestamps.
docs/gc.md explains what readers have to know.`,
		newPlanCmd(s), newRunCmd(s), newStatusCmd(s))
}

// gcFlags are those of plan and run.
type gcFlags struct {
	retention time.Duration
	rate      float64
	plain     bool
}

func (f *gcFlags) add(cmd *cobra.Command, checks *cli.Checks) {
	cmd.Flags().DurationVar(&f.retention, "retention", gc.DefaultRetention, "how far back reads stay possible")
	cli.AtLeast(checks, "retention", &f.retention, gc.MinRetention(), gc.MinRetention().String()+" or more")
	cmd.Flags().Float64Var(&f.rate, "rate", 0, "maximum rows that all collectors of a run read per second (0: no limit)")
	cli.AtLeast(checks, "rate", &f.rate, 0, "positive, or 0 for no limit")
	cmd.Flags().BoolVar(&f.plain, "plain", false, "also remove data written without transactions, where a committed version hides it")
}

func (f *gcFlags) config() gc.Config {
	return gc.Config{Retention: f.retention, Rate: f.rate, Plain: f.plain}
}
