package emulator_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

var (
	combinations    = flag.Int("combinations", 0, "how many histories TestCombinations makes; 0: the same 40 each time, with -short 8 of them")
	combinationSeed = flag.Uint64("combination-seed", 0, "seed of the first of them; 0: by chance")
)

// sessionFeatures are what one session of a client uses: a transaction, and reads beside it.
var sessionFeatures = []string{
	"Get", "ReadRow", "ReadRows", "many.Get", "page", "Latest", "Snapshot", "index read",
	"Columns", "Families", "Qualifiers", "KeysOnly", "CellsPerRow", "Limit", "Reverse",
	"GetForUpdate", "ForUpdate", "Serializable", "Observe", "Lock", "Delete", "DeleteRow", "indexed write", "many rows",
	"idempotency", "Named",
}

// historyFeatures are what happens beside the sessions.
var historyFeatures = []string{
	"expiry", "expiry changed", "bulk prewrite", "PassLocks", "adopted", "leave",
	"collection", "collection of changes", "slow collection", "index build", "job",
}

// A pair of features, in the order of the features.
type pair [2]string

func allPairs() (pairs []pair) {
	all := slices.Concat(sessionFeatures, historyFeatures)
	for i, a := range all {
		for _, b := range all[:i] {
			pairs = append(pairs, pair{b, a})
		}
	}
	return pairs
}

// A coverage counts the sessions that had both features of a pair.
type coverage struct {
	mu    sync.Mutex
	pairs map[pair]int
}

func (c *coverage) add(features map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range allPairs() {
		if features[p[0]] && features[p[1]] {
			c.pairs[p]++
		}
	}
}

// String is a table: each line is a feature, and the columns are the features of the lines above it.
func (c *coverage) String() string {
	var b strings.Builder
	all := slices.Concat(sessionFeatures, historyFeatures)
	for i, f := range all {
		fmt.Fprintf(&b, "%2d %-21s", i, f)
		for _, other := range all[:i] {
			fmt.Fprintf(&b, " %4d", c.pairs[pair{other, f}])
		}
		b.WriteByte('\n')
	}
	b.WriteString(strings.Repeat(" ", 24))
	for i := range all {
		fmt.Fprintf(&b, " %4d", i)
	}
	return b.String()
}

// missing returns the pairs that no session had.
func (c *coverage) missing() []pair {
	return slices.DeleteFunc(allPairs(), func(p pair) bool { return c.pairs[p] > 0 })
}

// TestCombinations makes histories in which features meet, in virtual time, and compares everything
// that clients see with a model: go test ./emulator_test -run TestCombinations -combinations 2000 -v.
// Each history has to use one pair of features, and others by chance. As many histories as there are pairs
// cover all of them.
func TestCombinations(t *testing.T) {
	t.Parallel()
	seed, n := *combinationSeed, *combinations
	switch {
	case n == 0 && testing.Short():
		seed, n = 1, 8
	case n == 0:
		seed, n = 1, 40
	case seed == 0:
		seed = rand.Uint64() >> 16
	}
	counts, met := &tally{n: map[string]int{}}, &coverage{pairs: map[pair]int{}}
	pairs := allPairs()
	for i := range uint64(n) {
		target := pairs[(seed+i)%uint64(len(pairs))]
		synctest.Test(t, func(t *testing.T) { newCombination(t, seed+i, target, counts, met).run() })
		if t.Failed() {
			t.Fatalf("history %d, for %q; to repeat it: go test ./emulator_test -run TestCombinations -combinations 1 -combination-seed %d", i+1, target, seed+i)
		}
	}
	missing := met.missing()
	t.Logf("%d histories from seed %d cover %d of %d pairs of features. Sessions with both:\n%v", n, seed, len(pairs)-len(missing), len(pairs), met)
	t.Logf("%v", counts.n)
	if n >= len(pairs) && len(missing) > 0 {
		t.Errorf("%d histories cover no session with %q", n, missing)
	}
}
