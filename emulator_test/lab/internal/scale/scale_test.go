package scale

import (
	"regexp"
	"testing"
)

// TestScale holds the goals that a small deployment reaches.
func TestScale(t *testing.T) {
	held := 0
	for _, r := range Measure(t, Small, regexp.MustCompile("")).Rows {
		t.Logf("%s: %.3g %s (goal %.3g, met: %v) %s", r.Row, r.Measured, r.Unit, r.Goal, r.Met, r.Note)
		if r.Met {
			held++
		} else {
			t.Errorf("%s: %.3g %s, goal %.3g; %s", r.Row, r.Measured, r.Unit, r.Goal, r.Note)
		}
	}
	if held < 12 {
		t.Errorf("only %d goals are held", held)
	}
}
