package tablecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type describeOptions struct {
	session.Options
	table          string
	sample         int
	cbt, terraform bool
}

func newDescribeCmd(s *cli.Streams) *cobra.Command {
	o := &describeOptions{}
	cmd := &cobra.Command{
		Use:   "describe TABLE",
		Short: "Show families, policies, format, observed columns and sizes of a table",
		Long: `Show what a transactional table consists of: families and their garbage-collection
policies, format version, time of the adoption, observed columns, and counts of a
sample of rows. The command changes nothing.

--print-cbt and --print-terraform print what creates such a table instead. They do
not write its schema record: percctl table init or percctl table adopt does.`,
		Example: `  percctl table describe accounts
  percctl table describe accounts --print-terraform > accounts.tf`,
		Args: cli.ExactArgs(1, "one, the name of the table", cli.Into(&o.table)),
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[description]())
	cmd.Flags().IntVar(&o.sample, "sample", 1000, "rows to read, spread over the table (0: none)")
	cmd.Flags().BoolVar(&o.cbt, "print-cbt", false, "print the cbt commands that create such a table")
	cmd.Flags().BoolVar(&o.terraform, "print-terraform", false, "print the Terraform resource of such a table")
	cli.AtLeast(&o.Checks, "sample", &o.sample, 0, "positive, or 0 for no sample")
	o.Require(func() error { return checkPrint(o.cbt, o.terraform, o.Format) })
	cmd.ValidArgsFunction = o.CompleteTables(1)
	return cmd
}

func checkPrint(cbt, terraform bool, format cli.Format) error {
	if cbt && terraform || (cbt || terraform) && format != cli.Table {
		return cli.Usagef("--print-cbt, --print-terraform and --output: use only one of them")
	}
	return nil
}

// A description is a transactional table.
type description struct {
	Project       string              `json:"project"`                 // Google Cloud project
	Instance      string              `json:"instance"`                // Bigtable instance
	Table         string              `json:"table"`                   // name of the table
	MetadataTable string              `json:"metadata_table"`          // metadata table of the deployment
	FormatVersion uint32              `json:"format_version" unit:"-"` // version of the storage format
	AdoptedTS     tso.Timestamp       `json:"adopted_ts,omitempty"`    // oracle time at which the table was adopted; left out for percctl table init
	AdoptedTime   string              `json:"adopted_time,omitempty"`  // adopted_ts as a time
	Families      []describedFamily   `json:"families"`                // families of the table
	Observed      []describedObserved `json:"observed"`                // observed columns
	Sample        *admin.RowSample    `json:"sample,omitempty"`        // counts of a sample of rows; left out with --sample 0
}

// A describedFamily is one family of the table.
type describedFamily struct {
	Name   string  `json:"name"`           // name of the family
	Role   string  `json:"role"`           // `data`, or what transactions store in it
	Policy string  `json:"policy"`         // garbage-collection policy; empty if there is none
	Expiry float64 `json:"expiry_seconds"` // how long values last; 0 if there is no limit
}

// A describedObserved is one observed column.
type describedObserved struct {
	Column    string   `json:"column"`    // family and qualifier
	Observers []string `json:"observers"` // ids of the registered observers
	Weak      bool     `json:"weak"`      // whether the column is for weak notifications
}

var roles = map[string]string{
	format.LockFamily: "locks", format.WriteFamily: "write records", format.MarkFamily: "rollback and lock-only marks",
	format.NotifyFamily: "notifications", format.AckFamily: "acknowledgments of observers",
}

func (o *describeOptions) run(ctx context.Context, s *session.Session) error {
	d, err := s.Describe(ctx, s.Client(), o.table)
	if err != nil && !errors.Is(err, txn.ErrFormatVersion) {
		return err
	}
	if err != nil {
		fmt.Fprintf(o.Streams.Err, "warning: %s\n", cli.Line(err.Error()))
	}
	info, err := s.Admin.TableInfo(ctx, o.table)
	if err != nil {
		return err
	}
	out := &description{
		Project: s.Connect.Project, Instance: s.Connect.Instance, Table: o.table, MetadataTable: s.Connect.MetadataTable,
		FormatVersion: d.FormatVersion, AdoptedTS: d.AdoptedTS, AdoptedTime: cli.Time(d.AdoptedTS),
		Families: describeFamilies(info, d.Expiries), Observed: []describedObserved{},
	}
	for _, c := range d.Observed {
		out.Observed = append(out.Observed, describedObserved{c.Column.String(), append([]string{}, c.Observers...), c.Weak})
	}
	switch {
	case o.cbt:
		return out.printCbt(o.Streams.Out)
	case o.terraform:
		return out.printTerraform(o.Streams.Out, "init")
	}
	if o.sample > 0 {
		if out.Sample, err = admin.SampleRows(ctx, s.Bigtable, o.table, o.sample); err != nil {
			return err
		}
	}
	return o.Print(out, out.text)
}

func describeFamilies(info *bigtable.TableInfo, expiries map[string]time.Duration) []describedFamily {
	all := []describedFamily{}
	for _, f := range info.FamilyInfos {
		policy := f.GCPolicy
		if policy == "<never>" {
			policy = ""
		}
		all = append(all, describedFamily{f.Name, cmp.Or(roles[f.Name], "data"), policy, expiries[f.Name].Seconds()})
	}
	slices.SortFunc(all, func(a, b describedFamily) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (d *description) text(w io.Writer) error {
	adopted := ""
	if d.AdoptedTS > 0 {
		adopted = ", adopted at " + cli.Stamp(d.AdoptedTS)
	}
	fmt.Fprintf(w, "table %s, project %s, instance %s, metadata table %s\n  format version %d%s\n\n", d.Table, d.Project, d.Instance, d.MetadataTable, d.FormatVersion, adopted)
	table := cli.NewTable(w)
	cli.WriteRow(table, "FAMILY", "POLICY", "WHAT IT HOLDS")
	for _, f := range d.Families {
		role := f.Role
		if f.Expiry != 0 {
			role += ", which lasts " + lasts(f.Expiry)
		}
		cli.WriteRow(table, f.Name, cmp.Or(f.Policy, "none"), role)
	}
	if len(d.Observed) > 0 {
		cli.WriteRow(table)
		cli.WriteRow(table, "OBSERVED", "OBSERVERS")
		for _, o := range d.Observed {
			name := o.Column
			if o.Weak {
				name += " (weak)"
			}
			cli.WriteRow(table, name, cli.Line(cmp.Or(strings.Join(o.Observers, ", "), "none")))
		}
	}
	if err := table.Flush(); err != nil || d.Sample == nil {
		return err
	}
	return sampleText(w, d.Sample)
}

func sampleText(w io.Writer, c *admin.RowSample) error {
	what := "a sample of " + cli.Count(c.Rows, "row")
	if c.Whole {
		what = "all " + cli.Count(c.Rows, "row")
	}
	_, err := fmt.Fprintf(w, "\n%s of %s: %s (%d plain) with %s, %s, %s, %s, %s\n", what, cli.Count(c.Parts, "tablet"),
		cli.Count(c.Values, "value"), c.Plain, cli.Count(c.Bytes, "byte"), cli.Count(c.Locks, "lock"), cli.Count(c.Writes, "write record"), cli.Count(c.Marks, "mark"), cli.Count(c.Notifications, "notification"))
	return err
}

func (d *description) printCbt(w io.Writer) error {
	cbt := fmt.Sprintf("cbt -project %s -instance %s", d.Project, d.Instance)
	fmt.Fprintf(w, "%s createtable %s\n", cbt, d.Table)
	for _, f := range d.Families {
		printFamily(w, cbt, d.Table, f.Name)
	}
	_, err := fmt.Fprintf(w, "# then the schema record: percctl table init %s --project %s --instance %s\n", d.Table, d.Project, d.Instance)
	return err
}

func printFamily(w io.Writer, cbt, table, family string) {
	// createfamily sets no policy in Cloud Bigtable; never says so.
	fmt.Fprintf(w, "%s createfamily %s %s\n%s setgcpolicy %s %s never\n", cbt, table, family, cbt, table, family)
}

// printTerraform names the command, init or adopt, that writes the schema record.
func (d *description) printTerraform(w io.Writer, command string) error {
	fmt.Fprintf(w, "# No google_bigtable_gc_policy belongs to any of its families. The schema record\n# is written by: percctl table %s %s --project %s --instance %s\n", command, d.Table, d.Project, d.Instance)
	fmt.Fprintf(w, "resource \"google_bigtable_table\" %q {\n  project       = %q\n  instance_name = %q\n  name          = %q\n", strings.NewReplacer(".", "_").Replace(d.Table), d.Project, d.Instance, d.Table)
	for _, f := range d.Families {
		fmt.Fprintf(w, "\n  column_family {\n    family = %q\n  }\n", f.Name)
	}
	_, err := fmt.Fprintf(w, "\n  lifecycle {\n    prevent_destroy = true\n  }\n}\n")
	return err
}
