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
	histories   = flag.Int("histories", 0, "how many histories TestRandomHistories makes; 0: the same 60 each time, or the first 3 of them if they are reduced")
	historySeed = flag.Uint64("history-seed", 0, "seed of the first of them; 0: by chance")
)

// TestRandomHistories makes histories in which features meet, in virtual time, and compares everything
// that clients see with a model: go test ./emulator_test -run TestRandomHistories -histories 2000 -v.
// Package combination draws the features, and computes how many histories cover all pairs and triples.
func TestRandomHistories(t *testing.T) {
	long.Judged(t)
	long.NotUnderRace(t, "TestSimulation and TestMetamorphic have such histories")
	t.Parallel()
	seed, n := *historySeed, *histories
	switch {
	case n == 0 && long.Reduced():
		seed, n = 1, 3
	case n == 0:
		seed, n = 1, 60
	case seed == 0:
		seed = rand.Uint64() >> 16
	}
	counts, met := &tally{n: map[string]int{}}, &combination.Coverage{}
	for i := range uint64(n) {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("history %d; to repeat it: go test ./emulator_test -run TestRandomHistories -histories 1 -history-seed %d", i+1, seed+i)
				}
			}()
			newRandomHistory(t, seed+i, combination.Draw(seed+i), counts, met).run()
		})
	}
	t.Logf("%d histories from seed %d have covered %v", n, seed, met)
	t.Logf("%v", counts.n)
	for _, what := range []string{
		"commits", "conflicts", "unique keys", "jobs", "index builds", "longer expiries", "leave", "observed by a worker",
		"collection", "versions collected", "lost", "doubled", "deaths", "collectors died", "commits given up",
		"settled as committed", "settled as rolled back", "unknown outcomes: committed", "unknown outcomes: not committed", "resolved",
		"late: prewrite", "late: commit", "late: secondaries", "late: roll forward", "late: roll back", "late: roll back cell",
	} {
		if n >= 1000 && counts.n[what] == 0 {
			t.Errorf("no history had %q", what)
		}
	}
	if missing, all := met.Missing(); n >= all && len(missing) > 0 {
		t.Errorf("%d histories cover no session with %q", n, missing)
	}
}
