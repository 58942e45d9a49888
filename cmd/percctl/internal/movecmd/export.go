package movecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
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
shows percctl import whether the file is complete. Bytes that are valid UTF-8 appear
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
	o.rows.Add(cmd)
	o.Require(o.parse, o.rows.Check)
	cmd.Flags().StringVar(&o.at, "at", "", "export as of this timestamp, an integer or an RFC 3339 time (default: now)")
	cmd.Flags().StringVar(&o.to, "to", "", "file to write; it must not exist (default: standard output)")
	cli.Prints(cmd, cli.LinesOf[header]().If("first line"), cli.LinesOf[rowLine]().If("then one for each row, and a trailer"))
	cmd.Flags().BoolVar(&o.resume, "resume", false, "continue the file of --to that an earlier run left incomplete")
	cmd.ValidArgsFunction = o.CompleteTables(1)
	return cmd
}

func (o *exportOptions) parse() (err error) {
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

// A target is what an export is written to, and from where on.
type target struct {
	*writer
	header header
	done   bool
	from   string // the first key that is missing
	finish func(error) error
}

func (o *exportOptions) run(ctx context.Context, s *session.Session) error {
	if err := s.Use(ctx, o.table); err != nil {
		return err
	}
	t, err := o.open(ctx, s, o.rows.Rows)
	if err != nil {
		return err
	}
	err = o.write(ctx, s, t, o.rows.Rows)
	s.Progress.End()
	return t.finish(err)
}

func (o *exportOptions) write(ctx context.Context, s *session.Session, t *target, r session.Range) error {
	if t.done {
		fmt.Fprintf(o.Streams.Err, "%s is complete: %s; nothing to do\n", o.to, cli.Count(t.rows, "row"))
		return nil
	}
	snapshot, err := s.Client().Snapshot(ctx, txn.At(t.header.TS))
	if err != nil {
		return err
	}
	waiting := session.NoteWaiting(o.Streams, o.table)
	defer waiting.Stop()
	for row, err := range snapshot.Table(o.table).ReadRows(ctx, bigtable.NewRange(max(t.from, r.Start), r.End)) {
		if err != nil {
			return err
		}
		waiting.Stop()
		if err := t.add(row); err != nil {
			return err
		}
		s.Progress.Set("%s of table %s", cli.Count(t.rows, "row"), o.table)
	}
	if err := t.end(); err != nil {
		return err
	}
	s.Progress.End()
	_, err = fmt.Fprintf(o.Streams.Err, "%s with %s at %s\n", cli.Count(t.rows, "row"), cli.Count(t.cells, "cell"), cli.Stamp(t.header.TS))
	return err
}

// open creates the target, or finds out how far an earlier run came.
func (o *exportOptions) open(ctx context.Context, s *session.Session, r session.Range) (*target, error) {
	want := header{Version: formatVersion, Table: o.table, TS: o.ts}
	if r.Start != "" {
		want.Start = session.Row(r.Start)
	}
	if r.End != "" {
		want.End = session.Row(r.End)
	}
	if o.resume {
		t, err := o.reopen(want)
		if !errors.Is(err, fs.ErrNotExist) {
			return t, err
		}
		// It was interrupted before it began.
	}
	if want.TS == 0 {
		now, err := s.Client().Timestamp(ctx)
		if err != nil {
			return nil, err
		}
		want.TS = now
	}
	want.Time = cli.Time(want.TS)
	if o.to == "" {
		t := &target{writer: newWriter(o.Streams.Out), header: want}
		t.finish = func(err error) error { return errors.Join(err, t.out.Flush()) }
		return t, t.line(want, true)
	}
	file, err := os.OpenFile(o.to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil, cli.Usagef("--to %s: the file exists; name another, or add --resume to continue it", o.to)
	}
	if err != nil {
		return nil, err
	}
	t := o.toFile(file)
	t.header = want
	return t, t.line(want, true)
}

func (o *exportOptions) toFile(file *os.File) *target {
	t := &target{writer: newWriter(file)}
	t.finish = func(err error) error {
		if err == nil {
			return errors.Join(t.out.Flush(), file.Sync(), file.Close())
		}
		if ferr := errors.Join(t.out.Flush(), file.Close()); ferr != nil {
			return errors.Join(err, ferr)
		}
		return fmt.Errorf("stopped after %s; run the command again with --resume to continue: %w", cli.Count(t.rows, "row"), err)
	}
	return t
}

// reopen reads what an earlier run wrote, cuts off an incomplete row, and
// continues there.
func (o *exportOptions) reopen(want header) (*target, error) {
	file, err := os.OpenFile(o.to, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	r, err := newReader(o.to, file)
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	was := r.header
	if want.TS == 0 {
		want.TS = was.TS
	}
	want.Time = was.Time
	if want != was {
		_ = file.Close()
		return nil, cli.Usagef("--resume: %s is an export of table %s at %d, rows %q to %q, which differs from this command: repeat the arguments of the first run", o.to, was.Table, was.TS, was.Start, was.End)
	}
	for err == nil {
		_, err = r.row()
	}
	t := o.toFile(file)
	t.header, t.sum, t.rows, t.cells = was, r.sum, r.rows, r.cells
	switch {
	case errors.Is(err, io.EOF):
		t.done = true
		return t, nil
	case !errors.Is(err, errCut):
		_ = file.Close()
		return nil, err
	}
	if r.rows > 0 {
		t.from = r.last + "\x00"
	}
	if err := file.Truncate(r.offset); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if _, err := file.Seek(r.offset, io.SeekStart); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return t, nil
}
