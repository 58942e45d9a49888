package demo

import (
	"fmt"
	"io"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
)

// A summary is what a demo did and found.
type summary struct {
	Dir                string          `json:"dir"`                  // directory of the files
	Seed               uint64          `json:"seed" unit:"-"`        // number that decided order, changes and kills
	Clients            int             `json:"clients"`              // worker processes at a time
	Observers          int             `json:"observers"`            // observers that each worker runs
	Documents          int             `json:"documents"`            // documents before the changes
	Bytes              int             `json:"bytes"`                // size of these documents
	Links              int             `json:"links"`                // links in them
	Skipped            int             `json:"skipped"`              // files that do not fit into Bigtable
	Duplicates         int             `json:"duplicates"`           // documents that are not the canonical one of their contents
	Changed            int             `json:"changed"`              // documents that got other contents, once all were indexed
	Added              int             `json:"added"`                // documents that were added then
	Deleted            int             `json:"deleted"`              // documents that were deleted then
	Committed          int             `json:"committed"`            // loader transactions
	ObserversRun       int64           `json:"observers_run"`        // runs of observers
	ObserversCommitted int64           `json:"observers_committed"`  // runs that committed
	Collapsed          int64           `json:"collapsed"`            // changes that a run handled along with a newer one
	Conflicts          int64           `json:"conflicts"`            // runs that conflicted and were retried
	LostRaces          int64           `json:"lost_races"`           // runs in which another worker was faster
	Failed             int64           `json:"observers_failed"`     // runs in which the observer failed
	WorkersKilled      int             `json:"workers_killed"`       // workers that the demo killed
	ClientsKilled      int             `json:"clients_killed"`       // the same as `workers_killed`, its former name
	KilledBefore       int             `json:"killed_before_commit"` // workers killed before the commit of a run
	KilledAfter        int             `json:"killed_after_commit"`  // workers killed after the commit of a run
	KilledByOther      int             `json:"killed_by_others"`     // workers killed from outside
	LocksStranded      int             `json:"locks_stranded"`       // locks that killed workers left behind
	RolledForward      int             `json:"rolled_forward"`       // those of committed runs
	RolledBack         int             `json:"rolled_back"`          // those of runs that did not commit
	NotificationsLeft  int             `json:"notifications_left"`   // notifications at the end
	Cells              int             `json:"cells_compared"`       // cells compared with the batch computation, after the changes
	Violations         int             `json:"violations"`           // violations that the consistency check found
	Mismatches         int             `json:"mismatches"`           // differences from the batch computation, before and after the changes
	Seconds            float64         `json:"seconds"`              // time from start to end
	PerSecond          float64         `json:"documents_per_second"` // rate until all documents were indexed
	Percolated         float64         `json:"percolated_seconds"`   // time until the changes were indexed
	Clusters           []index.Cluster `json:"largest_clusters"`     // the largest groups of duplicates, at most 3
	Emulator           string          `json:"emulator,omitempty"`   // address of BIGTABLE_EMULATOR_HOST, where the tables stay
	Project            string          `json:"project,omitempty"`    // project of the tables that stay
	Instance           string          `json:"instance,omitempty"`   // instance of the tables that stay

	page bool // the page stays open
}

func (s *summary) print(w io.Writer, format cli.Format) error {
	style := cli.StyleFor(w)
	return cli.Print(w, format, s, func(w io.Writer) error { return s.text(w, style) })
}

func (s *summary) text(w io.Writer, style cli.Style) error {
	row := func(name string, value any, note string) {
		fmt.Fprintf(w, "%s\n", strings.TrimRight(fmt.Sprintf("  %-18s %9v   %s", name, value, note), " "))
	}
	verdict := func(name string, value int, note string) {
		text := fmt.Sprintf("  %-18s %9d", name, value)
		if value == 0 {
			text = style.Good(text)
		} else {
			text = style.Bad(text)
		}
		fmt.Fprintf(w, "%s   %s\n", text, note)
	}

	fmt.Fprintf(w, "%s\n", style.Bold("An index of documents, kept up to date by observers"))
	fmt.Fprintf(w, "%s, seed %d\n\n", s.Dir, s.Seed)
	row("documents", s.Documents, fmt.Sprintf("%s, %d links; %d of them duplicates", bytesText(s.Bytes), s.Links, s.Duplicates))
	if s.Skipped > 0 {
		row("skipped", s.Skipped, "they do not fit into Bigtable, see above")
	}
	row("changes", s.Changed+s.Added+s.Deleted, fmt.Sprintf("%d changed, %d added, %d deleted, once all were indexed", s.Changed, s.Added, s.Deleted))
	row("loaded", s.Committed, "loader transactions")
	row("observer runs", s.ObserversRun, fmt.Sprintf("of %d observers", s.Observers))
	row("  committed", s.ObserversCommitted, fmt.Sprintf("each with the acknowledgment of its change; %d more changes collapsed into them", s.Collapsed))
	row("  conflicts", s.Conflicts, fmt.Sprintf("retried; in %d more, another worker was faster", s.LostRaces))
	row("workers killed", s.WorkersKilled, s.killsNote())
	row("locks stranded", s.LocksStranded, "left behind by killed workers, resolved by the others")
	row("  rolled forward", s.RolledForward, "their runs had committed")
	row("  rolled back", s.RolledBack, "their runs had not committed")
	verdict("notifications left", s.NotificationsLeft, "every change was handled")
	verdict("violations", s.Violations, "found by the consistency check of all tables")
	verdict("mismatches", s.Mismatches, fmt.Sprintf("against a batch computation of all %d cells, before and after the changes", s.Cells))
	row("rate", fmt.Sprintf("%.4g/s", s.PerSecond), fmt.Sprintf("documents indexed by %d processes", s.Clients))
	row("percolation", fmt.Sprintf("%.1f s", s.Percolated), "until the changes were in the index")
	row("duration", fmt.Sprintf("%.1f s", s.Seconds), "")

	if len(s.Clusters) > 0 {
		fmt.Fprintf(w, "\n%s\n", style.Bold("Largest clusters of duplicates"))
		for _, c := range s.Clusters {
			row(fmt.Sprintf("%d × %s", c.Documents, bytesText(c.Bytes)), "", c.Canonical)
		}
	}
	fmt.Fprintf(w, "\n%s\n%s", style.Bold("Where to look next"), s.next())
	return nil
}

func (s *summary) killsNote() string {
	note := fmt.Sprintf("%d before the commit of a run, %d after it", s.KilledBefore, s.KilledAfter)
	if s.KilledByOther > 0 {
		note += fmt.Sprintf("; %d more from outside", s.KilledByOther)
	}
	return note
}

// next says what to look at now.
func (s *summary) next() string {
	if s.Emulator != "" {
		return fmt.Sprintf(`  The tables are still there:
    export BIGTABLE_EMULATOR_HOST=%s
    export PERCCTL_PROJECT=%s PERCCTL_INSTANCE=%s
    percctl scan %s --limit 3
    percctl history %s ROW
`, s.Emulator, s.Project, s.Instance, index.Serving, index.Documents)
	}
	tables := "The emulator and its tables end with the page."
	if !s.page {
		tables = `The emulator and its tables ended with the demo. To keep them:
    go tool emulator -port 9000 &
    BIGTABLE_EMULATOR_HOST=localhost:9000 percctl demo`
	}
	return "  " + tables + `
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
