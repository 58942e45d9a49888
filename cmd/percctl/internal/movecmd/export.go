package movecmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin/transfer"
)

type exportOptions struct {
	session.Options
	rows   session.RangeFlags
	table  string
	at     string
	to     string
	resume bool

	ts tso.Timestamp
}

// NewExportCmd returns the export command.
func NewExportCmd(s *cli.Streams) *cobra.Command {
	o := &exportOptions{}
	cmd := &cobra.Command{
		Use:   "export TABLE",
		Short: "Write the committed data of a table, as of one timestamp, to a file",
		Long: `Write the committed rows of a table, all as of one timestamp, as lines of JSON: a
header, one line per row, and a trailer with counts and a checksum. The trailer
shows percctl import whether the file is complete. Bytes that are text appear
as strings, others in base64. The file has no earlier versions, locks or deletions.

The command writes to standard output, or with --to to a new file. After an
interrupt, --resume continues after the last complete row, as of the same timestamp.

The command reads as transactions do: it waits for locks of live transactions, and
resolves locks of dead clients as the primaries decide.`,
		Example: `  percctl export accounts --to accounts.jsonl
  percctl export accounts --to accounts.jsonl --resume
  percctl export accounts --prefix user/7 --at 2026-11-20T05:30:00Z | gzip > user7.jsonl.gz`,
		Args: cli.ExactArgs(1, "one, TABLE", cli.Into(&o.table)),
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout)
	cli.FormatFlag(cmd, &o.Format, cli.JSONL)
	o.rows.Add(cmd)
	o.Require(o.parse, o.rows.Check)
	cmd.Flags().StringVar(&o.at, "at", "", "export as of this timestamp, an integer or an RFC 3339 time (default: now)")
	cmd.Flags().StringVar(&o.to, "to", "", "file to write; it must not exist (default, and -: standard output)")
	cli.Prints(cmd, cli.LinesOf[transfer.Header]().If("first line"), cli.LinesOf[transfer.RowLine]().If("then one for each row, and a trailer"))
	cmd.Flags().BoolVar(&o.resume, "resume", false, "continue the file of --to that an earlier run left incomplete")
	cmd.ValidArgsFunction = o.CompleteTables(1)
	return cmd
}

func (o *exportOptions) parse() (err error) {
	if o.to == "-" {
		o.to = ""
	}
	if o.resume && o.to == "" {
		return cli.Usagef("--resume: add --to, the file to continue")
	}
	if o.at != "" {
		if o.ts, err = tso.ParseTimestamp(o.at); err != nil || o.ts == 0 {
			return cli.Usagef("--at %s: it is not a timestamp", o.at)
		}
	}
	return nil
}

func (o *exportOptions) run(ctx context.Context, s *session.Session) error {
	if err := s.Use(ctx, o.table); err != nil {
		return err
	}
	w, file, err := o.open(ctx, s)
	if err != nil {
		return err
	}
	err = o.write(ctx, s, w)
	s.Progress.End()
	switch ferr := w.Flush(); {
	case file == nil:
		return errors.Join(err, ferr)
	case err == nil:
		return errors.Join(ferr, file.Sync(), file.Close())
	default:
		if ferr = errors.Join(ferr, file.Close()); ferr != nil {
			return errors.Join(err, ferr)
		}
		return fmt.Errorf("stopped after %s; run the command again with --resume to continue: %w", cli.Count(w.Rows, "row"), err)
	}
}

func (o *exportOptions) write(ctx context.Context, s *session.Session, w *transfer.Writer) error {
	if w.Complete {
		fmt.Fprintf(o.Streams.Err, "%s is complete: %s; nothing to do\n", o.to, cli.Count(w.Rows, "row"))
		return nil
	}
	waiting := session.NoteWaiting(o.Streams, o.table)
	defer waiting.Stop()
	extent := s.Extent(ctx, o.rows.Rows, o.table)
	err := w.Export(ctx, s.Client(), func(rows int, row string) {
		waiting.Stop()
		s.Progress.Of(extent.At(o.table, row), rows, "row")
		s.Progress.Set("%s of table %s", cli.Count(rows, "row"), o.table)
	})
	if err != nil {
		return err
	}
	s.Progress.End()
	_, err = fmt.Fprintf(o.Streams.Err, "%s with %s at %s\n", cli.Count(w.Rows, "row"), cli.Count(w.Cells, "cell"), cli.Stamp(w.Header.TS))
	return err
}

// open begins the file of --to, or continues the one that an earlier run left. Without
// --to there is no file.
func (o *exportOptions) open(ctx context.Context, s *session.Session) (w *transfer.Writer, file *os.File, err error) {
	r := o.rows.Rows
	if o.resume {
		w, file, err := o.reopen(transfer.NewHeader(o.table, o.ts, r.Start, r.End))
		if !errors.Is(err, fs.ErrNotExist) {
			return w, file, err
		}
		// It was interrupted before it began.
	}
	if o.ts == 0 {
		if o.ts, err = s.Client().Timestamp(ctx); err != nil {
			return nil, nil, err
		}
	}
	out := o.Streams.Out
	if o.to != "" {
		file, err = os.OpenFile(o.to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			return nil, nil, cli.Usagef("--to %s: the file exists; name another, or add --resume to continue it", o.to)
		}
		if err != nil {
			return nil, nil, err
		}
		out = file
	}
	w, err = transfer.NewWriter(out, transfer.NewHeader(o.table, o.ts, r.Start, r.End))
	return w, file, err
}

func (o *exportOptions) reopen(want transfer.Header) (*transfer.Writer, *os.File, error) {
	file, err := os.OpenFile(o.to, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	w, err := transfer.Resume(o.to, file, want)
	if err == nil {
		return w, file, nil
	}
	_ = file.Close()
	var other *transfer.OtherError
	if errors.As(err, &other) {
		was := other.Header
		return nil, nil, cli.Usagef("--resume: %s is an export of table %s at %d, rows %q to %q, which differs from this command: repeat the arguments of the first run", o.to, was.Table, was.TS, was.Start, was.End)
	}
	return nil, nil, err
}
