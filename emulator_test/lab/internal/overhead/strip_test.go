package overhead

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// What is left without telemetry compiles, and little of it is left.
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
		t.Errorf("%d functions emptied and %d looks at the clock removed; there were more", emptied, clocks)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "./txn", "./tso/...", "./notify")
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("it does not compile: %v\n%s", err, out)
	}
}
