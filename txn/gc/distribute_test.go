package gc

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// TestPartsAreDistributed: what a collector writes into the record of a run, at oracle time 1000. A
// part is written as number, table and row, and its owner; a work of this collector as number, the row
// at which it is, and "done" or "stopped".
func TestPartsAreDistributed(t *testing.T) {
	const now = tso.Timestamp(1000)
	for _, tt := range []struct {
		name       string
		parts      string
		collectors map[string]int64 // when they expire
		works      string
		before     uint32   // a part that it has given up
		gaveUp     []uint32 // with those that it gives up now
		width      int      // 2 if not set
		leaving    bool
		want       string // parts, then the others
		kept       string
		taken      string
		rejoins    bool
	}{
		{name: "alone", parts: "1ax 2ay 3bz", want: "1axme 2ayme 3bz; me", taken: "1ax 2ay", rejoins: true},
		{name: "fewer parts than it may have", parts: "1ax", want: "1axme; me", taken: "1ax", rejoins: true},
		{name: "a fair share of two", parts: "1ax 2ay 3az", collectors: map[string]int64{"you": 1001}, width: 9, want: "1axme 2ayme 3az; you me", taken: "1ax 2ay", rejoins: true},
		{name: "a fair share of three", parts: "1ax 2ay 3az 4bx", collectors: map[string]int64{"you": 1001, "zoe": 2000}, width: 9, want: "1axme 2ayme 3az 4bx; you zoe me", taken: "1ax 2ay", rejoins: true},
		{name: "no more than it may have", parts: "1axme 2ayme 3az", collectors: map[string]int64{"me": 1001}, works: "1p 2q", want: "1apme 2aqme 3az; me", kept: "1 2"},
		{name: "more than it may have", parts: "1axme 2ayme 3azme 4bx", collectors: map[string]int64{"me": 1001}, works: "1p 2q 3r", want: "1apme 2aqme 3arme 4bx; me", kept: "1 2 3"},
		{name: "one more", parts: "1ax 2ayme", collectors: map[string]int64{"me": 1001}, works: "2q", want: "1axme 2aqme; me", kept: "2", taken: "1ax"},
		{name: "done", parts: "1axme 2ay", collectors: map[string]int64{"me": 1001}, works: "1pdone", want: "2ayme; me", taken: "2ay"},
		{name: "done, and another one has it", parts: "1axyou 2ay", collectors: map[string]int64{"me": 1001, "you": 1001}, works: "1pdone", want: "2ayme; you me", taken: "2ay"},
		{name: "another one has it", parts: "1axyou 2ayme", collectors: map[string]int64{"me": 1001, "you": 1001}, works: "1p 2q", want: "1axyou 2aqme; you me", kept: "2"},
		{name: "nobody has it any more", parts: "1ax", collectors: map[string]int64{"me": 1001}, works: "1p", want: "1apme; me", kept: "1"},
		{name: "its owner has just expired", parts: "1axyou", collectors: map[string]int64{"me": 1001, "you": 1000}, want: "1axme; me", taken: "1ax"},
		{name: "its owner is not named", parts: "1axyou", collectors: map[string]int64{"me": 1001}, want: "1axme; me", taken: "1ax"},
		{name: "it has a part that it does not know", parts: "1axme 2ayyou", collectors: map[string]int64{"me": 1001, "you": 1001}, want: "1axme 2ayyou; you me", taken: "1ax"},
		{name: "it has expired", parts: "1axme", collectors: map[string]int64{"me": 1000}, works: "1p", want: "1apme; me", kept: "1", rejoins: true},
		{name: "stopped", parts: "1axme 2ay", collectors: map[string]int64{"me": 1001}, works: "1pstopped", want: "1ap 2ayme; me", taken: "2ay", gaveUp: []uint32{1}},
		{name: "stopped before", parts: "1ax 2ay", collectors: map[string]int64{"me": 1001}, before: 2, gaveUp: []uint32{2}, want: "1axme 2ay; me", taken: "1ax"},
		{name: "leaving", parts: "1axme 2ayme 3bzyou 4bx 5byme", collectors: map[string]int64{"me": 1001, "you": 1001}, works: "1p 2qdone", leaving: true, want: "1ap 3bzyou 4bx 5by; you", gaveUp: []uint32{1}},
		{name: "leaving last", parts: "1axme", collectors: map[string]int64{"me": 1001}, works: "1p", leaving: true, want: "1ap; ", gaveUp: []uint32{1}},
		{name: "leaving unnamed", parts: "1ax", leaving: true, want: "1ax; ", rejoins: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parts := map[uint32]*recordpb.GarbageRun_Part{}
			g := &recordpb.GarbageRun{Phase: recordpb.GarbageRun_PHASE_COLLECT, UpdatedTs: 1, Table: "z"}
			for _, p := range strings.Fields(tt.parts) {
				part := &recordpb.GarbageRun_Part{Id: uint32(p[0] - '0'), Table: p[1:2], Row: []byte(p[2:3]), Owner: p[3:]}
				parts[part.Id] = part
				g.Parts = append(g.Parts, part)
			}
			for _, owner := range slices.Sorted(maps.Keys(tt.collectors)) {
				g.Collectors = append(g.Collectors, &recordpb.GarbageRun_Collector{Owner: owner, ExpiresTs: tt.collectors[owner]})
			}
			s := &share{run: &run{owner: "me"}, width: max(tt.width, 2), gaveUp: map[uint32]bool{}}
			if tt.before != 0 {
				s.gaveUp[tt.before] = true
			}
			for _, w := range strings.Fields(tt.works) {
				id := uint32(w[0] - '0')
				s.works = append(s.works, &work{part: parts[id], at: position{"a", w[1:2]}, done: w[2:] == "done", stopped: w[2:] == "stopped"})
			}
			kept, taken, rejoins := s.distribute(g, now, tt.leaving)
			var stored, others, keeps, takes []string
			for _, p := range g.Parts {
				stored = append(stored, fmt.Sprintf("%d%s%s%s", p.Id, p.Table, p.Row, p.Owner))
			}
			for _, c := range g.Collectors {
				others = append(others, c.Owner)
				if want := int64(now) + gctime.LeaseTTL().Microseconds(); c.Owner == "me" && c.ExpiresTs != want {
					t.Errorf("it expires at %d, want %d", c.ExpiresTs, want)
				}
			}
			for _, w := range kept {
				keeps = append(keeps, fmt.Sprint(w.part.Id))
			}
			for _, w := range taken {
				takes = append(takes, fmt.Sprintf("%d%s%s", w.part.Id, w.at.table, w.at.row))
			}
			if got := strings.Join(stored, " ") + "; " + strings.Join(others, " "); got != tt.want {
				t.Errorf("record %q, want %q", got, tt.want)
			}
			if k, n := strings.Join(keeps, " "), strings.Join(takes, " "); k != tt.kept || n != tt.taken || rejoins != tt.rejoins {
				t.Errorf("keeps %q, takes %q, rejoins %v; want %q, %q, %v", k, n, rejoins, tt.kept, tt.taken, tt.rejoins)
			}
			if d := cmp.Diff(tt.gaveUp, slices.Sorted(maps.Keys(s.gaveUp))); d != "" {
				t.Errorf("gave up (-want +got):\n%s", d)
			}
			if g.UpdatedTs != int64(now) || g.Table == "z" {
				t.Errorf("record updated at %d, position %q", g.UpdatedTs, g.Table)
			}
		})
	}
}

// TestPauseOfACollector: a collector writes how far it is after syncInterval. It writes sooner if it has
// no work, or a part has ended: at once if that was the last one.
func TestPauseOfACollector(t *testing.T) {
	for name, tt := range map[string]struct {
		works  []*work
		synced time.Duration // ago
		wakes  bool          // after 100 ms
		want   time.Duration
	}{
		"at work":              {works: []*work{{}}, want: syncInterval},
		"without work":         {want: minSyncInterval},
		"the last part ends":   {works: []*work{{done: true}}, wakes: true, want: 100 * time.Millisecond},
		"the last part stops":  {works: []*work{{stopped: true}}, wakes: true, want: 100 * time.Millisecond},
		"one of two ends":      {works: []*work{{done: true}, {}}, wakes: true, want: minSyncInterval},
		"one of two ends late": {works: []*work{{stopped: true}, {}}, synced: 2 * minSyncInterval, wakes: true, want: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &share{run: &run{works: tt.works}, wake: make(chan struct{}, 1), synced: time.Now().Add(-tt.synced)}
				if tt.wakes {
					time.AfterFunc(100*time.Millisecond, func() { s.wake <- struct{}{} })
				}
				began := time.Now()
				if err := s.pause(t.Context()); err != nil || time.Since(began) != tt.want {
					t.Errorf("%v after %v, want %v", err, time.Since(began), tt.want)
				}
			})
		})
	}
}
