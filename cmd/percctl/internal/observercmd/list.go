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
)

type listOptions struct {
	streams *cli.Streams
	flags   session.Flags
	tables  session.Tables
	format  cli.Format
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
	Seen func(txn.Observation)
	Dead func(txn.DeadLetter)
}

func newListCmd(s *cli.Streams) *cobra.Command {
	o := &listOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "list [TABLE…]",
		Short: "List registered observers with their backlog and lag, and who runs them",
		Long: `List the observed columns and the observers that are registered for them, with what
each has still to do: how many cells, how old the oldest of their changes is that
it has not acknowledged (its lag, in oracle time), how many of them it has failed
at, its dead letters, and how many workers with a fresh token run an observer of
that id. Without TABLE, all tables of the deployment. Backlogs are counted by reading the tables'
notifications; it changes nothing and waits for nothing.`,
		Example: `  percctl observer list
  percctl observer list documents -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.tables.Names = args
			return o.flags.Run(cmd.Context(), s, session.Looks, txn.Config{}, o.run)
		},
	}
	o.flags.Add(cmd, walkTimeout)
	cli.FormatFlag(cmd, &o.format, cli.ListFormats...)
	cmd.ValidArgsFunction = o.flags.CompleteTables(0)
	return cmd
}

// An observer is one as it is printed.
type observer struct {
	Column   string        `json:"column"` // table/family:qualifier
	Observer string        `json:"observer"`
	Kind     string        `json:"kind"`        // strong or weak
	Pending  int           `json:"pending"`     // cells it has still to see
	Failing  int           `json:"failing"`     // of them, those its last run failed at
	Lag      float64       `json:"lag_seconds"` // of the oldest change among them
	OldestTS tso.Timestamp `json:"oldest_ts,omitempty"`
	Oldest   string        `json:"oldest_time,omitempty"`
	Dead     int           `json:"dead_letters"`
	Workers  int           `json:"live_workers"`

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
	_, err = fmt.Fprintf(o.streams.Err, "%s\n", cli.Count(n, "observer"))
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
		for seen, err := range s.Client().Observations(ctx, table, rows) {
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
	for d, err := range s.Client().DeadLetters(ctx) {
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
	workers, err := s.Client().Workers(ctx)
	if err != nil {
		return false, err
	}
	for _, b := range all {
		running, stale := 0, tso.Timestamp(0)
		for _, w := range workers {
			switch {
			case !slices.Contains(w.Observers, b.Observer):
			case w.State == txn.OwnerFresh:
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
			b.words = fmt.Sprintf("none, the last one for %s", cli.Duration(time.Duration(max(now-stale, 0))*time.Microsecond))
		default:
			b.words = "none"
		}
	}
	return more, nil
}

// add counts a notification that the observer has still to see.
func (b *observer) add(seen txn.Observation) {
	f, failed := seen.Failures[b.Observer]
	current := failed && f.ChangeTS == seen.ChangeTS
	if !seen.Pending(b.Observer) || (current && f.NotBefore == txn.Never) {
		return
	}
	b.Pending++
	if current && f.Error != "" {
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
		Out: o.streams.Out, Format: o.format,
		Header: []string{"column", "observer", "kind", "pending", "failing", "lag_seconds", "oldest_ts", "oldest_time", "dead_letters", "live_workers"},
		Rows: func(b observer) [][]string {
			oldest := ""
			if b.OldestTS != 0 {
				oldest = b.OldestTS.String()
			}
			return [][]string{{b.Column, b.Observer, b.Kind, strconv.Itoa(b.Pending), strconv.Itoa(b.Failing), strconv.FormatFloat(b.Lag, 'f', 6, 64), oldest, b.Oldest, strconv.Itoa(b.Dead), strconv.Itoa(b.Workers)}}
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
		lag = cli.Duration(time.Duration(b.Lag * float64(time.Second)))
	}
	if id == "" {
		id = "-"
	}
	return []string{b.Column, id, b.Kind, strconv.Itoa(b.Pending), strconv.Itoa(b.Failing), lag, strconv.Itoa(b.Dead), b.words}
}
