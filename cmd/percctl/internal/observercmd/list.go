package observercmd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
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

func (o *listOptions) run(ctx context.Context, s *session.Session) error {
	observed, err := session.AllObserved(ctx, s, o.tables.Names...)
	if err != nil {
		return err
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
		return err
	}
	if err := o.count(ctx, s, slices.Compact(tables), all, now); err != nil {
		return err
	}
	s.Progress.End()
	list := newList(o)
	for _, k := range order {
		b := all[k]
		if b.OldestTS != 0 {
			b.Oldest, b.Lag = cli.Time(b.OldestTS), (time.Duration(max(now-b.OldestTS, 0)) * time.Microsecond).Seconds()
		}
		if err := list.Add(*b); err != nil {
			return err
		}
	}
	if err := list.End(); err != nil {
		return err
	}
	n := len(order)
	for _, k := range order {
		if k.id == "" {
			n--
		}
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
func (o *listOptions) count(ctx context.Context, s *session.Session, tables []string, all map[key]*observer, now tso.Timestamp) error {
	n := 0
	err := o.tables.Each(ctx, s, tables, func(table string, rows bigtable.RowSet) error {
		for seen, err := range s.Client().Observations(ctx, table, rows) {
			if err != nil {
				return err
			}
			n++
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
	if err != nil {
		return err
	}
	for d, err := range s.Client().DeadLetters(ctx) {
		if err != nil {
			return err
		}
		if b := all[key{d.Cell.Table, d.Cell.Column(), d.Observer}]; b != nil {
			b.Dead++
		}
	}
	workers, err := s.Client().Workers(ctx)
	if err != nil {
		return err
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
	return nil
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
		TableHeader: []string{"COLUMN", "OBSERVER", "KIND", "PENDING", "FAILING", "LAG", "DEAD", "LIVE WORKERS"},
		TableRows: func(b observer) [][]string {
			lag, id := "-", b.Observer
			if b.OldestTS != 0 {
				lag = cli.Duration(time.Duration(b.Lag * float64(time.Second)))
			}
			if id == "" {
				id = "-"
			}
			return [][]string{{b.Column, id, b.Kind, strconv.Itoa(b.Pending), strconv.Itoa(b.Failing), lag, strconv.Itoa(b.Dead), b.words}}
		},
	}
}
