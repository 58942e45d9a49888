package gccmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

type statusOptions struct {
	streams *cli.Streams
	flags   session.Flags
	format  cli.Format
}

func newStatusCmd(s *cli.Streams) *cobra.Command {
	o := &statusOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the safe point, the last run, and who holds it back",
		Long: `Show the safe point and its age, how far the last run came and what it
reclaimed, who is collecting now, and the clients with open transactions or held
snapshots, the oldest first.

Exit status 4: a run was interrupted, and nobody goes on with it.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.flags.Run(cmd.Context(), s, session.Looks, txn.Config{}, o.run)
		},
	}
	o.flags.Add(cmd, statusTimeout)
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// status is a txn.GCStatus as it is printed.
type status struct {
	Project       string        `json:"project"`
	Instance      string        `json:"instance"`
	SafePoint     tso.Timestamp `json:"safe_point"`
	SafePointTime string        `json:"safe_point_time"`
	AgeSeconds    float64       `json:"age_seconds"`
	PublishedTS   tso.Timestamp `json:"published_ts"`
	Retention     float64       `json:"retention_seconds"`
	Now           tso.Timestamp `json:"now"`
	Run           runStatus     `json:"run"`
	Lease         string        `json:"lease_holder"` // empty: nobody
	LeaseLeft     float64       `json:"lease_left_seconds"`
	Holds         []txn.GCHold  `json:"holds"`
}

type runStatus struct {
	Phase     txn.GCPhase   `json:"phase"`
	SafePoint tso.Timestamp `json:"safe_point"`
	Table     string        `json:"table"`
	Row       string        `json:"row"`
	StartedTS tso.Timestamp `json:"started_ts"`
	UpdatedTS tso.Timestamp `json:"updated_ts"`
	Owner     string        `json:"owner"`
	Rows      int64         `json:"rows"`
	Versions  int64         `json:"versions"`
	Cells     int64         `json:"cells"`
	Bytes     int64         `json:"bytes"`
}

// Status is what gc status prints.
type Status = status

// NewStatus reads the state of garbage collection.
func NewStatus(ctx context.Context, s *session.Session) (*Status, error) {
	g, err := s.Client().GCStatus(ctx)
	if err != nil {
		return nil, err
	}
	st := &status{
		Project: s.Connect.Project, Instance: s.Connect.Instance,
		SafePoint: g.SafePoint, SafePointTime: cli.Time(g.SafePoint), PublishedTS: g.PublishedTS, Retention: g.Retention.Seconds(), Now: g.Now,
		Run:   runStatus{g.Run.Phase, g.Run.SafePoint, g.Run.Table, cli.Text([]byte(g.Run.Row)), g.Run.StartedTS, g.Run.UpdatedTS, g.Run.Owner, g.Run.Rows, g.Run.Versions, g.Run.Cells, g.Run.Bytes},
		Lease: g.Lease.Owner, LeaseLeft: g.Lease.Left.Seconds(), Holds: g.Holds,
	}
	if g.Run.Row == "" {
		st.Run.Row = ""
	}
	if g.SafePoint > 0 {
		st.AgeSeconds = (time.Duration(g.Now-g.SafePoint) * time.Microsecond).Seconds()
	}
	return st, nil
}

// Interrupted: a run did not come to its end, and nobody goes on with it.
func (st *status) Interrupted() bool {
	return st.Lease == "" && (st.Run.Phase == txn.GCFence || st.Run.Phase == txn.GCCollect)
}

func (o *statusOptions) run(ctx context.Context, s *session.Session) error {
	st, err := NewStatus(ctx, s)
	if err != nil {
		return err
	}
	if err := cli.Print(o.streams.Out, o.format, st, st.text); err != nil {
		return err
	}
	if st.Interrupted() {
		return session.Foundf("a run was interrupted, and nobody goes on with it: percctl gc run")
	}
	return nil
}

func (st *status) text(w io.Writer) error {
	fmt.Fprintf(w, "project %s, instance %s\n", st.Project, st.Instance)
	t := cli.NewTable(w)
	for _, row := range st.Facts() {
		cli.WriteRow(t, row[:]...)
	}
	return t.Flush()
}

// Facts are what is to be said of it for people: a name and words each.
func (st *status) Facts() (facts [][2]string) {
	add := func(name, words string) { facts = append(facts, [2]string{name, words}) }
	if st.SafePoint == 0 {
		add("safe point", "none: garbage was never collected")
	} else {
		add("safe point", cli.Stamp(st.SafePoint))
		add("age", age(st.Now, st.SafePoint))
		add("published", age(st.Now, st.PublishedTS)+" ago, for a retention of "+cli.Duration(time.Duration(st.Retention*float64(time.Second))))
	}
	switch r := st.Run; r.Phase {
	case txn.GCNone:
		add("last run", "none")
	case txn.GCDone:
		add("last run", fmt.Sprintf("ended %s ago, took %s, by %s", age(st.Now, r.UpdatedTS), age(r.UpdatedTS, r.StartedTS), cli.Line(r.Owner)))
	case txn.GCFence:
		add("last run", fmt.Sprintf("began %s ago, before its first removal, by %s", age(st.Now, r.StartedTS), cli.Line(r.Owner)))
	default:
		add("last run", fmt.Sprintf("began %s ago, last seen %s ago, by %s", age(st.Now, r.StartedTS), age(st.Now, r.UpdatedTS), cli.Line(r.Owner)))
		at := "before the first row"
		if r.Table != "" {
			at = fmt.Sprintf("table %s, row %s", r.Table, r.Row)
		}
		add("position", at)
	}
	if r := st.Run; r.Phase != txn.GCNone {
		add("reclaimed", fmt.Sprintf("%s, %s, %s, of %s", cli.Count(int(r.Versions), "version"), cli.Count(int(r.Cells), "cell"), cli.Count(int(r.Bytes), "byte"), cli.Count(int(r.Rows), "row")))
	}
	if st.Lease == "" {
		add("collecting", "nobody")
	} else {
		add("collecting", cli.Line(st.Lease))
	}
	for _, h := range st.Holds {
		add("held by", fmt.Sprintf("%s, at %s, %s old", holder(h), cli.Stamp(h.OldestTS), age(st.Now, h.OldestTS)))
	}
	return facts
}
