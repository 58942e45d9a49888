package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTopAtTerminal: frames follow one another, without colours where nobody
// wants them, until Ctrl-C, which gives the terminal back.
func TestTopAtTerminal(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("terminal", func(t *testing.T) {
		for _, test := range []struct {
			env    string
			colour bool
		}{{"TERM=xterm", true}, {"NO_COLOR=1", false}} {
			t.Run(test.env, func(t *testing.T) {
				t.Parallel()
				tty := newTerminal(t)
				cmd := exec.Command("percctl", "top", "--interval", "100ms", "--max-requests", "1000", "--max-bytes", "1000000")
				cmd.Env = append(os.Environ(), "TERM=xterm", "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance, test.env)
				cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.screen, tty.screen, tty.screen
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				_ = tty.screen.Close()
				guard := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
				var shown strings.Builder
				typed := false
				for buf := make([]byte, 4096); ; {
					n, err := tty.typist.Read(buf)
					shown.Write(buf[:n])
					if !typed && strings.Contains(shown.String(), "locks gone/s") { // the second frame
						typed = true
						if _, err := tty.typist.WriteString("\x03"); err != nil {
							t.Error(err)
						}
					}
					if err != nil { // EIO: nobody has the terminal open any more
						break
					}
				}
				_ = cmd.Wait()
				if !guard.Stop() {
					t.Error("still there after a minute")
				}
				text := shown.String()
				if code := cmd.ProcessState.ExitCode(); !typed || code != 0 || !strings.HasPrefix(text, "\x1b[?1049h") || !strings.HasSuffix(text, "\x1b[?1049l") {
					t.Errorf("%s: exit code %d, it ends with\n%q", test.env, code, text[max(0, len(text)-3000):])
				}
				if strings.Contains(text, "\x1b[1m") != test.colour {
					t.Errorf("%s: colours are %v", test.env, !test.colour)
				}
			})
		}
	})
	if err := f.check(t.Context()); err != nil {
		t.Error(err)
	}
}
