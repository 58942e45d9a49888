// Package mutation decides in a test binary which mutant is active. The command lab
// mutate --systematic compiles it into the library, as a package that the source tree
// does not have.
package mutation

import (
	"cmp"
	"os"
	"strconv"
)

// The environment variables that the tests get.
const (
	// Active is the number of the mutant.
	Active = "PERCOLATOR_MUTANT"
	// Reached names a file with one byte for each mutant. The byte becomes 1 when the
	// mutant's code runs. The file is mapped into memory: it needs no exit handler, and
	// processes that a test starts share it.
	Reached = "PERCOLATOR_MUTANTS_REACHED"
)

var (
	active  = number()
	reached = mapped()
)

func number() int {
	n, err := strconv.Atoi(os.Getenv(Active))
	if err != nil {
		return -1
	}
	return n
}

// On reports whether mutant n is active.
func On(n int) bool {
	if reached != nil {
		reached[n] = 1
	}
	return n == active
}

// Error returns err, or nil in mutant n.
func Error(n int, err error) error {
	if On(n) {
		return nil
	}
	return err
}

type integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Plus1 returns v, or v+1 in mutant n.
func Plus1[T integer](n int, v T) T {
	if On(n) {
		return v + 1
	}
	return v
}

// Add returns a+b, or a-b in mutant n.
func Add[T integer](n int, a, b T) T {
	if On(n) {
		return a - b
	}
	return a + b
}

// Sub returns a-b, or a+b in mutant n.
func Sub[T integer](n int, a, b T) T {
	if On(n) {
		return a + b
	}
	return a - b
}

// Max returns the larger value, or the smaller one in mutant n.
func Max[T cmp.Ordered](n int, a, b T) T {
	if On(n) {
		return min(a, b)
	}
	return max(a, b)
}

// Min returns the smaller value, or the larger one in mutant n.
func Min[T cmp.Ordered](n int, a, b T) T {
	if On(n) {
		return max(a, b)
	}
	return min(a, b)
}
