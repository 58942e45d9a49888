package inspect

import (
	"fmt"
	"io"
	"strconv"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
)

// shownLocks is how many locks of a transaction a table lists; the other
// formats have all.
const shownLocks = 10

// Text prints the transaction for people.
func (t *Transaction) Text(w io.Writer, style cli.Style) error {
	head := fmt.Sprintf("transaction %s, %s, %s old", cli.Stamp(t.StartTS), cli.Count(len(t.Locks), "lock"), t.AgeText())
	fmt.Fprintln(w, style.Bold(head))
	verdict := t.Verdict
	switch t.Outcome {
	case doctor.Forward, doctor.Back:
		verdict = style.Good(verdict)
	case doctor.Unknown:
		verdict = style.Bad(verdict)
	}
	fmt.Fprintf(w, "  verdict  %s\n", verdict)
	fmt.Fprintf(w, "  primary  %s (%s)\n", t.Primary, t.State)
	if t.OwnerToken != "" {
		fmt.Fprintf(w, "  owner    %s\n", t.OwnerText())
	}
	if t.TraceID != "" {
		fmt.Fprintf(w, "  trace    %s\n", t.TraceID)
	}
	return t.locksText(w)
}

// AgeText is how long ago the transaction began, in oracle time.
func (t *Transaction) AgeText() string { return cli.Between(t.StartTS, t.now) }

// OwnerText says who owns the locks, and whether it is alive.
func (t *Transaction) OwnerText() string {
	name := t.Owner
	if name == "" {
		name = "(none)"
	}
	process := ""
	if t.OwnerPID != 0 {
		process = fmt.Sprintf(", pid %d on %s", t.OwnerPID, t.OwnerHost)
	}
	switch t.token.State {
	case admin.OwnerFresh:
		return fmt.Sprintf("%s, token fresh for %s%s", name, cli.Between(t.now, t.token.ExpiresTS), process)
	case admin.OwnerStale:
		return fmt.Sprintf("%s, token stale for %s%s", name, cli.Between(t.token.ExpiresTS, t.now), process)
	}
	return name + ", token " + string(t.token.State)
}

func (t *Transaction) locksText(w io.Writer) error {
	for i, l := range t.Locks {
		if i == shownLocks && len(t.Locks) > shownLocks+1 {
			_, err := fmt.Fprintf(w, "           … and %d more; -o json lists all\n", len(t.Locks)-i)
			return err
		}
		if _, err := fmt.Fprintf(w, "  lock     %s (%s)\n", l.Cell, l.note()); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lock) note() string {
	note := l.Kind
	if l.Primary {
		note += ", primary"
	}
	if l.Observed {
		note += ", observed"
	}
	return note
}

// CSVHeader names the columns of CSVRows.
var CSVHeader = []string{"start_ts", "start_time", "age_seconds", "primary", "state", "commit_ts", "commit_time", "outcome", "verdict", "owner", "owner_token", "trace_id", "cell", "kind", "is_primary", "expires_ts", "expires_time"}

// CSVRows are one row a lock.
func (t *Transaction) CSVRows() [][]string {
	head := []string{t.StartTS.String(), t.Start, strconv.FormatFloat(t.Age, 'f', 6, 64), t.Primary, t.State, cli.Number(t.CommitTS), t.Commit, string(t.Outcome), t.Verdict, t.Owner, string(t.OwnerToken), t.TraceID}
	var rows [][]string
	for _, l := range t.Locks {
		rows = append(rows, append(head[:len(head):len(head)], l.Cell, l.Kind, strconv.FormatBool(l.Primary), l.ExpiresTS.String(), l.Expires))
	}
	return rows
}
