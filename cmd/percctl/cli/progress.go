package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressAfter is how long a command works silently, and progressEvery how
// often it reports its progress: a log should not fill.
const (
	progressAfter = time.Second
	progressEvery = 5 * time.Second
)

// A Progress reports on standard error how far a command is, once it takes
// longer than a second: on a terminal in one line that is written again and
// again, elsewhere in a line every five seconds. It is safe for concurrent use.
type Progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	next     time.Time
	shown    bool // a line is on the terminal
}

// NewProgress starts a progress.
func NewProgress(s *Streams) *Progress {
	return &Progress{w: s.Err, terminal: IsTerminal(s.Err), next: time.Now().Add(progressAfter)}
}

// Set says how far the command is.
func (p *Progress) Set(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	line := Line(fmt.Sprintf(format, args...))
	if !p.terminal {
		p.next = now.Add(progressEvery)
		fmt.Fprintln(p.w, line)
		return
	}
	p.next = now.Add(100 * time.Millisecond)
	p.shown = true
	fmt.Fprintf(p.w, "%s%s", Control("\r\x1b[K"), Shorten(line, Width(p.w)-1))
}

// Event prints a line of its own; the line of Set comes back with the next Set.
func (p *Progress) Event(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, Control("\r\x1b[K"))
		p.shown, p.next = false, time.Time{}
	}
	fmt.Fprintln(p.w, Line(fmt.Sprintf(format, args...)))
}

// End removes the line.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, Control("\r\x1b[K"))
	}
	p.shown = false
}
