package notifycmd

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// The kinds of items.
const (
	kindNotification = "notification"
	kindDeadLetter   = "dead letter"
)

// The states of an observer at a notification.
const (
	statePending      = "pending"      // it has still to run
	stateFailing      = "failing"      // its last run failed; it is tried again
	statePutOff       = "put off"      // it put the change off itself
	stateDead         = "dead letter"  // it was given up
	stateAcknowledged = "acknowledged" // it has seen the newest change
)

// An item is a notification or a dead letter as it is printed.
type item struct {
	Kind string  `json:"kind"`
	Cell string  `json:"cell"`
	Age  float64 `json:"age_seconds"` // of the oldest change; of a dead letter since it was given up
	// Of a notification: its changes, oldest and newest.
	Changes  int           `json:"changes,omitempty"`
	More     bool          `json:"more_changes,omitempty"` // Changes is only the newest of them
	OldestTS tso.Timestamp `json:"oldest_ts,omitempty"`
	Oldest   string        `json:"oldest_time,omitempty"`
	NewestTS tso.Timestamp `json:"newest_ts,omitempty"`
	Newest   string        `json:"newest_time,omitempty"`
	Weak     bool          `json:"weak,omitempty"`
	Locked   bool          `json:"locked,omitempty"`
	Hops     int           `json:"hops,omitempty"`
	// ChangeTS is the newest committed change; of a dead letter, the one that
	// was given up.
	ChangeTS tso.Timestamp `json:"change_ts,omitempty"`
	ParkedTS tso.Timestamp `json:"parked_ts,omitempty"`
	Parked   string        `json:"parked_time,omitempty"`
	Trace    string        `json:"trace_parent,omitempty"`

	Observers []observerItem `json:"observers"`
}

// An observerItem is what an observer has still to do about an item.
type observerItem struct {
	Observer string        `json:"observer"`
	State    string        `json:"state"`
	AckTS    tso.Timestamp `json:"ack_ts,omitempty"`
	Attempts int           `json:"attempts,omitempty"`
	FirstTS  tso.Timestamp `json:"first_ts,omitempty"`
	LastTS   tso.Timestamp `json:"last_ts,omitempty"`
	Last     string        `json:"last_time,omitempty"`
	NextTS   tso.Timestamp `json:"next_ts,omitempty"`
	Next     string        `json:"next_time,omitempty"`
	Error    string        `json:"error,omitempty"`
	Words    string        `json:"words"`
}

// mostTriggers is how many changes of a cell are read.
const mostTriggers = 128

// newNotification describes what is stored of a notification at oracle time now.
func newNotification(o txn.Observation, now tso.Timestamp) item {
	it := item{
		Kind: kindNotification, Cell: o.Cell.String(), Changes: len(o.Triggers), More: len(o.Triggers) == mostTriggers,
		Weak: o.Weak, Locked: o.Locked, ChangeTS: o.ChangeTS, Observers: []observerItem{},
	}
	for _, t := range o.Triggers {
		it.Hops = max(it.Hops, t.Hops)
		it.Trace = t.TraceParent
	}
	if n := len(o.Triggers); n > 0 {
		it.OldestTS, it.NewestTS = o.Triggers[0].TS, o.Triggers[n-1].TS
		it.Oldest, it.Newest = cli.Time(it.OldestTS), cli.Time(it.NewestTS)
		it.Age = seconds(max(now-it.OldestTS, 0))
	}
	for _, id := range o.Observers {
		it.Observers = append(it.Observers, newObserver(o, id, now))
	}
	return it
}

func newObserver(o txn.Observation, id string, now tso.Timestamp) observerItem {
	b := observerItem{Observer: id, State: statePending, AckTS: o.Acks[id], Words: "has not run for it yet"}
	f, failed := o.Failures[id]
	if b.AckTS != 0 {
		b.Words = "has not run for the newest change yet"
	}
	switch {
	case !o.Pending(id):
		b.State, b.Words = stateAcknowledged, "acknowledged; a worker removes what is left over"
		if len(o.Triggers) > 0 && slices.ContainsFunc(o.Observers, o.Pending) {
			b.Words = "acknowledged"
		}
		return b
	case !failed:
		return b
	case f.ChangeTS != o.ChangeTS:
		b.Words = "has not run for the newest change yet; it failed for an earlier one"
		return b
	}
	b.Attempts, b.FirstTS, b.LastTS, b.Last, b.Error = f.Attempts, f.FirstTS, f.LastTS, cli.Time(f.LastTS), f.Error
	if f.NotBefore == txn.Never {
		b.State, b.Words = stateDead, "given up: see its dead letter"
		return b
	}
	b.NextTS, b.Next = f.NotBefore, cli.Time(f.NotBefore)
	next := "next try due"
	if f.NotBefore > now {
		next = "next try in " + ago(now, f.NotBefore)
	}
	switch {
	case f.Error == "":
		b.State, b.Words = statePutOff, "put off by itself, "+next
	case f.Attempts == 0:
		b.State, b.Words = stateFailing, fmt.Sprintf("conflicted %s ago, %s: %s", ago(f.LastTS, now), next, cli.Line(f.Error))
	default:
		b.State, b.Words = stateFailing, fmt.Sprintf("failed %s, last %s ago, %s: %s", cli.Count(f.Attempts, "time"), ago(f.LastTS, now), next, cli.Line(f.Error))
	}
	return b
}

func newDeadLetter(d txn.DeadLetter, now tso.Timestamp) item {
	return item{
		Kind: kindDeadLetter, Cell: d.Cell.String(), Age: seconds(max(now-d.ParkedTS, 0)), ChangeTS: d.ChangeTS,
		ParkedTS: d.ParkedTS, Parked: cli.Time(d.ParkedTS), Trace: d.TraceParent,
		Observers: []observerItem{{
			Observer: d.Observer, State: stateDead, Attempts: d.Attempts, FirstTS: d.FirstTS, Error: d.Error,
			Words: fmt.Sprintf("given up after %s: %s", cli.Count(d.Attempts, "attempt"), cli.Line(d.Error)),
		}},
	}
}

func (it item) age() string { return cli.Duration(time.Duration(it.Age * float64(time.Second))) }

func (it item) text(w io.Writer, style cli.Style) error {
	switch {
	case it.Kind == kindDeadLetter:
		fmt.Fprintf(w, "%s %s, %s old, change %d\n", style.Bad(it.Kind), it.Cell, it.age(), it.ChangeTS)
	case it.Changes == 0:
		fmt.Fprintf(w, "%s %s, no change left\n", style.Bold(it.Kind), it.Cell)
	default:
		changes := cli.Count(it.Changes, "change")
		if it.More {
			changes += " or more"
		}
		fmt.Fprintf(w, "%s %s, %s old, %s\n", style.Bold(it.Kind), it.Cell, it.age(), changes+it.notes())
	}
	table := cli.NewTable(w)
	for _, o := range it.Observers {
		cli.WriteRow(table, "  "+cli.Line(o.Observer), o.Words)
	}
	if len(it.Observers) == 0 {
		cli.WriteRow(table, "  no observer is registered for its column")
	}
	return table.Flush()
}

func (it item) notes() string {
	notes := ""
	if it.Weak {
		notes += ", weak"
	}
	if it.Hops > 0 {
		notes += fmt.Sprintf(", caused by %s of observers in a row", cli.Count(it.Hops, "run"))
	}
	if it.Locked {
		notes += ", a transaction is at it (percctl lock list)"
	}
	return notes
}

var csvHeader = []string{"kind", "cell", "age_seconds", "changes", "oldest_ts", "newest_ts", "change_ts", "locked", "observer", "state", "ack_ts", "attempts", "next_ts", "error", "words"}

func (it item) csv() [][]string {
	number := func(ts tso.Timestamp) string {
		if ts == 0 {
			return ""
		}
		return ts.String()
	}
	head := []string{it.Kind, it.Cell, strconv.FormatFloat(it.Age, 'f', 6, 64), strconv.Itoa(it.Changes), number(it.OldestTS), number(it.NewestTS), number(it.ChangeTS), strconv.FormatBool(it.Locked)}
	observers := it.Observers
	if len(observers) == 0 {
		observers = []observerItem{{Words: "no observer is registered for its column"}}
	}
	var rows [][]string
	for _, o := range observers {
		rows = append(rows, append(head[:len(head):len(head)], o.Observer, o.State, number(o.AckTS), strconv.Itoa(o.Attempts), number(o.NextTS), cli.Line(o.Error), o.Words))
	}
	return rows
}
