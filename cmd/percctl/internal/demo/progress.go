package demo

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// progress reports what happens: on a terminal in one line that it overwrites,
// elsewhere in a line per second.
type progress struct {
	w        io.Writer
	terminal bool
	began    time.Time

	mu   sync.Mutex
	line string // on the terminal now
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, terminal: cli.IsTerminal(w), began: time.Now()}
}

func (p *progress) interval() time.Duration {
	if p.terminal {
		return 100 * time.Millisecond
	}
	return time.Second
}

// show reports how far the fleet is.
func (p *progress) show(f *fleet) {
	loaded := min(f.loaded.Load(), int64(f.documents))
	total := f.totals().Worker
	line := fmt.Sprintf("%d of %d documents, %d runs of observers, %.0f/s, %d conflicts, %d of %d kills",
		loaded, f.documents, total.Committed, float64(total.Committed)/time.Since(p.began).Seconds(), total.Conflicts, f.plan.next, f.opts.kills)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	if width := cli.Width(p.w); len(line) >= width {
		line = line[:width-1]
	}
	p.line = line
	fmt.Fprintf(p.w, "\r\x1b[K%s", line)
}

// event reports something that happened, in a line of its own.
func (p *progress) event(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	fmt.Fprintf(p.w, format+"\n", args...)
	fmt.Fprint(p.w, p.line)
}

// end removes the line.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.line = ""
}
