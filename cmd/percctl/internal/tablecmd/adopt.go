package tablecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

type adoptOptions struct {
	streams       *cli.Streams
	flags         session.Flags
	table         string
	observed      []string
	clearPolicies bool
	whole         bool
	sample        int
	consent       cli.Consent
	format        cli.Format
	cbt           bool
	terraform     bool

	columns []txn.Column
}

func newAdoptCmd(s *cli.Streams) *cobra.Command {
	o := &adoptOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "adopt TABLE",
		Short: "Make a table that is in use transactional, in place",
		Long: `Make an existing table transactional, in place: add the metadata families (` + metadataFamilies + `),
clear garbage-collection policies if --clear-policies consents, and record the
schema and the time. No data is rewritten: the cells that are there count as
committed before every transaction, and plain readers go on.

Plain writers have to stop before: what they write later stays invisible where
a transaction has written. percctl doctor finds such writes.

The plan is shown first, and it asks before it changes anything: at a terminal;
elsewhere it needs --yes. A table is refused, and the plan says why, when a family
has a policy, or a cell stands at 1e17 µs or above, where those of transactions
do. --scan looks at all rows for such cells, without it at a sample. Exit status
4: it is refused. What was interrupted goes on when it is run again. percctl table
unadopt undoes it while no transaction has written. docs/adoption.md goes through
an adoption step by step.

--print-cbt and --print-terraform change nothing, and print what adds the families
and clears the policies, for tables that are looked after elsewhere; percctl table
adopt finds that done, and writes the schema record.`,
		Example: `  percctl table adopt users --dry-run
  percctl table adopt users --clear-policies --scan --yes
  percctl table adopt users --clear-policies --print-cbt`,
		Args: cli.ExactArgs(1, "one, the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.table = args[0]
			if err := o.parse(); err != nil {
				return err
			}
			return o.flags.RunBare(cmd.Context(), s, o.run)
		},
	}
	o.flags.Add(cmd, 0)
	f := cmd.Flags()
	f.BoolVar(&o.clearPolicies, "clear-policies", false, "clear the garbage-collection policies of its families, which would delete live versions; what plain writers overwrite is then kept")
	f.BoolVar(&o.whole, "scan", false, "look at all rows for cells that could be taken for those of transactions, instead of a sample")
	f.IntVar(&o.sample, "sample", 20_000, "rows to look at without --scan")
	f.StringArrayVar(&o.observed, "observed", nil, "columns whose commits set notify cells, family:qualifier, separated by commas")
	f.BoolVar(&o.cbt, "print-cbt", false, "print the cbt commands that add the families and clear the policies, and change nothing")
	f.BoolVar(&o.terraform, "print-terraform", false, "print the Terraform resource of the table with them, and change nothing")
	o.consent.Add(cmd)
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

var metadataFamilies = strings.Join([]string{txn.LockFamily, txn.WriteFamily, txn.MarkFamily, txn.NotifyFamily, txn.AckFamily}, ", ")

func (o *adoptOptions) parse() error {
	if o.sample <= 0 {
		return cli.Usagef("--sample %d: it has to be positive", o.sample)
	}
	if err := checkPrint(o.cbt, o.terraform, o.format); err != nil {
		return err
	}
	for _, name := range session.List(o.observed) {
		c, err := txn.ParseColumn(name)
		if err != nil {
			return cli.Usagef("--observed %s: %w", name, err)
		}
		o.columns = append(o.columns, c)
	}
	return nil
}

// An adoptedFamily is one family in a plan.
type adoptedFamily struct {
	Name   string `json:"name"`
	Policy string `json:"policy"` // garbage-collection policy, empty for none
	Clear  bool   `json:"clear_policy"`
}

// An adoption is what percctl table adopt prints: the plan, and what became of
// it.
type adoption struct {
	Project       string          `json:"project"`
	Instance      string          `json:"instance"`
	Table         string          `json:"table"`
	MetadataTable string          `json:"metadata_table"`
	DryRun        bool            `json:"dry_run"`
	Resumes       bool            `json:"resumes"` // an earlier run did not come to its end
	Families      []adoptedFamily `json:"families"`
	Create        []string        `json:"create_families"`
	Refusals      []string        `json:"refusals"`
	Rows          int             `json:"rows_looked_at"`
	Whole         bool            `json:"all_rows"`
	Adopted       bool            `json:"adopted"`
	AdoptedTS     tso.Timestamp   `json:"adopted_ts,omitempty"`
	AdoptedTime   string          `json:"adopted_time,omitempty"`
}

func (o *adoptOptions) result(p *txn.AdoptionPlan) *adoption {
	a := &adoption{
		Project: o.flags.Connect.Project, Instance: o.flags.Connect.Instance, Table: o.table, MetadataTable: o.flags.Connect.MetadataTable,
		DryRun: o.consent.DryRun, Resumes: p.Resumes, Families: []adoptedFamily{}, Create: append([]string{}, p.Create...), Refusals: []string{},
		Rows: p.Rows, Whole: p.Whole, Adopted: p.Adopted, AdoptedTS: p.AdoptedTS, AdoptedTime: cli.Time(p.AdoptedTS),
	}
	for _, f := range p.Families {
		a.Families = append(a.Families, adoptedFamily{f.Name, f.Policy, f.Clear})
	}
	for _, err := range p.Refusals {
		a.Refusals = append(a.Refusals, cli.Line(err.Error()))
	}
	return a
}

func (a *adoption) text(w io.Writer) error {
	fmt.Fprintf(w, "project %s, instance %s, table %s, metadata table %s\n", a.Project, a.Instance, a.Table, a.MetadataTable)
	if a.Adopted {
		when := ""
		if a.AdoptedTS > 0 {
			when = " since " + cli.Stamp(a.AdoptedTS)
		}
		_, err := fmt.Fprintf(w, "  transactional%s\n", when)
		return err
	}
	if a.Resumes {
		fmt.Fprintln(w, "  goes on where an earlier run stopped")
	}
	for _, f := range a.Families {
		policy := "no garbage-collection policy"
		if f.Policy != "" {
			policy = "garbage-collection policy " + f.Policy
		}
		if f.Clear {
			policy += ": to be cleared"
		}
		fmt.Fprintf(w, "  family %s: %s; its data stays as it is\n", f.Name, policy)
	}
	if len(a.Create) > 0 {
		fmt.Fprintf(w, "  families to be added: %s\n", strings.Join(a.Create, ", "))
	}
	looked := "all " + cli.Count(a.Rows, "row") + " looked at"
	if !a.Whole {
		looked = "a sample of " + cli.Count(a.Rows, "row") + " looked at; --scan looks at all"
	}
	_, err := fmt.Fprintf(w, "  %s\n", looked)
	for _, r := range a.Refusals {
		fmt.Fprintf(w, "  refused: %s\n", r)
	}
	return err
}

func (o *adoptOptions) run(ctx context.Context, s *session.Session) error {
	cfg := txn.AdoptConfig{
		Table: o.table, MetadataTable: s.Connect.MetadataTable, Observed: o.columns, ClearPolicies: o.clearPolicies,
		WholeScan: o.whole, SampleRows: o.sample, Instance: s.Connect.Resource(),
		Progress: func(rows int) { s.Progress.Set("looking at table %s: %s", o.table, cli.Count(rows, "row")) },
	}
	served, err := session.ServedOracle(ctx, s.Connect, s.Bigtable)
	if err != nil {
		return err
	}
	if served != nil {
		defer func() { _ = served.Close() }()
		cfg.Oracle = served
	}
	plan, err := txn.PlanAdoption(ctx, s.Admin, s.Bigtable, cfg)
	if err != nil {
		return err
	}
	s.Progress.End()
	a := o.result(plan)
	if (o.cbt || o.terraform) && len(plan.Refusals) == 0 {
		return o.print(a)
	}
	if o.consent.DryRun || plan.Adopted || len(plan.Refusals) > 0 {
		if err := cli.Print(o.streams.Out, o.format, a, a.text); err != nil {
			return err
		}
		if len(plan.Refusals) > 0 {
			return session.Foundf("table %s cannot be adopted as it is: %s", o.table, cli.Count(len(plan.Refusals), "reason"))
		}
		return nil
	}
	if ok, err := o.consent.Ask(ctx, o.streams, o.format, a, a.text, fmt.Sprintf("Adopt table %s in %s?", o.table, s.Where)); !ok {
		return err
	}
	if err := txn.Adopt(ctx, s.Admin, s.Bigtable, cfg, plan); err != nil {
		if errors.Is(err, txn.ErrNotAdoptable) {
			return &cli.Error{Code: cli.ExitFound, Err: err}
		}
		return fmt.Errorf("%w; run it again to go on, or percctl table unadopt %s to undo it", err, o.table)
	}
	// Read back: it is what others see.
	if plan, err = txn.PlanAdoption(ctx, s.Admin, s.Bigtable, cfg); err != nil {
		return err
	}
	a.Adopted, a.AdoptedTS, a.AdoptedTime = plan.Adopted, plan.AdoptedTS, cli.Time(plan.AdoptedTS)
	return cli.Print(o.streams.Out, o.format, a, a.text)
}

// print prints what makes the table ready for its schema record.
func (o *adoptOptions) print(a *adoption) error {
	if o.terraform {
		d := &description{Project: a.Project, Instance: a.Instance, Table: a.Table}
		for _, f := range a.Families {
			d.Families = append(d.Families, describedFamily{Name: f.Name})
		}
		for _, name := range a.Create {
			d.Families = append(d.Families, describedFamily{Name: name})
		}
		return d.printTerraform(o.streams.Out, "adopt")
	}
	w := o.streams.Out
	cbt := fmt.Sprintf("cbt -project %s -instance %s", a.Project, a.Instance)
	for _, f := range a.Families {
		if f.Clear {
			fmt.Fprintf(w, "%s setgcpolicy %s %s never\n", cbt, a.Table, f.Name)
		}
	}
	for _, name := range a.Create {
		printFamily(w, cbt, a.Table, name)
	}
	_, err := fmt.Fprintf(w, "# then the schema record: percctl table adopt %s --project %s --instance %s\n", a.Table, a.Project, a.Instance)
	return err
}
