package session

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
)

// Defaults of --timeout: a few cells should not take long; a walk over tables may
// take as long as it takes.
const (
	PointTimeout = time.Minute
	WalkTimeout  = 0
)

// Options are what the commands on tables have in common; the options of a command
// embed them.
type Options struct {
	Flags
	Streams *cli.Streams
	Format  cli.Format
	Consent cli.Consent // of commands that call Consent.Add
	Checks  cli.Checks  // of the flags
	Config  txn.Config  // of the client
}

// Setup adds the flags to a command and records what it prints; timeout is the
// default of --timeout. A command that prints a list with columns of CSV has the
// formats of lists, one that prints anything else those of objects, and one that
// prints nothing has no --output.
func (o *Options) Setup(cmd *cobra.Command, s *cli.Streams, timeout time.Duration, prints ...cli.Output) {
	o.Streams = s
	o.Add(cmd, timeout)
	cli.AtLeast(&o.Checks, "timeout", &o.Timeout, 0, "positive, or 0 for no limit")
	if strings.Contains(cmd.Use, " CELL") || strings.Contains(cmd.Use, " PRIMARY") {
		cmd.ValidArgsFunction = o.CompleteCells
	}
	if len(prints) == 0 {
		return
	}
	formats := cli.ObjectFormats
	if slices.ContainsFunc(prints, func(p cli.Output) bool { return p.CSV != nil }) {
		formats = cli.ListFormats
	}
	cli.FormatFlag(cmd, &o.Format, formats...)
	cli.Prints(cmd, prints...)
}

// Runs is the RunE of a command: it checks the flags, connects, and runs f.
func (o *Options) Runs(mode Mode, f func(context.Context, *Session) error) func(*cobra.Command, []string) error {
	return o.RunsAlone(func(ctx context.Context) error {
		if mode == Bare {
			return o.RunBare(ctx, o.Streams, f)
		}
		return o.Run(ctx, o.Streams, mode, o.Config, f)
	})
}

// RunsAlone is the RunE of a command that connects by itself.
func (o *Options) RunsAlone(f func(context.Context) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if err := o.Checks.Check(); err != nil {
			return err
		}
		return f(cmd.Context())
	}
}

// Resumable says in the error of an interrupted command how to continue.
func Resumable(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w; run the command again to continue", err)
}

// Require adds conditions of the flags.
func (o *Options) Require(checks ...func() error) { o.Checks = append(o.Checks, checks...) }

// CompleteFlag completes the values of a flag.
func CompleteFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f) // it fails only where the flag does not exist
}

// Ask shows the plan of a command that changes data, and reports whether to carry it
// out: see cli.Consent.
func (o *Options) Ask(ctx context.Context, plan any, text func(io.Writer) error, question string) (bool, error) {
	return o.Consent.Ask(ctx, o.Streams, o.Format, plan, text, question)
}

// Print prints the one thing that a command prints.
func (o *Options) Print(v any, text func(io.Writer) error) error {
	return cli.Print(o.Streams.Out, o.Format, v, text)
}
