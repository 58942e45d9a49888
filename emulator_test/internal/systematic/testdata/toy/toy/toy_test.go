package toy

import (
	"os"
	"testing"
)

func TestLarger(t *testing.T) {
	if Larger(1, 2) != 2 || Larger(2, 1) != 2 {
		t.Fatal("not the larger")
	}
}

func TestChecked(t *testing.T) {
	if n, _ := Checked(7); n != 7 {
		t.Fatal(n)
	}
}

func TestCount(t *testing.T) {
	if n := Count(3); n != 3 {
		t.Fatal(n)
	}
}

func TestWait(t *testing.T) {
	if Wait() != 1 {
		t.Fatal("not 1")
	}
}

// TestNow fails sometimes, with mutants and without.
func TestNow(t *testing.T) {
	Flaky()
	path := os.Getenv("TOY_FAILS")
	if path == "" {
		return
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("fails now")
	}
}
