package tablecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type adoptOptions struct {
	session.Options
	table         string
	observed      []string
	clearPolicies bool
	whole         bool
	sample        int
	cbt           bool
	terraform     bool

	columns []txn.Column
}

func newAdoptCmd(s *cli.Streams) *cobra.Command {
	o := &adoptOptions{}
	cmd := &cobra.Command{
		Use:   "adopt TABLE",
		Short: "Make a table that is in use transactional, in place",
		Long: `Make an existing table transactional, in place: add the metadata families
(` + metadataFamilies + `), clear garbage-collection policies
if you allow it with --clear-policies, and record the schema and the time. It
keeps maximum ages as expiries (see percctl table expire). The command
rewrites no data: cells that are in the table count as committed before every
transaction, and readers without transactions continue. docs/adoption.md leads through
an adoption step by step.

Stop all writers without transactions first. Where a transaction has written a cell,
readers in transactions do not see their later writes. percctl doctor finds such
writes.

The command refuses a table, and the plan says why, if a family has a policy, or if a
cell has a timestamp of 1e17 µs or above, which is the range of transactions. It
looks for such cells in a sample of rows, with --scan in all rows.

` + cli.AsksFirst + `

After an interrupt, run the command again: it continues. percctl table unadopt
undoes an adoption as long as no transaction has written to the table.

--print-cbt and --print-terraform print what adds the families and clears the
policies, and change nothing. Use them if another tool manages the table. Then run
percctl table adopt again to write the schema record.

Exit status 4: the table is refused.`,
		Example: `  percctl table adopt users --dry-run
  percctl table adopt users --clear-policies --scan --yes
  percctl table adopt users --clear-policies --print-cbt`,
		Args: cli.ExactArgs(1, "one, the name of the table", cli.Into(&o.table)),
		RunE: o.Runs(session.Bare, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[adoption]())
	cmd.ValidArgsFunction = o.CompleteNames(1, func(ctx context.Context, s *session.Session, _ []string) ([]string, error) {
		known, _ := admin.Tables(ctx, s.Client())
		all, err := s.Admin.Tables(ctx)
		return slices.DeleteFunc(all, func(n string) bool { return n == s.Connect.MetadataTable || slices.Contains(known, n) }), err
	})
	f := cmd.Flags()
	f.BoolVar(&o.clearPolicies, "clear-policies", false, "clear the garbage-collection policies of the families; from then on, overwritten versions stay")
	f.BoolVar(&o.whole, "scan", false, "read all rows instead of a sample, to look for cells in the timestamp range of transactions")
	f.IntVar(&o.sample, "sample", 20_000, "rows to read without --scan")
	f.StringArrayVar(&o.observed, "observed", nil, "columns to observe: commits to them leave notifications; family:qualifier, separated by commas")
	f.BoolVar(&o.cbt, "print-cbt", false, "print the cbt commands for families and policies, and change nothing")
	f.BoolVar(&o.terraform, "print-terraform", false, "print the Terraform resource of the table, and change nothing")
	o.Consent.Add(cmd)
	cli.AtLeast(&o.Checks, "sample", &o.sample, 1, "positive")
	o.Require(o.parse)
	return cmd
}

var metadataFamilies = strings.Join([]string{format.LockFamily, format.WriteFamily, format.MarkFamily, format.NotifyFamily, format.AckFamily}, ", ")

func (o *adoptOptions) parse() error {
	if err := checkPrint(o.cbt, o.terraform, o.Format); err != nil {
		return err
	}
	for _, name := range session.List(o.observed) {
		c, err := format.ParseColumn(name)
		if err != nil {
			return cli.Usagef("--observed %s: %w", name, err)
		}
		o.columns = append(o.columns, c)
	}
	return nil
}

// An adoptedFamily is one family of the table.
type adoptedFamily struct {
	Name   string  `json:"name"`           // name of the family
	Policy string  `json:"policy"`         // garbage-collection policy; empty if there is none
	Clear  bool    `json:"clear_policy"`   // whether the policy is cleared
	Expiry float64 `json:"expiry_seconds"` // how long values last after the adoption, as the policy says; 0 if there is no limit
}

// An adoption is what table adopt did, or would do.
type adoption struct {
	Project       string          `json:"project"`                // Google Cloud project
	Instance      string          `json:"instance"`               // Bigtable instance
	Table         string          `json:"table"`                  // name of the table
	MetadataTable string          `json:"metadata_table"`         // metadata table of the deployment
	DryRun        bool            `json:"dry_run"`                // whether --dry-run was given
	Resumes       bool            `json:"resumes"`                // whether this run continues an interrupted run of table adopt or table unadopt
	Families      []adoptedFamily `json:"families"`               // data families of the table
	Create        []string        `json:"create_families"`        // metadata families to add
	Refusals      []string        `json:"refusals"`               // why the table is refused; empty if it is not
	Rows          int             `json:"rows_looked_at"`         // rows that were read
	Whole         bool            `json:"all_rows"`               // whether these are all rows of the table
	Adopted       bool            `json:"adopted"`                // whether the table is transactional now
	AdoptedTS     tso.Timestamp   `json:"adopted_ts,omitempty"`   // oracle time of the adoption
	AdoptedTime   string          `json:"adopted_time,omitempty"` // adopted_ts as a time
}

func (o *adoptOptions) result(p *admin.AdoptionPlan) *adoption {
	a := &adoption{
		Project: o.Connect.Project, Instance: o.Connect.Instance, Table: o.table, MetadataTable: o.Connect.MetadataTable,
		DryRun: o.Consent.DryRun, Resumes: p.Resumes, Families: []adoptedFamily{}, Create: append([]string{}, p.Create...), Refusals: []string{},
		Rows: p.Rows, Whole: p.Whole, Adopted: p.Adopted, AdoptedTS: p.AdoptedTS, AdoptedTime: cli.Time(p.AdoptedTS),
	}
	for _, f := range p.Families {
		a.Families = append(a.Families, adoptedFamily{f.Name, f.Policy, f.Clear, f.Expiry.Seconds()})
	}
	for _, err := range p.Refusals {
		_, why, _ := strings.Cut(err.Error(), admin.ErrNotAdoptable.Error()+": ")
		a.Refusals = append(a.Refusals, cli.Line(cli.Flags(why)))
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
		fmt.Fprintln(w, "  continues where an earlier run stopped")
	}
	for _, f := range a.Families {
		policy := "no garbage-collection policy"
		if f.Policy != "" {
			policy = "garbage-collection policy " + f.Policy
		}
		if f.Clear {
			policy += ": to be cleared"
		}
		if f.Expiry != 0 {
			policy += ", and values last " + lasts(f.Expiry)
		}
		fmt.Fprintf(w, "  family %s: %s; its data stays as it is\n", f.Name, policy)
	}
	if len(a.Create) > 0 {
		fmt.Fprintf(w, "  families to be added: %s\n", strings.Join(a.Create, ", "))
	}
	looked := "all " + cli.Count(a.Rows, "row") + " checked"
	if !a.Whole {
		looked = "a sample of " + cli.Count(a.Rows, "row") + " checked; --scan checks all"
	}
	_, err := fmt.Fprintf(w, "  %s\n", looked)
	for _, r := range a.Refusals {
		fmt.Fprintf(w, "  refused: %s\n", r)
	}
	return err
}

func (o *adoptOptions) run(ctx context.Context, s *session.Session) error {
	if err := s.Exists(ctx, o.table); err != nil {
		return err
	}
	cfg := admin.AdoptConfig{
		Table: o.table, MetadataTable: s.Connect.MetadataTable, Observed: o.columns, ClearPolicies: o.clearPolicies,
		WholeScan: o.whole, SampleRows: o.sample, Instance: s.Connect.Resource(),
		Progress: func(rows int) { s.Progress.Set("looking at table %s: %s", o.table, cli.Count(rows, "row")) },
	}
	served, err := session.ServedOracle(ctx, s.Connect, s.Bigtable)
	if err != nil {
		return err
	}
	if served != nil {
		defer served.Close()
		cfg.Oracle = served
	}
	plan, err := admin.PlanAdoption(ctx, s.Admin, s.Bigtable, cfg)
	if err != nil {
		return err
	}
	s.Progress.End()
	a := o.result(plan)
	if (o.cbt || o.terraform) && len(plan.Refusals) == 0 {
		return o.print(a)
	}
	if o.Consent.DryRun || plan.Adopted || len(plan.Refusals) > 0 {
		if err := o.Print(a, a.text); err != nil {
			return err
		}
		if len(plan.Refusals) > 0 {
			return session.Foundf("table %s is refused: %s, see above", o.table, cli.Count(len(plan.Refusals), "reason"))
		}
		return nil
	}
	if ok, err := o.Ask(ctx, a, a.text, fmt.Sprintf("Adopt table %s in %s?", o.table, s.Where)); !ok {
		return err
	}
	if err := admin.Adopt(ctx, s.Admin, s.Bigtable, cfg, plan); err != nil {
		if errors.Is(err, admin.ErrNotAdoptable) {
			return &cli.Error{Code: cli.ExitFound, Err: err}
		}
		return fmt.Errorf("%w; run the command again to continue, or percctl table unadopt %s to undo it", err, o.table)
	}
	// Read it back: this is what other clients see.
	if plan, err = admin.PlanAdoption(ctx, s.Admin, s.Bigtable, cfg); err != nil {
		return err
	}
	a.Adopted, a.AdoptedTS, a.AdoptedTime = plan.Adopted, plan.AdoptedTS, cli.Time(plan.AdoptedTS)
	return o.Print(a, a.text)
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
		return d.printTerraform(o.Streams.Out, "adopt")
	}
	w := o.Streams.Out
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
