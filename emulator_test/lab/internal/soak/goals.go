package soak

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/workload"
)

// kinds are the kinds of faults that a soak with all faults makes.
var kinds = []string{
	faultKill, faultStop, faultServer, faultClock, faultDeadline, faultOracleKill, faultOracleStop,
	workload.FaultDropRequest, workload.FaultDropResponse, workload.FaultDuplicate, workload.FaultDelay, workload.FaultLateCopy,
	workload.FaultSlow, workload.FaultCut, workload.FaultPartial,
	workload.FaultReset, workload.FaultHalfOpen, workload.FaultTrickle,
}

// A goal is what a soak of an hour must reach, with all faults and workloads, on 2
// cores.
type goal struct {
	Goal string `json:"goal"`
	// Wanted is the least number in an hour, or with AtMost the largest.
	Wanted float64 `json:"wanted"`
	AtMost bool    `json:"at_most"`
	// Reached is the number of this soak, and AnHour that of an hour at the same
	// rate. They are equal if the number does not grow with time.
	Reached float64 `json:"reached"`
	AnHour  float64 `json:"an_hour"`
	Met     bool    `json:"met"`
}

// goalsOf compares a summary with the goals.
func goalsOf(s *summary) []goal {
	hour := 0.0
	if s.Seconds > 0 {
		hour = time.Hour.Seconds() / s.Seconds
	}
	rarest := slices.MinFunc(kinds, func(a, b string) int { return s.Faults[a] - s.Faults[b] })
	committed := 0.0
	if s.Transactions > 0 {
		committed = 100 * float64(s.OK) / float64(s.Transactions)
	}
	all := []goal{
		{Goal: "transactions attempted", Wanted: 1_000_000, Reached: float64(s.Transactions)},
		{Goal: "histories", Wanted: 100, Reached: float64(s.Histories)},
		{Goal: "SIGKILLs", Wanted: 2_000, Reached: float64(s.Kills)},
		{Goal: "of every kind of fault (fewest: " + rarest + ")", Wanted: 500, Reached: float64(s.Faults[rarest])},
		{Goal: "oracle failovers", Wanted: 200, Reached: float64(s.OracleFailovers)},
		{Goal: "timestamps", Wanted: 100_000_000, Reached: float64(s.Timestamps)},
		{Goal: "observed changes", Wanted: 100_000, Reached: float64(s.Observed)},
	}
	for i, g := range all {
		all[i].AnHour = math.Floor(g.Reached * hour)
		all[i].Met = all[i].AnHour >= g.Wanted
	}
	for _, g := range []goal{
		{Goal: "% committed", Wanted: 40, Reached: committed},
		{Goal: "anomalies", AtMost: true, Reached: float64(s.Anomalies)},
		{Goal: "violations", AtMost: true, Reached: float64(s.Violations)},
		{Goal: "recovery p99, seconds", AtMost: true, Wanted: (lockTTL + time.Second).Seconds(), Reached: s.RecoveryP99},
	} {
		g.AnHour, g.Met = g.Reached, g.Reached >= g.Wanted
		if g.AtMost {
			g.Met = g.Reached <= g.Wanted
		}
		all = append(all, g)
	}
	return all
}

func writeGoals(w io.Writer, goals []goal) error {
	fmt.Fprintln(w)
	t := cli.NewTable(w)
	cli.WriteRow(t, "goal for an hour", "wanted", "reached", "in an hour", "")
	for _, g := range goals {
		sign, met := "≥", "met"
		if g.AtMost {
			sign = "≤"
		}
		if !g.Met {
			met = "missed"
		}
		cli.WriteRow(t, g.Goal, sign+" "+number(g.Wanted), number(g.Reached), number(g.AnHour), met)
	}
	return t.Flush()
}

func number(x float64) string {
	if x == math.Trunc(x) {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.2f", x)
}
