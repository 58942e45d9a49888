package topcmd

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/observercmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
)

const hostile = "a\x1b[31m\t\x07\u202e\nb"

func hostilePicture() *picture.Picture {
	p := &picture.Picture{Project: hostile, Oracle: &tsocmd.Report{Row: &tsocmd.RowReport{Mode: hostile}}, GC: &gccmd.Status{}, Warnings: []string{hostile}, NotVisible: []string{"much"}}
	p.Observers = []observercmd.Observer{{Column: hostile, Observer: hostile}}
	p.Locks.Listed = []*inspect.Transaction{{Primary: hostile, Verdict: strings.Repeat("é", 300)}}
	return p
}

// TestHostileFrame: nothing stored steers the terminal, and no line is wider
// than it.
func TestHostileFrame(t *testing.T) {
	for _, width := range []int{0, 1, 20, 200} {
		for _, line := range (frame{picture: hostilePicture(), width: width}).lines() {
			if strings.ContainsAny(line, "\x1b\t\x07\u202e\n") {
				t.Errorf("%q", line)
			}
			if width > 0 && utf8.RuneCountInString(line) > width {
				t.Errorf("%d columns for %d: %s", utf8.RuneCountInString(line), width, line)
			}
		}
	}
}

// TestManyObservers: a frame of a large deployment has few lines, and begins with the observers that are
// late, have dead letters, or have no workers.
func TestManyObservers(t *testing.T) {
	p := &picture.Picture{Oracle: &tsocmd.Report{Row: &tsocmd.RowReport{}}, GC: &gccmd.Status{}}
	for i := range 200 {
		p.Observers = append(p.Observers, observercmd.Observer{Column: fmt.Sprintf("table-%03d/f:q", i), Observer: "o", Workers: 100})
	}
	p.Observers[150].Lag, p.Observers[151].Dead, p.Observers[152].Workers = 60, 1, 0
	lines := (frame{picture: p}).lines()
	text := strings.Join(lines, "\n")
	late, dead, none, first := strings.Index(text, "table-150"), strings.Index(text, "table-151"), strings.Index(text, "table-152"), strings.Index(text, "table-000")
	if len(lines) > 40 || late < 0 || late > dead || dead > none || none > first || !strings.Contains(text, "… and 180 observers more") {
		t.Errorf("%d lines:\n%s", len(lines), text)
	}
	if p.Observers[0].Column != "table-000/f:q" {
		t.Error("the picture itself has another order now")
	}
}

// TestScreen: a frame is not higher than the terminal, stays where a frame
// fails, and the terminal is given back as it was.
func TestScreen(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(cli.Safe(&out), time.Second)
	p := hostilePicture()
	for range 50 {
		p.Warnings = append(p.Warnings, "more")
	}
	if err := s.show(p, nil); err != nil {
		t.Fatal(err)
	}
	shown := out.String()
	if n := strings.Count(shown, "\n") + 1; n != 24 || !strings.Contains(shown, "lines more") {
		t.Errorf("%d lines:\n%q", n, shown)
	}
	out.Reset()
	if err := s.show(nil, errors.New("no \x1b[5manswer")); err != nil {
		t.Fatal(err)
	}
	if shown := out.String(); !strings.Contains(shown, `no new frame: no \x1b[5manswer`) || !strings.Contains(shown, "oldest lock") {
		t.Errorf("%q", shown)
	}
	out.Reset()
	s.close()
	if out.String() != closeScreen {
		t.Errorf("%q", out.String())
	}
}
