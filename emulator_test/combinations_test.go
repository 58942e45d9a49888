package emulator_test

import (
	"flag"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/emulator_test/internal/combination"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

var (
	combinations    = flag.Int("combinations", 0, "how many histories TestCombinations makes; 0: the same 40 each time, or the first 3 of them if they are reduced")
	combinationSeed = flag.Uint64("combination-seed", 0, "seed of the first of them; 0: by chance")
)

// TestCombinations makes histories in which features meet, in virtual time, and compares everything
// that clients see with a model: go test ./emulator_test -run TestCombinations -combinations 2000 -v.
// Package combination draws the features, and computes how many histories cover all pairs and triples.
func TestCombinations(t *testing.T) {
	long.Judged(t)
	long.NotUnderRace(t, "such histories are those of TestSimulation and TestMetamorphic")
	t.Parallel()
	seed, n := *combinationSeed, *combinations
	switch {
	case n == 0 && long.Reduced():
		seed, n = 1, 3
	case n == 0:
		seed, n = 1, 40
	case seed == 0:
		seed = rand.Uint64() >> 16
	}
	counts, met := &tally{n: map[string]int{}}, &combination.Coverage{}
	for i := range uint64(n) {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("history %d; to repeat it: go test ./emulator_test -run TestCombinations -combinations 1 -combination-seed %d", i+1, seed+i)
				}
			}()
			newCombination(t, seed+i, combination.Draw(seed+i), counts, met).run()
		})
	}
	t.Logf("%d histories from seed %d have covered %v", n, seed, met)
	t.Logf("%v", counts.n)
	if missing, all := met.Missing(); n >= all && len(missing) > 0 {
		t.Errorf("%d histories cover no session with %q", n, missing)
	}
}
