package notify

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestOutcomes: what a run's error says of the run. An error of another transaction, which the
// observer made, is a failure of the observer, and so is what it returns itself.
func TestOutcomes(t *testing.T) {
	cell := txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	r := &run{handler: &handler{id: "o"}, cell: cell, startTS: 10}
	ack := func(change func(*txn.Cell)) txn.Cell {
		c := format.AckColumn(cell.Column(), "o")
		at := txn.Cell{Table: "t", Row: "r", Family: c.Family, Qualifier: c.Qualifier}
		change(&at)
		return at
	}
	conflict := func(at txn.Cell, start tso.Timestamp, reason format.ConflictReason) error {
		return fmt.Errorf("wrapped: %w", &txn.ConflictError{Cell: at, StartTS: start, Reason: reason})
	}
	own := func(*txn.Cell) {}
	for name, tt := range map[string]struct {
		err  error
		want Outcome
	}{
		"nothing":                       {nil, Committed},
		"failure":                       {errors.New("x"), Failed},
		"snooze":                        {fmt.Errorf("x: %w", Snooze(1)), Snoozed},
		"drop":                          {fmt.Errorf("x: %w", Drop()), Dropped},
		"unknown outcome":               {&txn.UndeterminedError{StartTS: 10}, Unknown},
		"another's unknown outcome":     {&txn.UndeterminedError{StartTS: 11}, Failed},
		"unknown, then a conflict":      {&txn.UndeterminedError{StartTS: 10, Err: conflict(cell, 10, format.ConflictBound)}, Unknown},
		"conflict":                      {conflict(cell, 10, format.ConflictWrite), Conflicted},
		"another's conflict":            {conflict(cell, 9, format.ConflictWrite), Failed},
		"another acknowledged":          {conflict(ack(own), 10, format.ConflictWrite), LostRace},
		"another acknowledges":          {conflict(ack(own), 10, format.ConflictLock), LostRace},
		"rolled back":                   {conflict(ack(own), 10, format.ConflictRolledBack), Conflicted},
		"marker":                        {conflict(ack(own), 10, format.ConflictMarker), Conflicted},
		"acknowledgment, another row":   {conflict(ack(func(c *txn.Cell) { c.Row = "s" }), 10, format.ConflictWrite), Conflicted},
		"acknowledgment, another table": {conflict(ack(func(c *txn.Cell) { c.Table = "u" }), 10, format.ConflictWrite), Conflicted},
		"another observer's":            {conflict(ack(func(c *txn.Cell) { c.Qualifier = format.AckColumn(cell.Column(), "p").Qualifier }), 10, format.ConflictWrite), Conflicted},
		"another column's":              {conflict(ack(func(c *txn.Cell) { c.Qualifier = "f:z/o" }), 10, format.ConflictWrite), Conflicted},
		"context":                       {context.Canceled, Failed},
	} {
		if got := r.classify(tt.err); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestNeedOfARun: an observer runs for a change that it has not acknowledged, unless it is not
// registered, its pause lasts, or too many runs caused each other.
func TestNeedOfARun(t *testing.T) {
	w := &Worker{cfg: Config{MaxHops: 3}}
	pending := func(change func(*changes.Observation)) *changes.Observation {
		o := &changes.Observation{StartTS: 10, ChangeTS: 7, Observers: []string{"p", "o"}, Triggers: []format.NotifyCell{{TS: 7, Hops: 1}}, Acks: map[string]tso.Timestamp{}, Failures: map[string]format.Failure{}}
		change(o)
		return o
	}
	failed := func(change, notBefore tso.Timestamp) func(*changes.Observation) {
		return func(o *changes.Observation) {
			o.Failures["o"] = format.Failure{ChangeTS: change, NotBefore: notBefore, LastTS: 9}
		}
	}
	for name, tt := range map[string]struct {
		change func(*changes.Observation)
		want   Outcome
	}{
		"pending":         {func(*changes.Observation) {}, ""},
		"not registered":  {func(o *changes.Observation) { o.Observers = []string{"p"} }, Acknowledged},
		"acknowledged":    {func(o *changes.Observation) { o.Acks["o"] = 8 }, Acknowledged},
		"no notification": {func(o *changes.Observation) { o.Triggers = nil }, Acknowledged},
		"pause":           {failed(7, 11), Waiting},
		"pause has ended": {failed(7, 10), ""},
		"newer change":    {failed(6, 11), ""},
		"most hops":       {func(o *changes.Observation) { o.Triggers = []format.NotifyCell{{TS: 6, Hops: 3}, {TS: 7, Hops: 2}} }, ""},
		"too many hops":   {func(o *changes.Observation) { o.Triggers = []format.NotifyCell{{TS: 6, Hops: 4}, {TS: 7, Hops: 2}} }, Parked},
	} {
		r := &run{worker: w, handler: &handler{id: "o"}, seen: pending(tt.change)}
		if got := r.need(); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	for most, want := range map[int]Outcome{-1: "", 0: Parked} { // of 1 hop
		r := &run{worker: &Worker{cfg: Config{MaxHops: most}}, handler: &handler{id: "o"}, seen: pending(func(*changes.Observation) {})}
		if got := r.need(); got != want || r.hops() != 1 || (&run{seen: &changes.Observation{}}).hops() != 0 {
			t.Errorf("at most %d hops: %q, want %q", most, got, want)
		}
	}
}

// TestPauses: they double from the shortest to the longest, after any number of attempts.
func TestPauses(t *testing.T) {
	b := txn.Backoff{Min: time.Second, Max: 5 * time.Second}
	for attempts, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 4: 5 * time.Second, 5: 5 * time.Second, 1e9: 5 * time.Second} {
		if got := pauseAfter(attempts, b); got != want {
			t.Errorf("after %d attempts: %v, want %v", attempts, got, want)
		}
	}
	if got := pauseAfter(1, txn.Backoff{Min: time.Minute, Max: time.Second}); got != time.Second {
		t.Errorf("longer than the longest: %v", got)
	}
}
