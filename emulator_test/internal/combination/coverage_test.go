package combination_test

import (
	"testing"

	"github.com/percolator-bigtable/percolator/emulator_test/internal/combination"
)

// How many histories run, and what they cover.
const (
	ofGoTest  = 60   // from seed 1: all pairs
	ofNightly = 3000 // all triples
)

// TestCoverage computes what histories cover, and runs none. As many as there are pairs cover all pairs,
// because each is a target. With -v it prints the table of go test's histories.
func TestCoverage(t *testing.T) {
	targets := map[[2]string]bool{}
	c := &combination.Coverage{}
	_, pairs := c.Missing()
	for seed := range uint64(pairs) {
		f := combination.Draw(seed).Target
		targets[[2]string(f[:2])] = true
	}
	if len(targets) != pairs {
		t.Errorf("%d histories have %d of %d pairs as their targets", pairs, len(targets), pairs)
	}
	for _, first := range []uint64{1, 1 << 20, 1 << 40, 12345678901} {
		c := &combination.Coverage{}
		allPairs, allTriples := 0, 0
		for i := range ofNightly {
			c.AddHistory(combination.Draw(first + uint64(i)))
			if missing, _ := c.Missing(); allPairs == 0 && len(missing) == 0 {
				allPairs = i + 1
			}
			if n, of := c.Triples(); n == of {
				allTriples = i + 1
				break
			}
			if first == 1 && i+1 == ofGoTest {
				t.Logf("The %d histories of go test draw %v", ofGoTest, c)
			}
		}
		t.Logf("From seed %d, all pairs are drawn after %d histories, and all triples after %d.", first, allPairs, allTriples)
		within := pairs
		if first == 1 {
			within = ofGoTest
		}
		if allPairs == 0 || allPairs > within || allTriples == 0 {
			t.Errorf("want all pairs after at most %d histories, and all triples after %d", within, ofNightly)
		}
	}
}
