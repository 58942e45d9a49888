package index_test

import (
	"io"
	"os"
	"testing"
	"testing/synctest"
)

// TestExample runs the example in virtual time: Create waits for a minute.
func TestExample(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	synctest.Test(t, func(*testing.T) { Example() })
	os.Stdout = stdout
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if want := "<nil>\nthe address is taken by bob\nbob true <nil>\norder 7 <nil>\norders: 1 a second page: false <nil>\n"; string(got) != want {
		t.Errorf("the example printed %q, want %q", got, want)
	}
}
