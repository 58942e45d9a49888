package rig

import (
	"strings"
	"testing"
)

// TestReplaceMeasured: only the text between the marks changes, and a page without them
// is an error.
func TestReplaceMeasured(t *testing.T) {
	t.Parallel()
	page := "a\n<!-- measured: x -->\nold\n<!-- end -->\nb\n<!-- measured: y -->\n<!-- end -->\nc\n"
	for range 2 { // a second time changes nothing
		var err error
		if page, err = ReplaceMeasured(page, "y", "why\n"); err != nil {
			t.Fatal(err)
		}
		if page, err = ReplaceMeasured(page, "x", "\nex"); err != nil {
			t.Fatal(err)
		}
	}
	want := "a\n<!-- measured: x -->\n\nex\n\n<!-- end -->\nb\n<!-- measured: y -->\n\nwhy\n\n<!-- end -->\nc\n"
	if page != want {
		t.Errorf("%q, want %q", page, want)
	}
	for _, broken := range []string{"none", "<!-- measured: x -->\nno end"} {
		if _, err := ReplaceMeasured(broken, "x", ""); err == nil || !strings.Contains(err.Error(), "<!-- measured: x -->") {
			t.Errorf("%q: %v", broken, err)
		}
	}
}
