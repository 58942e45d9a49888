package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/changed"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// TestNextRun: what a leader does at oracle time 1,000 with 60 between full runs, if the next safe point
// is 90.
func TestNextRun(t *testing.T) {
	const collect, locks, follows, done, fence = recordpb.GarbageRun_PHASE_COLLECT, recordpb.GarbageRun_PHASE_LOCKS, recordpb.GarbageRun_PHASE_CHANGES, recordpb.GarbageRun_PHASE_DONE, recordpb.GarbageRun_PHASE_FENCE
	for _, tt := range []struct {
		name    string
		last    *recordpb.GarbageRun
		restart bool
		helped  bool
		want    string
	}{
		{"the first one", &recordpb.GarbageRun{}, false, false, "new"},
		{"after the fence", &recordpb.GarbageRun{Phase: fence, Divided: true, SafePoint: 95}, false, false, "new"},
		{"done below", &recordpb.GarbageRun{Phase: done, SafePoint: 89}, false, false, "new"},
		{"done there", &recordpb.GarbageRun{Phase: done, SafePoint: 90}, false, false, "nothing"},
		{"done there, restart", &recordpb.GarbageRun{Phase: done, SafePoint: 90}, true, false, "new"},
		{"changes done there", &recordpb.GarbageRun{Phase: done, SafePoint: 90, Changes: true}, false, false, "new"},
		{"changes done there, after a full run lately", &recordpb.GarbageRun{Phase: done, SafePoint: 90, Changes: true, FullTs: 941}, false, false, "nothing, of changes"},
		{"done below, lately", &recordpb.GarbageRun{Phase: done, SafePoint: 89, FullTs: 941}, false, false, "new, of changes"},
		{"done below, not lately", &recordpb.GarbageRun{Phase: done, SafePoint: 89, FullTs: 940}, false, false, "new"},
		{"done below, lately, restart", &recordpb.GarbageRun{Phase: done, SafePoint: 89, FullTs: 941}, true, false, "new"},
		{"collects", &recordpb.GarbageRun{Phase: collect, Divided: true}, false, false, "resumes"},
		{"collects, without parts", &recordpb.GarbageRun{Phase: collect}, false, false, "resumes"},
		{"collects, restart", &recordpb.GarbageRun{Phase: collect, Divided: true}, true, false, "new"},
		{"resolves locks", &recordpb.GarbageRun{Phase: locks, Divided: true}, false, false, "resumes"},
		{"resolves locks, without parts", &recordpb.GarbageRun{Phase: locks}, false, false, "new"},
		{"resolves locks, after a full run lately", &recordpb.GarbageRun{Phase: locks, Divided: true, FullTs: 941}, false, false, "resumes, of changes"},
		{"follows changes", &recordpb.GarbageRun{Phase: follows, Divided: true, Changes: true}, false, false, "new"},
		{"follows changes, and this one helps", &recordpb.GarbageRun{Phase: follows, Divided: true, Changes: true}, false, true, "resumes"},
		{"follows changes, after a full run lately", &recordpb.GarbageRun{Phase: follows, Divided: true, Changes: true, FullTs: 941}, false, false, "resumes, of changes"},
	} {
		r := &run{cfg: Config{FullEvery: 60 * time.Microsecond, Restart: tt.restart}, state: tt.last, report: &Report{Now: 1000, Helped: tt.helped}}
		if tt.last.FullTs == 0 {
			r.cfg.FullEvery = time.Hour // never is not long ago
		}
		follow, resumes, nothing := leader{r}.next(90)
		got := "new"
		switch {
		case resumes:
			got = "resumes"
		case nothing:
			got = "nothing"
		}
		if follow {
			got += ", of changes"
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if _, _, nothing := (leader{r}).next(0); !nothing {
			t.Errorf("%s, without a safe point: there is something to do", tt.name)
		}
	}
}

// TestSafePointBelowHolds: the safe point is as late as the retention allows, below each hold that is as old,
// and never below the published one.
func TestSafePointBelowHolds(t *testing.T) {
	for _, tt := range []struct {
		holds    []tso.Timestamp
		previous tso.Timestamp
		want     tso.Timestamp
		heldBy   int
	}{
		{nil, 0, 900, 0},
		{nil, 901, 901, 0},
		{[]tso.Timestamp{901}, 0, 900, 0},
		{[]tso.Timestamp{900, 901}, 0, 899, 1},
		{[]tso.Timestamp{300, 500}, 0, 299, 2},
		{[]tso.Timestamp{500, 300, 901}, 400, 400, 2},
	} {
		r := &run{cfg: Config{Retention: 100 * time.Microsecond}, report: &Report{Now: 1000, Previous: tt.previous}}
		var holds, held []Hold
		for _, ts := range tt.holds {
			holds = append(holds, Hold{OldestTS: ts})
		}
		for _, h := range holds {
			if h.OldestTS <= 900 {
				held = append(held, h)
			}
		}
		if got := r.below(holds); got != tt.want || len(held) != tt.heldBy || !slices.Equal(r.report.HeldBy, held) {
			t.Errorf("%+v: safe point %d, held by %+v", tt, got, r.report.HeldBy)
		}
	}
}

// TestRecordOfAPhase: what the leader of the run with safe point 7, which started at 8, writes into the
// record, and what it does not change.
func TestRecordOfAPhase(t *testing.T) {
	const collect, done = recordpb.GarbageRun_PHASE_COLLECT, recordpb.GarbageRun_PHASE_DONE
	others := []*recordpb.GarbageRun_Collector{{Owner: "you"}}
	parts := []*recordpb.GarbageRun_Part{{Id: 1, Table: "a", Row: []byte("m\x00")}}
	was := func(change func(*recordpb.GarbageRun)) *recordpb.GarbageRun {
		g := &recordpb.GarbageRun{Phase: recordpb.GarbageRun_PHASE_LOCKS, SafePoint: 7, StartedTs: 8, UpdatedTs: 9, Owner: "me", Rate: 5, Collectors: others}
		change(g)
		return g
	}
	same := func(*recordpb.GarbageRun) {}
	for _, tt := range []struct {
		name   string
		helped bool
		do     func(leader, *recordpb.GarbageRun) error
		was    func(*recordpb.GarbageRun)
		lost   string // to this collector
		want   func(*recordpb.GarbageRun)
	}{
		{"begins a phase", false, func(r leader, g *recordpb.GarbageRun) error { return r.begun(g, 10, collect, parts) }, same, "", func(g *recordpb.GarbageRun) {
			g.Phase, g.Parts, g.Divided, g.UpdatedTs, g.Rate, g.Table, g.Row = collect, parts, true, 10, 100, "a", []byte("m")
		}},
		{"begins a phase, after it has helped", true, func(r leader, g *recordpb.GarbageRun) error { return r.begun(g, 10, collect, parts) }, same, "", func(g *recordpb.GarbageRun) {
			g.Phase, g.Parts, g.Divided, g.UpdatedTs, g.Table, g.Row = collect, parts, true, 10, "a", []byte("m")
		}},
		{"ends", false, func(r leader, g *recordpb.GarbageRun) error { return r.begun(g, 10, done, nil) }, func(g *recordpb.GarbageRun) { g.Divided, g.Parts, g.FullTs = true, parts, 3 }, "", func(g *recordpb.GarbageRun) {
			g.Phase, g.Parts, g.Divided, g.UpdatedTs, g.Rate, g.Collectors, g.FullTs = done, nil, false, 10, 100, nil, 8
		}},
		{"ends a run that follows changes", false, func(r leader, g *recordpb.GarbageRun) error { return r.begun(g, 10, done, nil) }, func(g *recordpb.GarbageRun) { g.Changes, g.FullTs = true, 3 }, "", func(g *recordpb.GarbageRun) {
			g.Phase, g.UpdatedTs, g.Rate, g.Collectors, g.FullTs = done, 10, 100, nil, 3
		}},
		{"was replaced", false, func(r leader, g *recordpb.GarbageRun) error { return r.begun(g, 10, done, nil) }, func(g *recordpb.GarbageRun) { g.Owner = "you" }, "you", same},
		{"its run was replaced", false, func(r leader, g *recordpb.GarbageRun) error { return r.begun(g, 10, done, nil) }, func(g *recordpb.GarbageRun) { g.SafePoint = 6 }, "me", same},
		{"resumes", false, func(r leader, g *recordpb.GarbageRun) error { return r.resumed(g, nil) }, func(g *recordpb.GarbageRun) { g.Owner, g.Divided, g.Parts = "you", true, parts }, "", func(g *recordpb.GarbageRun) { g.Owner, g.Rate = "me", 100 }},
		{"resumes what has no parts", false, func(r leader, g *recordpb.GarbageRun) error { return r.resumed(g, parts) }, func(g *recordpb.GarbageRun) { g.Owner = "you" }, "", func(g *recordpb.GarbageRun) {
			g.Owner, g.Rate, g.Divided, g.Parts = "me", 100, true, parts
		}},
		{"resumes, after it has helped", true, func(r leader, g *recordpb.GarbageRun) error { return r.resumed(g, nil) }, func(g *recordpb.GarbageRun) { g.Owner, g.Divided, g.Parts = "you", true, parts }, "", func(g *recordpb.GarbageRun) { g.Owner = "me" }},
		{"resumes another run", false, func(r leader, g *recordpb.GarbageRun) error { return r.resumed(g, nil) }, func(g *recordpb.GarbageRun) { g.Owner, g.StartedTs = "you", 9 }, "you", same},
	} {
		r := &run{owner: "me", cfg: Config{Rate: 100}, report: &Report{SafePoint: 7, Helped: tt.helped}, startedTS: 8}
		got := was(tt.was)
		want := proto.CloneOf(got)
		tt.want(want)
		err := tt.do(leader{r}, got)
		var busy *BusyError
		if (tt.lost != "") != errors.As(err, &busy) || busy != nil && (*busy != BusyError{Holder: tt.lost, Lost: true}) || busy == nil && err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

// TestFenceExactly: a run waits as long as clients may use an older safe point, and says each second how
// long that is.
func TestFenceExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []time.Duration
		r := &run{report: &Report{Total: Counts{Rows: 3}}, cfg: Config{Progress: func(p Progress) {
			if d := cmp.Diff(Progress{Phase: PhaseFence, Left: p.Left, Total: Counts{Rows: 3}}, p); d != "" {
				t.Errorf("progress (-want +got):\n%s", d)
			}
			said = append(said, p.Left)
		}}}
		began := time.Now()
		if err := (leader{r}).fence(t.Context(), began.Add(-time.Second/2)); err != nil || time.Since(began) != gctime.Fence()-time.Second/2 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		var want []time.Duration
		for left := gctime.Fence() - time.Second/2; left > 0; left -= time.Second {
			want = append(want, left)
		}
		if d := cmp.Diff(want, said); d != "" {
			t.Errorf("said (-want +got):\n%s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := (leader{r}).fence(ctx, time.Now()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its context has ended: %v", err)
		}
	})
}

// TestCollectedPosition: the progress names the row up to which all parts are collected, and counts by
// table.
func TestCollectedPosition(t *testing.T) {
	var said []string
	r := &run{counts: map[string]*Counts{}, report: &Report{DryRun: true}, cfg: Config{Progress: func(p Progress) {
		said = append(said, fmt.Sprintf("%s %s %s %d", p.Phase, p.Table, p.Row, p.Total.Rows))
	}}}
	first, second := &work{at: position{"a", ""}}, &work{at: position{"a", "m"}}
	r.works = []*work{first, second}
	r.collected(t.Context(), second, position{"a", "p"}, "a", Counts{})
	r.collected(t.Context(), second, position{"a", "q"}, "a", Counts{Rows: 1, Cells: 2})
	r.collected(t.Context(), first, position{"a", "c"}, "a", Counts{Rows: 3})
	first.done = true
	r.collected(t.Context(), second, position{"b", "x"}, "b", Counts{Rows: 5})
	if want := []string{"collect a  1", "collect a c 4", "collect b x 9"}; !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
	if d := cmp.Diff(map[string]*Counts{"a": {Table: "a", Rows: 4, Cells: 2}, "b": {Table: "b", Rows: 5}}, r.counts); d != "" || second.at != (position{"b", "x"}) {
		t.Errorf("at %+v, counts (-want +got):\n%s", second.at, d)
	}
	r.end(time.Now())
	if d := cmp.Diff([]Counts{{Table: "a", Rows: 4, Cells: 2}, {Table: "b", Rows: 5}}, r.report.Tables); d != "" || r.report.Total != (Counts{Rows: 9, Cells: 2}) {
		t.Errorf("%+v (-want +got):\n%s", r.report.Total, d)
	}
}

// TestNotesOfARun: a run has clients note changes for two of its periods and a retention, and divides
// the notes by time, into parts of a minute at least.
func TestNotesOfARun(t *testing.T) {
	r := &run{cfg: Config{FullEvery: 3 * time.Second, Retention: time.Second}, report: &Report{Now: 50}}
	if got := (changes{r}).noteUntil(); got != 7_000_050 {
		t.Errorf("until %d", got)
	}
	r.cfg.FullEvery = 0
	if got := (changes{r}).noteUntil(); got != 0 {
		t.Errorf("without changes until %d", got)
	}
	for _, tt := range []struct {
		span tso.Timestamp
		want []tso.Timestamp // after the first note
	}{
		{-minSpan, nil},
		{2*minSpan - 1, nil},
		{2 * minSpan, []tso.Timestamp{minSpan}},
		{3*minSpan + 3, []tso.Timestamp{minSpan + 1, 2 * (minSpan + 1)}},
	} {
		var want []position
		for _, at := range tt.want {
			want = append(want, position{"t", changed.KeyAt(1000 + at)})
		}
		if got := spread("t", 1000, 1000+tt.span); !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", tt.span, got, want)
		}
	}
	if got := spread("t", 1000, 1000+1000*minSpan); len(got) != maxParts/2-1 {
		t.Errorf("%d parts", len(got)+1)
	}
}

// TestTabletsAreParts: a run without a rate, and without tables, is one part from where it continues. A record
// has maxParts parts at most.
func TestTabletsAreParts(t *testing.T) {
	r := &run{streams: 16}
	got := divide(t.Context(), r, []*store.Table{{Name: "a"}}, position{"b", "m"})
	want := []*recordpb.GarbageRun_Part{{Id: 1, Table: "b", Row: []byte("m"), EndRow: []byte{}}}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, tt := range []struct{ starts, want int }{{maxParts - 1, maxParts - 1}, {maxParts, maxParts / 2}, {3*maxParts + 1, maxParts*3/4 + 1}} {
		var starts []position
		for i := range tt.starts {
			starts = append(starts, position{"t", fmt.Sprintf("%05d", i)})
		}
		fewer := atMost(starts)
		if len(fewer) != tt.want || fewer[0] != starts[0] || len(fewer) < len(starts) && fewer[1] != starts[len(starts)/maxParts+1] {
			t.Errorf("%d starts: %d parts", tt.starts, len(fewer))
		}
	}
}

// TestClaims: a record may go if its transaction has no lock any more, which an earlier run, or its client,
// has said.
func TestClaims(t *testing.T) {
	at, other := format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}, format.Cell{Table: "t", Row: "s", Family: "f", Qualifier: "q"}
	settled := settledBy(100, map[uint64]tso.Timestamp{7: 200})
	for _, tt := range []struct {
		primary format.Cell
		start   tso.Timestamp
		by      uint64
		want    bool
	}{
		{at, 100, 0, true}, {at, 101, 0, false}, {other, 101, 0, true}, {at, 101, format.Alone, true},
		{at, 200, 7, true}, {at, 201, 7, false}, {at, 101, 8, false},
	} {
		if got := settled(at, format.WriteRecord{Primary: tt.primary, StartTS: tt.start, SettledBy: tt.by}); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
	claim := func(key string, version uint32) bigtable.Row {
		value, err := proto.Marshal(&recordpb.Settled{FormatVersion: version, Ts: 9})
		if err != nil {
			t.Fatal(err)
		}
		return bigtable.Row{store.DeployFamily: {{Row: recovery.SettledRowPrefix + key, Value: value}}}
	}
	damaged := claim("1f", format.Version)
	damaged[store.DeployFamily][0].Value = []byte("\xff")
	for name, tt := range map[string]struct {
		raw    bigtable.Row
		number uint64
		ok     bool
	}{
		"a claim": {claim("1f", format.Version), 31, true}, "the largest number": {claim("ffffffffffffffff", format.Version), 1<<64 - 1, true},
		"no number": {claim("x", format.Version), 0, false}, "another version": {claim("1f", format.Version+1), 31, false}, "damaged": {damaged, 31, false},
		"of another family": {bigtable.Row{"f": {{Row: recovery.SettledRowPrefix + "1f"}}}, 31, false},
	} {
		if number, ts, ok := decodeClaim(tt.raw); ok != tt.ok || ok && (number != tt.number || ts != 9) {
			t.Errorf("%s: %d at %d, %t", name, number, ts, ok)
		}
	}
}

// TestHelpersState: a helper knows when its run has ended or was replaced, and asks more often when there will be
// work soon.
func TestHelpersState(t *testing.T) {
	for _, tt := range []struct {
		state *recordpb.GarbageRun
		over  bool
		lost  bool
		poll  time.Duration
	}{
		{&recordpb.GarbageRun{SafePoint: 7, StartedTs: 8, Phase: recordpb.GarbageRun_PHASE_FENCE}, false, false, syncInterval},
		{&recordpb.GarbageRun{SafePoint: 7, StartedTs: 8, Phase: recordpb.GarbageRun_PHASE_LOCKS}, false, false, minSyncInterval},
		{&recordpb.GarbageRun{SafePoint: 7, StartedTs: 8, Phase: recordpb.GarbageRun_PHASE_DONE}, true, false, minSyncInterval},
		{&recordpb.GarbageRun{SafePoint: 6, StartedTs: 8, Owner: "you"}, true, true, minSyncInterval},
		{&recordpb.GarbageRun{SafePoint: 7, StartedTs: 9, Owner: "you"}, true, true, minSyncInterval},
	} {
		h := helper{&run{report: &Report{SafePoint: 7}, startedTS: 8, state: tt.state}}
		over, err := h.over()
		var busy *BusyError
		if over != tt.over || errors.As(err, &busy) != tt.lost || tt.lost && (*busy != BusyError{Holder: "you", Lost: true}) || h.report.Finished != (over && !tt.lost) || h.poll() != tt.poll {
			t.Errorf("%v: %t, %v, %v, finished %t", tt.state, over, err, h.poll(), h.report.Finished)
		}
	}
}

// TestBlockedLocks: a collector waits no more once it has given up locks of live transactions, and names
// maxLiveLocks of them at most.
func TestBlockedLocks(t *testing.T) {
	r := &run{report: &Report{SafePoint: 7}}
	l := &lockResolver{run: r}
	if err := l.blocked(); err != nil {
		t.Errorf("before it begins: %v", err)
	}
	l.begin()
	if err := l.blocked(); err != nil || r.report.Locks.Live != 0 {
		t.Errorf("without live locks: %v, %+v", err, r.report.Locks)
	}
	l.live.Count = 3
	var blocked *BlockedError
	if err := l.blocked(); !errors.As(err, &blocked) || blocked.Count != 3 || blocked.SafePoint != 7 || r.report.Locks.Live != 3 {
		t.Errorf("with live locks: %v, %+v", err, r.report.Locks)
	}
}
