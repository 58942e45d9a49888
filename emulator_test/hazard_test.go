package emulator_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestHazards runs the interleavings of testdata/hazards, one file for each hazard in
// docs/protocol.md. Each file says at its top which protection it tests, and what its
// output is without that protection.
func TestHazards(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	t.Parallel()
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
