package lockcmd

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

type resolveOptions struct {
	session.Options
	chosen
	transaction bool
	ownerDead   bool
	primary     txn.Cell // with transaction
	startTS     tso.Timestamp
}

func newResolveCmd(s *cli.Streams) *cobra.Command {
	o := &resolveOptions{}
	cmd := &cobra.Command{
		Use:   "resolve TABLE… | --all | --transaction PRIMARY START_TS",
		Short: "Resolve locks as the primaries of their transactions decide",
		Long: `Resolve the locks in tables, or with --transaction the locks of one transaction in
all tables. Locks of a committed transaction are rolled forward. Locks of a
transaction that is rolled back, or whose owner is dead, are rolled back. The
primary decides: no flag undoes a commit. Locks of live owners stay.

If an owner hangs, its locks block others as long as its token is fresh or their ttl
lasts. --owner-dead, with --transaction, treats it as dead: the command rolls the
transaction back at its primary, unless it has committed. If the owner is alive after
all, its commit fails with a conflict, and the library runs the transaction again.

` + cli.AsksFirst + `

The plan is a forecast: a transaction may end before the command reaches it. One run
resolves at most --limit locks. After an interrupt, run the command again: it
continues with the locks that are left.

Exit status 4: locks are left, because their owners are alive or because there are
more than --limit.`,
		Example: `  percctl lock resolve --all --dry-run
  percctl lock resolve accounts --older-than 1m --yes
  percctl lock resolve --transaction accounts/bob/bal:usd 1795152600000000
  percctl lock resolve --transaction accounts/bob/bal:usd 1795152600000000 --owner-dead`,
		RunE: o.Runs(session.Changes, o.resolve),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[result](), cli.ObjectOf[plan]().If("with `--dry-run`"))
	o.chosen.add(cmd, &o.Options)
	cmd.Args = cli.AnyArgs(o.parse)
	cmd.Flags().BoolVar(&o.transaction, "transaction", false, "resolve the locks of one transaction in all tables; the arguments are PRIMARY and START_TS")
	cmd.Flags().BoolVar(&o.ownerDead, "owner-dead", false, "with --transaction: treat the owner as dead, also if its token or its ttl says that it may be alive")
	o.Require(func() error {
		if o.ownerDead && !o.transaction {
			return cli.Usagef("--owner-dead needs --transaction PRIMARY START_TS: it is for one owner that you know to hang or to be dead")
		}
		return nil
	})
	o.Consent.Add(cmd)
	return cmd
}

func (o *resolveOptions) parse(args []string) (err error) {
	if !o.transaction {
		return o.tables.Read(args)
	}
	switch r, err := o.tables.Range.Range(); {
	case err != nil:
		return err
	case r != session.Range{} || o.tables.All || o.olderThan > 0:
		return cli.Usagef("--transaction resolves all locks of one transaction: it does not go with --all, --older-than or a range")
	case len(args) != 2:
		return cli.Usagef("%s; with --transaction it takes two, PRIMARY and START_TS", cli.Count(len(args), "argument"))
	}
	o.tables.All = true
	o.primary, o.startTS, err = session.ParseTransaction(args)
	return err
}

func (o *resolveOptions) resolve(ctx context.Context, s *session.Session) error {
	r := &resolver{}
	admin.OnResolve(s.Client(), r.resolved)
	tables, err := o.tables.Open(ctx, s)
	if err != nil {
		return err
	}
	found, all, err := o.find(ctx, s, tables)
	if err != nil {
		return err
	}
	s.Progress.End()
	if o.ownerDead {
		admin.DeclareDead(s.Client(), o.startTS)
		for _, t := range all {
			t.DeclareDead()
		}
	}
	p := newPlan(&o.Connect, tables, all)
	if o.transaction && p.Locks == 0 {
		return o.nothing(ctx, s)
	}
	question := ""
	if n := p.Forward.Locks + p.Back.Locks; n > 0 {
		question = fmt.Sprintf("Resolve %s in %s?", cli.Count(n, "lock"), s.Where)
	}
	if ok, err := o.Ask(ctx, p, p.text, question); !ok {
		return cmp.Or(err, found.Verdict())
	}
	err = r.run(ctx, s, all)
	s.Progress.End()
	done := r.result(p)
	if perr := o.Print(done, func(w io.Writer) error { return done.text(w, cli.StyleFor(o.Streams.Out)) }); perr != nil {
		return perr
	}
	if err := done.verdict(err); err != nil {
		return err
	}
	return found.Verdict()
}

// find reads the locks and says what resolving them would do.
func (o *resolveOptions) find(ctx context.Context, s *session.Session, tables []string) (*inspect.Collection, []*inspect.Transaction, error) {
	found, err := o.chosen.find(ctx, s, tables, o.startTS)
	if err != nil {
		return nil, nil, err
	}
	if o.transaction {
		for _, g := range found.Groups {
			if g[0].Primary != o.primary {
				return nil, nil, cli.Usagef("the primary of the transaction that started at %d is %s, not %s", o.startTS, g[0].Primary, o.primary)
			}
		}
	}
	all, err := inspect.Describe(ctx, s, found.Groups)
	return found, all, err
}

// nothing says why a transaction has no locks.
func (o *resolveOptions) nothing(ctx context.Context, s *session.Session) error {
	t, err := inspect.One(ctx, s, o.primary, o.startTS, nil)
	if err != nil {
		return err
	}
	if !t.IsFinal() {
		return session.NotFoundf("no lock of a transaction that started at %d with primary %s: %s", o.startTS, o.primary, t.Verdict)
	}
	fmt.Fprintf(o.Streams.Err, "nothing to do: %s\n", t.Verdict)
	p := newPlan(&o.Connect, nil, nil)
	p.DryRun = o.Consent.DryRun
	return o.Print((&resolver{}).result(p), func(w io.Writer) error { return nil })
}
