package readcmd

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type historyOptions struct {
	session.Options
	table string
	row   string
	limit int
	tail  bool
	every time.Duration
}

// NewHistoryCmd returns the history command.
func NewHistoryCmd(s *cli.Streams) *cobra.Command {
	o := &historyOptions{}
	cmd := &cobra.Command{
		Use:   "history TABLE ROW | CELL",
		Short: "Show everything that is stored in a row, as a timeline",
		Long: `Show all versions that are stored in a row in the order of their timestamps: data,
locks, write records, markers, notify cells, acknowledgments and failures of
observers, with what each means. Data from before the table was adopted comes first.
Failures of observers have no timestamp (0). The command changes nothing and does
not wait for locks. With CELL, as other commands print it, it shows the cell's row.

With --follow, the command prints what is stored next, and which locks are gone, until
Ctrl-C. After each --interval it reads the locks and the versions of the last 25 hours
again. With -o json, it prints one object per line, as with -o jsonl.

Exit status 3: the row is empty, without --follow.`,
		Example: `  percctl history accounts bob
  percctl history accounts user%00/7 -o json --limit 20
  percctl history accounts bob --follow`,
		Args: o.args,
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ListOf[event](csvHeader))
	cmd.Flags().IntVar(&o.limit, "limit", 0, "show only the newest versions, at most so many (0: all)")
	cli.AtLeast(&o.Checks, "limit", &o.limit, 0, "positive, or 0 for all")
	cmd.Flags().BoolVarP(&o.tail, "follow", "f", false, "print what happens to the row from now on, too")
	cmd.Flags().DurationVar(&o.every, "interval", time.Second, "with --follow: time between two reads")
	cli.AtLeast(&o.Checks, "interval", &o.every, 100*time.Millisecond, "at least 100ms")
	o.Require(func() error {
		switch {
		case o.tail && (o.Format == cli.YAML || o.Format == cli.CSV):
			return cli.Usagef("--follow does not go with --output %s; use table, json or jsonl", o.Format)
		case o.tail && !cmd.Flags().Changed("timeout"):
			o.Timeout = session.WalkTimeout
		}
		return nil
	})
	cmd.ValidArgsFunction = o.CompleteRows
	return cmd
}

// args reads TABLE ROW, or CELL.
func (o *historyOptions) args(cmd *cobra.Command, args []string) (err error) {
	if len(args) == 1 && strings.Contains(args[0], "/") {
		var c txn.Cell
		if c, err = session.ParseCell(args[0]); err == nil {
			o.table, o.row = c.Table, c.Row
		}
		return err
	}
	return cli.ExactArgs(2, "two, TABLE and ROW, or one, CELL", func(args []string) (err error) {
		if o.row, err = session.ParseRow(args[1]); err != nil {
			return cli.Usagef("%w", err)
		}
		return nil
	}, cli.Into(&o.table))(cmd, args)
}

var csvHeader = []string{"ts", "time", "cell", "family", "kind", "start_ts", "commit_ts", "words", "value"}

// An event is one stored version of a row.
type event struct {
	TS       tso.Timestamp     `json:"ts"`                  // timestamp of the version; 0 for a failure of an observer
	Time     string            `json:"time"`                // the timestamp as a time
	Cell     string            `json:"cell"`                // table, row and column that it is about
	Column   string            `json:"column"`              // family and qualifier
	Family   string            `json:"family"`              // family that it is stored in
	Kind     admin.VersionKind `json:"kind"`                // what it is
	StartTS  tso.Timestamp     `json:"start_ts,omitempty"`  // start timestamp of its transaction
	CommitTS tso.Timestamp     `json:"commit_ts,omitempty"` // commit timestamp of its transaction, if this version has it
	Write    string            `json:"write,omitempty"`     // write that a lock or record is for: `put`, `delete` or `lock` (a lock-only write)
	Primary  string            `json:"primary,omitempty"`   // primary cell that a lock or record names
	Owner    string            `json:"owner,omitempty"`     // id of the client that wrote the lock
	Observer string            `json:"observer,omitempty"`  // id of the observer that failed
	Attempts int               `json:"attempts,omitempty"`  // failed runs of the observer
	ChangeTS tso.Timestamp     `json:"change_ts,omitempty"` // commit timestamp of the change that the observer failed on
	NextTS   tso.Timestamp     `json:"next_ts,omitempty"`   // oracle time before which the observer is not retried
	Error    string            `json:"error,omitempty"`     // error of the observer's last run
	Size     int               `json:"size_bytes"`          // length of value
	Value    []byte            `json:"value"`               // data, or the trace context of a notification; empty for locks and records
	Text     *string           `json:"text,omitempty"`      // the value again, if it is data and printable text
	Words    string            `json:"words"`               // what the version means
	Hidden   bool              `json:"hidden,omitempty"`    // whether no snapshot reads this plain value
	Gone     bool              `json:"gone,omitempty"`      // with --follow: the lock has been removed
}

// Event is one stored cell as history prints it.
type Event = event

// IsLock reports whether the event is the lock.
func (e event) IsLock(l format.Lock) bool {
	return e.Kind == admin.VersionLock && e.StartTS == l.StartTS && e.Cell == l.Cell.String()
}

// Timeline returns what is stored in a row, in order of timestamps.
func Timeline(ctx context.Context, s *session.Session, table, row string) ([]Event, error) {
	if err := s.Use(ctx, table); err != nil {
		return nil, err
	}
	return timelineSince(ctx, s, table, row, 0)
}

// A Row is what is stored in a row, and what snapshots read of it.
type Row struct {
	Now    tso.Timestamp // oracle time, before the row was read
	Events []Event       // in order of timestamps
	*admin.RowHistory
}

// ReadRow reads a row.
func ReadRow(ctx context.Context, s *session.Session, table, row string) (*Row, error) {
	if err := s.Use(ctx, table); err != nil {
		return nil, err
	}
	r := &Row{}
	var err error
	if r.Now, err = s.Now(ctx); err != nil {
		return nil, err
	}
	if r.RowHistory, err = admin.ReadHistory(ctx, s.Client(), table, row, r.Now); err != nil {
		return nil, err
	}
	r.Events = newEvents(r.Versions)
	for i := range r.Events {
		noteReadings(&r.Events[i], r.Versions[i], r.Readings)
	}
	return r, nil
}

// noteReadings adds to an event whether snapshots read its value.
func noteReadings(e *Event, v admin.Version, all []admin.Reading) {
	if v.Kind != admin.VersionPlain && (v.Kind != admin.VersionWrite || v.Write != format.KindPut) {
		return
	}
	i := slices.IndexFunc(all, func(r admin.Reading) bool {
		return r.Cell == v.Cell && r.Lock == nil && r.CommitTS == v.TS && (r.Shown == admin.ShownPlain) == (v.Kind == admin.VersionPlain)
	})
	switch {
	case i >= 0:
		if next := i + 1; next < len(all) && all[next].Cell == v.Cell && all[next].Shown == admin.ShownExpired {
			e.Words += ", expired at " + cli.Time(all[next].From)
		}
	case v.Kind == admin.VersionPlain:
		e.Words, e.Hidden = shown(v.Value)+" written without a transaction: no snapshot reads it, because a commit or a later plain value hides it, or because it expired", true
	}
}

func timelineSince(ctx context.Context, s *session.Session, table, row string, since tso.Timestamp) ([]Event, error) {
	versions, err := admin.HistorySince(ctx, s.Client(), table, row, since)
	if err != nil {
		return nil, err
	}
	return newEvents(versions), nil
}

func newEvents(versions []admin.Version) []Event {
	outcomes := newOutcomes(versions)
	events := make([]event, len(versions))
	for i, v := range versions {
		events[i] = newEvent(v, outcomes)
	}
	return events
}

func (o *historyOptions) run(ctx context.Context, s *session.Session) error {
	row, err := ReadRow(ctx, s, o.table, o.row)
	if err != nil {
		return err
	}
	events := row.Events
	if len(events) == 0 && !o.tail {
		return session.NotFoundf("table %s has nothing stored in row %s", o.table, session.Row(o.row))
	}
	if n := len(events); o.limit > 0 && n > o.limit {
		events = events[n-o.limit:]
		fmt.Fprintf(o.Streams.Err, "the newest %d of %d versions\n", o.limit, n)
	}
	if o.tail {
		return o.follow(ctx, s, events)
	}
	list := &cli.List[event]{
		Out: o.Streams.Out, Format: o.Format,
		Header: csvHeader, Rows: event.csv,
		TableHeader: []string{"TS", "TIME", "COLUMN", "WHAT HAPPENED"},
		TableRows: func(e event) [][]string {
			return [][]string{{e.TS.String(), e.Time, e.Column, e.Words}}
		},
	}
	return list.All(events)
}

// reread is how old versions may be that --follow reads again: a transaction writes data at
// its start_ts, and may take as long as the longest Config.LockTTL.
const reread = tso.Timestamp(25 * time.Hour / time.Microsecond)

// follow prints the events, and those that come, until the context ends.
func (o *historyOptions) follow(ctx context.Context, s *session.Session, events []event) error {
	type version struct {
		family, column string
		ts             tso.Timestamp
		words          string // of a failure, which has no timestamp
	}
	known := map[version]event{}
	for {
		there := map[version]bool{}
		for _, e := range events {
			v := version{family: e.Family, column: e.Column, ts: e.TS}
			if e.Kind == admin.VersionFailure {
				v.words = e.Words
			}
			there[v] = true
			if _, old := known[v]; old {
				continue
			}
			known[v] = e
			if err := o.line(e); err != nil {
				return err
			}
		}
		for v, e := range known {
			if there[v] {
				continue
			}
			delete(known, v) // collected, or too old to be read again
			if e.Kind == admin.VersionLock {
				e.Gone, e.Words = true, "the lock of the transaction that started here is gone"
				if err := o.line(e); err != nil {
					return err
				}
			}
		}
		select {
		case <-time.After(o.every):
		case <-ctx.Done():
		}
		now, err := s.Now(ctx)
		if err == nil {
			events, err = timelineSince(ctx, s, o.table, o.row, max(1, now-reread))
		}
		switch {
		case ctx.Err() != nil:
			return session.Ended(ctx)
		case err != nil:
			return err
		}
	}
}

// line prints an event of --follow.
func (o *historyOptions) line(e event) error {
	if o.Format == cli.Table {
		_, err := fmt.Fprintf(o.Streams.Out, "%s  %s  %s  %s\n", e.TS, e.Time, e.Column, e.Words)
		return err
	}
	list := &cli.List[event]{Out: o.Streams.Out, Format: cli.JSONL}
	return list.Add(e)
}

func newEvent(v admin.Version, f outcomes) event {
	e := event{
		TS: v.TS, Time: cli.Time(v.TS), Cell: v.Cell.String(), Column: v.Cell.Column().String(), Family: v.Family, Kind: v.Kind,
		StartTS: v.StartTS, CommitTS: v.CommitTS, Size: len(v.Value), Value: append([]byte{}, v.Value...), Words: words(v, f),
	}
	switch v.Kind {
	case admin.VersionPlain, admin.VersionData:
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
		if f.NotBefore != format.Never {
			e.NextTS = f.NotBefore
		}
	}
	return e
}

func (e event) csv() [][]string {
	value := ""
	if e.Kind == admin.VersionData || e.Kind == admin.VersionPlain {
		value = cli.Text(e.Value)
	}
	return [][]string{{e.TS.String(), e.Time, e.Cell, e.Family, string(e.Kind), cli.Number(e.StartTS), cli.Number(e.CommitTS), e.Words, value}}
}

// words says what a version means, beside the others of its row.
func words(v admin.Version, f outcomes) string {
	what := ""
	if v.Cell.Family == format.AckFamily {
		observer := v.Cell.Qualifier[strings.LastIndexByte(v.Cell.Qualifier, '/')+1:]
		what = fmt.Sprintf("acknowledgment of observer %s: ", cli.Text([]byte(observer)))
		if v.Kind == admin.VersionData && len(v.Value) == 8 {
			return fmt.Sprintf("%schanges up to %d acknowledged by the transaction that starts here: %s", what, binary.BigEndian.Uint64(v.Value), f.of(v))
		}
	}
	return what + plainWords(v, f)
}

func plainWords(v admin.Version, f outcomes) string {
	primary := func() string {
		if v.Primary == v.Cell {
			return "as the primary"
		}
		return "primary " + v.Primary.String()
	}
	switch v.Kind {
	case admin.VersionPlain:
		return shown(v.Value) + " written without a transaction: it counts as committed before every transaction"
	case admin.VersionData:
		return shown(v.Value) + " put by the transaction that starts here: " + f.of(v)
	case admin.VersionLock:
		s := fmt.Sprintf("locked for a %v by the transaction that starts here, %s, until %s", v.Write, primary(), cli.Time(v.Lock.ExpiresTS()))
		if v.Lock.Owner != "" {
			s += ", owner " + cli.Line(v.Lock.Owner)
		}
		return s
	case admin.VersionWrite:
		if v.Write == format.KindDelete {
			return fmt.Sprintf("deleted: committed here, started at %d, %s", v.StartTS, primary())
		}
		return fmt.Sprintf("value of %d committed here, %s", v.StartTS, primary())
	case admin.VersionLockOnly:
		return fmt.Sprintf("lock-only write committed here, started at %d, %s: the value stays", v.StartTS, primary())
	case admin.VersionRollback:
		return "the transaction that starts here was rolled back: it cannot commit"
	case admin.VersionNotify:
		return "notification for the column's observers, by the commit here"
	case admin.VersionFailure:
		return failureWords(v.Observer, *v.Failure)
	}
	return "unreadable: " + cli.Line(v.Err.Error())
}

// failureWords says how the last run of an observer ended.
func failureWords(observer string, f format.Failure) string {
	who := "observer " + cli.Line(observer)
	change := fmt.Sprintf("the change of %d", f.ChangeTS)
	switch next := cli.Time(f.NotBefore); {
	case f.NotBefore == format.Never:
		return fmt.Sprintf("%s gave up on %s after %s: %s (see percctl notify list --dead)", who, change, cli.Count(f.Attempts, "attempt"), cli.Line(f.Error))
	case f.Error == "":
		return fmt.Sprintf("%s postponed %s until %s", who, change, next)
	case f.Attempts == 0:
		return fmt.Sprintf("%s conflicted on %s, next retry not before %s: %s", who, change, next, cli.Line(f.Error))
	default:
		return fmt.Sprintf("%s failed on %s %s, next retry not before %s: %s", who, change, cli.Count(f.Attempts, "time"), next, cli.Line(f.Error))
	}
}

// outcomes are those of the transactions that put data into a row, as far as
// the row shows them.
type outcomes map[outcomeKey]string

type outcomeKey struct {
	cell    txn.Cell
	startTS tso.Timestamp
}

func newOutcomes(all []admin.Version) outcomes {
	f := outcomes{}
	for _, v := range all {
		switch k := (outcomeKey{v.Cell, v.StartTS}); v.Kind {
		case admin.VersionWrite:
			f[k] = fmt.Sprintf("committed at %d", v.CommitTS)
		case admin.VersionLock:
			f[k] = "undecided, see its lock"
		}
	}
	return f
}

func (f outcomes) of(data admin.Version) string {
	if became, ok := f[outcomeKey{data.Cell, data.StartTS}]; ok {
		return became
	}
	return "no lock and no write record names it (see percctl check)"
}

// Printable is a value for people: its text, or its length.
func Printable(v []byte) string {
	if text := plainText(v); text != nil {
		return *text
	}
	return fmt.Sprintf("%d bytes", len(v))
}

// ClockTime is the time of day of a timestamp, in the zone of cli.Time.
func ClockTime(ts tso.Timestamp) string { return ts.Time().UTC().Format("15:04:05.000") }

func shown(v []byte) string { return "value " + cli.Shorten(cli.Text(v), shownValue) }
