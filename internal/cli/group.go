package cli

import "github.com/spf13/cobra"

// Group makes a command that only holds others: without one it prints help.
func Group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		Args:  cobra.ArbitraryArgs, // so that RunE words the error
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return Usagef("unknown command %q; run %s --help for the list of commands", args[0], cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(commands...)
	return cmd
}

// ExactArgs is for commands that take certain arguments; names is how the usage
// writes them.
func ExactArgs(n int, names string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return Usagef("%s; it takes %s", Count(len(args), "argument"), names)
		}
		return nil
	}
}
