package lockcmd

import (
	"fmt"
	"io"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
)

// A tally counts locks and the transactions that they belong to.
type tally struct {
	Locks        int `json:"locks"`        // number of locks
	Transactions int `json:"transactions"` // number of transactions that they belong to
}

func (t *tally) add(locks int) {
	t.Locks += locks
	t.Transactions++
}

func (t tally) String() string {
	return fmt.Sprintf("%s of %s", cli.Count(t.Locks, "lock"), cli.Count(t.Transactions, "transaction"))
}

// A plan is what lock resolve would do. It is a forecast: the primaries decide when
// the locks are resolved.
type plan struct {
	Project      string                 `json:"project"`         // Google Cloud project
	Instance     string                 `json:"instance"`        // Bigtable instance
	Tables       []string               `json:"tables"`          // tables that were read
	DryRun       bool                   `json:"dry_run"`         // always true
	Locks        int                    `json:"locks"`           // locks that were found
	Forward      tally                  `json:"to_roll_forward"` // locks of committed transactions
	Back         tally                  `json:"to_roll_back"`    // locks of transactions that are rolled back, or whose owner is dead
	Alive        tally                  `json:"to_leave"`        // locks whose owner may be alive
	Unreadable   tally                  `json:"unreadable"`      // locks whose primary cannot be read
	Transactions []*inspect.Transaction `json:"transactions"`    // the transactions, the oldest first
}

func newPlan(at *connect.Flags, tables []string, all []*inspect.Transaction) *plan {
	p := &plan{Project: at.Project, Instance: at.Instance, Tables: append([]string{}, tables...), DryRun: true, Transactions: append([]*inspect.Transaction{}, all...)}
	for _, t := range all {
		p.Locks += len(t.Locks)
		switch t.Outcome {
		case doctor.Forward:
			p.Forward.add(len(t.Locks))
		case doctor.Back:
			p.Back.add(len(t.Locks))
		case doctor.Alive:
			p.Alive.add(len(t.Locks))
		default:
			p.Unreadable.add(len(t.Locks))
		}
	}
	return p
}

func (p *plan) text(w io.Writer) error {
	total := tally{p.Locks, len(p.Transactions)}
	where := "table " + strings.Join(p.Tables, ", ")
	if len(p.Tables) != 1 {
		where = "tables " + strings.Join(p.Tables, ", ")
	}
	fmt.Fprintf(w, "project %s, instance %s, %s: %v\n", p.Project, p.Instance, where, total)
	for _, part := range []struct {
		what  string
		count tally
	}{
		{"to roll forward", p.Forward},
		{"to roll back", p.Back},
		{"to leave: their owners may be alive", p.Alive},
		{"whose primary cannot be read", p.Unreadable},
	} {
		if part.count.Locks > 0 {
			fmt.Fprintf(w, "  %v %s\n", part.count, part.what)
		}
	}
	for i, t := range p.Transactions {
		if i == shownTransactions && len(p.Transactions) > shownTransactions+1 {
			fmt.Fprintf(w, "  … and %s more; percctl lock list shows all\n", cli.Count(len(p.Transactions)-i, "transaction"))
			break
		}
		fmt.Fprintf(w, "  %s %d, %s: %s\n", t.Primary, t.StartTS, cli.Count(len(t.Locks), "lock"), t.Verdict)
	}
	return nil
}

// shownTransactions is how many transactions a plan lists.
const shownTransactions = 10
