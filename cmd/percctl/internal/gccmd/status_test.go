package gccmd

import (
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// TestHeldBy: only what is older than the retention holds the safe point back, and a client that
// died is marked.
func TestHeldBy(t *testing.T) {
	now := tso.FromTime(time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC))
	ago := func(d time.Duration) tso.Timestamp { return now.Add(-d) }
	g := &gc.Status{Now: now, Retention: time.Hour}
	young := gc.Hold{Owner: "young", OldestTS: ago(400 * time.Millisecond), ExpiresTS: ago(-time.Minute)}
	old := gc.Hold{Owner: "old", OldestTS: ago(2 * time.Hour), ExpiresTS: ago(-time.Minute)}
	dead := gc.Hold{Owner: "dead", OldestTS: ago(3 * time.Hour), ExpiresTS: ago(time.Minute)}
	for h, holds := range map[gc.Hold]bool{young: false, old: true, dead: true} {
		if g.HoldsBack(h) != holds {
			t.Errorf("%s: %v", h.Owner, !holds)
		}
	}
	if g.Retention = 0; g.HoldsBack(dead) { // nothing was collected yet: the default is a day
		t.Error("younger than the default retention")
	}
	var facts []string
	for _, f := range (&Status{Now: now, Holds: []gc.Hold{old, dead}}).Facts() {
		if f[0] == "held by" {
			facts = append(facts, f[1])
		}
	}
	if len(facts) != 2 || !strings.Contains(facts[0], "client old, alive: ") || !strings.Contains(facts[1], "client dead, dead for 1 min") {
		t.Errorf("%q", facts)
	}
}
