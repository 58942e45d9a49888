// Package movecmd is percctl export and import: committed data to and from files of
// package transfer.
package movecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/transfer"
)

type importOptions struct {
	session.Options
	file       string
	table      string
	batch      int
	bulk, idle bool
	resume     string

	startTS, commitTS tso.Timestamp // of --resume
}

// NewImportCmd returns the import command.
func NewImportCmd(s *cli.Streams) *cobra.Command {
	o := &importOptions{}
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Write the rows of an exported file into a table",
		Long: `Write the rows of a file of percctl export into a transactional table. The command
reads and checks the whole file first. FILE - is standard input, which it checks
while it reads. Cells that the file does not have stay as they are. Columns with
observers get notifications.

By default the command writes --batch rows per transaction, which is safe at the
same time as other transactions. It does not write rows that already are as the file
says: after an interrupt, run it again and it continues.

--bulk writes committed cells directly, which is faster. It is not a transaction:
each row appears by itself, and readers may see some rows before others. The range
from the first to the last row of the file must be empty. If a transaction writes
there during the load, its data stays and the load stops. After an interrupt,
continue with the --resume that the command prints.

With --idle you promise that no client reads or writes the range during the load.
Then the range may hold older data (but no locks), and each request writes up to
1,000 rows. If a client breaks the promise, its commits may be lost, and the command
notices only afterwards, if at all.

` + cli.AsksFirst + `

With --dry-run, the command also checks the file and, with --bulk, the range.`,
		Example: `  percctl import accounts.jsonl --dry-run
  percctl import accounts.jsonl --table accounts_copy --bulk --yes`,
		Args: cli.ExactArgs(1, "one, FILE (- for standard input)", cli.Into(&o.file)),
		RunE: o.Runs(session.Changes, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[imported]())
	o.Config.SyncSecondaries = true
	o.Require(o.parse)
	f := cmd.Flags()
	f.StringVar(&o.table, "table", "", "table to write to (default: the table that was exported)")
	f.IntVar(&o.batch, "batch", 200, "rows per transaction")
	f.BoolVar(&o.bulk, "bulk", false, "write committed cells directly into an empty range")
	f.BoolVar(&o.idle, "idle", false, "with --bulk: no client reads or writes the range during the load")
	f.StringVar(&o.resume, "resume", "", "with --bulk: START_TS,COMMIT_TS of the load to continue, as it printed them")
	o.Consent.Add(cmd)
	session.CompleteFlag(cmd, "table", o.CompleteTables(-1))
	return cmd
}

func (o *importOptions) parse() (err error) {
	switch {
	case o.batch < 1 || o.batch > 10_000:
		return cli.Usagef("--batch %d: it has to be between 1 and 10000", o.batch)
	case (o.idle || o.resume != "") && !o.bulk:
		return cli.Usagef("--idle and --resume need --bulk; without --bulk, run the command again to continue")
	case o.file == "-" && o.bulk:
		return cli.Usagef("--bulk: it reads the file twice, so FILE cannot be standard input")
	case o.file == "-" && (o.Consent.DryRun || !o.Consent.Yes):
		return cli.Usagef("standard input holds the rows, and cannot answer the question or be read twice: add --yes to confirm")
	case o.resume == "":
		return nil
	}
	start, commit, ok := strings.Cut(o.resume, ",")
	if ok {
		o.startTS, err = tso.ParseTimestamp(start)
	}
	if ok && err == nil {
		o.commitTS, err = tso.ParseTimestamp(commit)
	}
	if !ok || err != nil || o.startTS <= 0 || o.commitTS <= o.startTS {
		return cli.Usagef("--resume %s: it has to be START_TS,COMMIT_TS as the load printed them", o.resume)
	}
	return nil
}

// An imported is what import did, or would do.
type imported struct {
	Project   string        `json:"project"`             // Google Cloud project
	Instance  string        `json:"instance"`            // Bigtable instance
	Table     string        `json:"table"`               // table that is written to
	File      string        `json:"file"`                // name of the file
	FileTable string        `json:"file_table"`          // table that the file was exported from
	FileTS    tso.Timestamp `json:"file_ts"`             // timestamp that the file was exported at
	Bulk      bool          `json:"bulk"`                // whether --bulk was given
	DryRun    bool          `json:"dry_run"`             // whether --dry-run was given
	Rows      int           `json:"rows"`                // rows in the file
	Cells     int           `json:"cells"`               // cells in the file
	Written   int           `json:"rows_written"`        // rows written by this run
	Unchanged int           `json:"rows_unchanged"`      // rows that already were as the file says
	StartTS   tso.Timestamp `json:"start_ts,omitempty"`  // start timestamp of a bulk load, for --resume
	CommitTS  tso.Timestamp `json:"commit_ts,omitempty"` // commit timestamp of a bulk load, for --resume

	summary transfer.Summary
}

func (r *imported) plan(w io.Writer) error {
	how := "by transactions"
	if r.Bulk {
		how = "in bulk"
	}
	_, err := fmt.Fprintf(w, "project %s, instance %s, table %s: %s with %s to write %s, from %s, table %s at %s\n",
		r.Project, r.Instance, r.Table, cli.Count(r.Rows, "row"), cli.Count(r.Cells, "cell"), how, r.File, r.FileTable, cli.Stamp(r.FileTS))
	return err
}

func (r *imported) text(w io.Writer) error {
	if r.Bulk {
		_, err := fmt.Fprintf(w, "%s committed at %s\n", cli.Count(r.Written, "row"), cli.Stamp(r.CommitTS))
		return err
	}
	_, err := fmt.Fprintf(w, "%s written, %d unchanged\n", cli.Count(r.Written, "row"), r.Unchanged)
	return err
}

func (o *importOptions) run(ctx context.Context, s *session.Session) error {
	r := &imported{Project: s.Connect.Project, Instance: s.Connect.Instance, File: o.file, Bulk: o.bulk, DryRun: o.Consent.DryRun}
	var in *transfer.Reader
	var err error
	if o.file == "-" {
		if in, err = transfer.NewReader("standard input", o.Streams.In); err != nil {
			return err
		}
		o.use(r, in)
	} else if err := o.survey(ctx, s, r); err != nil {
		return err
	}
	d, err := s.Describe(ctx, s.Client(), r.Table)
	if err != nil {
		return err
	}
	for _, f := range r.summary.Families {
		if !slices.Contains(d.Families, f) {
			return fmt.Errorf("%s has cells in family %s, which table %s does not have: run percctl table init %s --families %s to add it", o.file, f, r.Table, r.Table, f)
		}
	}
	if err := s.Use(ctx, r.Table); err != nil {
		return err
	}
	if o.Consent.DryRun {
		if o.bulk {
			// A load of no rows checks the range as the real one does.
			if err := o.load(ctx, s, r, func(func(admin.BulkRow, error) bool) {}); err != nil {
				return err
			}
		}
		return o.Print(r, r.plan)
	}
	if o.file != "-" {
		if err := r.plan(o.Streams.Err); err != nil {
			return err
		}
		if err := cli.Confirm(ctx, o.Streams, o.Consent.Yes, fmt.Sprintf("Write %s to table %s in %s?", cli.Count(r.Rows, "row"), r.Table, s.Where)); err != nil {
			return err
		}
		file, err := os.Open(o.file)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		if in, err = transfer.NewReader(o.file, file); err != nil {
			return err
		}
	}
	if o.bulk {
		err = o.load(ctx, s, r, in.All())
	} else {
		err = o.transact(ctx, s, r, in)
	}
	s.Progress.End()
	if err != nil {
		return err
	}
	r.Rows, r.Cells = in.Rows, in.Cells
	return o.Print(r, r.text)
}

func (o *importOptions) use(r *imported, in *transfer.Reader) {
	if r.Table = o.table; r.Table == "" {
		r.Table = in.Header.Table
	}
	r.FileTable, r.FileTS = in.Header.Table, in.Header.TS
}

// survey reads the file to its end, so that nothing is written of one that is
// cut off or damaged.
func (o *importOptions) survey(ctx context.Context, s *session.Session, r *imported) error {
	file, err := os.Open(o.file)
	if err != nil {
		return cli.Usagef("%w", err)
	}
	defer func() { _ = file.Close() }()
	in, err := transfer.NewReader(o.file, file)
	if err != nil {
		return err
	}
	o.use(r, in)
	r.summary, err = in.Summarize(ctx, func(rows int) {
		s.Progress.Of(0, rows, "row")
		s.Progress.Set("reading %s: %s", o.file, cli.Count(rows, "row"))
	})
	if errors.Is(err, transfer.ErrIncomplete) {
		return fmt.Errorf("%w; run percctl export --resume to complete it", err)
	}
	r.Rows, r.Cells = r.summary.Rows, r.summary.Cells
	return err
}

func (o *importOptions) load(ctx context.Context, s *session.Session, r *imported, rows iter.Seq2[admin.BulkRow, error]) error {
	if r.Rows == 0 {
		return nil
	}
	resume := ""
	report, err := admin.BulkLoad(ctx, s.Client(), r.Table, rows, admin.BulkConfig{
		StartTS: o.startTS, CommitTS: o.commitTS, Idle: o.idle, Rows: bigtable.NewRange(r.summary.First, r.summary.Last+"\x00"),
		Started: func(start, commit tso.Timestamp) {
			if o.Consent.DryRun {
				return
			}
			resume = fmt.Sprintf("; to continue, run the command again with --resume %d,%d", start, commit)
			fmt.Fprintf(o.Streams.Err, "loading; if this is interrupted, continue with --resume %d,%d\n", start, commit)
		},
		Progress: func(rows int) {
			s.Progress.Of(float64(rows)/float64(r.Rows), rows, "row")
			s.Progress.Set("%d of %s loaded", rows, cli.Count(r.Rows, "row"))
		},
	})
	s.Progress.End()
	if !o.Consent.DryRun {
		r.Written, r.StartTS, r.CommitTS = report.Rows, report.StartTS, report.CommitTS
	}
	switch {
	case errors.Is(err, admin.ErrNotIdle) && report.Rows == 0:
		return &cli.Error{Code: cli.ExitFailed, Err: fmt.Errorf("%w; nothing was written; import without --bulk, or with --idle if no client uses the range", err)}
	case err != nil:
		return fmt.Errorf("%s loaded%s: %w", cli.Count(report.Rows, "row"), resume, err)
	}
	return nil
}

// transact writes batches of rows, each in a transaction.
func (o *importOptions) transact(ctx context.Context, s *session.Session, r *imported, in *transfer.Reader) error {
	done, err := transfer.Import(ctx, s.Client(), r.Table, in.All(), transfer.ImportConfig{Batch: o.batch, Progress: func(done transfer.Imported) {
		s.Progress.Of(float64(done.Written+done.Unchanged)/float64(max(r.Rows, 1)), done.Written+done.Unchanged, "row")
		s.Progress.Set("%s written, %d unchanged", cli.Count(done.Written, "row"), done.Unchanged)
	}})
	r.Written, r.Unchanged = done.Written, done.Unchanged
	if err != nil {
		return fmt.Errorf("stopped after %s written, %d unchanged; run the command again to continue: %w", cli.Count(r.Written, "row"), r.Unchanged, err)
	}
	return nil
}
