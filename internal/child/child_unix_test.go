//go:build unix

package child_test

import (
	"testing"
	"time"
)

// A process that is suspended answers once it is resumed.
func TestSuspend(t *testing.T) {
	t.Parallel()
	p := start(t, "echo")
	var got int
	if err := p.Ask(1, &got); err != nil {
		t.Fatal(err)
	}
	if !p.Suspend() || p.Suspend() {
		t.Error("it is suspended once")
	}
	if err := p.Send(21); err != nil {
		t.Fatal(err)
	}
	p.Resume()
	if err := p.Receive(&got); err != nil || got != 42 {
		t.Errorf("%d, %v; want 42", got, err)
	}
	p.Suspend()
	if err := p.End(time.Minute); err != nil {
		t.Errorf("a suspended process is resumed to end: %v", err)
	}
}
