package scale

import (
	"regexp"
	"testing"
)

// missed are the goals that the small deployment misses today. Remove a goal from the list
// when it is met.
var missed = regexp.MustCompile(`^(` +
	`)$`)

// TestScale holds the goals that a small deployment reaches.
func TestScale(t *testing.T) {
	held := 0
	for _, r := range Measure(t, Small, regexp.MustCompile("")).Rows {
		t.Logf("%s: %.3g %s (goal %.3g, met: %v) %s", r.Row, r.Measured, r.Unit, r.Goal, r.Met, r.Note)
		switch {
		case missed.MatchString(r.Row):
		case !r.Met:
			t.Errorf("%s: %.3g %s, goal %.3g; %s", r.Row, r.Measured, r.Unit, r.Goal, r.Note)
		default:
			held++
		}
	}
	if held < 12 {
		t.Errorf("only %d goals are held", held)
	}
}
