package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Group makes a command that only holds others: without one it prints help.
func Group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		Args:  cobra.ArbitraryArgs, // so that RunE words the error
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(commands...)
	return cmd
}

// ExactArgs is for commands that take certain arguments, which read reads; names is how
// the usage writes them.
func ExactArgs(n int, names string, read ...func(args []string) error) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return Usagef("%s; it takes %s%s", Count(len(args), "argument"), names, AsCell(cmd, args))
		}
		return first(read, args)
	}
}

// AsCell shows how to write the arguments TABLE ROW COLUMN as one CELL.
func AsCell(cmd *cobra.Command, args []string) string {
	if len(args) < 3 || !strings.Contains(cmd.Use, " CELL") || strings.Contains(args[0], "/") {
		return ""
	}
	return ": " + strings.Join(append([]string{strings.Join(args[:3], "/")}, args[3:]...), " ")
}

// AnyArgs is for commands that take any number of arguments.
func AnyArgs(read ...func(args []string) error) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error { return first(read, args) }
}

func first(read []func([]string) error, args []string) error {
	for _, r := range read {
		if err := r(args); err != nil {
			return err
		}
	}
	return nil
}

// Into keeps arguments as they are.
func Into(to ...*string) func([]string) error {
	return func(args []string) error {
		for i, p := range to {
			*p = args[i]
		}
		return nil
	}
}

// All keeps all arguments as they are.
func All(to *[]string) func([]string) error {
	return func(args []string) error { *to = args; return nil }
}

// Checks are conditions of flags. A command checks them before it does anything.
type Checks []func() error

// Check returns the first condition that does not hold.
func (c Checks) Check() error {
	for _, check := range c {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// AtLeast adds the condition that a flag is not below least; words says what it has to be.
func AtLeast[T int | float64 | time.Duration](c *Checks, flag string, v *T, least T, words string) {
	*c = append(*c, func() error {
		if !(*v >= least) { // NaN is not, either
			return Usagef("--%s %v: it has to be %s", flag, *v, words)
		}
		return nil
	})
}
