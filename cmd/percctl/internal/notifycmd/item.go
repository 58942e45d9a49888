package notifycmd

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
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

// An item is a notification or a dead letter.
type item struct {
	Kind     string        `json:"kind"`                   // `notification` or `dead letter`
	Cell     string        `json:"cell"`                   // table, row and column
	Age      float64       `json:"age_seconds"`            // age of the oldest pending change; of a dead letter, time since it was parked
	Changes  int           `json:"changes,omitempty"`      // changes that the notification stands for
	More     bool          `json:"more_changes,omitempty"` // whether there are more changes than are counted: changes are then only the newest
	OldestTS tso.Timestamp `json:"oldest_ts,omitempty"`    // commit timestamp of the oldest of these changes
	Oldest   string        `json:"oldest_time,omitempty"`  // oldest_ts as a time
	NewestTS tso.Timestamp `json:"newest_ts,omitempty"`    // commit timestamp of the newest of these changes
	Newest   string        `json:"newest_time,omitempty"`  // newest_ts as a time
	Weak     bool          `json:"weak,omitempty"`         // whether the column is for weak notifications
	Locked   bool          `json:"locked,omitempty"`       // whether a transaction holds a lock on the cell
	Hops     int           `json:"hops,omitempty"`         // observer runs, one caused by the other, that led to the newest change; 0 if no observer wrote it
	ChangeTS tso.Timestamp `json:"change_ts,omitempty"`    // commit timestamp of the newest committed change; of a dead letter, of the change that the observer failed on
	ParkedTS tso.Timestamp `json:"parked_ts,omitempty"`    // oracle time at which the change became a dead letter
	Parked   string        `json:"parked_time,omitempty"`  // parked_ts as a time
	Trace    string        `json:"trace_parent,omitempty"` // W3C traceparent of the transaction that made the change

	Observers []observerItem `json:"observers"` // observers of the cell; of a dead letter, the one that failed
}

// An observerItem is the state of an observer at a cell.
type observerItem struct {
	Observer string        `json:"observer"`            // id of the observer
	State    string        `json:"state"`               // `pending` (has not run yet), `failing` (its last run failed, it will be retried), `put off` (it postponed the change itself), `dead letter`, or `acknowledged`
	AckTS    tso.Timestamp `json:"ack_ts,omitempty"`    // changes up to this timestamp are acknowledged
	Attempts int           `json:"attempts,omitempty"`  // failed runs for the newest change
	FirstTS  tso.Timestamp `json:"first_ts,omitempty"`  // oracle time of the first failed run
	LastTS   tso.Timestamp `json:"last_ts,omitempty"`   // oracle time of the last failed run
	Last     string        `json:"last_time,omitempty"` // last_ts as a time
	NextTS   tso.Timestamp `json:"next_ts,omitempty"`   // oracle time before which it is not retried
	Next     string        `json:"next_time,omitempty"` // next_ts as a time
	Error    string        `json:"error,omitempty"`     // error of the last failed run
	Words    string        `json:"words"`               // the state in words
}

// mostTriggers is how many changes of a cell are read.
const mostTriggers = 128

// newNotification describes what is stored of a notification at oracle time now.
func newNotification(o changes.Observation, now tso.Timestamp) item {
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

func newObserver(o changes.Observation, id string, now tso.Timestamp) observerItem {
	b := observerItem{Observer: id, State: statePending, AckTS: o.Acks[id], Words: "has not run for it yet"}
	f, failed := o.Failure(id)
	earlier := o.Failures[id]
	if b.AckTS != 0 {
		b.Words = "has not run for the newest change yet"
	}
	switch {
	case !o.Pending(id):
		b.State, b.Words = stateAcknowledged, "acknowledged; a worker will remove the notification"
		if len(o.Triggers) > 0 && slices.ContainsFunc(o.Observers, o.Pending) {
			b.Words = "acknowledged"
		}
		return b
	case !failed && earlier.ChangeTS == 0:
		return b
	case !failed && earlier.ChangeTS == o.ChangeTS:
		b.Words = "has not run since its dead letter was replayed"
		return b
	case !failed:
		b.Words = "has not run for the newest change yet; it failed for an earlier one"
		return b
	}
	b.Attempts, b.FirstTS, b.LastTS, b.Last, b.Error = f.Attempts, f.FirstTS, f.LastTS, cli.Time(f.LastTS), f.Error
	if f.NotBefore == format.Never {
		b.State, b.Words = stateDead, "gave up: see its dead letter"
		return b
	}
	b.NextTS, b.Next = f.NotBefore, cli.Time(f.NotBefore)
	next := "retry due"
	if f.NotBefore > now {
		next = "next retry in " + ago(now, f.NotBefore)
	}
	switch {
	case f.Error == "":
		b.State, b.Words = statePutOff, "postponed by the observer, "+next
	case f.Attempts == 0:
		b.State, b.Words = stateFailing, fmt.Sprintf("conflicted %s ago, %s: %s", ago(f.LastTS, now), next, cli.Line(f.Error))
	default:
		b.State, b.Words = stateFailing, fmt.Sprintf("failed %s, last %s ago, %s: %s", cli.Count(f.Attempts, "time"), ago(f.LastTS, now), next, cli.Line(f.Error))
	}
	return b
}

func newDeadLetter(d changes.DeadLetter, now tso.Timestamp) item {
	return item{
		Kind: kindDeadLetter, Cell: d.Cell.String(), Age: seconds(max(now-d.ParkedTS, 0)), ChangeTS: d.ChangeTS,
		ParkedTS: d.ParkedTS, Parked: cli.Time(d.ParkedTS), Trace: d.TraceParent,
		Observers: []observerItem{{
			Observer: d.Observer, State: stateDead, Attempts: d.Attempts, FirstTS: d.FirstTS, Error: d.Error,
			Words: fmt.Sprintf("gave up after %s: %s", cli.Count(d.Attempts, "attempt"), cli.Line(d.Error)),
		}},
	}
}

func (it item) text(w io.Writer, style cli.Style) error {
	switch {
	case it.Kind == kindDeadLetter:
		fmt.Fprintf(w, "%s %s, %s old, change %d\n", style.Bad(it.Kind), it.Cell, cli.Seconds(it.Age), it.ChangeTS)
	case it.Changes == 0:
		fmt.Fprintf(w, "%s %s, no change left\n", style.Bold(it.Kind), it.Cell)
	default:
		changes := cli.Count(it.Changes, "change")
		if it.More {
			changes += " or more"
		}
		fmt.Fprintf(w, "%s %s, %s old, %s\n", style.Bold(it.Kind), it.Cell, cli.Seconds(it.Age), changes+it.notes())
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
		notes += fmt.Sprintf(", caused by a chain of %s of observers", cli.Count(it.Hops, "run"))
	}
	if it.Locked {
		notes += ", locked by a transaction (percctl lock show)"
	}
	return notes
}

var csvHeader = []string{"kind", "cell", "age_seconds", "changes", "oldest_ts", "newest_ts", "change_ts", "locked", "observer", "state", "ack_ts", "attempts", "next_ts", "error", "words"}

func (it item) csv() [][]string {
	head := []string{it.Kind, it.Cell, strconv.FormatFloat(it.Age, 'f', 6, 64), strconv.Itoa(it.Changes), cli.Number(it.OldestTS), cli.Number(it.NewestTS), cli.Number(it.ChangeTS), strconv.FormatBool(it.Locked)}
	observers := it.Observers
	if len(observers) == 0 {
		observers = []observerItem{{Words: "no observer is registered for its column"}}
	}
	var rows [][]string
	for _, o := range observers {
		rows = append(rows, append(head[:len(head):len(head)], o.Observer, o.State, cli.Number(o.AckTS), strconv.Itoa(o.Attempts), cli.Number(o.NextTS), cli.Line(o.Error), o.Words))
	}
	return rows
}
