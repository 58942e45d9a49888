package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
)

// A summary is what -o json prints.
type summary struct {
	Dir           string    `json:"dir"`
	Seed          uint64    `json:"seed"`
	Clients       int       `json:"clients"`
	Documents     int       `json:"documents"`
	Bytes         int       `json:"bytes"`
	Skipped       int       `json:"skipped"`
	Duplicates    int       `json:"duplicates"` // documents that are not canonical
	Committed     int       `json:"committed"`
	Found         int       `json:"found_committed"` // by clients that were killed before they could say so
	Conflicts     int64     `json:"conflicts"`
	Retries       int64     `json:"retries"`
	ClientsKilled int       `json:"clients_killed"`
	KilledBefore  int       `json:"killed_before_commit"`
	KilledAfter   int       `json:"killed_after_commit"`
	KilledByOther int       `json:"killed_by_others"`
	LocksStranded int       `json:"locks_stranded"`
	RolledForward int       `json:"rolled_forward"`
	RolledBack    int       `json:"rolled_back"`
	Cells         int       `json:"cells_compared"`
	Violations    int       `json:"violations"`
	Mismatches    int       `json:"mismatches"`
	Seconds       float64   `json:"seconds"`
	PerSecond     float64   `json:"documents_per_second"` // while clients ran
	Clusters      []cluster `json:"largest_clusters"`
	Emulator      string    `json:"emulator,omitempty"` // only one that is still there
	Project       string    `json:"project,omitempty"`
	Instance      string    `json:"instance,omitempty"`
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

	fmt.Fprintf(&b, "%s\n", style.Bold("A document repository, kept free of duplicates by transactions"))
	fmt.Fprintf(&b, "%s, seed %d\n\n", s.Dir, s.Seed)
	row("documents", s.Documents, fmt.Sprintf("%s; %d of them duplicates", bytesText(s.Bytes), s.Duplicates))
	if s.Skipped > 0 {
		row("skipped", s.Skipped, "named above; they do not fit into Bigtable")
	}
	row("commits", s.Committed, s.commitsNote())
	row("conflicts", s.Conflicts, "detected; no write was lost to one")
	row("retries", s.Retries, "")
	row("clients killed", s.ClientsKilled, s.killsNote())
	row("locks stranded", s.LocksStranded, "left in the tables by the killed, settled by the others")
	row("  rolled forward", s.RolledForward, "of transactions that were past their commit point")
	row("  rolled back", s.RolledBack, "of transactions that were not")
	verdict("violations", s.Violations, fmt.Sprintf("by the consistency check of %d tables", len(tables)))
	verdict("mismatches", s.Mismatches, fmt.Sprintf("against a direct computation of all %d cells", s.Cells))
	row("rate", fmt.Sprintf("%.4g/s", s.PerSecond), fmt.Sprintf("by %d processes with %d transactions each", s.Clients, window))
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

func (s *summary) commitsNote() string {
	if s.Found == 0 {
		return "each document in exactly one"
	}
	return fmt.Sprintf("each document in exactly one; %d found there, committed by clients killed before they could say so", s.Found)
}

func (s *summary) killsNote() string {
	note := fmt.Sprintf("%d before the commit of a primary, %d after it", s.KilledBefore, s.KilledAfter)
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
    cbt -project %s -instance %s read %s count=3
    cbt -project %s -instance %s count %s
`, s.Emulator, s.Project, s.Instance, dupsTable, s.Project, s.Instance, documentsTable)
	}
	return `  The emulator, and the tables with it, ended with the demo. To keep them:
    go tool emulator -port 9000 &
    BIGTABLE_EMULATOR_HOST=localhost:9000 percctl demo
  The transaction is updateDocument in cmd/percctl/internal/demo/documents.go.
  More clients, more kills, other files: percctl demo --help.
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
