package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// AsksFirst is what the help of commands that call Confirm says.
const AsksFirst = `The command prints its plan and asks for confirmation. Without a terminal, it
needs --yes; --dry-run prints only the plan.`

// Consent is how a command that changes something comes by a yes: by --yes, by
// asking, or, with --dry-run, not at all.
type Consent struct{ Yes, DryRun bool }

// Add adds the flags to a command.
func (c *Consent) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.Yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&c.DryRun, "dry-run", false, "show the plan and change nothing")
}

// Ask shows a plan and reports whether to carry it out. With --dry-run the plan is
// what the command prints, and the answer is no. Otherwise it goes to standard error,
// and the question is asked; there is none where the plan changes nothing.
func (c *Consent) Ask(ctx context.Context, s *Streams, f Format, plan any, text func(io.Writer) error, question string) (bool, error) {
	if c.DryRun {
		return false, Print(s.Out, f, plan, text)
	}
	if err := text(s.Err); err != nil {
		return false, err
	}
	if question == "" {
		return true, nil
	}
	err := Confirm(ctx, s, c.Yes, question)
	return err == nil, err
}

var errNoTerminal = Usagef("the command changes data, and there is no terminal to confirm at: add --yes to confirm, or --dry-run to see only the plan")

// Confirm asks before data is changed: on a terminal the person at it, who has
// to type yes; elsewhere it fails and names --yes and --dry-run. The plan has
// to be on standard error already.
func Confirm(ctx context.Context, s *Streams, yes bool, question string) error {
	if yes {
		return nil
	}
	in, ok := s.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return errNoTerminal
	}
	ask := s.Err
	if !IsTerminal(ask) {
		ask = in // it is the terminal, and nobody may be reading standard error
	}
	if _, err := fmt.Fprintf(Safe(ask), "%s Type yes to confirm: ", question); err != nil {
		return errNoTerminal
	}
	answered := make(chan string, 1)
	go func() { // a read from a terminal cannot be interrupted
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			line = ""
		}
		answered <- line
	}()
	select {
	case line := <-answered:
		if strings.TrimSpace(strings.ToLower(line)) == "yes" {
			return nil
		}
		return errors.New("not confirmed: nothing was changed")
	case <-ctx.Done():
		fmt.Fprintln(ask)
		return fmt.Errorf("nothing was changed: %w", ctx.Err())
	}
}
