package emulator_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHazards runs the interleavings of testdata/hazards, one file for each
// hazard of the design (docs/protocol.md lists them). Each file says at its
// top which protection closes the hazard, and what its output becomes when
// that protection is taken out of the code.
func TestHazards(t *testing.T) {
	files, err := os.ReadDir("testdata/hazards")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Run(f.Name(), func(t *testing.T) {
			runScript(t, filepath.Join("testdata/hazards", f.Name()))
		})
	}
}
