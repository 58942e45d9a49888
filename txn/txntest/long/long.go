// Package long lets tests say themselves that they take long, and why. They are left out of
// plain go test ./..., or of the race suites. .ci/nightly runs every test.
package long

import (
	"os"
	"testing"
)

// Variable runs everything if it is 1. It is a variable of the environment, because a flag would
// have to be known to all test binaries.
const Variable = "PERCOLATOR_TEST_LONG"

// All says whether tests that take long run, and in full.
func All() bool { return os.Getenv(Variable) == "1" }

// Reduced says whether a test tries some of its cases only: in a plain go test, and with -short.
func Reduced() bool { return testing.Short() || !All() }

// Test skips a test unless [All] run. why says what takes long.
func Test(t testing.TB, why string) {
	t.Helper()
	if !All() {
		t.Skipf("it takes long (%s), and runs with %s=1", why, Variable)
	}
}

// NotUnderRace leaves a test out of the race suites, which run with -short, because others reach
// its code. why says what makes it slow or useless with the race detector.
func NotUnderRace(t testing.TB, why string) {
	t.Helper()
	if race && testing.Short() {
		t.Skipf("not with -race and -short: %s", why)
	}
}

// RacedAtNight leaves a test out of the gate's race suites, because it takes long with the race
// detector. The night runs it there.
func RacedAtNight(t testing.TB) {
	t.Helper()
	if race && testing.Short() && !All() {
		t.Skipf("with -race and -short, it takes long, and runs with %s=1", Variable)
	}
}

// Judged says that a checker of histories judges the test, so a failure is never luck. The gate
// runs other tests that fail again.
func Judged(t testing.TB) { t.Attr("verdict", "history") }
