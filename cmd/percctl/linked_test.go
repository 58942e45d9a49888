package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestLinked: the operator's tool does not carry what only developers need.
func TestLinked(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 100 {
		t.Fatalf("only %d packages: %s", len(packages), out)
	}
	for _, p := range packages {
		for _, unwanted := range []string{
			"github.com/cockroachdb/datadriven", "github.com/anishathalye/porcupine", "pgregory.net/rapid",
			"github.com/google/pprof", "github.com/rogpeppe/go-internal", "github.com/percolator-bigtable/percolator/emulator_test",
		} {
			if strings.HasPrefix(p, unwanted) {
				t.Errorf("percctl links %s", p)
			}
		}
	}
}
