package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// A Format is how a command prints its data.
type Format string

// The formats.
const (
	Table Format = "table" // for people
	JSON  Format = "json"  // one value
	JSONL Format = "jsonl" // one JSON value a line
	YAML  Format = "yaml"
	CSV   Format = "csv" // with a line of headings
)

// ListFormats are those of commands that print a list, ObjectFormats those of
// commands that print one thing.
var (
	ListFormats   = []Format{Table, JSON, JSONL, YAML, CSV}
	ObjectFormats = []Format{Table, JSON, YAML}
)

// FormatFlag adds -o, --output to a command, and the flags that filter JSON; the first of
// the allowed formats is the default.
func FormatFlag(cmd *cobra.Command, f *Format, allowed ...Format) {
	*f = allowed[0]
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	words := strings.TrimPrefix(strings.Join(names[:len(names)-1], ", ")+" or "+names[len(names)-1], " or ")
	cmd.Flags().VarP(&formatValue{f, names}, "output", "o", "output format: "+words)
	filterFlags(cmd)
	// It fails only where the flag does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// formatValue is a pflag.Value, so that a wrong value fails like any other
// flag, with the flag's name and the value in the message.
type formatValue struct {
	format  *Format
	allowed []string
}

func (v *formatValue) String() string { return string(*v.format) }
func (v *formatValue) Type() string   { return "format" }

func (v *formatValue) Set(s string) error {
	if !slices.Contains(v.allowed, s) {
		return fmt.Errorf("it has to be one of %s", strings.Join(v.allowed, ", "))
	}
	*v.format = Format(s)
	return nil
}
