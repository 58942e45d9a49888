package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

var errNoTerminal = Usagef("it changes data, and there is no terminal to ask at: add --yes to go ahead, or --dry-run to see the plan only")

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
	if _, err := fmt.Fprintf(ask, "%s Type yes to go ahead: ", question); err != nil {
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
