package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mostSuggestions bounds how many names DidYouMean proposes.
const mostSuggestions = 3

// DidYouMean is the end of a message about a name that does not exist: ", did you mean …?"
// with the names that are like it, or empty. Cobra compares them, as it compares commands.
func DidYouMean(typed string, names ...string) string {
	all := &cobra.Command{SuggestionsMinimumDistance: min(2, len(strings.TrimLeft(typed, "-"))-1)}
	for _, name := range names {
		all.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	like := all.SuggestionsFor(typed)
	if len(like) == 0 || typed == "" {
		return ""
	}
	return ", did you mean " + strings.Join(like[:min(len(like), mostSuggestions)], " or ") + "?"
}

// unknownCommand is the error of a command that a group does not have.
func unknownCommand(group *cobra.Command, typed string) error {
	var names []string
	for _, c := range group.Commands() {
		if c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand() {
			names = append(names, c.Name())
		}
	}
	return Usagef("unknown command %q%s", typed, DidYouMean(typed, names...))
}

// unknownFlag adds to the error of a flag which flags the command has that are like it.
func unknownFlag(cmd *cobra.Command, err error) error {
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return unknownCommand(cmd, cmd.Flags().Arg(0)) // the flag may be one of the command that was meant
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return &Error{ExitUsage, err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	typed := "--" + unknown.GetSpecifiedName()
	return Usagef("unknown flag %s%s", typed, DidYouMean(typed, names...))
}

// checkTopics makes percctl help fail for what it has no help on.
func checkTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		return
	}
	help.Args = func(_ *cobra.Command, args []string) error {
		at := root
		for _, arg := range args {
			next, _, err := at.Find([]string{arg})
			if err != nil || next == at {
				return unknownCommand(at, arg)
			}
			at = next
		}
		return nil
	}
}
