package cli

import (
	"io"
	"os"

	"golang.org/x/term"

	"github.com/percolator-bigtable/percolator/txn/admin/words"
)

// Streams are where a command reads and writes: data goes to Out, progress and
// logs go to Err. Root makes both safe for terminals, see Safe.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// System returns the streams of the process.
func System() *Streams { return &Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr} }

// What a command writes goes through a safe writer: see package words.
var (
	Safe    = words.Safe
	Raw     = words.Raw
	Control = words.Control
)

// safe returns the streams with output that cannot steer a terminal.
func (s *Streams) safe() *Streams { return &Streams{In: s.In, Out: Safe(s.Out), Err: Safe(s.Err)} }

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := Raw(w).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width is the number of columns of the terminal w; 80 when it does not say.
func Width(w io.Writer) int {
	if f, ok := Raw(w).(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// Height is the number of lines of the terminal w; 24 when it does not say.
func Height(w io.Writer) int {
	if f, ok := Raw(w).(*os.File); ok {
		if _, height, err := term.GetSize(int(f.Fd())); err == nil && height > 0 {
			return height
		}
	}
	return 24
}

// A Style colours text, or does not: on anything but a terminal, and where
// NO_COLOR is set (https://no-color.org).
type Style struct{ on bool }

// StyleFor returns the style for a stream.
func StyleFor(w io.Writer) Style {
	return Style{IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// Bold is for headings.
func (s Style) Bold(text string) string { return s.wrap("1", text) }

// Good is for what is as it should be.
func (s Style) Good(text string) string { return s.wrap("32", text) }

// Bad is for what is not.
func (s Style) Bad(text string) string { return s.wrap("1;31", text) }

func (s Style) wrap(code, text string) string {
	if !s.on {
		return text
	}
	return Control("\x1b["+code+"m") + text + Control("\x1b[0m")
}
