package soak

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// TestBatchOf: consecutive timestamps form runs, and one that appears twice is found.
func TestBatchOf(t *testing.T) {
	got := batchOf(1, 2, []int64{7, 5, 6, 9, 6})
	want := batch{Begun: 1, Ended: 2, Runs: []span{{5, 6}, {6, 7}, {9, 9}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := got.count(); n != 5 {
		t.Errorf("%d timestamps", n)
	}
	if wrong := checkTimestamps([]batch{got}); len(wrong) != 1 {
		t.Errorf("6 appears twice; found: %q", wrong)
	}
}

// TestCheckTimestamps finds each violation of an oracle's promises, and nothing else.
func TestCheckTimestamps(t *testing.T) {
	b := func(begun, ended int64, runs ...span) batch { return batch{begun, ended, runs} }
	for _, tc := range []struct {
		name    string
		batches []batch
		want    []string
	}{
		{"nothing", nil, nil},
		{"one after the other", []batch{b(1, 2, span{10, 19}), b(3, 4, span{20, 29})}, nil},
		{"at once, in any order", []batch{b(1, 5, span{20, 29}), b(2, 4, span{10, 19})}, nil},
		{"one between the runs of another", []batch{b(1, 5, span{10, 19}, span{30, 39}), b(1, 5, span{20, 29})}, nil},
		{"no end", []batch{b(1, math.MaxInt64, span{50, 50}), b(3, 4, span{20, 29})}, nil},
		{"twice", []batch{b(1, 5, span{10, 20}), b(1, 5, span{20, 29})}, []string{"timestamp 20 was handed out twice"}},
		{"inside of another", []batch{b(1, 5, span{10, 20}), b(1, 5, span{15, 16})}, []string{"timestamp 15 was handed out twice"}},
		{"backwards", []batch{b(1, 2, span{20, 29}), b(3, 4, span{10, 19})}, []string{"timestamp 10 was requested after 29 was received"}},
		{"one run backwards", []batch{b(1, 2, span{20, 29}), b(3, 4, span{10, 10}, span{30, 39})}, []string{"timestamp 10 was requested after 29 was received"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, checkTimestamps(tc.batches)); diff != "" {
				t.Error(diff)
			}
			slices.Reverse(tc.batches)
			if got := checkTimestamps(tc.batches); len(got) != len(tc.want) {
				t.Errorf("with the batches in the other order: %q", got)
			}
		})
	}
}

// TestBatchesOf: the timestamps of transactions count too. Those of dead clients have
// no end. Those that only read do not count.
func TestBatchesOf(t *testing.T) {
	write := []history.Op{{F: history.Write, Key: "x", N: 1}}
	got := batchesOf([]history.Record{
		{Type: history.Invoke, Process: 1, Time: 10, StartTS: 5, Value: write},
		{Type: history.Invoke, Process: 2, Time: 11, StartTS: 6, Value: write},
		{Type: history.Invoke, Process: 3, Time: 12, StartTS: 6, Value: []history.Op{{F: history.Read, Key: "x"}}},
		{Type: history.OK, Process: 3, Time: 13, StartTS: 6},
		{Type: history.OK, Process: 1, Time: 20, StartTS: 5, CommitTS: 9},
		{Type: history.Info, Process: 2, Time: 21, StartTS: 6},
	})
	want := []batch{{10, 20, []span{{5, 5}, {9, 9}}}, {11, math.MaxInt64, []span{{6, 6}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestMissing: a soak of everything fails if a fault or a feature never happened; a short one
// does not.
func TestMissing(t *testing.T) {
	o := &options{workload: "all", faultList: "all", oracle: "both", gc: "some"}
	s := &summary{Histories: 20, Faults: map[string]int{}, Used: map[string]int{}}
	for _, kind := range kinds {
		s.Faults[kind] = 1
	}
	for _, f := range features {
		s.Used[f] = 1
	}
	if got := o.missing(s, 9); len(got) > 0 {
		t.Errorf("missing: %q", got)
	}
	delete(s.Faults, faultClock)
	delete(s.Used, usedReplays)
	if diff := cmp.Diff([]string{"fault clock", "dead letters replayed"}, o.missing(s, 9)); diff != "" {
		t.Error(diff)
	}
	s.Histories = 17
	if got := o.missing(s, 9); len(got) > 0 {
		t.Errorf("in a short soak, missing: %q", got)
	}
}

// TestGoals compares a summary with the goals of an hour.
func TestGoals(t *testing.T) {
	s := &summary{Seconds: 1800, Histories: 40, Transactions: 600_000, OK: 100_000, Faults: map[string]int{}, RecoveryP99: 1.5}
	for _, kind := range kinds {
		s.Faults[kind] = 1000
	}
	s.Faults[faultClock] = 3
	met := map[string]bool{}
	for _, g := range goalsOf(s) {
		met[g.Goal] = g.Met
		if g.Goal == "transactions attempted" && g.AnHour != 1_200_000 {
			t.Errorf("%+v", g)
		}
	}
	for goal, want := range map[string]bool{
		"transactions attempted": true, "histories": false, "% committed": false, "anomalies": true,
		"recovery p99, seconds": true, "of every kind of fault (fewest: clock)": false,
	} {
		if got, ok := met[goal]; !ok || got != want {
			t.Errorf("%s: met %v (exists: %v), want %v", goal, got, ok, want)
		}
	}
}
