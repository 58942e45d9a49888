package lockcmd

import (
	"fmt"
	"io"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
)

// tally counts locks and their transactions.
type tally struct {
	Locks        int `json:"locks"`
	Transactions int `json:"transactions"`
}

func (t *tally) add(locks int) {
	t.Locks += locks
	t.Transactions++
}

func (t tally) String() string {
	return fmt.Sprintf("%s of %s", cli.Count(t.Locks, "lock"), cli.Count(t.Transactions, "transaction"))
}

// A plan is what resolve is about to do, as far as one can tell: the primaries
// decide when it is done.
type plan struct {
	Project      string                 `json:"project"`
	Instance     string                 `json:"instance"`
	Tables       []string               `json:"tables"`
	DryRun       bool                   `json:"dry_run"`
	Locks        int                    `json:"locks"`
	Forward      tally                  `json:"to_roll_forward"`
	Back         tally                  `json:"to_roll_back"`
	Alive        tally                  `json:"to_leave"`
	Unreadable   tally                  `json:"unreadable"`
	Transactions []*inspect.Transaction `json:"transactions"`
}

func newPlan(at *connect.Flags, tables []string, all []*inspect.Transaction) *plan {
	p := &plan{Project: at.Project, Instance: at.Instance, Tables: append([]string{}, tables...), DryRun: true, Transactions: append([]*inspect.Transaction{}, all...)}
	for _, t := range all {
		p.Locks += len(t.Locks)
		switch t.Outcome {
		case inspect.Forward:
			p.Forward.add(len(t.Locks))
		case inspect.Back:
			p.Back.add(len(t.Locks))
		case inspect.Alive:
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
		{"to leave, for their owners may be alive", p.Alive},
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

// shownTransactions is how many transactions a plan tells one by one.
const shownTransactions = 10
