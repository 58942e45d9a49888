package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// terminal is a pseudo-terminal: what is written to it is typed, and what is
// read from it is shown.
type terminal struct{ typist, screen *os.File }

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	typist, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = typist.Close() })
	var unlock, number int32
	for request, arg := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlock, syscall.TIOCGPTN: &number} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, typist.Fd(), request, uintptr(unsafe.Pointer(arg))); errno != 0 {
			t.Fatal(errno)
		}
	}
	screen, err := os.OpenFile("/dev/pts/"+strconv.Itoa(int(number)), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	return &terminal{typist, screen}
}

// TestPrompts answers the questions of commands at a terminal. Ctrl-C ends each
// of them at once, without Enter.
func TestPrompts(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	resolve := []string{"lock", "resolve", "--all"}
	served, direct := []string{"tso", "mode", "served"}, []string{"tso", "mode", "direct"}
	for _, test := range []struct {
		args  []string
		types string
		code  int
		says  string
	}{
		{resolve, "\x03", 130, "nothing was changed"},
		{served, "\x03", 130, "nothing was changed"},
		{resolve, "no\n", 1, "nothing was changed"},
		{served, "\n", 1, "nothing was changed"},
		{served, "\x04", 1, "nothing was changed"}, // end of input
		{served, "yes\n", 0, "changed"},
		{direct, "\x03", 130, "nothing was changed"},
		{direct, "YES\n", 0, "changed"},
		{resolve, "yes\n", 4, ""}, // some are left: their owner is alive
	} {
		tty := newTerminal(t)
		cmd := exec.Command("percctl", test.args...)
		cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.screen, tty.screen, tty.screen
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = tty.screen.Close() // the process has its own: reading ends with it
		guard := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		var shown strings.Builder
		asked := false
		for buf := make([]byte, 4096); ; {
			n, err := tty.typist.Read(buf)
			shown.Write(buf[:n])
			if !asked && strings.Contains(shown.String(), "Type yes to confirm: ") {
				asked = true
				if _, err := tty.typist.WriteString(test.types); err != nil {
					t.Error(err)
				}
			}
			if err != nil { // EIO: nobody has the terminal open any more
				break
			}
		}
		_ = cmd.Wait()
		if !guard.Stop() {
			t.Errorf("%q: still there after a minute", test.args)
		}
		if code := cmd.ProcessState.ExitCode(); !asked || code != test.code || !strings.Contains(shown.String(), test.says) {
			t.Errorf("%q, typed %q: exit code %d, want %d\n%s", test.args, test.types, code, test.code, shown.String())
		}
	}
	if err := f.check(t.Context()); err != nil {
		t.Error(err)
	}
}
