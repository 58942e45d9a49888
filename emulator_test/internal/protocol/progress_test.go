package protocol

import (
	"slices"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

var (
	// hot are three transactions that share one secondary.
	hot = [][]Write{puts(0, 3), puts(1, 3), puts(2, 3)}
	// crowded are two transactions whose primary is another one's secondary, and a third.
	crowded  = [][]Write{puts(0, 1), puts(1, 0), puts(1, 0)}
	fourRows = []int{0, 1, 2, 3}
)

// progress are scenarios in which some client always commits.
var progress = []Scenario{
	{Name: "crossed", Retry: Begins, Rows: twoRows, Txns: crossed, Timeouts: 1},
	{Name: "three in two rows", Retry: Begins, Rows: twoRows, Txns: crowded},
	{Name: "hot secondary", Retry: Begins, Rows: fourRows, Txns: hot},
}

// TestProgress shows that some client always commits.
func TestProgress(t *testing.T) {
	for _, sc := range progress {
		t.Run(sc.Name, func(t *testing.T) {
			if sc.Name == "three in two rows" {
				long.Test(t, "many states")
			}
			r := Progress(sc, NoBug, *states)
			t.Log(r)
			if r.Stuck != "" || !r.Complete && !testing.Short() {
				t.Fail()
			}
		})
	}
}

// TestPlantedStops shows that Progress notices each mistake, and logs how it goes wrong.
func TestPlantedStops(t *testing.T) {
	for bug, name := range map[Bug]string{
		EverybodyWaits: "crossed",
		NobodyWaits:    "three in two rows",
		NobodyResolves: "crossed",
	} {
		t.Run(bug.String(), func(t *testing.T) {
			if bug == NobodyWaits {
				long.Test(t, "many states")
			}
			sc := progress[slices.IndexFunc(progress, func(sc Scenario) bool { return sc.Name == name })]
			r := Progress(sc, bug, *states)
			t.Log(r)
			if r.Stuck == "" {
				t.Errorf("scenario %q does not show this bug", name)
			}
		})
	}
}
