package protocol

import (
	"flag"
	"slices"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

var (
	states = flag.Int("states", 1_500_000, "how many states of a scenario the tests visit at most")
	whole  = flag.Bool("long", false, "also explore the scenarios that take minutes")
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
	threeRows   = []int{0, 1, 2}
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
	{Name: "seal", Rows: []int{0}, Pass: true, Seal: true, Heartbeats: true, Txns: [][]Write{puts(0)}, Readers: []Reader{{Cell: 0}, {Cell: 0}}, Timeouts: 1, Duplicates: 1},
	{Name: "collect a delete", Rows: twoRows, Txns: deletes, Collect: true, Duplicates: 1},
	{Name: "collect a version", Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}, Collect: true, Duplicates: 1},
	{Name: "collect and read latest", Rows: twoRows, Txns: deletes, Collect: true, Readers: []Reader{{Cell: 1, Latest: true}}},
}

// longer take minutes.
var longer = []Scenario{
	{Name: "collect a delete slowly", SlowCollector: true, Rows: twoRows, Txns: deletes, Collect: true, Duplicates: 1},
	{Name: "collect a version slowly", SlowCollector: true, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}, Collect: true, Duplicates: 1},
	{Name: "collect after a timeout", Rows: twoRows, Txns: deletes, Collect: true, Timeouts: 1},
	{Name: "collect and read", Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(1)}, Collect: true, Readers: []Reader{{Cell: 1}}},
	{Name: "collect slowly", Rows: twoRows, Slow: true, Txns: [][]Write{puts(0, 1), {{0, Delete}}}, Collect: true, Duplicates: 1},
	{Name: "timeouts and duplicates", Rows: twoRows, Txns: crossed, Timeouts: 2, Duplicates: 2},
	{Name: "timeout, duplicate and reader", Rows: twoRows, Txns: crossed, Readers: []Reader{{Cell: 1}}, Timeouts: 1, Duplicates: 1},
	{Name: "wide rows and reader", Rows: wide, Wide: true, Txns: wideCrossed, Readers: []Reader{{Cell: 1}}, Timeouts: 1, Duplicates: 1},
	{Name: "pass with a timeout", Rows: twoRows, Pass: true, Heartbeats: true, Txns: [][]Write{puts(0, 1), puts(1)}, Readers: []Reader{{Cell: 1}}, Timeouts: 1},
	{Name: "seal, two rows", Rows: twoRows, Pass: true, Seal: true, Heartbeats: true, Txns: [][]Write{puts(0, 1), puts(1)}, Readers: []Reader{{Cell: 1}}, Timeouts: 1},
	{Name: "three transactions", Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(1, 0), puts(0)}},
	{Name: "three rows", Rows: threeRows, Txns: [][]Write{puts(0, 1, 2), puts(2, 0)}, Timeouts: 1},
	{Name: "collect three transactions", Rows: twoRows, Txns: [][]Write{puts(0, 1), {{1, Delete}}, puts(0)}, Collect: true, Duplicates: 1},
}

// follow are scenarios of collections that follow changes.
var follow = []Scenario{
	{Name: "follow", Follow: true, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}},
	{Name: "follow, with a duplicate", Follow: true, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}, Duplicates: 1},
	{Name: "follow a delete", Follow: true, Rows: twoRows, Txns: deletes, Duplicates: 1},
	{Name: "follow a claim", Follow: true, Claimed: 1, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}},
	{Name: "follow slowly", Follow: true, SlowCollector: true, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}},
}

// followLonger take minutes.
var followLonger = []Scenario{
	{Name: "follow a delete slowly", Follow: true, SlowCollector: true, Rows: twoRows, Txns: deletes, Duplicates: 1},
	{Name: "follow, with a timeout", Follow: true, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}, Timeouts: 1},
	{Name: "follow both rows", Follow: true, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0, 1)}},
	{Name: "follow and read", Follow: true, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(1)}, Readers: []Reader{{Cell: 1}}},
	{Name: "follow and collect", Follow: true, Collect: true, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}},
	{Name: "follow and collect, with a duplicate", Follow: true, Collect: true, Rows: twoRows, Txns: [][]Write{puts(0, 1), puts(0)}, Duplicates: 1},
	{Name: "follow and collect a delete", Follow: true, Collect: true, Rows: twoRows, Txns: deletes, Duplicates: 1},
	{Name: "follow, and read latest", Follow: true, Rows: twoRows, Txns: deletes, Readers: []Reader{{Cell: 1, Latest: true}}, Duplicates: 1},
}

// TestProtocol explores the protocol.
func TestProtocol(t *testing.T) { explore(t, scenarios, longer) }

// TestFollowChanges explores collections that follow changes
// (docs/design/collection.md).
func TestFollowChanges(t *testing.T) { explore(t, follow, followLonger) }

func explore(t *testing.T, scenarios, longer []Scenario) {
	if *whole {
		scenarios = slices.Concat(scenarios, longer)
	}
	for _, sc := range scenarios {
		t.Run(sc.Name, func(t *testing.T) {
			limit := *states
			if long.Reduced() && !*whole {
				limit = 20_000
			}
			r := Explore(sc, NoBug, limit)
			t.Log(r)
			if r.Violation != "" || !r.Complete && !long.Reduced() && !*whole {
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
		GiveUpKeepsStart:            "timeout and duplicate",
		CommitIgnoresSafePoint:      "collect a version",
		SecondariesIgnoreSafePoint:  "collect after a timeout",
		HeartbeatWithoutLock:        "pass and heartbeat",
		AbortLeavesUnanswered:       "timeout and duplicate",
		HeartbeatLowersMinimum:      "pass and heartbeat",
		HeartbeatUndoesSeal:         "seal",
		AheadLowersMinimum:          "seal",
		SealLowersMinimum:           "seal",
		SealWithoutLock:             "seal",
		RollBackWithoutMarker:       "timeout and duplicate",
		RollBackWithoutLock:         "crossed",
		EmptyPrimaryWithoutMarker:   "crossed",
		UndecidedAsOfNow:            "crossed",
		SecondaryDecides:            "crossed",
		LateLocksJudgedByOutcome:    "collect a delete",
		ReadIgnoresLocks:            "crossed",
		ReadIgnoresUndecided:        "crossed",
		PassWithoutRaise:            "pass",
		PassSealed:                  "seal",
		LatestIgnoresSecondaryLocks: "latest",
		LatestIgnoresOlderLocks:     "latest",
		ReadIgnoresSafePoint:        "collect and read",
		LocksNotResolvedFirst:       "collect a version",
		MarkersCollectedEarly:       "collect a version",
		DeletesCollectedEarly:       "collect a delete",
		FollowRemovesAll:            "follow",
		FollowRemovesMarks:          "follow, with a duplicate",
		FollowRemovesDeletes:        "follow a delete",
		ClaimBeforeSecondaries:      "follow",
		ClaimAfterUnknown:           "follow, with a timeout",
		NumberBelowClaim:            "follow a claim",
	}
	slow := []Bug{SecondariesIgnoreSafePoint, ReadIgnoresSafePoint, ClaimAfterUnknown, LateLocksJudgedByOutcome, DeletesCollectedEarly}
	byName := map[string]Scenario{}
	for _, sc := range slices.Concat(scenarios, longer, follow, followLonger) {
		byName[sc.Name] = sc
	}
	for bug := NoBug + 1; bug < EverybodyWaits; bug++ {
		t.Run(bug.String(), func(t *testing.T) {
			if slices.Contains(slow, bug) {
				long.Test(t, "many states")
			}
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
