package picture

import (
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/txn"
)

// at is a picture of a moment, in seconds, with a leader that has counted.
func at(second int, server string, uptime float64, timestamps uint64, locks ...string) *Picture {
	p := &Picture{taken: time.Unix(int64(second), 0), Oracle: &tsocmd.Report{Servers: []tsocmd.ServerReport{{Error: "gone"}, {Server: server, Leading: true, Uptime: uptime, Timestamps: timestamps}}}, locks: map[lockID]bool{}}
	for _, l := range locks {
		p.locks[lockID{txn.Cell{Row: l}, 1}] = true
	}
	return p
}

// TestSince: rates are per second, and unknown where a counter began anew, where
// another server leads, and beyond the limits.
func TestSince(t *testing.T) {
	known := func(p *Picture, name string, v *float64, want float64) {
		t.Helper()
		if v == nil || *v != want {
			t.Errorf("%s: %v, want %v", name, v, want)
		}
	}
	first, p := at(10, "a", 100, 1000, "x", "y"), at(12, "a", 102, 1500, "y", "z", "zz")
	p.Notifications.Pending, p.Notifications.Dead, first.Notifications.Pending = 1, 4, 5
	p.Since(nil)
	if p.Rates != nil {
		t.Error("rates of a first frame")
	}
	p.Since(first)
	known(p, "timestamps", p.Rates.Timestamps, 250)
	known(p, "locks seen", p.Rates.LocksSeen, 1)
	known(p, "locks gone", p.Rates.LocksGone, .5)
	known(p, "pending", p.Rates.PendingChange, -2)
	known(p, "dead letters", &p.Rates.DeadChange, 2)
	for name, p := range map[string]*Picture{"restarted": at(12, "a", 1, 1500), "failed over": at(12, "b", 102, 1500), "counts less": at(12, "a", 102, 1)} {
		if p.Since(first); p.Rates.Timestamps != nil {
			t.Errorf("%s: %v timestamps/s", name, *p.Rates.Timestamps)
		}
	}
	p.Locks.More, p.Notifications.More = true, true
	if p.Since(first); p.Rates.LocksSeen != nil || p.Rates.LocksGone != nil || p.Rates.PendingChange != nil {
		t.Error("rates of what is not all known")
	}
}
