package emulator_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// hours matches the scripts that take hours of virtual time.
var hours = regexp.MustCompile(`17b|35|37`)

// TestHazards runs the interleavings of testdata/hazards, one file for each hazard in
// docs/protocol.md. Each file says at its top which protection it tests, and what its
// output is without that protection.
func TestHazards(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir("testdata/hazards")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Run(f.Name(), func(t *testing.T) {
			if hours.MatchString(f.Name()) {
				long.NotUnderRace(t, "hours of virtual time")
			}
			runScript(t, filepath.Join("testdata/hazards", f.Name()))
		})
	}
}
