package gccmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

type statusOptions struct {
	session.Options
}

func newStatusCmd(s *cli.Streams) *cobra.Command {
	o := &statusOptions{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the safe point, the last run, and the clients that hold it back",
		Long: `Show the safe point and its age, how far the last run came and what it removed, the
collector that runs now, and the clients that hold the safe point back: their open
transactions, or snapshots with a hold, are older than the retention of the last run.
A client that died may hold it back for some minutes. The command changes nothing.

Exit status 4: a run was interrupted, and no collector continues it.`,
		Example: `  percctl gc status
  percctl gc status -o json`,
		Args: cli.NoArgs,
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ObjectOf[status]())
	return cmd
}

// A status is the state of garbage collection.
type status struct {
	Project       string        `json:"project"`            // Google Cloud project
	Instance      string        `json:"instance"`           // Bigtable instance
	SafePoint     tso.Timestamp `json:"safe_point"`         // reads below it fail; 0 if nothing was ever collected
	SafePointTime string        `json:"safe_point_time"`    // safe_point as a time
	AgeSeconds    float64       `json:"age_seconds"`        // oracle time since safe_point; 0 if there is none
	PublishedTS   tso.Timestamp `json:"published_ts"`       // oracle time at which the safe point was moved last
	Retention     float64       `json:"retention_seconds"`  // retention of the run that moved it
	Now           tso.Timestamp `json:"now"`                // oracle time of this report
	Run           runStatus     `json:"run"`                // the last run
	Lease         string        `json:"lease_holder"`       // collector that runs now; empty if none does
	LeaseLeft     float64       `json:"lease_left_seconds"` // time until another collector may take over
	Holds         []gc.Hold     `json:"holds"`              // clients whose open transaction, or snapshot with a hold, is older than the retention and holds the safe point back, the oldest first
}

// A runStatus is the progress of the last run.
type runStatus struct {
	Phase     gc.Phase      `json:"phase"`      // how far the run came
	SafePoint tso.Timestamp `json:"safe_point"` // what the run collects up to
	Table     string        `json:"table"`      // table that the run works on
	Row       string        `json:"row"`        // row that the run has reached, as commands take it
	StartedTS tso.Timestamp `json:"started_ts"` // oracle time at which the run started
	UpdatedTS tso.Timestamp `json:"updated_ts"` // oracle time at which the run last wrote its progress, or at which it finished
	Owner     string        `json:"owner"`      // collector that ran it last: host, process id and client
	Rows      int64         `json:"rows"`       // rows read since the run started, interruptions included
	Versions  int64         `json:"versions"`   // versions removed, by their write records
	Cells     int64         `json:"cells"`      // Bigtable cells removed
	Bytes     int64         `json:"bytes"`      // bytes of values and qualifiers removed, before compression
	Parts     int           `json:"parts"`      // parts that are left of this phase
	// Collectors share the run now.
	Collectors []gc.Collector `json:"collectors"`
	// Skipped are the first 100 rows that were not collected since the last run began that read every row.
	Skipped []gc.SkippedRow `json:"skipped,omitempty"`
}

// Status is what gc status prints.
type Status = status

// NewStatus reads the state of garbage collection.
func NewStatus(ctx context.Context, s *session.Session) (*Status, error) {
	g, err := gc.ReadStatus(ctx, s.Client())
	if err != nil {
		return nil, err
	}
	st := &status{
		Project: s.Connect.Project, Instance: s.Connect.Instance,
		SafePoint: g.SafePoint, SafePointTime: cli.Time(g.SafePoint), PublishedTS: g.PublishedTS, Retention: g.Retention.Seconds(), Now: g.Now,
		Run:   runStatus{g.Run.Phase, g.Run.SafePoint, g.Run.Table, cli.Text([]byte(g.Run.Row)), g.Run.StartedTS, g.Run.UpdatedTS, g.Run.Owner, g.Run.Rows, g.Run.Versions, g.Run.Cells, g.Run.Bytes, g.Run.Parts, g.Run.Collectors, g.Run.Skipped},
		Lease: g.Lease.Owner, LeaseLeft: g.Lease.Left.Seconds(), Holds: g.Holds,
	}
	if st.Now, err = s.Now(ctx); err != nil {
		return nil, err
	}
	st.Holds = slices.DeleteFunc(st.Holds, func(h gc.Hold) bool { return !g.HoldsBack(h) })
	if g.Run.Row == "" {
		st.Run.Row = ""
	}
	if g.SafePoint > 0 {
		st.AgeSeconds = st.Now.Sub(g.SafePoint).Seconds()
	}
	return st, nil
}

// Interrupted reports whether a run was interrupted and no collector continues it.
func (st *status) Interrupted() bool {
	return st.Lease == "" && len(st.Run.Collectors) == 0 && st.Run.Phase != gc.PhaseNone && st.Run.Phase != gc.PhaseDone
}

func (o *statusOptions) run(ctx context.Context, s *session.Session) error {
	st, err := NewStatus(ctx, s)
	if err != nil {
		return err
	}
	if err := o.Print(st, st.text); err != nil {
		return err
	}
	if st.Interrupted() {
		return session.Foundf("a run was interrupted, and no collector continues it: run percctl gc run")
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
		add("safe point", "none: nothing was ever collected")
	} else {
		add("safe point", cli.Stamp(st.SafePoint))
		add("age", cli.Between(st.SafePoint, st.Now))
		add("published", cli.Between(st.PublishedTS, st.Now)+" ago, for a retention of "+cli.Seconds(st.Retention))
	}
	switch r := st.Run; r.Phase {
	case gc.PhaseNone:
		add("last run", "none")
	case gc.PhaseDone:
		add("last run", fmt.Sprintf("ended %s ago, took %s, by %s", cli.Between(r.UpdatedTS, st.Now), cli.Between(r.StartedTS, r.UpdatedTS), cli.Line(r.Owner)))
	case gc.PhaseFence:
		add("last run", fmt.Sprintf("began %s ago, before its first removal, by %s", cli.Between(r.StartedTS, st.Now), cli.Line(r.Owner)))
	default:
		add("last run", fmt.Sprintf("began %s ago, last seen %s ago, by %s", cli.Between(r.StartedTS, st.Now), cli.Between(r.UpdatedTS, st.Now), cli.Line(r.Owner)))
		at := "before the first row"
		if r.Table != "" {
			at = fmt.Sprintf("table %s, row %s", r.Table, r.Row)
		}
		add("position", at)
	}
	if r := st.Run; r.Phase != gc.PhaseNone {
		add("reclaimed", fmt.Sprintf("%s, %s, %s, of %s", cli.Count(r.Versions, "version"), cli.Count(r.Cells, "cell"), cli.Count(r.Bytes, "byte"), cli.Count(r.Rows, "row")))
	}
	if add("leader", cli.Line(cmp.Or(st.Lease, "none"))); st.Run.Parts > 0 {
		add("left", cli.Count(int64(st.Run.Parts), "part"))
	}
	for _, c := range st.Run.Collectors {
		what := fmt.Sprintf("%s: %s, at table %s, row %s", c.Owner, cli.Count(int64(c.Parts), "part"), c.Table, cli.Text([]byte(c.Row)))
		if c.Scans > 0 && c.Scans < c.Parts {
			what += fmt.Sprintf("; %s at a time, so that other clients do not wait", cli.Count(int64(c.Scans), "scan"))
		}
		add("collecting", cli.Line(what))
	}
	for _, k := range st.Run.Skipped {
		add("skipped", skipped(k))
	}
	for _, h := range st.Holds {
		why := "alive"
		if h.ExpiresTS <= st.Now {
			why = "dead for " + cli.Between(h.ExpiresTS, st.Now) + ", which ends the hold soon"
		}
		add("held by", fmt.Sprintf("%s, %s: its oldest transaction, or snapshot with a hold, is from %s, %s ago, which is longer than the retention", holder(h), why, cli.Stamp(h.OldestTS), cli.Between(h.OldestTS, st.Now)))
	}
	return facts
}
