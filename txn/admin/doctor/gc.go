package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin/words"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// behindAfter is how many retentions old a safe point may be: one is what it is
// behind by when a run has chosen it, the other one the time until the next.
const behindAfter = 2

var garbage = Check{Name: "garbage collection", Client: true, Timeout: 30 * time.Second, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	s, err := gc.ReadStatus(ctx, d.Client)
	if err != nil {
		return err
	}
	judgeGC(r, s)
	return nil
}}

// judgeGC says what is wrong with garbage collection.
func judgeGC(r *Result, s *gc.Status) {
	since := func(ts tso.Timestamp) string { return words.Between(ts, s.Now) }
	retention := s.Retention
	if s.SafePoint == 0 || retention == 0 {
		retention = gc.DefaultRetention
	}
	retained := s.Now.Add(-retention)
	const why = "every version above the safe point stays: tables grow, and reads of rows that change often get slower"
	running := s.Lease.Owner != ""
	switch {
	case s.SafePoint == 0:
		r.Detail = "nothing was ever collected: every version is kept (percctl gc run)"
	default:
		r.Detail = fmt.Sprintf("the safe point is %s old, for a retention of %s", since(s.SafePoint), words.Duration(retention))
		if !running && s.SafePoint < s.Now-behindAfter*tso.Timestamp(retention.Microseconds()) {
			r.find(Warning, "safe point", fmt.Sprintf("it is %s old, at a retention of %s", since(s.SafePoint), words.Duration(retention)), why,
				"percctl gc run --watch, as a service; percctl gc status")
		}
	}
	if !running && (s.Run.Phase == gc.PhaseFence || s.Run.Phase == gc.PhaseCollect || s.Run.Phase == gc.PhaseChanges) {
		r.find(Warning, "last run", fmt.Sprintf("it was interrupted, and last seen %s ago, by %s", since(s.Run.UpdatedTS), s.Run.Owner),
			"old versions in the tables that it did not reach stay", "percctl gc run, which continues where it stopped")
	}
	for _, k := range s.Run.Skipped {
		judgeSkipped(r, k)
	}
	for _, h := range s.Holds {
		if h.OldestTS <= retained {
			r.find(Warning, fmt.Sprintf("pid %d on %s", h.PID, h.Host), fmt.Sprintf("a transaction, or a held snapshot, that began %s ago, at %s", since(h.OldestTS), words.Stamp(h.OldestTS)),
				"it keeps the safe point below what the retention allows, until it ends or is a day old", "end the transaction, or the process; percctl gc status")
		}
	}
}

// judgeSkipped says what to do about a row that is not collected.
func judgeSkipped(r *Result, k gc.SkippedRow) {
	what, fix := "it was "+string(k.Reason)+" for garbage collection", "percctl gc run tries again"
	switch k.Reason {
	case gc.SkippedLarge:
		what, fix = "Bigtable does not return it: its write records have more than 256 MB", "delete the row, or write to it less often; then percctl gc run more often, with a shorter --retention"
	case gc.SkippedDamaged:
		what, fix = "it has a record that cannot be read", "percctl check --all, then stop percctl gc run and repair (docs/operations.md, Damaged data)"
	case gc.SkippedUnnamed:
		what, fix = "it has data without a write record, which was lost", "stop percctl gc run, then percctl repair plan --all (docs/operations.md, Damaged data)"
	}
	r.find(Warning, fmt.Sprintf("table %s, row %q", k.Table, k.Row), what, "its old versions stay, and the row grows", fix)
}
