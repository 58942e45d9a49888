package topcmd

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
)

// Control sequences of terminals (ECMA-48, xterm). Lines do not wrap on the
// screen: what is wider than it was counted is cut.
const (
	openScreen  = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	closeScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	endOfLine   = "\x1b[K"
	endOfScreen = "\x1b[J"
)

// A screen shows one frame in place of the other.
type screen struct {
	out      io.Writer
	interval time.Duration
	last     *picture.Picture
}

func newScreen(out io.Writer, interval time.Duration) *screen {
	_, _ = io.WriteString(out, cli.Control(openScreen)) // a terminal that is gone is noticed at the first frame
	return &screen{out: out, interval: interval}
}

// close gives the terminal back as it was.
func (s *screen) close() { _, _ = io.WriteString(s.out, cli.Control(closeScreen)) }

// show shows a frame, or the last one with why there is no new one.
func (s *screen) show(p *picture.Picture, err error) error {
	width, height := cli.Width(s.out), cli.Height(s.out)
	style := cli.StyleFor(s.out)
	f := frame{p, width, style}
	lines := []string{f.cut(fmt.Sprintf("percctl top, every %v; stop with Ctrl-C", s.interval), nil)}
	if err != nil {
		lines = append(lines, f.cut("no new frame: "+err.Error(), style.Bad))
		f.picture = s.last
	}
	if f.picture != nil {
		lines = append(lines, f.lines()...)
	}
	s.last = f.picture
	if len(lines) > height {
		lines = append(lines[:max(height-1, 0)], f.cut(fmt.Sprintf("… %s more: use a taller terminal, or --once", cli.Count(len(lines)-height+1, "line")), nil))
	}
	var b strings.Builder
	b.WriteString(cli.Control(home))
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(line + cli.Control(endOfLine))
	}
	b.WriteString(cli.Control(endOfScreen))
	_, werr := io.WriteString(s.out, b.String())
	return werr
}
