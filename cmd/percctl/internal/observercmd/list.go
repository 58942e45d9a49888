package observercmd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

type listOptions struct {
	session.Options
	tables session.Tables
}

// Observer is an observer as list prints it.
type Observer = observer

func newListCmd(s *cli.Streams) *cobra.Command {
	o := &listOptions{}
	cmd := &cobra.Command{
		Use:   "list [TABLE…]",
		Short: "List registered observers with their backlog, lag and workers",
		Long: `List the observed columns and their registered observers. Without TABLE, the list
covers all tables of the deployment. An observer "-" stands for a column that was
declared observed and has no observer.

  PENDING       cells that the observer has not acknowledged
  FAILING       pending cells on which its last run failed
  LAG           age of the oldest pending change, in oracle time
  DEAD          its dead letters
  LIVE WORKERS  live workers that run an observer of that id

The command reads the notifications of the tables. It changes nothing and does not
wait for locks. Ids of observers are compared without their tables: a worker that
runs the id for another table counts, too.`,
		Example: `  percctl observer list
  percctl observer list documents -o json`,
		Args: cli.AnyArgs(cli.All(&o.tables.Names)),
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ListOf[observer](csvHeader))
	cmd.ValidArgsFunction = o.CompleteTables(0)
	return cmd
}

var csvHeader = []string{"column", "observer", "kind", "pending", "failing", "lag_seconds", "oldest_ts", "oldest_time", "dead_letters", "live_workers"}

// An observer is a registered observer and its backlog.
type observer struct {
	Column   string        `json:"column"`                // table, family and qualifier
	Observer string        `json:"observer"`              // id of the observer; empty if the column has none
	Kind     string        `json:"kind"`                  // `strong` or `weak`: which notifications the column is for
	Pending  int           `json:"pending"`               // cells that it has not acknowledged
	Failing  int           `json:"failing"`               // pending cells on which its last run failed
	Lag      float64       `json:"lag_seconds"`           // age of the oldest pending change
	OldestTS tso.Timestamp `json:"oldest_ts,omitempty"`   // commit timestamp of that change
	Oldest   string        `json:"oldest_time,omitempty"` // oldest_ts as a time
	Dead     int           `json:"dead_letters"`          // its dead letters
	Workers  int           `json:"live_workers"`          // live workers that run an observer of this id

	words string // of the workers
}

// key finds an observer by its id, which the table has once. Without one, the column counts.
type key struct {
	table, id string
	column    txn.Column
}

// A Backlog counts what observers have still to do.
type Backlog struct {
	all   map[key]*observer
	order []key
}

// NewBacklog returns the backlog of the observers of columns, with nothing counted yet.
// A column that has no observer comes with an empty id.
func NewBacklog(observed []changes.ObservedColumn) *Backlog {
	l := &Backlog{all: map[key]*observer{}}
	for _, col := range observed {
		ids := col.Observers
		if len(ids) == 0 {
			ids = []string{""} // a column that table init has declared observed
		}
		for _, id := range ids {
			k := key{col.Table, id, col.Column}
			if id != "" {
				k.column = txn.Column{}
			}
			l.order = append(l.order, k)
			l.all[k] = &observer{Column: col.Table + "/" + col.Column.String(), Observer: id, Kind: kind(col.Weak)}
		}
	}
	return l
}

// Seen counts the state of an observed cell.
func (l *Backlog) Seen(seen changes.Observation) {
	if b := l.all[key{seen.Cell.Table, "", seen.Cell.Column()}]; b != nil {
		b.add(seen)
	}
	for _, id := range seen.Observers {
		if b := l.all[key{table: seen.Cell.Table, id: id}]; b != nil {
			b.add(seen)
		}
	}
}

// Dead counts a dead letter.
func (l *Backlog) Dead(d changes.DeadLetter) {
	if b := l.all[key{table: d.Cell.Table, id: d.Observer}]; b != nil {
		b.Dead++
	}
}

// List returns the observers with their backlogs at oracle time now, in order of tables
// and columns.
func (l *Backlog) List(workers []admin.Worker, now tso.Timestamp) (found []Observer) {
	for _, k := range l.order {
		b := *l.all[k]
		b.count(workers, now)
		if b.OldestTS != 0 {
			b.Oldest, b.Lag = cli.Time(b.OldestTS), (time.Duration(max(now-b.OldestTS, 0)) * time.Microsecond).Seconds()
		}
		found = append(found, b)
	}
	return found
}

// survey returns the registered observers of tables with their backlogs; of all tables
// where none is named.
func survey(ctx context.Context, s *session.Session, in session.Tables) ([]Observer, error) {
	observed, err := session.AllObserved(ctx, s, in.Names...)
	if err != nil {
		return nil, err
	}
	var tables []string
	for _, col := range observed {
		tables = append(tables, col.Table)
	}
	now, err := s.Now(ctx)
	if err != nil {
		return nil, err
	}
	l := NewBacklog(observed)
	if err = l.read(ctx, s, in, slices.Compact(tables)); err != nil {
		return nil, err
	}
	workers, err := admin.Workers(ctx, s.Client())
	return l.List(workers, now), err
}

func (o *listOptions) run(ctx context.Context, s *session.Session) error {
	all, err := survey(ctx, s, o.tables)
	if err != nil {
		return err
	}
	s.Progress.End()
	list := newList(o)
	n := 0
	for _, b := range all {
		if b.Observer != "" {
			n++
		}
		if err := list.Add(b); err != nil {
			return err
		}
	}
	if err := list.End(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Streams.Err, "%s\n", cli.Count(n, "observer"))
	return err
}

func kind(weak bool) string {
	if weak {
		return "weak"
	}
	return "strong"
}

// read counts the notifications of tables, and the dead letters.
func (l *Backlog) read(ctx context.Context, s *session.Session, in session.Tables, tables []string) error {
	n := 0
	err := in.Each(ctx, s, tables, func(table string, rows bigtable.RowSet) error {
		for seen, err := range changes.Observations(ctx, s.Client(), table, rows) {
			if err != nil {
				return err
			}
			n++
			s.Progress.Set("reading table %s: %s so far", table, cli.Count(n, "notification"))
			l.Seen(seen)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for d, err := range changes.DeadLetters(ctx, s.Client()) {
		if err != nil {
			return err
		}
		l.Dead(d)
	}
	return nil
}

// count says which workers run the observer.
func (b *observer) count(workers []admin.Worker, now tso.Timestamp) {
	stale := tso.Timestamp(0)
	b.Workers = 0
	for _, w := range workers {
		switch {
		case !slices.Contains(w.Observers, b.Observer):
		case w.State == admin.OwnerFresh:
			b.Workers++
		default:
			stale = max(stale, w.ExpiresTS)
		}
	}
	switch {
	case b.Workers > 0:
		b.words = strconv.Itoa(b.Workers)
	case stale > 0:
		b.words = fmt.Sprintf("none; the last died %s ago", cli.Between(stale, max(now, stale)))
	default:
		b.words = "none"
	}
}

// add counts a notification that the observer has still to see.
func (b *observer) add(seen changes.Observation) {
	if !seen.Pending(b.Observer) || seen.Parked(b.Observer) {
		return
	}
	b.Pending++
	if f, failed := seen.Failure(b.Observer); failed && f.Error != "" {
		b.Failing++
	}
	// The changes that came after its last run; all that are known are newer
	// where there are more of them than are read.
	for _, t := range seen.Triggers {
		if t.TS > seen.Acks[b.Observer] {
			if b.OldestTS == 0 || t.TS < b.OldestTS {
				b.OldestTS = t.TS
			}
			return
		}
	}
}

func newList(o *listOptions) *cli.List[observer] {
	return &cli.List[observer]{
		Out: o.Streams.Out, Format: o.Format,
		Header: csvHeader,
		Rows: func(b observer) [][]string {
			return [][]string{{b.Column, b.Observer, b.Kind, strconv.Itoa(b.Pending), strconv.Itoa(b.Failing), strconv.FormatFloat(b.Lag, 'f', 6, 64), cli.Number(b.OldestTS), b.Oldest, strconv.Itoa(b.Dead), strconv.Itoa(b.Workers)}}
		},
		TableHeader: TableHeader,
		TableRows:   func(b observer) [][]string { return [][]string{b.TableRow()} },
	}
}

// TableHeader names the columns of TableRow.
var TableHeader = []string{"COLUMN", "OBSERVER", "KIND", "PENDING", "FAILING", "LAG", "DEAD", "LIVE WORKERS"}

// TableRow is the observer for people.
func (b observer) TableRow() []string {
	lag, id := "-", b.Observer
	if b.OldestTS != 0 {
		lag = cli.Seconds(b.Lag)
	}
	if id == "" {
		id = "-"
	}
	return []string{b.Column, id, b.Kind, strconv.Itoa(b.Pending), strconv.Itoa(b.Failing), lag, strconv.Itoa(b.Dead), b.words}
}
