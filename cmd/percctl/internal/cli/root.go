// Package cli is what the commands of percctl share: the root command, streams,
// output formats and exit codes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A Command makes a subcommand of percctl.
type Command func(*Streams) *cobra.Command

// Main runs percctl and returns its exit code. The context of the command that
// runs ends on the first interrupt; a second one ends the process at once.
func Main(args []string, s *Streams, commands ...Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := NewRoot(s, commands...)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	code := exitCode(ctx, err)
	if err != nil {
		// It may carry stored bytes, or what the user pasted.
		for i, line := range strings.Split(err.Error(), "\n") {
			if i == 0 {
				line = cmd.CommandPath() + ": " + line
			}
			fmt.Fprintln(s.Err, Line(line))
		}
	}
	if code == ExitUsage {
		fmt.Fprintf(s.Err, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return code
}

// NewRoot returns the percctl command with all others below it.
func NewRoot(s *Streams, commands ...Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "percctl",
		Short: "Percolator transactions on Bigtable: the operator's tool",
		Long: `percctl is the operator's tool for Percolator transactions on Bigtable.

To see what the transactions do, run percctl demo: it needs only Go. To try another
command without a Bigtable, add --embedded.

Commands find the Bigtable instance by --project and --instance, by environment
variables, or by ~/.cbtrc: see percctl help environment.

Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 a check found a problem
or work is left, 5 unavailable or timed out, 130 interrupted.`,
		Example: `  percctl demo                  # an index of real files, built by observers while workers are killed
  percctl demo --limit 500 -o json
  percctl doctor                # is everything in order, and if not, how to fix it?
  percctl lock list --all       # which locks are there, and what would resolving them do?
  percctl check --all           # is what is stored consistent?
  percctl history accounts bob  # what happened to a row?`,
		Args:          cobra.ArbitraryArgs, // so that RunE words the error
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return Usagef("unknown command %q; run percctl --help for the list of commands", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	addVersionFlag(root)
	root.AddCommand(newVersionCmd(s))
	for _, c := range commands {
		root.AddCommand(c(s))
	}
	return root
}

// NoArgs is for commands that take flags only.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("unexpected argument %q: the command takes only flags", args[0])
	}
	return nil
}

// flagError words the error of a flag: its name, the value and what is allowed.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return &Error{ExitUsage, err}
	}
	f := invalid.GetFlag()
	var allowed string
	switch f.Value.Type() {
	case "int":
		allowed = "it has to be a whole number"
	case "uint64":
		allowed = "it has to be a whole number, 0 or more"
	case "duration":
		allowed = "it has to be a duration such as 90s or 5m"
	default:
		allowed = invalid.Unwrap().Error()
	}
	return Usagef("--%s %s: %s", f.Name, invalid.GetValue(), allowed)
}
