// Package writecmd is percctl set and delete: writing single cells by hand, in
// a transaction.
package writecmd

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
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

// shownValue is how many characters of a value a plan shows.
const shownValue = 80

type options struct {
	session.Options
	cells       []txn.Cell
	deletes     bool
	valueFile   string
	hex, base64 bool
	value       []byte
}

const conflictWords = `
` + cli.AsksFirst + `

The plan has the current values. The transaction begins before the plan is printed:
if another transaction changes one of the cells before you confirm, the command
fails and changes nothing. With --yes it retries until it commits.

Exit status 5, "undetermined": --timeout expired before the outcome was known; the
message has the command that finds it out.`

// NewSetCmd returns the set command.
func NewSetCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "set CELL [VALUE]",
		Short: "Write one cell, in a transaction",
		Long: `Write the value of a cell in a transaction, and print the commit timestamp. The
value is the argument VALUE, or comes from --value-file. percctl help cells says how
to write CELL.
` + conflictWords,
		Example: `  percctl set accounts/bob/bal:usd 10
  percctl set files/logo/data:png --value-file logo.png --yes
  percctl set accounts/bob/info:key --hex 00ff7f --dry-run`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return cli.Usagef("%s; it takes CELL, and VALUE unless you add --value-file%s", cli.Count(len(args), "argument"), cli.AsCell(cmd, args))
			}
			return o.parseSet(args)
		},
		RunE: o.Runs(session.Changes, o.run),
	}
	o.add(cmd, s)
	cmd.Flags().StringVar(&o.valueFile, "value-file", "", "file with the value; - is standard input")
	cmd.Flags().BoolVar(&o.hex, "hex", false, "decode the value from hexadecimal")
	cmd.Flags().BoolVar(&o.base64, "base64", false, "decode the value from base64")
	return cmd
}

// NewDeleteCmd returns the delete command.
func NewDeleteCmd(s *cli.Streams) *cobra.Command {
	o := &options{deletes: true}
	cmd := &cobra.Command{
		Use:   "delete CELL…",
		Short: "Delete cells, in one transaction",
		Long: `Delete cells, all in one transaction, and print the commit timestamp. Reads at
earlier timestamps still see the deleted values. percctl help cells says how to
write CELL.
` + conflictWords,
		Example: `  percctl delete accounts/bob/bal:usd accounts/bob/bal:eur`,
		Args: func(cmd *cobra.Command, args []string) error {
			if as := cli.AsCell(cmd, args); len(args) == 0 || as != "" {
				return cli.Usagef("%s; it takes one CELL or more%s", cli.Count(len(args), "argument"), as)
			}
			return o.parseCells(args)
		},
		RunE: o.Runs(session.Changes, o.run),
	}
	o.add(cmd, s)
	return cmd
}

func (o *options) add(cmd *cobra.Command, s *cli.Streams) {
	o.Setup(cmd, s, session.PointTimeout, cli.ObjectOf[result]())
	o.Consent.Add(cmd)
	o.Config.SyncSecondaries = true
}

func (o *options) parseCells(args []string) error {
	for _, arg := range args {
		c, err := session.ParseCell(arg)
		switch {
		case err != nil:
			return err
		case c.Family == format.AckFamily:
			return cli.Usagef("cell %s: family %s holds transaction metadata; name a data family", c, c.Family)
		case slices.Contains(o.cells, c):
			return cli.Usagef("cell %s: you named it twice", c)
		}
		o.cells = append(o.cells, c)
	}
	return nil
}

func (o *options) parseSet(args []string) (err error) {
	if err := o.parseCells(args[:1]); err != nil {
		return err
	}
	switch {
	case o.hex && o.base64:
		return cli.Usagef("--hex and --base64: use only one of them")
	case len(args) == 2 && o.valueFile != "":
		return cli.Usagef("VALUE and --value-file %s: use only one of them", o.valueFile)
	case len(args) == 1 && o.valueFile == "":
		return cli.Usagef("no value: add VALUE or --value-file (- is standard input)")
	case o.valueFile == "-":
		if !o.Consent.Yes && !o.Consent.DryRun {
			return cli.Usagef("--value-file -: standard input holds the value and cannot answer the question: add --yes to confirm, or --dry-run")
		}
		o.value, err = io.ReadAll(o.Streams.In)
	case o.valueFile != "":
		o.value, err = os.ReadFile(o.valueFile)
	default:
		o.value = []byte(args[1])
	}
	if err != nil {
		return cli.Usagef("--value-file: %w", err)
	}
	text := strings.TrimSpace(string(o.value))
	switch {
	case o.hex:
		if o.value, err = hex.DecodeString(text); err != nil {
			return cli.Usagef("--hex: the value is not hexadecimal: %w", err)
		}
	case o.base64:
		if o.value, err = base64.StdEncoding.DecodeString(text); err != nil {
			return cli.Usagef("--base64: the value is not base64: %w", err)
		}
	}
	return nil
}

// A change is one cell and what happens to it.
type change struct {
	Cell   string `json:"cell"`   // table, row and column
	Action string `json:"action"` // `set` or `delete`
	Exists bool   `json:"exists"` // whether the cell had a value before
	Old    []byte `json:"old"`    // value before; empty if there was none
	New    []byte `json:"new"`    // value to write; empty for delete
}

// A result is what set or delete did, or would do.
type result struct {
	Project    string        `json:"project"`               // Google Cloud project
	Instance   string        `json:"instance"`              // Bigtable instance
	DryRun     bool          `json:"dry_run"`               // whether --dry-run was given
	Cells      []change      `json:"cells"`                 // cells that are written or deleted
	StartTS    tso.Timestamp `json:"start_ts,omitempty"`    // start timestamp of the transaction
	CommitTS   tso.Timestamp `json:"commit_ts,omitempty"`   // commit timestamp
	CommitTime string        `json:"commit_time,omitempty"` // commit_ts as a time
}

func (r *result) plan(w io.Writer) error {
	_, err := fmt.Fprintf(w, "project %s, instance %s: %s in one transaction\n", r.Project, r.Instance, cli.Count(len(r.Cells), "cell"))
	for _, c := range r.Cells {
		before := "absent"
		if c.Exists {
			before = cli.Shorten(cli.Text(c.Old), shownValue)
		}
		line := fmt.Sprintf("  set %s to %s, was %s\n", c.Cell, cli.Shorten(cli.Text(c.New), shownValue), before)
		if c.Action == "delete" {
			line = fmt.Sprintf("  delete %s, was %s\n", c.Cell, before)
		}
		_, err = io.WriteString(w, line)
	}
	return err
}

// read fills in what is there, as the transaction sees it.
func (o *options) read(ctx context.Context, tx *txn.Txn) (*result, error) {
	r := &result{Project: o.Connect.Project, Instance: o.Connect.Instance, DryRun: o.Consent.DryRun, StartTS: tx.StartTS()}
	for _, c := range o.cells {
		old, ok, err := tx.Table(c.Table).Get(ctx, c.Row, c.Family, c.Qualifier)
		if err != nil {
			return nil, err
		}
		change := change{Cell: c.String(), Action: "set", Exists: ok, Old: append([]byte{}, old...), New: append([]byte{}, o.value...)}
		if o.deletes {
			change.Action = "delete"
		}
		r.Cells = append(r.Cells, change)
	}
	return r, nil
}

func (o *options) run(ctx context.Context, s *session.Session) error {
	if err := s.UseCells(ctx, o.cells...); err != nil {
		return err
	}
	for shown := false; ; shown = true {
		err := o.attempt(ctx, s, !shown)
		if !errors.Is(err, txn.ErrConflict) {
			return err
		}
		if !o.Consent.Yes {
			return fmt.Errorf("nothing was changed, because another transaction wrote the cell first; run the command again to see the new values: %w", err)
		}
		if ctx.Err() != nil {
			return err
		}
		s.Progress.Set("a concurrent transaction conflicted; retrying")
	}
}

func (o *options) attempt(ctx context.Context, s *session.Session, show bool) error {
	tx, err := s.Client().Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	r, err := o.read(ctx, tx)
	if err != nil {
		return err
	}
	for _, c := range o.cells {
		if t := tx.Table(c.Table); o.deletes {
			t.Delete(c.Row, c.Family, c.Qualifier)
		} else {
			t.Set(c.Row, c.Family, c.Qualifier, o.value)
		}
	}
	if err := admin.CheckWrites(ctx, tx); err != nil {
		return err
	}
	if show {
		question := fmt.Sprintf("Write %s in %s?", cli.Count(len(o.cells), "cell"), s.Where)
		if ok, err := o.Ask(ctx, r, r.plan, question); !ok {
			return err
		}
	}
	r.CommitTS, err = tx.Commit(ctx)
	var unknown *txn.UndeterminedError
	if errors.As(err, &unknown) {
		return &cli.Error{Code: cli.ExitUnavailable, Err: fmt.Errorf("%w; run percctl txn status %s %d to find out whether it is committed", err, cli.Shell([]string{unknown.Primary.String()}), unknown.StartTS)}
	}
	if err != nil {
		return err
	}
	r.CommitTime = cli.Time(r.CommitTS)
	return o.Print(r, cli.Textf("committed at %s\n", cli.Stamp(r.CommitTS)))
}
