// Package gccmd is percctl gc: garbage collection of old versions.
package gccmd

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
)

// statusTimeout is the default of gc status, which looks at two rows.
const statusTimeout = time.Minute

// NewCmd returns the gc command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("gc", "Collect the garbage of old versions",
		`Collect the garbage of old versions.

Every commit leaves the versions before it, which nobody reads any more once they
are older than the retention: they take space, and make reads of hot rows slow.
Bigtable's own garbage collection cannot tell them from live ones and has to stay
off; this is what removes them. It moves the safe point, below which reads fail,
so a retention has to be longer than the longest read or transaction, but for
those that hold it back (txn.Hold, and every open transaction).`,
		newPlanCmd(s), newRunCmd(s), newStatusCmd(s))
}

// gcFlags are those of plan and run.
type gcFlags struct {
	retention time.Duration
	rate      float64
	plain     bool
}

func (f *gcFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.retention, "retention", txn.DefaultRetention, "how far back reads stay possible")
	cmd.Flags().Float64Var(&f.rate, "rate", 0, "read at most this many rows a second (0: no bound)")
	cmd.Flags().BoolVar(&f.plain, "plain", false, "also remove plain data that committed versions hide")
}

func (f *gcFlags) config() txn.GCConfig {
	return txn.GCConfig{Retention: f.retention, Rate: f.rate, Plain: f.plain}
}
