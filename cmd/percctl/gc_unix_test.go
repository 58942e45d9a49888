//go:build unix

package main

import (
	"strings"
	"testing"
)

// An interrupt stops a run before its first removal, or between two runs.
func TestGCInterrupted(t *testing.T) {
	t.Parallel()
	f := newGCFixture(t)
	defer f.close()
	out, text, code := interruptGC(t, f, "waiting until every client knows the new safe point", nil, "gc", "run", "--yes")
	if code != 130 || !strings.Contains(text, "interrupted after 0 cells removed; the next run continues") || !strings.Contains(out, "the safe point is 17") {
		t.Errorf("exit code %d\n%s%s", code, out, text)
	}
	short := []string{shortenVariable + "=50"}
	out, text, code = interruptGC(t, f, "next run in", short, "gc", "run", "--yes", "--watch", "-o", "jsonl")
	if code != 130 || !strings.Contains(text, "interrupted between two runs") || strings.Count(out, "\n") != 1 || !strings.Contains(out, `"finished":true`) {
		t.Errorf("exit code %d\n%s%s", code, out, text)
	}
}
