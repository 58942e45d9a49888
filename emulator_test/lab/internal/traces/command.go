// Package traces is the command lab traces. It checks, with real processes and the
// exporters of the environment, that traces are as docs/observability.md describes them.
//
// run.go starts the processes, roles.go is what they do, check.go checks their spans and
// picture.go draws them.
package traces

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// timeout bounds the whole command.
const timeout = 2 * time.Minute

// NewCmd returns the traces command.
func NewCmd(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "traces",
		Short: "Check and draw the traces of a commit, an observer and a recovery",
		Long: `Check that traces are as docs/observability.md describes them. A writer commits, and an
observer in another process runs for the change. A client is killed in the middle of a
commit, and a reader resolves its lock. All processes send their spans over OTLP, to a
receiver in this process or, with --jaeger, to Jaeger, whose query API then returns
them.`,
		Example: `  lab traces
  lab traces --images docs/images
  lab traces --jaeger http://localhost:16686 --otlp http://localhost:4317`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return run(ctx, o, s.Out, s.Err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.jaeger, "jaeger", "", "address of Jaeger's query API (default: a receiver in this process)")
	f.StringVar(&o.otlp, "otlp", "http://localhost:4317", "with --jaeger, the address to which processes send their spans over gRPC")
	f.StringVar(&o.images, "images", "", "write pictures of the traces into this directory")
	cmd.AddCommand(newProcessCmd(s))
	return cmd
}

// newProcessCmd makes the hidden command of the processes.
func newProcessCmd(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:    "process ROLE EMULATOR",
		Short:  "A process of lab traces",
		Hidden: true,
		Args:   cli.ExactArgs(2, "its role and the emulator's address"),
		RunE:   func(cmd *cobra.Command, args []string) error { return runRole(cmd.Context(), args[0], args[1], s) },
	}
}
