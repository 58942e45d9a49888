// Package repaircmd is percctl repair: repairing what the consistency check
// finds, where that is safe.
package repaircmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// NewCmd returns the repair command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("repair", "Repair what percctl check finds, where that is safe",
		`Repair what percctl check finds, where that needs no guess: data of transactions of
which no table has a trace, lost write records of transactions that other records prove
to be committed, locks next to the write record of their own transaction, locks and
markers above the oracle's time, and old rollback markers. percctl repair plan writes a
file for you to read, and percctl repair apply does what the file says. Other violations
are left to you: docs/operations.md says what to do about each.`,
		newPlanCmd(s), newApplyCmd(s))
}

// planVersion is in the file; apply refuses others.
const planVersion = 1

// A plan is what repair apply would do.
type plan struct {
	Version       int           `json:"percctl_repair_plan" unit:"-"` // version of the format
	Project       string        `json:"project"`                      // Google Cloud project
	Instance      string        `json:"instance"`                     // Bigtable instance
	MetadataTable string        `json:"metadata_table"`               // metadata table of the deployment
	Tables        []string      `json:"tables"`                       // tables that were read
	CreatedTS     tso.Timestamp `json:"created_ts"`                   // oracle time at which the plan was made
	CreatedTime   string        `json:"created_time"`                 // created_ts as a time
	Repairs       []item        `json:"repairs"`                      // what repair apply would do
	Left          []left        `json:"left"`                         // violations that cannot be repaired without a guess
	More          bool          `json:"more"`                         // whether there are more repairs than --limit
	MoreLeft      bool          `json:"more_left,omitempty"`          // whether there are more violations that are left to you than left lists
}

// An item is one repair.
type item struct {
	Kind     admin.RepairKind `json:"kind"`                // what is removed, or for a lost record restored
	Cell     string           `json:"cell"`                // table, row and column
	StartTS  tso.Timestamp    `json:"start_ts"`            // start timestamp of its transaction
	CommitTS tso.Timestamp    `json:"commit_ts,omitempty"` // commit timestamp of the record: next to a redundant lock, lost, or above the oracle
	Witness  string           `json:"witness,omitempty"`   // cell whose record proves a lost record
	Why      string           `json:"why"`                 // why this is safe
}

// A left is a violation that repair leaves to you.
type left struct {
	Rule   string `json:"rule"`   // the invariant that is violated
	Cell   string `json:"cell"`   // table, row and column
	Detail string `json:"detail"` // what is wrong, in words
}

type planOptions struct {
	session.Options
	tables    session.Tables
	to        string
	markerAge time.Duration
	trust     bool
	most      int
}

func newPlanCmd(s *cli.Streams) *cobra.Command {
	o := &planOptions{}
	cmd := &cobra.Command{
		Use:   "plan TABLE… | --all",
		Short: "Find what can be repaired, and write a plan",
		Long: `Find what can be repaired in tables without a guess, and with --to write a plan for
percctl repair apply. The command changes nothing. It lists everything else that
percctl check finds as left.

  orphan data          data of a transaction that no record and no lock in its
                       cell names, and of which no table has a trace
  lost record          such data of a committed transaction: the repair writes the
                       record again, as the primary or another record says
  redundant lock       a lock next to the record of its own transaction, where
                       the primary agrees
  old rollback marker  older than --markers-older-than, with no lock of its
                       transaction left in any table
  lock above the oracle, marker above the oracle
                       more than an hour above its time, so that it blocks
                       writers, where nothing says that the oracle is behind
  record above the oracle
                       the same, with --trust-oracle

With --trust-oracle you say that the oracle was never restored from a backup or
replaced. Otherwise what is above its time may be committed: then run percctl tso
advance instead, which loses nothing.

Exit status 4: there is something to repair, or left.`,
		Example: `  percctl repair plan --all --to plan.json
  percctl repair plan accounts --prefix user/7 -o json`,
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[plan]())
	o.tables.Add(cmd, &o.Options)
	cmd.Flags().StringVar(&o.to, "to", "", "file to write the plan to; it must not exist")
	cmd.Flags().DurationVar(&o.markerAge, "markers-older-than", 24*time.Hour, "include rollback markers of transactions that began at least this long ago, in oracle time")
	cmd.Flags().BoolVar(&o.trust, "trust-oracle", false, "include records above the oracle's time: the oracle was never restored or replaced")
	cmd.Flags().IntVar(&o.most, "limit", 10_000, "approximate maximum of repairs in a plan")
	cli.AtLeast(&o.Checks, "markers-older-than", &o.markerAge, time.Hour, "at least 1h")
	cli.AtLeast(&o.Checks, "limit", &o.most, 1, "positive")
	return cmd
}

func (o *planOptions) run(ctx context.Context, s *session.Session) error {
	tables, err := o.tables.Open(ctx, s)
	if err != nil {
		return err
	}
	now, err := s.Client().Timestamp(ctx)
	if err != nil {
		return err
	}
	p := &plan{
		Version: planVersion, Project: s.Connect.Project, Instance: s.Connect.Instance, MetadataTable: s.Connect.MetadataTable,
		Tables: append([]string{}, tables...), CreatedTS: now, CreatedTime: cli.Time(now), Repairs: []item{}, Left: []left{},
	}
	covered := map[txn.Cell]bool{}
	for _, table := range tables {
		s.Progress.Set("reading table %s", table)
		found, err := admin.PlanRepairs(ctx, s.Client(), table, o.tables.Range.Rows.Set(), admin.RepairConfig{MarkerAge: o.markerAge, TrustOracle: o.trust, Most: o.most - len(p.Repairs)})
		if err != nil {
			return err
		}
		for _, r := range found.Repairs {
			covered[r.Cell] = true
			i := item{Kind: r.Kind, Cell: r.Cell.String(), StartTS: r.StartTS, CommitTS: r.CommitTS, Why: cli.Line(r.Why)}
			if r.Kind == admin.RepairLostRecord {
				i.Witness = r.Witness.String()
			}
			p.Repairs = append(p.Repairs, i)
		}
		for _, r := range found.Undecided {
			if r.Kind == admin.RepairOldMarker {
				continue // it is in use
			}
			covered[r.Cell] = true
			p.Left = append(p.Left, left{string(r.Kind), r.Cell.String(), cli.Line(cli.Flags(r.Why))})
		}
		if p.More = found.More || len(p.Repairs) >= o.most; p.More {
			break
		}
	}
	err = o.tables.Each(ctx, s, tables, func(table string, rows bigtable.RowSet) error {
		for v, err := range admin.Check(ctx, s.Client(), table, rows) {
			if err != nil {
				return err
			}
			switch {
			case covered[v.Cell]:
			case len(p.Left) >= o.most:
				p.MoreLeft = true
			default:
				p.Left = append(p.Left, left{string(v.Rule), v.Cell.String(), cli.Line(v.Detail)})
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.Progress.End()
	return o.print(p)
}

func (o *planOptions) print(p *plan) error {
	if o.to != "" {
		text, err := json.MarshalIndent(p, "", "  ")
		if err != nil {
			return err
		}
		file, err := os.OpenFile(o.to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			return cli.Usagef("--to %s: the file exists; name another", o.to)
		}
		if err != nil {
			return err
		}
		if _, err := file.Write(append(text, '\n')); err != nil {
			return errors.Join(err, file.Close())
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	if err := o.Print(p, p.text); err != nil {
		return err
	}
	if n := len(p.Repairs) + len(p.Left); n > 0 {
		return session.Foundf("%s to make, %s left to you", cli.Count(len(p.Repairs), "repair"), p.leftToYou())
	}
	_, err := fmt.Fprintf(o.Streams.Err, "nothing to repair in %s\n", cli.Count(len(p.Tables), "table"))
	return err
}

// shown is how many repairs of a plan a table lists; the other formats have
// all.
const shown = 50

func (p *plan) leftToYou() string {
	if p.MoreLeft {
		return fmt.Sprintf("at least %d violations", len(p.Left)+1)
	}
	return cli.Count(len(p.Left), "violation")
}

func (p *plan) text(w io.Writer) error {
	fmt.Fprintf(w, "project %s, instance %s: %s, %s left to you\n", p.Project, p.Instance, cli.Count(len(p.Repairs), "repair"), p.leftToYou())
	for i, r := range p.Repairs {
		if i == shown {
			fmt.Fprintf(w, "  … and %d more; -o json lists all\n", len(p.Repairs)-i)
			break
		}
		do := "delete"
		if r.Kind == admin.RepairLostRecord {
			do = "restore"
		}
		fmt.Fprintf(w, "  %s %s %d of %s: %s\n", do, r.Kind, r.StartTS, r.Cell, r.Why)
	}
	for i, l := range p.Left {
		if i == shown {
			fmt.Fprintf(w, "  … and %d more; -o json lists all\n", len(p.Left)-i)
			break
		}
		fmt.Fprintf(w, "  left: %s: %s: %s\n", l.Cell, l.Rule, l.Detail)
	}
	if p.MoreLeft {
		fmt.Fprintln(w, "  left: there are more; raise --limit")
	}
	if p.More {
		fmt.Fprintln(w, "  there are more repairs than --limit: apply this plan, then plan again")
	}
	return nil
}
