package tablecmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

type expireOptions struct {
	session.Options
	table, family, text string
	after               time.Duration
}

func newExpireCmd(s *cli.Streams) *cobra.Command {
	o := &expireOptions{}
	cmd := &cobra.Command{
		Use:   "expire TABLE FAMILY DURATION|never",
		Short: "Set how long the values of a family last",
		Long: `Set how long the values of a family last. Reads do not show a value whose commit is
this old or older, by the timestamp of the read, and percctl gc run removes it later.
Nothing is written when a value expires, so no observer runs.

Running clients notice it after Config.SchemaMaxAge (1 minute by default). A family with
an index cannot have an expiry. A longer one brings expired values back, except those so
old that garbage collection may have removed some of them.

` + cli.AsksFirst,
		Example: `  percctl table expire sessions s 720h --yes`,
		Args:    cli.ExactArgs(3, "three, TABLE FAMILY DURATION", cli.Into(&o.table, &o.family, &o.text)),
		RunE:    o.Runs(session.Changes, o.run),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ObjectOf[expiring]())
	o.Consent.Add(cmd)
	o.Require(o.parse)
	cmd.ValidArgsFunction = o.CompleteTables(1)
	return cmd
}

func (o *expireOptions) parse() (err error) {
	if o.text == "never" {
		return nil
	}
	if o.after, err = cli.ParseDuration(o.text); err != nil || o.after < time.Second {
		return cli.Usagef("%q is not a duration of at least 1s, like 30d, 720h or 90m, and not never", o.text)
	}
	return nil
}

// An expiring is what table expire did, or would do.
type expiring struct {
	Table  string  `json:"table"`         // name of the table
	Family string  `json:"family"`        // name of the family
	Was    float64 `json:"was_seconds"`   // expiry so far; 0 if there was none
	After  float64 `json:"after_seconds"` // expiry from now on; 0 if there is none
	DryRun bool    `json:"dry_run"`       // whether --dry-run was given
}

func (e *expiring) text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "table %s, family %s: values last %s, until now %s\n", e.Table, e.Family, lasts(e.After), lasts(e.Was))
	return err
}

func lasts(seconds float64) string {
	if seconds == 0 {
		return "without limit"
	}
	return time.Duration(seconds * float64(time.Second)).String()
}

func (o *expireOptions) run(ctx context.Context, s *session.Session) error {
	d, err := s.Describe(ctx, s.Client(), o.table)
	if err != nil {
		return err
	}
	if !slices.Contains(d.Families, o.family) {
		return session.NotFoundf("table %s has no family %s, only %s", o.table, o.family, strings.Join(d.Families, ", "))
	}
	e := &expiring{o.table, o.family, d.Expiries[o.family].Seconds(), o.after.Seconds(), o.Consent.DryRun}
	if ok, err := o.Ask(ctx, e, e.text, fmt.Sprintf("Change the expiry of family %s of table %s in %s?", o.family, o.table, s.Where)); !ok {
		return err
	}
	if err = admin.SetExpiry(ctx, s.Client(), o.table, o.family, o.after); err == nil {
		err = o.Print(e, e.text)
	}
	return err
}
