package cli

import (
	"reflect"
	"slices"
	"sync"

	"github.com/spf13/cobra"
)

// An Output is one JSON value that a command prints. The reference in
// docs/reference is generated from it: the fields from the Go type, their
// descriptions from the comments in its source.
type Output struct {
	Type reflect.Type
	// List is whether the command prints a list of such values: an array with
	// -o json, one line each with -o jsonl.
	List bool
	// CSV are the columns of -o csv; nil where the command has none.
	CSV []string
	// When is the case in which the command prints this value, for commands with
	// several: "with --dry-run".
	When string
}

// ObjectOf is the output of a command that prints one T.
func ObjectOf[T any]() Output { return Output{Type: reflect.TypeFor[T]()} }

// ListOf is the output of a command that prints a list of T, with these columns
// of CSV.
func ListOf[T any](csv []string) Output {
	return Output{Type: reflect.TypeFor[T](), List: true, CSV: csv}
}

// LinesOf is the output of a command that prints values of T as lines of JSON.
func LinesOf[T any]() Output { return Output{Type: reflect.TypeFor[T](), List: true} }

// If returns the output with the case in which it is printed.
func (o Output) If(when string) Output {
	o.When = when
	return o
}

// outputs are those of all commands. Cobra has annotations for this, but they
// are text.
var outputs struct {
	sync.Mutex
	of map[*cobra.Command][]Output
}

// Prints records what a command prints as JSON.
func Prints(cmd *cobra.Command, all ...Output) {
	outputs.Lock()
	defer outputs.Unlock()
	if outputs.of == nil {
		outputs.of = map[*cobra.Command][]Output{}
	}
	outputs.of[cmd] = append(outputs.of[cmd], all...)
}

// Outputs returns what Prints recorded.
func Outputs(cmd *cobra.Command) []Output {
	outputs.Lock()
	defer outputs.Unlock()
	return slices.Clone(outputs.of[cmd])
}
