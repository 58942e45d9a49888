package observercmd

import (
	"context"
	"errors"
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

// A Want says what Survey is to look at.
type Want struct {
	// Tables are those whose observers are surveyed; without names, all.
	Tables session.Tables
	// Limit is how many notifications to read at most. Defaults to all.
	Limit int
	// Seen and Dead, where they are set, get what is counted.
	Seen func(changes.Observation)
	Dead func(changes.DeadLetter)
}

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

// key finds an observer.
type key struct {
	table  string
	column txn.Column
	id     string
}

// Survey returns the registered observers with their backlogs, in order of
// tables and columns; more says that there are notifications beyond the limit.
// Columns that have no observer come with an empty id.
func Survey(ctx context.Context, s *session.Session, want Want) (found []Observer, more bool, err error) {
	observed, err := session.AllObserved(ctx, s, want.Tables.Names...)
	if err != nil {
		return nil, false, err
	}
	all := map[key]*observer{}
	var order []key
	var tables []string
	for _, col := range observed {
		tables = append(tables, col.Table)
		ids := col.Observers
		if len(ids) == 0 {
			ids = []string{""} // a column that table init has declared observed
		}
		for _, id := range ids {
			k := key{col.Table, col.Column, id}
			order = append(order, k)
			all[k] = &observer{Column: col.Table + "/" + col.Column.String(), Observer: id, Kind: kind(col.Weak)}
		}
	}
	now, err := s.Client().Timestamp(ctx)
	if err != nil {
		return nil, false, err
	}
	if more, err = want.count(ctx, s, slices.Compact(tables), all, now); err != nil {
		return nil, false, err
	}
	for _, k := range order {
		b := all[k]
		if b.OldestTS != 0 {
			b.Oldest, b.Lag = cli.Time(b.OldestTS), (time.Duration(max(now-b.OldestTS, 0)) * time.Microsecond).Seconds()
		}
		found = append(found, *b)
	}
	return found, more, nil
}

func (o *listOptions) run(ctx context.Context, s *session.Session) error {
	all, _, err := Survey(ctx, s, Want{Tables: o.tables})
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

// count fills in backlogs, dead letters and workers.
func (want *Want) count(ctx context.Context, s *session.Session, tables []string, all map[key]*observer, now tso.Timestamp) (more bool, err error) {
	n, errFull := 0, errors.New("full")
	err = want.Tables.Each(ctx, s, tables, func(table string, rows bigtable.RowSet) error {
		for seen, err := range changes.Observations(ctx, s.Client(), table, rows) {
			if err != nil {
				return err
			}
			if want.Limit > 0 && n == want.Limit {
				more = true
				return errFull
			}
			n++
			if want.Seen != nil {
				want.Seen(seen)
			}
			s.Progress.Set("reading table %s: %s so far", table, cli.Count(n, "notification"))
			for _, id := range seen.Observers {
				if b := all[key{table, seen.Cell.Column(), id}]; b != nil {
					b.add(seen)
				}
			}
			if b := all[key{table, seen.Cell.Column(), ""}]; b != nil {
				b.add(seen)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, errFull) {
		return false, err
	}
	for d, err := range changes.DeadLetters(ctx, s.Client()) {
		if err != nil {
			return false, err
		}
		if want.Dead != nil {
			want.Dead(d)
		}
		if b := all[key{d.Cell.Table, d.Cell.Column(), d.Observer}]; b != nil {
			b.Dead++
		}
	}
	workers, err := admin.Workers(ctx, s.Client())
	if err != nil {
		return false, err
	}
	for _, b := range all {
		running, stale := 0, tso.Timestamp(0)
		for _, w := range workers {
			switch {
			case !slices.Contains(w.Observers, b.Observer):
			case w.State == admin.OwnerFresh:
				running++
			default:
				stale = max(stale, w.ExpiresTS)
			}
		}
		b.Workers = running
		switch {
		case running > 0:
			b.words = strconv.Itoa(running)
		case stale > 0:
			b.words = fmt.Sprintf("none; the last died %s ago", cli.Between(stale, max(now, stale)))
		default:
			b.words = "none"
		}
	}
	return more, nil
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
