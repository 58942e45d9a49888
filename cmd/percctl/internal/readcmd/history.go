package readcmd

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

type historyOptions struct {
	streams *cli.Streams
	flags   session.Flags
	table   string
	row     string
	format  cli.Format
}

// NewHistoryCmd returns the history command.
func NewHistoryCmd(s *cli.Streams) *cobra.Command {
	o := &historyOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "history TABLE ROW",
		Short: "Show everything stored in a row, as a timeline in words",
		Long: `Show everything stored in a row, all versions of it, in order of timestamps: data,
locks, write records, marks, notify cells, acknowledgments and observers' failures,
in words. Data from before the table was adopted comes first. It changes nothing,
and waits for nothing. Exit status 3: the row has nothing in it.`,
		Example: `  percctl history accounts bob
  percctl history accounts user%00/7 -o json`,
		Args: cli.ExactArgs(2, "two, TABLE and ROW"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.table = args[0]
			if o.row, err = session.ParseRow(args[1]); err != nil {
				return cli.Usagef("%w", err)
			}
			return o.flags.Run(cmd.Context(), s, session.Looks, txn.Config{}, o.run)
		},
	}
	o.flags.Add(cmd, pointTimeout)
	cli.FormatFlag(cmd, &o.format, cli.ListFormats...)
	cmd.ValidArgsFunction = o.flags.CompleteTables(1)
	return cmd
}

// An event is one stored cell as it is printed.
type event struct {
	TS       tso.Timestamp   `json:"ts"`
	Time     string          `json:"time"`
	Cell     string          `json:"cell"`
	Column   string          `json:"column"`
	Family   string          `json:"family"` // where it is stored
	Kind     txn.VersionKind `json:"kind"`
	StartTS  tso.Timestamp   `json:"start_ts,omitempty"`
	CommitTS tso.Timestamp   `json:"commit_ts,omitempty"`
	Write    string          `json:"write,omitempty"`
	Primary  string          `json:"primary,omitempty"`
	Owner    string          `json:"owner,omitempty"`
	Observer string          `json:"observer,omitempty"` // of a failure, as all below
	Attempts int             `json:"attempts,omitempty"`
	ChangeTS tso.Timestamp   `json:"change_ts,omitempty"`
	NextTS   tso.Timestamp   `json:"next_ts,omitempty"`
	Error    string          `json:"error,omitempty"`
	Size     int             `json:"size_bytes"`
	Value    []byte          `json:"value"`
	Text     *string         `json:"text,omitempty"`
	Words    string          `json:"words"`
}

// Event is one stored cell as history prints it.
type Event = event

// Timeline returns what is stored in a row, in order of timestamps.
func Timeline(ctx context.Context, s *session.Session, table, row string) ([]Event, error) {
	if err := s.Use(ctx, table); err != nil {
		return nil, err
	}
	versions, err := s.Client().History(ctx, table, row)
	if err != nil {
		return nil, err
	}
	fates := newFates(versions)
	events := make([]event, len(versions))
	for i, v := range versions {
		events[i] = newEvent(v, fates)
	}
	return events, nil
}

func (o *historyOptions) run(ctx context.Context, s *session.Session) error {
	events, err := Timeline(ctx, s, o.table, o.row)
	if err != nil {
		return err
	}
	if len(events) == 0 {
		return session.NotFoundf("table %s has nothing in row %s", o.table, session.Row(o.row))
	}
	list := &cli.List[event]{
		Out: o.streams.Out, Format: o.format,
		Header: []string{"ts", "time", "cell", "family", "kind", "start_ts", "commit_ts", "words", "value"}, Rows: event.csv,
		TableHeader: []string{"TS", "TIME", "COLUMN", "WHAT HAPPENED"},
		TableRows: func(e event) [][]string {
			return [][]string{{e.TS.String(), e.Time, e.Column, e.Words}}
		},
	}
	for _, e := range events {
		if err := list.Add(e); err != nil {
			return err
		}
	}
	return list.End()
}

func newEvent(v txn.Version, f fates) event {
	e := event{
		TS: v.TS, Time: cli.Time(v.TS), Cell: v.Cell.String(), Column: v.Cell.Column().String(), Family: v.Family, Kind: v.Kind,
		StartTS: v.StartTS, CommitTS: v.CommitTS, Size: len(v.Value), Value: append([]byte{}, v.Value...), Words: words(v, f),
	}
	switch v.Kind {
	case txn.VersionPlain, txn.VersionData:
		e.Text = plainText(v.Value)
	}
	if v.Write != 0 {
		e.Write = v.Write.String()
	}
	if v.Primary != (txn.Cell{}) {
		e.Primary = v.Primary.String()
	}
	if v.Lock != nil {
		e.Owner = cli.Line(v.Lock.Owner)
	}
	if f := v.Failure; f != nil {
		e.Observer, e.Attempts, e.ChangeTS, e.Error = v.Observer, f.Attempts, f.ChangeTS, f.Error
		if f.NotBefore != txn.Never {
			e.NextTS = f.NotBefore
		}
	}
	return e
}

func (e event) csv() [][]string {
	number := func(ts tso.Timestamp) string {
		if ts == 0 {
			return ""
		}
		return ts.String()
	}
	value := ""
	if e.Kind == txn.VersionData || e.Kind == txn.VersionPlain {
		value = cli.Text(e.Value)
	}
	return [][]string{{e.TS.String(), e.Time, e.Cell, e.Family, string(e.Kind), number(e.StartTS), number(e.CommitTS), e.Words, value}}
}

// words says what a version means, beside the others of its row.
func words(v txn.Version, f fates) string {
	what := ""
	if v.Cell.Family == txn.AckFamily {
		observer := v.Cell.Qualifier[strings.LastIndexByte(v.Cell.Qualifier, '/')+1:]
		what = fmt.Sprintf("acknowledgment of observer %s: ", cli.Text([]byte(observer)))
		if v.Kind == txn.VersionData && len(v.Value) == 8 {
			return fmt.Sprintf("%schanges up to %d seen, by the transaction that starts here: %s", what, binary.BigEndian.Uint64(v.Value), f.of(v))
		}
	}
	return what + plainWords(v, f)
}

func plainWords(v txn.Version, f fates) string {
	primary := func() string {
		if v.Primary == v.Cell {
			return "as the primary"
		}
		return "primary " + v.Primary.String()
	}
	switch v.Kind {
	case txn.VersionPlain:
		return shown(v.Value) + " written without a transaction: committed before all of them"
	case txn.VersionData:
		return shown(v.Value) + " put by the transaction that starts here: " + f.of(v)
	case txn.VersionLock:
		s := fmt.Sprintf("locked for a %v by the transaction that starts here, %s, until %s", v.Write, primary(), cli.Time(v.Lock.ExpiresTS()))
		if v.Lock.Owner != "" {
			s += ", owner " + cli.Line(v.Lock.Owner)
		}
		return s
	case txn.VersionWrite:
		if v.Write == txn.KindDelete {
			return fmt.Sprintf("deleted: committed here, started at %d, %s", v.StartTS, primary())
		}
		return fmt.Sprintf("value of %d committed here, %s", v.StartTS, primary())
	case txn.VersionLockOnly:
		return fmt.Sprintf("lock-only write committed here, started at %d, %s: the value stays", v.StartTS, primary())
	case txn.VersionRollback:
		return "the transaction that starts here was rolled back: it never commits"
	case txn.VersionNotify:
		return "notification for the column's observers, by the commit here"
	case txn.VersionFailure:
		return failureWords(v.Observer, *v.Failure)
	}
	return "unreadable: " + cli.Line(v.Err.Error())
}

// failureWords says what became of an observer's last run.
func failureWords(observer string, f txn.Failure) string {
	who := "observer " + cli.Line(observer)
	change := fmt.Sprintf("the change of %d", f.ChangeTS)
	switch next := cli.Time(f.NotBefore); {
	case f.NotBefore == txn.Never:
		return fmt.Sprintf("%s was given up for %s after %s: %s (see percctl notify list --dead)", who, change, cli.Count(f.Attempts, "attempt"), cli.Line(f.Error))
	case f.Error == "":
		return fmt.Sprintf("%s put %s off until %s", who, change, next)
	case f.Attempts == 0:
		return fmt.Sprintf("%s conflicted at %s, next try not before %s: %s", who, change, next, cli.Line(f.Error))
	default:
		return fmt.Sprintf("%s failed at %s %s, next try not before %s: %s", who, change, cli.Count(f.Attempts, "time"), next, cli.Line(f.Error))
	}
}

// fates tells what became of the data that transactions put into a row.
type fates map[fateKey]string

type fateKey struct {
	cell    txn.Cell
	startTS tso.Timestamp
}

func newFates(all []txn.Version) fates {
	f := fates{}
	for _, v := range all {
		switch k := (fateKey{v.Cell, v.StartTS}); v.Kind {
		case txn.VersionWrite:
			f[k] = fmt.Sprintf("committed at %d", v.CommitTS)
		case txn.VersionLock:
			f[k] = "not decided here yet, see its lock"
		}
	}
	return f
}

func (f fates) of(data txn.Version) string {
	if became, ok := f[fateKey{data.Cell, data.StartTS}]; ok {
		return became
	}
	return "no lock and no record names it (see percctl check)"
}

func shown(v []byte) string { return "value " + cli.Shorten(cli.Text(v), shownValue) }
