package combination

import (
	"fmt"
	"math/bits"
	"strings"
)

// A Coverage counts sessions by the features that met in them.
type Coverage struct {
	pairs   [64][64]int
	triples [64][64]Set
}

// Add adds a session.
func (c *Coverage) Add(used Set) {
	for a := range used.each {
		for b := range used.each {
			c.pairs[a][b]++
			c.triples[a][b] |= used
		}
	}
}

func (s Set) each(yield func(int) bool) {
	for ; s != 0; s &= s - 1 {
		if !yield(bits.TrailingZeros64(uint64(s))) {
			return
		}
	}
}

// AddHistory adds the sessions of a history as they were drawn.
func (c *Coverage) AddHistory(h *History) {
	for p, clients := range h.Sessions {
		for _, sessions := range clients {
			for _, s := range sessions {
				c.Add(s.Uses | h.Acted[p])
			}
		}
	}
}

// Missing returns the pairs of features that no session had, of how many.
func (c *Coverage) Missing() (missing [][2]string, of int) {
	for _, p := range pairs {
		if c.pairs[number[p[0]]][number[p[1]]] == 0 {
			missing = append(missing, p)
		}
	}
	return missing, len(pairs)
}

// Triples returns how many triples of features a session had, of how many.
func (c *Coverage) Triples() (n, of int) {
	for a := range features {
		for b := range a {
			n += bits.OnesCount64(uint64(c.triples[a][b] & (1<<b - 1)))
			of += b
		}
	}
	return n, of
}

// String says what is covered. Each line of its table is a feature, and the columns are the features of
// the lines above it.
func (c *Coverage) String() string {
	var b strings.Builder
	missing, all := c.Missing()
	triples, allTriples := c.Triples()
	fmt.Fprintf(&b, "%d of %d pairs of features and %.2f %% of %d triples. Sessions with both:\n", all-len(missing), all, 100*float64(triples)/float64(allTriples), allTriples)
	for i, f := range features {
		fmt.Fprintf(&b, "%2d %-21s", i, f)
		for other := range i {
			fmt.Fprintf(&b, " %4d", c.pairs[i][other])
		}
		b.WriteByte('\n')
	}
	b.WriteString(strings.Repeat(" ", 24))
	for i := range len(features) - 1 {
		fmt.Fprintf(&b, " %4d", i)
	}
	return b.String()
}
