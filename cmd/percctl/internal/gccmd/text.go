package gccmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// A report is what a collection removed, or in a plan what it would remove.
type report struct {
	Project  string `json:"project"`  // Google Cloud project
	Instance string `json:"instance"` // Bigtable instance
	*gc.Report
	SafePointTime string `json:"safe_point_time"` // safe_point as a time
	Error         string `json:"error,omitempty"` // why the run did not finish
}

func newReport(flags *session.Flags, r *gc.Report, err error) *report {
	out := &report{Project: flags.Connect.Project, Instance: flags.Connect.Instance, Report: r, SafePointTime: cli.Time(r.SafePoint)}
	if err != nil {
		out.Error = cli.Line(err.Error())
	}
	return out
}

func (r *report) text(w io.Writer) error {
	fmt.Fprintf(w, "project %s, instance %s: ", r.Project, r.Instance)
	switch {
	case r.Nothing && r.SafePoint <= 0:
		fmt.Fprintln(w, "nothing to do: nothing is older than the retention")
	case r.Nothing:
		fmt.Fprintf(w, "nothing to do: everything up to the safe point %s is collected\n", cli.Stamp(r.SafePoint))
	case r.DryRun:
		fmt.Fprintf(w, "the safe point would be %s\n", cli.Stamp(r.SafePoint))
	default:
		fmt.Fprintf(w, "the safe point is %s\n", cli.Stamp(r.SafePoint))
	}
	if r.Previous > 0 && r.Previous < r.SafePoint {
		fmt.Fprintf(w, "  %s later than before\n", cli.Between(r.Previous, r.SafePoint))
	}
	for _, h := range r.HeldBy {
		fmt.Fprintf(w, "  held back by %s, with a transaction or snapshot at %s\n", holder(h), cli.Stamp(h.OldestTS))
	}
	n := r.Locks
	switch {
	case r.DryRun && n.Found > 0:
		fmt.Fprintf(w, "  %s to be resolved first\n", cli.Count(n.Found, "lock"))
	case n.Found > 0:
		fmt.Fprintf(w, "  resolved %s first: %d rolled forward, %d rolled back, %d gone\n", cli.Count(n.Found, "lock"), n.RolledForward, n.RolledBack, n.Gone)
	}
	if r.Helped {
		fmt.Fprintln(w, "  shared a run that another collector led; the counts are of this one")
	}
	if r.Resumed {
		fmt.Fprintln(w, "  continued an interrupted run; run the command again to collect newer garbage")
	}
	if len(r.Tables) == 0 {
		return nil
	}
	t := cli.NewTable(w)
	cli.WriteRow(t, "TABLE", "ROWS", "CHANGED", "VERSIONS", "DELETES", "MARKS", "DATA", "PLAIN", "CELLS", "BYTES", "SKIPPED")
	row := func(name string, c gc.Counts) {
		cells := []string{name}
		for _, n := range []int64{c.Rows, c.RowsChanged, c.Versions, c.Deletes, c.Marks, c.Data, c.Plain, c.Cells, c.Bytes, c.RowsSkipped} {
			cells = append(cells, strconv.FormatInt(n, 10))
		}
		cli.WriteRow(t, cells...)
	}
	for _, c := range r.Tables {
		row(c.Table, c)
	}
	if len(r.Tables) > 1 {
		row("total", r.Total)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, k := range r.Skipped {
		fmt.Fprintln(w, "  skipped:", skipped(k))
	}
	return nil
}

// skipped names a row that was not collected.
func skipped(k gc.SkippedRow) string {
	return cli.Line(fmt.Sprintf("table %s, row %s: %s", k.Table, cli.Text([]byte(k.Row)), k.Reason))
}

// verdict is the error that the exit code comes from.
func verdict(r *gc.Report, err error) error {
	var blocked *gc.BlockedError
	var busy *gc.BusyError
	switch {
	case errors.As(err, &blocked), errors.As(err, &busy):
		return session.Foundf("%w", err)
	case err != nil:
		return err
	case r.Total.RowsSkipped > 0:
		return session.Foundf("%s skipped: percctl gc status names them, and percctl check says what is damaged", cli.Count(r.Total.RowsSkipped, "row"))
	case r.DryRun && len(r.Missing) > 0:
		return session.NotFoundf("table %s has a schema record but does not exist, so a collection would refuse: run percctl table verify %[1]s", cli.Line(r.Missing[0]))
	}
	return nil
}

func holder(h gc.Hold) string {
	if h.Host == "" {
		return "client " + h.Owner
	}
	return cli.Line(fmt.Sprintf("client %s (host %s, pid %d)", h.Owner, h.Host, h.PID))
}

// progress reports how far a collection is.
func progress(ctx context.Context, s *session.Session) func(gc.Progress) {
	var extent *session.Extent
	return func(p gc.Progress) {
		switch p.Phase {
		case gc.PhaseFence:
			s.Progress.Of(0, 0, "") // that of the run before has ended
			s.Progress.Set("waiting until every client knows the new safe point: %s left", cli.Duration(p.Left))
		case gc.PhaseLocks:
			s.Progress.Set("resolving old locks of table %s", p.Table)
		default:
			if extent == nil {
				names, _ := admin.Tables(ctx, s.Client()) // without them, no percentage
				extent = s.Extent(ctx, session.Range{}, names...)
			}
			s.Progress.Of(extent.At(p.Table, p.Row), int(p.Total.Rows), "row")
			s.Progress.Set("table %s, row %s: %s read, %s found", p.Table, cli.Text([]byte(p.Row)), cli.Count(p.Total.Rows, "row"), cli.Count(p.Total.Cells, "garbage cell"))
		}
	}
}
