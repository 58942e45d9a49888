package overhead

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestStrip: about as many functions and reads of the clock are removed as expected, and the
// code without telemetry compiles.
func TestStrip(t *testing.T) {
	module, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	overlay, emptied, clocks, err := strip(module, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if emptied < 60 || clocks < 6 {
		t.Errorf("%d functions made empty and %d reads of the clock removed, want more", emptied, clocks)
	}
	long.Test(t, "it compiles the packages without telemetry")
	// No signature changes, so other packages compile as before.
	args := []string{"build", "-gcflags=-N -l", "-overlay", overlay}
	for _, p := range packages {
		args = append(args, "./"+p)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the code without telemetry does not compile: %v\n%s", err, out)
	}
}
