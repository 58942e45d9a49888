package txncmd

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type statusOptions struct {
	session.Options
	primary txn.Cell
	startTS tso.Timestamp
}

func newStatusCmd(s *cli.Streams) *cobra.Command {
	o := &statusOptions{}
	cmd := &cobra.Command{
		Use:   "status PRIMARY START_TS",
		Short: "Show whether a transaction is committed, rolled back or undecided",
		Long: `Read the outcome of a transaction from its primary cell. The command changes
nothing. START_TS is an integer or an RFC 3339 time.

Exit status 3: the primary has no trace of the transaction.`,
		Example: `  percctl txn status accounts/bob/bal:usd 1795152600000000`,
		Args:    cli.ExactArgs(2, transactionArgs, session.TransactionArgs(&o.primary, &o.startTS)),
		RunE:    o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ObjectOf[inspect.Transaction]())
	return cmd
}

func (o *statusOptions) run(ctx context.Context, s *session.Session) error {
	if err := s.UseCells(ctx, o.primary); err != nil {
		return err
	}
	t, err := inspect.One(ctx, s, o.primary, o.startTS, nil)
	if err != nil {
		return err
	}
	if l := t.Status.Lock; l != nil && !l.IsPrimary() {
		return cli.Usagef("%s is not the primary of the transaction that started at %d: its primary is %s", o.primary, o.startTS, l.Primary)
	}
	if t.Outcome == doctor.Unknown {
		return fmt.Errorf("%s", t.Verdict)
	}
	style := cli.StyleFor(o.Streams.Out)
	err = o.Print(t, func(w io.Writer) error { return statusText(w, style, t) })
	if err == nil && t.Status.State == format.StateUnknown {
		err = session.NotFoundf("no trace of a transaction that started at %d at %s; run percctl txn explain to find its other cells", o.startTS, o.primary)
	}
	return err
}

func statusText(w io.Writer, style cli.Style, t *inspect.Transaction) error {
	fmt.Fprintf(w, "%s\n", style.Bold(fmt.Sprintf("transaction %s, %s old", cli.Stamp(t.StartTS), t.AgeText())))
	fmt.Fprintf(w, "  primary  %s\n  state    %s\n", t.Primary, t.State)
	if t.CommitTS != 0 {
		fmt.Fprintf(w, "  commit   %s\n", cli.Stamp(t.CommitTS))
	}
	if t.Outcome != doctor.Finished || !t.IsFinal() || t.State == txn.StateRolledBack.String() && t.Verdict != t.State {
		fmt.Fprintf(w, "  verdict  %s\n", t.Verdict)
	}
	if t.OwnerToken != "" {
		fmt.Fprintf(w, "  owner    %s\n", t.OwnerText())
	}
	if t.TraceID != "" {
		fmt.Fprintf(w, "  trace    %s\n", t.TraceID)
	}
	return nil
}
