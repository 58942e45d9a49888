package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
)

// A summary is what -o json prints.
type summary struct {
	Dir                string          `json:"dir"`
	Seed               uint64          `json:"seed"`
	Clients            int             `json:"clients"` // worker processes at a time
	Observers          int             `json:"observers"`
	Documents          int             `json:"documents"`
	Bytes              int             `json:"bytes"`
	Links              int             `json:"links"`
	Skipped            int             `json:"skipped"`
	Duplicates         int             `json:"duplicates"` // documents that are not canonical
	Changed            int             `json:"changed"`
	Added              int             `json:"added"`
	Deleted            int             `json:"deleted"`
	Committed          int             `json:"committed"` // loader transactions
	ObserversRun       int64           `json:"observers_run"`
	ObserversCommitted int64           `json:"observers_committed"`
	Collapsed          int64           `json:"collapsed"` // changes that were dealt with along with another
	Conflicts          int64           `json:"conflicts"`
	LostRaces          int64           `json:"lost_races"`
	Failed             int64           `json:"observers_failed"`
	WorkersKilled      int             `json:"workers_killed"`
	ClientsKilled      int             `json:"clients_killed"` // the same, by its earlier name
	KilledBefore       int             `json:"killed_before_commit"`
	KilledAfter        int             `json:"killed_after_commit"`
	KilledByOther      int             `json:"killed_by_others"`
	LocksStranded      int             `json:"locks_stranded"`
	RolledForward      int             `json:"rolled_forward"`
	RolledBack         int             `json:"rolled_back"`
	NotificationsLeft  int             `json:"notifications_left"`
	Cells              int             `json:"cells_compared"`
	Violations         int             `json:"violations"`
	Mismatches         int             `json:"mismatches"`
	Seconds            float64         `json:"seconds"`
	PerSecond          float64         `json:"documents_per_second"` // until the first of them all are indexed
	Percolated         float64         `json:"percolated_seconds"`   // until the changes are
	Clusters           []index.Cluster `json:"largest_clusters"`
	Emulator           string          `json:"emulator,omitempty"` // only one that is still there
	Project            string          `json:"project,omitempty"`
	Instance           string          `json:"instance,omitempty"`
}

func (s *summary) print(w io.Writer, format cli.Format) error {
	if format == cli.JSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(s)
	}
	var b strings.Builder // one write, and one place for its error
	style := cli.StyleFor(w)
	row := func(name string, value any, note string) {
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(fmt.Sprintf("  %-18s %9v   %s", name, value, note), " "))
	}
	verdict := func(name string, value int, note string) {
		text := fmt.Sprintf("  %-18s %9d", name, value)
		if value == 0 {
			text = style.Good(text)
		} else {
			text = style.Bad(text)
		}
		fmt.Fprintf(&b, "%s   %s\n", text, note)
	}

	fmt.Fprintf(&b, "%s\n", style.Bold("An index of documents, kept up to date by observers"))
	fmt.Fprintf(&b, "%s, seed %d\n\n", s.Dir, s.Seed)
	row("documents", s.Documents, fmt.Sprintf("%s, %d links; %d of them duplicates", bytesText(s.Bytes), s.Links, s.Duplicates))
	if s.Skipped > 0 {
		row("skipped", s.Skipped, "named above; they do not fit into Bigtable")
	}
	row("changes", s.Changed+s.Added+s.Deleted, fmt.Sprintf("%d changed, %d added, %d deleted, once all were indexed", s.Changed, s.Added, s.Deleted))
	row("loaded", s.Committed, "transactions that brought documents in")
	row("observer runs", s.ObserversRun, fmt.Sprintf("of %d observers", s.Observers))
	row("  committed", s.ObserversCommitted, fmt.Sprintf("with the acknowledgment of the change; %d more changes collapsed into them", s.Collapsed))
	row("  conflicts", s.Conflicts, fmt.Sprintf("run again; %d more found another worker to be faster", s.LostRaces))
	row("workers killed", s.WorkersKilled, s.killsNote())
	row("locks stranded", s.LocksStranded, "left in the tables by the killed, settled by the others")
	row("  rolled forward", s.RolledForward, "of runs that were past their commit point")
	row("  rolled back", s.RolledBack, "of runs that were not")
	verdict("notifications left", s.NotificationsLeft, "everything has percolated")
	verdict("violations", s.Violations, "by the consistency check of all tables")
	verdict("mismatches", s.Mismatches, fmt.Sprintf("against a batch computation of all %d cells, before and after the changes", s.Cells))
	row("rate", fmt.Sprintf("%.4g/s", s.PerSecond), fmt.Sprintf("documents indexed by %d processes", s.Clients))
	row("percolation", fmt.Sprintf("%.1f s", s.Percolated), "until the changes were in the index")
	row("duration", fmt.Sprintf("%.1f s", s.Seconds), "")

	if len(s.Clusters) > 0 {
		fmt.Fprintf(&b, "\n%s\n", style.Bold("Largest clusters of duplicates"))
		for _, c := range s.Clusters {
			row(fmt.Sprintf("%d × %s", c.Documents, bytesText(c.Bytes)), "", c.Canonical)
		}
	}
	fmt.Fprintf(&b, "\n%s\n%s", style.Bold("Where to look next"), s.next())
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *summary) killsNote() string {
	note := fmt.Sprintf("%d before the commit of a run, %d after it", s.KilledBefore, s.KilledAfter)
	if s.KilledByOther > 0 {
		note += fmt.Sprintf("; %d more by somebody else", s.KilledByOther)
	}
	return note
}

// next is what a curious person does now.
func (s *summary) next() string {
	if s.Emulator != "" {
		return fmt.Sprintf(`  The tables are still there:
    export BIGTABLE_EMULATOR_HOST=%s
    export PERCCTL_PROJECT=%s PERCCTL_INSTANCE=%s
    percctl scan %s --limit 3
    percctl history %s ROW
`, s.Emulator, s.Project, s.Instance, index.Serving, index.Documents)
	}
	return `  The emulator, and the tables with it, ended with the demo. To keep them:
    go tool emulator -port 9000 &
    BIGTABLE_EMULATOR_HOST=localhost:9000 percctl demo
  The observers are in docs/examples/index/observers.go; docs/tutorial.md
  walks through them. More workers, more kills, other files: percctl demo --help.
`
}

func bytesText(n int) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d bytes", n)
}
