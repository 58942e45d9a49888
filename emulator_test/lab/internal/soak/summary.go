package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// A summary is the output of a soak.
type summary struct {
	Seed         uint64         `json:"seed"`
	Seconds      float64        `json:"seconds"`
	Histories    int            `json:"histories"`
	Transactions int            `json:"transactions"`
	OK           int            `json:"ok"`
	Failed       int            `json:"failed"`
	Unknown      int            `json:"unknown"`
	FaultsFired  int            `json:"faults_fired"`
	Faults       map[string]int `json:"faults"`
	Kills        int            `json:"kills"`
	// Used counts uses of features.
	Used map[string]int `json:"used"`
	// Missing are faults and features that a soak of everything must have and this one
	// did not have.
	Missing []string `json:"missing"`
	// OracleFailovers counts changes of the oracle's leader.
	OracleFailovers int   `json:"oracle_failovers"`
	Timestamps      int64 `json:"timestamps"`
	// Observed counts changes that observers have acknowledged.
	Observed int64 `json:"observed"`
	// Stranded counts locks that were left when the histories ended.
	Stranded int `json:"stranded_locks"`
	// Recovered counts locks of killed clients that other clients settled.
	Recovered int `json:"recovered_locks"`
	// Probes counts cells that a killed client had left locked and that a reader read
	// at once. Recovery is the time from the kill until the reader had the cell.
	Probes      int     `json:"recovery_probes"`
	RecoveryP50 float64 `json:"recovery_p50_seconds"`
	RecoveryP99 float64 `json:"recovery_p99_seconds"`
	Anomalies   int     `json:"anomalies"`
	Violations  int     `json:"violations"`
	// Goals are those of an hour with all faults on 2 cores, with the numbers of this
	// soak.
	Goals []goal `json:"goals"`

	recovery []time.Duration
}

func (s *summary) add(r *result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Histories++
	s.Transactions += r.count[history.Invoke]
	s.OK += r.count[history.OK]
	s.Failed += r.count[history.Fail]
	s.Unknown += r.count[history.Info]
	for kind, n := range r.faults {
		s.Faults[kind] += n
		s.FaultsFired += n
	}
	for what, n := range r.used {
		s.Used[what] += n
	}
	s.Kills += r.kills
	s.OracleFailovers += r.failovers
	s.Timestamps += r.timestamps
	s.Observed += r.observed
	s.Stranded += r.stranded
	s.Recovered += r.settled
	s.recovery = append(s.recovery, r.recovery...)
	s.Anomalies += len(r.anomalies)
	s.Violations += len(r.violations)
}

func (s *summary) finish() {
	slices.Sort(s.recovery)
	if s.Probes = len(s.recovery); s.Probes > 0 {
		s.RecoveryP50 = s.recovery[s.Probes/2].Seconds()
		s.RecoveryP99 = s.recovery[s.Probes*99/100].Seconds()
	}
	s.Goals = goalsOf(s)
}

func (s *summary) text(w io.Writer) error {
	t := cli.NewTable(w)
	row := func(name string, format string, args ...any) { cli.WriteRow(t, name, fmt.Sprintf(format, args...)) }
	row("histories", "%d in %v, seed %d", s.Histories, time.Duration(s.Seconds*float64(time.Second)).Round(time.Second), s.Seed)
	row("transactions", "%d: %d committed, %d failed, %d unknown", s.Transactions, s.OK, s.Failed, s.Unknown)
	row("faults", "%d", s.FaultsFired)
	for _, kind := range slices.Sorted(maps.Keys(s.Faults)) {
		row("  "+kind, "%d", s.Faults[kind])
	}
	row("features used", "")
	for _, what := range sortedKeys(s.Used) {
		row("  "+what, "%d", s.Used[what])
	}
	if len(s.Missing) > 0 {
		row("missing", "%s", strings.Join(s.Missing, ", "))
	}
	row("timestamps", "%d, with %d changes of the leading server", s.Timestamps, s.OracleFailovers)
	row("observed changes", "%d", s.Observed)
	row("locks of killed clients", "%d resolved by other clients; %d probes read the cell after %.2f s (p50) and %.2f s (p99); ttl %v", s.Recovered, s.Probes, s.RecoveryP50, s.RecoveryP99, lockTTL)
	row("anomalies", "%d", s.Anomalies)
	row("violations", "%d", s.Violations)
	if err := t.Flush(); err != nil {
		return err
	}
	return writeGoals(w, s.Goals)
}
