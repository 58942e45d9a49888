package consolecmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/readcmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A rowAnswer is what is stored in a row, and what snapshots read of it. The page draws it, and
// computes nothing.
type rowAnswer struct {
	Moments []moment        `json:"moments"` // in order of time; the last is now
	Lanes   []*lane         `json:"lanes"`
	Events  []readcmd.Event `json:"events"`
	More    int             `json:"more"` // earlier ones that are left out
}

// A moment is a timestamp at which something is stored, or changes for snapshots.
type moment struct {
	TS      tso.Timestamp `json:"ts"`
	Time    string        `json:"time"`    // in words, for the axis
	Title   string        `json:"title"`   // in words, for the snapshot
	Refused string        `json:"refused"` // why no snapshot can be taken at this moment; empty if it can
}

// A lane is a column, or the acknowledgments of an observer.
type lane struct {
	Name  string `json:"name"`
	Short string `json:"short"`
	Ack   bool   `json:"ack"`
	Reads []read `json:"reads"` // what snapshots read, one after the other
	Marks []mark `json:"marks"` // what is stored

	column string
}

// A read is what snapshots read from one moment to another.
type read struct {
	From      int         `json:"from"` // number of the moment
	To        int         `json:"to"`   // number of the moment at which it ends; that after the last if it does not end
	Shown     admin.Shown `json:"shown"`
	Text      string      `json:"text"`      // the value, or why there is none
	Committed string      `json:"committed"` // when
	Words     string      `json:"words"`
	Primary   string      `json:"primary"` // of a transaction whose lock a read finds; empty if there is none
	StartTS   string      `json:"start"`   // of that transaction
}

// A mark is a stored version.
type mark struct {
	At    int    `json:"at"`    // number of the moment
	Since int    `json:"since"` // number of the moment at which the transaction of a record began
	Kind  string `json:"kind"`
	Words string `json:"words"`
}

func (l *live) Row(ctx context.Context, table, row string) (*rowAnswer, error) {
	var found *readcmd.Row
	err := l.keeper.Do(ctx, func(ctx context.Context, s *session.Session) (err error) {
		found, err = readcmd.ReadRow(ctx, s, table, row)
		return err
	})
	if err == nil && len(found.Events) == 0 {
		err = session.NotFoundf("nothing is stored in row %s of table %s", session.Row(row), table)
	}
	if err != nil {
		return nil, err
	}
	return newRowAnswer(found), nil
}

func newRowAnswer(found *readcmd.Row) *rowAnswer {
	a := &rowAnswer{Events: found.Events}
	if n := len(a.Events) - shownEvents; n > 0 {
		a.More, a.Events = n, a.Events[n:]
	}
	a.addMoments(found)
	for _, e := range a.Events {
		l := a.lane(e.Column)
		kind := markKinds[e.Kind]
		if e.Kind == admin.VersionWrite && e.Write == format.KindDelete.String() {
			kind = "delete"
		}
		m := mark{At: a.at(e.TS), Kind: kind, Words: e.Words}
		switch {
		case e.TS == 0: // a failure has no timestamp
			m.At = len(a.Moments) - 1
		case e.Kind == admin.VersionPlain:
			m.At = 0
		}
		m.Since = m.At
		if e.Kind == admin.VersionWrite {
			m.Since = a.at(e.StartTS)
		}
		l.Marks = append(l.Marks, m)
	}
	for _, r := range found.Readings {
		l := a.lane(r.Cell.Column().String())
		one := read{From: a.at(r.From), To: len(a.Moments), Shown: r.Shown, Text: string(r.Shown)}
		if r.To > 0 {
			one.To = a.at(r.To)
		}
		switch r.Shown {
		case admin.ShownValue, admin.ShownPlain:
			one.Text, one.Committed = readcmd.Printable(r.Value), cli.Time(r.CommitTS)
			if l.Ack {
				one.Text = "acknowledged"
			} else if one.Text == "" {
				one.Text = "(empty)"
			}
			if r.Shown == admin.ShownPlain {
				one.Committed = "without a transaction"
			}
		case admin.ShownDeleted:
			one.Committed = cli.Time(r.CommitTS)
		case admin.ShownDamaged:
			one.Text = cli.Line(r.Err.Error())
		}
		if k := r.Lock; k != nil {
			one.Primary, one.StartTS = k.Primary.String(), k.StartTS.String()
		}
		one.Words = strings.TrimSpace(one.Text + " " + one.Committed)
		if one.To > one.From {
			l.Reads = append(l.Reads, one)
		}
	}
	slices.SortFunc(a.Lanes, func(x, y *lane) int { return strings.Compare(x.Name, y.Name) })
	return a
}

// markKinds are what the page draws.
var markKinds = map[admin.VersionKind]string{
	admin.VersionPlain: "data", admin.VersionData: "data", admin.VersionWrite: "record", admin.VersionLock: "lock", admin.VersionNotify: "notify",
	admin.VersionRollback: "rollback", admin.VersionLockOnly: "lockonly", admin.VersionFailure: "failure", admin.VersionUnreadable: "failure",
}

// addMoments adds the moments of the events that are shown, and those at which snapshots read
// something else. The first one is before all of them.
func (a *rowAnswer) addMoments(found *readcmd.Row) {
	all := []tso.Timestamp{found.Now}
	for _, e := range a.Events {
		if e.Kind != admin.VersionPlain {
			all = append(all, e.TS, e.StartTS)
		}
	}
	slices.Sort(all)
	all = slices.DeleteFunc(all, func(ts tso.Timestamp) bool { return ts == 0 || ts > found.Now })
	first := all[0] - 1
	for _, r := range found.Readings {
		if r.From > first {
			all = append(all, r.From)
		}
	}
	all = append(all, first)
	slices.Sort(all)
	for _, ts := range slices.Compact(all) {
		m := moment{TS: ts, Time: readcmd.ClockTime(ts), Title: cli.Time(ts)}
		if ts < found.SafePoint {
			m.Refused = fmt.Sprintf("A snapshot at this moment fails: it is below the safe point, %s. Garbage collection may have removed versions that it would read.", cli.Stamp(found.SafePoint))
		}
		a.Moments = append(a.Moments, m)
	}
	a.Moments[0].Time = "before"
	last := &a.Moments[len(a.Moments)-1]
	last.Time, last.Title = "now", "this moment"
}

// at is the number of the first moment at or after a timestamp.
func (a *rowAnswer) at(ts tso.Timestamp) int {
	i, _ := slices.BinarySearchFunc(a.Moments, ts, func(m moment, ts tso.Timestamp) int { return int(m.TS - ts) })
	return min(i, len(a.Moments)-1)
}

// lane returns the lane of a column.
func (a *rowAnswer) lane(column string) *lane {
	for _, l := range a.Lanes {
		if l.column == column {
			return l
		}
	}
	l := &lane{Name: column, Short: column, Reads: []read{}, Marks: []mark{}, column: column}
	if name, ok := strings.CutPrefix(column, format.AckFamily+":"); ok {
		l.Ack, l.Name, l.Short = true, name, name[strings.LastIndexByte(name, '/')+1:]
	}
	a.Lanes = append(a.Lanes, l)
	return l
}
