package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Tables are the tables that a command works on: its arguments, or all.
type Tables struct {
	Names []string
	All   bool
	Range RangeFlags
}

// Add adds --all and the range flags, and the arguments.
func (t *Tables) Add(cmd *cobra.Command, o *Options) {
	cmd.Flags().BoolVar(&t.All, "all", false, "all transactional tables of the deployment")
	t.Range.Add(cmd)
	cmd.Args = cli.AnyArgs(t.Read)
	cmd.ValidArgsFunction = o.CompleteTables(0)
}

// Read reads the arguments and checks the flags.
func (t *Tables) Read(args []string) error {
	t.Names = args
	if t.All && len(t.Names) > 0 {
		return cli.Usagef("--all and %q: name tables or add --all, not both", t.Names[0])
	}
	if !t.All && len(t.Names) == 0 {
		return cli.Usagef("no table: name tables, or add --all")
	}
	return t.Range.Check()
}

// Open finds the tables and opens them.
func (t *Tables) Open(ctx context.Context, s *Session) ([]string, error) {
	names := t.Names
	if t.All {
		var err error
		if names, err = s.AllTables(ctx); err != nil {
			return nil, err
		}
	}
	var distinct []string
	for _, n := range names {
		if !slices.Contains(distinct, n) {
			distinct = append(distinct, n)
		}
	}
	return distinct, s.Use(ctx, distinct...)
}

// AllTables opens all transactional tables. It leaves out those that were deleted and
// have a schema record, and those that cannot be read, with a warning for each. For the
// latter, the command exits with 4.
func (s *Session) AllTables(ctx context.Context) ([]string, error) {
	names, err := admin.Tables(ctx, s.Client())
	if err != nil {
		return nil, err
	}
	var there []string
	for _, name := range names {
		err := s.Use(ctx, name)
		switch {
		case errors.Is(err, errDeleted):
			fmt.Fprintf(s.Streams.Err, "warning: %s; the command leaves it out\n", cli.Line(err.Error()))
			s.LeftOut = append(s.LeftOut, name)
		case err != nil && tableAlone(err):
			s.unread(name, err)
		case err != nil:
			return nil, err
		default:
			there = append(there, name)
		}
	}
	return there, nil
}

// tableAlone reports whether an error is about one table, so that the other tables can be read.
func tableAlone(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.NotFound, codes.FailedPrecondition, codes.InvalidArgument, codes.Internal, codes.DataLoss:
		return true
	}
	return errors.Is(err, txn.ErrFormatVersion) || errors.Is(err, txn.ErrCorrupt) || errors.Is(err, txn.ErrSchema)
}

// unread notes a table that cannot be read, and warns.
func (s *Session) unread(table string, err error) {
	if slices.Contains(s.Unread, table) {
		return
	}
	s.Unread = append(s.Unread, table)
	s.Progress.End()
	fmt.Fprintf(s.Streams.Err, "warning: table %s cannot be read, and the command leaves it out: %s\n", cli.Line(table), cli.Line(cli.Plain(err.Error())))
}

// complete is the error of a command that has left tables out.
func (s *Session) complete() error {
	if len(s.Unread) == 0 {
		return nil
	}
	return Foundf("%s left out that cannot be read: %s", cli.Count(len(s.Unread), "table"), some(s.Unread))
}

// Each calls f for each part of the range in each table. A part is what
// Bigtable answers for in a bounded time, also where there is little to be
// found in much.
func (t *Tables) Each(ctx context.Context, s *Session, tables []string, f func(table string, rows bigtable.RowSet) error) error {
	e, done := s.Extent(ctx, t.Range.Rows, tables...), 0
	defer s.Progress.During(s.Read)()
	for i, name := range tables {
		for _, rows := range e.parts[i] {
			s.Progress.Part(float64(done) / float64(e.total))
			s.Progress.Set("reading table %s", name)
			err := f(name, rows)
			if err != nil && t.All && tableAlone(err) {
				s.unread(name, err)
				done += len(e.parts[i])
				break
			}
			if err != nil {
				return err
			}
			done++
		}
	}
	return nil
}

// List splits what a flag was given, once or more often, at commas.
func List(values []string) []string {
	var all []string
	for _, v := range values {
		for _, part := range strings.Split(v, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	return all
}

// A Range is a range of row keys, [Start, End); an empty End is unbounded.
type Range struct{ Start, End string }

// Set returns the rows of the range.
func (r Range) Set() bigtable.RowRange { return bigtable.NewRange(r.Start, r.End) }

// RangeFlags are --prefix, --start and --end.
type RangeFlags struct {
	prefix, start, end string
	Rows               Range // what they give, from Check on
}

// Add adds the flags to a command.
func (f *RangeFlags) Add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.prefix, "prefix", "", "only rows whose keys begin with this (%XX for bytes that are not printable)")
	cmd.Flags().StringVar(&f.start, "start", "", "only rows with this key or above")
	cmd.Flags().StringVar(&f.end, "end", "", "only rows below this key")
}

// Check checks the flags.
func (f *RangeFlags) Check() (err error) {
	f.Rows, err = f.Range()
	return err
}

// Range returns the range that the flags give.
func (f *RangeFlags) Range() (Range, error) {
	var keys [3]string
	for i, flag := range []struct{ name, value string }{{"prefix", f.prefix}, {"start", f.start}, {"end", f.end}} {
		if flag.value == "" {
			continue
		}
		key, err := ParseRow(flag.value)
		if err != nil {
			return Range{}, cli.Usagef("--%s %s: %w", flag.name, flag.value, err)
		}
		keys[i] = key
	}
	prefix, start, end := keys[0], keys[1], keys[2]
	switch {
	case prefix != "" && (start != "" || end != ""):
		return Range{}, cli.Usagef("--prefix does not go with --start or --end")
	case prefix != "":
		return Range{prefix, successor(prefix)}, nil
	case end != "" && end <= start:
		return Range{}, cli.Usagef("--end %s: it has to be above --start, which is %s", f.end, f.start)
	}
	return Range{start, end}, nil
}

// successor is the first key that does not begin with prefix and is above it;
// empty when there is none.
func successor(prefix string) string {
	p := []byte(prefix)
	for len(p) > 0 && p[len(p)-1] == 0xff {
		p = p[:len(p)-1]
	}
	if len(p) == 0 {
		return ""
	}
	p[len(p)-1]++
	return string(p)
}

// Row returns a row key as commands take and print it, and ParseRow reads it.
var (
	Row      = format.EscapeRow
	ParseRow = format.ParseRow
)

// ParseCell reads the argument CELL.
func ParseCell(s string) (txn.Cell, error) {
	c, err := format.ParseCell(s)
	if err != nil {
		return c, cli.Usagef("%w", err)
	}
	switch c.Family {
	case format.LockFamily, format.WriteFamily, format.MarkFamily, format.NotifyFamily:
		return c, cli.Usagef("cell %s: family %s holds transaction metadata; name a data family", c, c.Family)
	}
	return c, nil
}

// CellArg reads the argument CELL.
func CellArg(c *txn.Cell) func([]string) error {
	return func(args []string) (err error) { *c, err = ParseCell(args[0]); return err }
}

// TransactionArgs reads the arguments PRIMARY START_TS.
func TransactionArgs(primary *txn.Cell, startTS *tso.Timestamp) func([]string) error {
	return func(args []string) (err error) { *primary, *startTS, err = ParseTransaction(args); return err }
}

// ParseTransaction reads the arguments PRIMARY START_TS.
func ParseTransaction(args []string) (primary txn.Cell, startTS tso.Timestamp, err error) {
	if primary, err = ParseCell(args[0]); err != nil {
		return primary, 0, err
	}
	if startTS, err = tso.ParseTimestamp(args[1]); err != nil {
		return primary, 0, cli.Usagef("START_TS: %w", err)
	}
	if startTS == 0 {
		return primary, 0, cli.Usagef("START_TS: 0 is not a timestamp")
	}
	return primary, startTS, nil
}

// Families returns the families of a row, in order.
func Families(r bigtable.Row) []string { return slices.Sorted(maps.Keys(r)) }

// waitNotice is how long a read is silent before it says what it may wait for.
const waitNotice = 3 * time.Second

// NoteWaiting says on standard error that a read may be waiting for a lock,
// unless it is stopped before.
func NoteWaiting(s *cli.Streams, table string) *time.Timer {
	return time.AfterFunc(waitNotice, func() {
		fmt.Fprintf(s.Err, "still reading table %s; it may be waiting for the lock of a live transaction: see percctl lock list %s\n", table, table)
	})
}
