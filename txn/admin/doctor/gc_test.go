package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// TestJudgeGC: each thing that keeps garbage is told, and nothing else.
func TestJudgeGC(t *testing.T) {
	t.Parallel()
	now := tso.FromTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	before := func(d time.Duration) tso.Timestamp { return now.Add(-d) }
	const day = 24 * time.Hour
	held := func(age time.Duration) []gc.Hold {
		return []gc.Hold{{Host: "h", PID: 7, OldestTS: before(age)}}
	}
	for name, test := range map[string]struct {
		status gc.Status
		want   string // the subjects of the findings
	}{
		"never":              {gc.Status{}, ""},
		"never, held":        {gc.Status{Holds: held(25 * time.Hour)}, "pid 7 on h"},
		"collected":          {gc.Status{SafePoint: before(day), Retention: day, Run: gc.RunStatus{Phase: gc.PhaseDone}}, ""},
		"before the next":    {gc.Status{SafePoint: before(2 * day), Retention: day, Run: gc.RunStatus{Phase: gc.PhaseDone}}, ""},
		"behind":             {gc.Status{SafePoint: before(2*day + time.Second), Retention: day, Run: gc.RunStatus{Phase: gc.PhaseDone}}, "safe point"},
		"behind, at work":    {gc.Status{SafePoint: before(3 * day), Retention: day, Run: gc.RunStatus{Phase: gc.PhaseCollect}, Lease: tso.Holder{Owner: "x"}}, ""},
		"interrupted":        {gc.Status{SafePoint: before(day), Retention: day, Run: gc.RunStatus{Phase: gc.PhaseCollect, UpdatedTS: before(time.Hour)}}, "last run"},
		"interrupted, fence": {gc.Status{SafePoint: before(day), Retention: day, Run: gc.RunStatus{Phase: gc.PhaseFence, UpdatedTS: before(time.Hour)}}, "last run"},
		"open, and young":    {gc.Status{SafePoint: before(day), Retention: day, Run: gc.RunStatus{Phase: gc.PhaseDone}, Holds: held(23 * time.Hour)}, ""},
		"skipped": {gc.Status{SafePoint: before(day), Retention: day, Run: gc.RunStatus{Phase: gc.PhaseDone, Skipped: []gc.SkippedRow{
			{Table: "a", Row: "r", Reason: gc.SkippedLarge}, {Table: "a", Row: "s", Reason: gc.SkippedDamaged}, {Table: "b", Row: "r", Reason: gc.SkippedBusy}, {Table: "b", Row: "s", Reason: gc.SkippedUnnamed}}}},
			`table a, row "r", table a, row "s", table b, row "r", table b, row "s"`},
		"held, own retention": {gc.Status{SafePoint: before(time.Hour), Retention: time.Hour, Run: gc.RunStatus{Phase: gc.PhaseDone}, Holds: held(61 * time.Minute)}, "pid 7 on h"},
	} {
		test.status.Now = now
		r := &Result{Check: garbage.Name}
		judgeGC(r, &test.status)
		var subjects []string
		for _, f := range r.Findings {
			subjects = append(subjects, f.Subject)
			if f.Severity != Warning || f.What == "" || f.Why == "" || !strings.Contains(f.Fix, "percctl gc") {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if got := strings.Join(subjects, ", "); got != test.want || r.Detail == "" {
			t.Errorf("%s: found %q, detail %q; want %q", name, got, r.Detail, test.want)
		}
	}
}
