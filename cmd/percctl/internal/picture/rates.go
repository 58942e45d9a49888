package picture

import (
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/tso"
)

// Rates are the changes per second between two frames. A rate is null if it cannot be seen.
type Rates struct {
	Seconds       float64  `json:"seconds"`                           // time between the two frames
	Timestamps    *float64 `json:"timestamps_per_second"`             // timestamps that a served oracle handed out, without those for this command; null if not the same server leads in both frames
	Requests      *float64 `json:"oracle_requests_per_second"`        // requests that a served oracle answered, without those of this command; null if not the same server leads in both frames
	Writes        *float64 `json:"oracle_bigtable_writes_per_second"` // writes to Bigtable of a served oracle; null if not the same server leads in both frames
	LocksSeen     *float64 `json:"locks_seen_per_second"`             // locks that the previous frame did not have; null if there are more than --limit
	LocksGone     *float64 `json:"locks_gone_per_second"`             // locks that only the previous frame has; null if there are more than --limit
	PendingChange *float64 `json:"pending_change_per_second"`         // net change of pending changes; null if there are more than --limit
	DeadChange    float64  `json:"dead_letter_change_per_second"`     // net change of dead letters
}

// Leader is what the leading server says of itself; nil when none does.
func (p *Picture) Leader() *tsocmd.ServerReport { return leader(p.Oracle) }

func leader(r *tsocmd.Report) *tsocmd.ServerReport {
	for i, s := range r.Servers {
		if s.Error == "" && s.Leading {
			return &r.Servers[i]
		}
	}
	return nil
}

// Since sets the picture's rates from the one before.
func (p *Picture) Since(before *Picture) {
	if before == nil {
		return
	}
	r := &Rates{Seconds: p.taken.Sub(before.taken).Seconds()}
	if r.Seconds < time.Millisecond.Seconds() {
		return
	}
	rate := func(n float64) *float64 { n /= r.Seconds; return &n }
	now, then := p.Leader(), before.Leader()
	// Counters begin anew with the process.
	if now != nil && then != nil && now.Address == then.Address && now.Server == then.Server && now.Uptime > then.Uptime && now.Requests >= then.Requests && now.Timestamps >= then.Timestamps {
		// What this command asked for is no rate of the deployment's.
		var own tso.ClientStats
		if p.session == before.session {
			own.Timestamps, own.Requests = p.own.Timestamps-before.own.Timestamps, p.own.Requests-before.own.Requests
		}
		r.Timestamps = rate(max(0, float64(now.Timestamps-then.Timestamps)-float64(own.Timestamps)))
		r.Requests = rate(max(0, float64(now.Requests-then.Requests)-float64(own.Requests)))
		r.Writes = rate(float64(now.BigtableWrite - then.BigtableWrite))
	}
	if !p.Locks.More && !before.Locks.More {
		r.LocksSeen, r.LocksGone = rate(newIn(p.locks, before.locks)), rate(newIn(before.locks, p.locks))
	}
	if !p.Notifications.More && !before.Notifications.More {
		r.PendingChange = rate(float64(p.Notifications.Pending - before.Notifications.Pending))
	}
	r.DeadChange = *rate(float64(p.Notifications.Dead - before.Notifications.Dead))
	p.Rates = r
}

func newIn(all, others map[lockID]bool) (n float64) {
	for id := range all {
		if !others[id] {
			n++
		}
	}
	return n
}
