package protocol

import (
	"flag"
	"testing"
)

var (
	states = flag.Int("states", 1_500_000, "how many states of a scenario the tests visit at most")
	long   = flag.Bool("long", false, "also explore the scenarios that take minutes")
)

// puts returns writes of values to cells.
func puts(cells ...int) (writes []Write) {
	for _, cell := range cells {
		writes = append(writes, Write{Cell: cell})
	}
	return writes
}

var (
	twoRows = []int{0, 1}
	// crossed are two transactions whose primary is the other's secondary.
	crossed = [][]Write{puts(0, 1), puts(1, 0)}
	// wide is a row of two cells, and one of one.
	wide        = []int{0, 0, 1}
	wideCrossed = [][]Write{puts(0, 1, 2), puts(2, 1)}
	deletes     = [][]Write{puts(0, 1), {{1, Delete}}}
)

// scenarios are explored completely by each run of the tests.
var scenarios = []Scenario{
	{Name: "crossed", Rows: twoRows, Txns: crossed, Readers: []Reader{{Cell: 1}}},
	{Name: "timeout and duplicate", Rows: twoRows, Txns: crossed, Timeouts: 1, Duplicates: 1},
	{Name: "many timeouts and duplicates", Rows: twoRows, Txns: [][]Write{puts(0, 1)}, Readers: []Reader{{Cell: 1}}, Timeouts: 3, Duplicates: 3},
	{Name: "locks only", Rows: twoRows, Txns: [][]Write{{{0, Lock}, {1, Put}}, {{1, Lock}, {0, Put}}}, Timeouts: 1},
	{Name: "wide rows", Rows: wide, Wide: true, Txns: wideCrossed, Timeouts: 1},
	{Name: "two cells in a row", Rows: wide, Txns: wideCrossed, Timeouts: 1},
	{Name: "columns of a row", Rows: wide, Txns: [][]Write{puts(0, 2), puts(2, 1)}, Readers: []Reader{{Cell: 0}}},
	{Name: "latest", Rows: wide, Txns: [][]Write{puts(2, 0), puts(1)}, Readers: []Reader{{Cell: 0, Latest: true}}, Timeouts: 1},
	{Name: "pass", Rows: twoRows, Pass: true, Txns: [][]Write{puts(0, 1), puts(1)}, Readers: []Reader{{Cell: 1}}},
	{Name: "pass and heartbeat", Rows: twoRows, Pass: true, Heartbeats: true, Txns: [][]Write{puts(0, 1)}, Readers: []Reader{{Cell: 1}, {Cell: 0}}, Timeouts: 1, Duplicates: 1},
	{Name: "collect a delete", Rows: twoRows, Txns: deletes, Collect: true, Duplicates: 1},
	{Name: "collect a version", Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}, Collect: true, Duplicates: 1},
	{Name: "collect and read latest", Rows: twoRows, Txns: deletes, Collect: true, Readers: []Reader{{Cell: 1, Latest: true}}},
}

// longer take minutes.
var longer = []Scenario{
	{Name: "collect after a timeout", Rows: twoRows, Txns: deletes, Collect: true, Timeouts: 1},
	{Name: "collect and read", Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(1)}, Collect: true, Readers: []Reader{{Cell: 1}}},
	{Name: "collect slowly", Rows: twoRows, Slow: true, Txns: [][]Write{puts(0, 1), {{0, Delete}}}, Collect: true, Duplicates: 1},
	{Name: "timeouts and duplicates", Rows: twoRows, Txns: crossed, Timeouts: 2, Duplicates: 2},
	{Name: "timeout, duplicate and reader", Rows: twoRows, Txns: crossed, Readers: []Reader{{Cell: 1}}, Timeouts: 1, Duplicates: 1},
	{Name: "wide rows and reader", Rows: wide, Wide: true, Txns: wideCrossed, Readers: []Reader{{Cell: 1}}, Timeouts: 1, Duplicates: 1},
	{Name: "pass with a timeout", Rows: twoRows, Pass: true, Heartbeats: true, Txns: [][]Write{puts(0, 1), puts(1)}, Readers: []Reader{{Cell: 1}}, Timeouts: 1},
	{Name: "three transactions", Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(1, 0), puts(0)}},
	{Name: "three rows", Rows: []int{0, 1, 2}, Txns: [][]Write{puts(0, 1, 2), puts(2, 0)}, Timeouts: 1},
	{Name: "collect three transactions", Rows: twoRows, Txns: [][]Write{puts(0, 1), {{1, Delete}}, puts(0)}, Collect: true, Duplicates: 1},
}

// TestProtocol explores the protocol as it is.
func TestProtocol(t *testing.T) {
	all := scenarios
	if *long {
		all = append(longer, scenarios...)
	}
	for _, sc := range all {
		t.Run(sc.Name, func(t *testing.T) {
			limit := *states
			if testing.Short() {
				limit = 50_000
			}
			r := Explore(sc, NoBug, limit)
			t.Log(r)
			if r.Violation != "" || !r.Complete && !testing.Short() && !*long {
				t.Fail()
			}
		})
	}
}

// TestPlantedBugs shows that the model notices each mistake, and logs how it goes wrong.
func TestPlantedBugs(t *testing.T) {
	found := map[Bug]string{
		PrewriteIgnoresWrites:       "crossed",
		PrewriteIgnoresLocks:        "crossed",
		PrewriteIgnoresMarkers:      "crossed",
		PrewriteNotAwaited:          "crossed",
		CommitTSBeforeLocks:         "crossed",
		CommitWithoutLock:           "crossed",
		CommitIgnoresMinimum:        "pass",
		NewCommitTSAfterTimeout:     "timeout and duplicate",
		AbortAfterCommit:            "timeout and duplicate",
		CommitIgnoresSafePoint:      "collect a version",
		SecondariesIgnoreSafePoint:  "collect after a timeout",
		HeartbeatWithoutLock:        "pass and heartbeat",
		HeartbeatLowersMinimum:      "pass and heartbeat",
		RollBackWithoutMarker:       "timeout and duplicate",
		RollBackWithoutLock:         "crossed",
		EmptyPrimaryWithoutMarker:   "crossed",
		UndecidedAsOfNow:            "crossed",
		SecondaryDecides:            "crossed",
		LateLocksJudgedByOutcome:    "collect a delete",
		ReadIgnoresLocks:            "crossed",
		ReadIgnoresUndecided:        "crossed",
		PassWithoutRaise:            "pass",
		LatestIgnoresSecondaryLocks: "latest",
		LatestIgnoresOlderLocks:     "latest",
		ReadIgnoresSafePoint:        "collect and read",
		LocksNotResolvedFirst:       "collect a version",
		MarkersCollectedEarly:       "collect a version",
		DeletesCollectedEarly:       "collect a delete",
	}
	byName := map[string]Scenario{}
	for _, sc := range append(longer, scenarios...) {
		byName[sc.Name] = sc
	}
	for bug := NoBug + 1; bug < bugs; bug++ {
		t.Run(bug.String(), func(t *testing.T) {
			sc, ok := byName[found[bug]]
			if !ok {
				t.Fatalf("no scenario for %v", bug)
			}
			r := Explore(sc, bug, 3_000_000)
			t.Log(r)
			if r.Violation == "" {
				t.Errorf("scenario %q does not show this bug", sc.Name)
			}
		})
	}
}
