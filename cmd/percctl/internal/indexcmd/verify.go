package indexcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/index"
)

// A problem is a difference between a table and an index.
type problem struct {
	Index string `json:"index"` // name of the index
	What  string `json:"what"`  // `missing`, `wrong`, `orphan` or `damaged`
	Key   string `json:"key"`   // parts of the key, quoted
	Row   string `json:"row"`   // row of the table
	Other string `json:"other"` // another row, or the place of the entry
}

var problemHeader = []string{"index", "what", "key", "row", "other"}

func newVerifyCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "verify TABLE NAME",
		Short: "Compare an index with its table",
		Long: `Compare an index with its table at one timestamp, in both directions, and print one
line for each difference. Transactions may run at the same time. The command changes
nothing.

  missing  the row has the key, and there is no entry
  wrong    the entry of the row's key in a unique index is about another row
  orphan   the entry is about a row that does not have the key
  damaged  the entry cannot be read

To repair an index, drop it and create it again.

Exit status 3: the table has no such index. Exit status 4: there are differences, or the
index is not ready.`,
		Example: `  percctl index verify users users-by-email`,
		Args:    o.args(),
		RunE:    o.Runs(session.Looks, o.verify),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ListOf[problem](problemHeader))
	cmd.ValidArgsFunction = o.completeNames
	return cmd
}

func (o *options) verify(ctx context.Context, s *session.Session) error {
	f, err := o.find(ctx, s)
	if err != nil {
		return err
	}
	x, err := f.open()
	if err != nil {
		return err
	}
	list := &cli.List[problem]{
		Out: o.Streams.Out, Format: o.Format,
		Header:      problemHeader,
		Rows:        func(p problem) [][]string { return [][]string{{p.Index, p.What, p.Key, p.Row, p.Other}} },
		TableHeader: []string{"WHAT", "KEY", "ROW", "OTHER"},
		TableRows:   func(p problem) [][]string { return [][]string{{p.What, p.Key, p.Row, p.Other}} },
	}
	n := 0
	var printErr error
	err = x.Verify(ctx, s.Client(), o.name, func(p index.Problem) {
		n++
		s.Progress.Set("%s", cli.Count(n, "difference"))
		printErr = errors.Join(printErr, list.Add(problem{p.Index, p.What, keyText(p.Key), session.Row(p.Row), session.Row(p.Other)}))
	})
	s.Progress.End()
	if err = errors.Join(printErr, err); err != nil {
		return verdict(err)
	}
	if err := list.End(); err != nil {
		return err
	}
	if n > 0 {
		return session.Foundf("%s between table %s and its index %s", cli.Count(n, "difference"), o.table, o.name)
	}
	_, err = fmt.Fprintf(o.Streams.Err, "index %s agrees with table %s\n", o.name, o.table)
	return err
}

func keyText(k index.Key) string {
	var parts []string
	for _, part := range k {
		parts = append(parts, fmt.Sprintf("%q", part))
	}
	return strings.Join(parts, " ")
}

// verdict gives errors of package index their exit codes.
func verdict(err error) error {
	if errors.Is(err, index.ErrUnique) || errors.Is(err, index.ErrState) {
		return session.Foundf("%w", err)
	}
	return err
}
