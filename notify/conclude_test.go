package notify

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestStoredConclusions: what a worker stores after a run that did not commit, and when it checks the cell again. If it
// cannot store that, it checks the cell soon.
func TestStoredConclusions(t *testing.T) {
	long.RacedAtNight(t)
	broken, stopped := errors.New("broken on purpose"), status.Error(codes.PermissionDenied, "refused on purpose")
	between := func(most time.Duration) [2]time.Duration { return [2]time.Duration{most / 2, most} }
	type stored struct {
		failures map[string]format.Failure // without times
		letters  []changes.DeadLetter
		acked    bool
	}
	letter := func(attempts int, text string) []changes.DeadLetter {
		return []changes.DeadLetter{{Observer: "o", Attempts: attempts, Error: text, TraceParent: "trace"}}
	}
	failure := func(attempts int, text string) map[string]format.Failure {
		return map[string]format.Failure{"o": {Attempts: attempts, Error: text}}
	}
	for name, tt := range map[string]struct {
		outcome        Outcome
		err            error
		earlier        int  // failures
		beside         bool // another observer has the column
		refused        txntest.Step
		ended, drained bool // the contexts of the worker, and of its runs
		again          [2]time.Duration
		upToDate       bool
		reported       Outcome
		is             error // of the event; nil: tt.err
		logged         string
		stored         stored
	}{
		"snoozed for no time":     {outcome: Snoozed, err: Snooze(0), again: [2]time.Duration{time.Millisecond, time.Millisecond}, stored: stored{failures: failure(0, "")}},
		"snoozed":                 {outcome: Snoozed, err: Snooze(time.Hour), earlier: 2, again: [2]time.Duration{time.Hour, time.Hour}, stored: stored{failures: failure(2, "")}},
		"conflicts":               {outcome: Conflicted, err: broken, again: between(2 * time.Second), logged: "observer conflicts", stored: stored{failures: failure(0, "4 runs in a row")}},
		"first failure":           {outcome: Failed, err: broken, again: between(time.Second), logged: "attempt=1", stored: stored{failures: failure(1, broken.Error())}},
		"second failure":          {outcome: Failed, err: broken, earlier: 1, again: between(2 * time.Second), stored: stored{failures: failure(2, broken.Error())}},
		"a failure is not stored": {outcome: Failed, err: broken, refused: txntest.StepFailure, again: between(time.Second), logged: "storing the failure of an observer failed"},
		"a panic":                 {outcome: Failed, err: &PanicError{Value: "x", Stack: []byte("the stack")}, again: between(time.Second), logged: "the stack", stored: stored{failures: failure(1, "observer panicked: x")}},
		"last failure":            {outcome: Failed, err: broken, earlier: 2, upToDate: true, reported: Parked, stored: stored{letters: letter(3, broken.Error()), failures: failure(2, "earlier")}},
		"last failure, beside":    {outcome: Failed, err: broken, earlier: 2, beside: true, upToDate: true, reported: Parked, stored: stored{letters: letter(3, broken.Error()), failures: failure(3, broken.Error())}},
		"no letter, beside":       {outcome: Failed, err: broken, earlier: 2, beside: true, refused: txntest.StepDeadLetter, again: between(time.Second), logged: "storing a dead letter failed", stored: stored{failures: failure(2, "earlier")}},
		"letter, no failure":      {outcome: Failed, err: broken, earlier: 2, beside: true, refused: txntest.StepFailure, again: between(time.Second), stored: stored{letters: letter(3, broken.Error()), failures: failure(2, "earlier")}},
		"too many hops":           {outcome: Parked, upToDate: true, is: errAny, stored: stored{letters: letter(0, "0 runs of observers caused each other")}},
		"the worker stops":        {outcome: Failed, err: context.Canceled, ended: true, reported: Cancelled},
		"failed while it stops":   {outcome: Failed, err: broken, ended: true, again: between(time.Second), stored: stored{failures: failure(1, broken.Error())}},
		"canceled by itself":      {outcome: Failed, err: context.Canceled, again: between(time.Second), stored: stored{failures: failure(1, "context canceled")}},
		"the worker cancels":      {outcome: Failed, err: broken, ended: true, drained: true, reported: Cancelled},
		"dropped":                 {outcome: Dropped, err: errDrop, upToDate: true, stored: stored{acked: true}},
		"dropped, not read":       {outcome: Dropped, err: errDrop, refused: txntest.StepRead, again: between(time.Second), is: stopped},
		"dropped, not stored":     {outcome: Dropped, err: errDrop, refused: txntest.StepPrewrite, again: between(time.Second), is: stopped},
		"unknown, committed":      {outcome: Unknown, err: &txn.UndeterminedError{StartTS: 1}, upToDate: true, reported: Committed, is: errNone},
		"unknown, rolled back":    {outcome: Unknown, err: &txn.UndeterminedError{StartTS: 2}, reported: Conflicted},
		"unknown, not read":       {outcome: Unknown, err: &txn.UndeterminedError{StartTS: 1}, refused: txntest.StepRead, again: between(time.Second)},
		"another transaction's":   {outcome: Failed, err: &txn.UndeterminedError{StartTS: 1}, again: between(time.Second), stored: stored{failures: failure(1, "outcome")}},
		"acknowledged":            {outcome: Acknowledged, upToDate: true},
		"committed":               {outcome: Committed, upToDate: true},
	} {
		t.Run(name, func(t *testing.T) {
			inTable(t, func(t *testing.T, env *txntest.Env, _ *txn.Client, _ *txntest.Faults) {
				refuses := false
				var logged bytes.Buffer
				c := env.NewClient(txn.Config{TokenTTL: -1, Logger: slog.New(slog.NewTextHandler(&logged, nil))}, txntest.Intercept(func(call txntest.Call) error {
					if refuses && tt.refused != "" && call.Step == tt.refused {
						return stopped
					}
					return nil
				})...)
				var events []Event
				w, err := NewWorker(c, Config{MaxAttempts: 3, ConflictAttempts: 4, OnEvent: func(e Event) { events = append(events, e) }})
				if err != nil {
					t.Fatal(err)
				}
				if err := w.Handle("o", "t", watched, ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error { return nil })); err != nil {
					t.Fatal(err)
				}
				observed(t, env.Client, "a")
				if tt.beside {
					if err := changes.RegisterObserver(t.Context(), env.Client, "t", watched, "p", false); err != nil {
						t.Fatal(err)
					}
				}
				tx, err := c.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback()
				cell := txn.Cell{Table: "t", Row: "a", Family: "f", Qualifier: "q"}
				r := &run{worker: w, handler: w.all()[0], cell: cell, began: time.Now(), startTS: tx.StartTS(), outcome: tt.outcome, err: tt.err}
				if r.seen, err = changes.Observe(t.Context(), tx, cell); err != nil {
					t.Fatal(err)
				}
				r.seen.Triggers[0].TraceParent = "trace"
				first := tso.Timestamp(7)
				if tt.earlier > 0 {
					f := format.Failure{ChangeTS: r.seen.ChangeTS, Attempts: tt.earlier, FirstTS: first, Error: "earlier"}
					r.seen.Failures["o"] = f
					if err := changes.SetFailure(t.Context(), env.Client, cell, "o", f); err != nil {
						t.Fatal(err)
					}
				} else {
					first = r.startTS
				}
				var unknown *txn.UndeterminedError
				if errors.As(tt.err, &unknown) {
					// One transaction was committed. The client of the other one died before that, and a reader rolled it back.
					lost := txntest.NewFaults(t)
					if unknown.StartTS == 2 {
						lost.OnStep(txntest.StepCommit, txntest.Crash)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					other, err := env.NewClient(txn.Config{TokenTTL: -1}, lost.DialOptions()...).Begin(ctx)
					if err != nil {
						t.Fatal(err)
					}
					other.Table("t").Set("other", "f", "other", nil)
					u := &txn.UndeterminedError{StartTS: other.StartTS(), Primary: txn.Cell{Table: "t", Row: "other", Family: "f", Qualifier: "other"}}
					u.CommitTS, err = other.Commit(ctx)
					cancel()
					if unknown.StartTS == 2 && !errors.As(err, &u) || unknown.StartTS == 1 && err != nil {
						t.Fatal(err)
					}
					<-time.After(time.Minute)
					snapshot, err := env.Client.Snapshot(t.Context())
					if err == nil {
						_, _, err = snapshot.Table("t").Get(t.Context(), "other", "f", "other")
					}
					if err != nil {
						t.Fatal(err)
					}
					r.began = time.Now()
					tt.err, r.err = u, u
				}
				ctx, stop := context.WithCancel(t.Context())
				runs, cancel := context.WithCancel(t.Context())
				defer stop()
				defer cancel()
				if tt.ended {
					stop()
				}
				if tt.drained {
					cancel()
				}
				attempt := 4
				if tt.outcome == Unknown {
					attempt = 3
				}
				refuses = true
				res, retry := r.conclude(ctx, runs, attempt)
				refuses = false

				if tt.reported == "" {
					tt.reported = tt.outcome
				}
				if retry != (tt.reported == Conflicted && tt.outcome != Conflicted) || res.again < tt.again[0] || res.again > tt.again[1] || res.upToDate != tt.upToDate || res.failed != (len(tt.stored.letters) > 0 && tt.upToDate) {
					t.Errorf("retry: %t, %+v; want %+v", retry, res, tt)
				}
				if len(events) != 1 || events[0].Outcome != tt.reported || !isError(events[0].Err, tt.is, tt.err) || (tt.reported == Committed && tt.outcome == Unknown) != (events[0].CommitTS > 0) {
					t.Errorf("%+v, want %s %s", events, tt.reported, &logged)
				}
				if !strings.Contains(logged.String(), tt.logged) {
					t.Errorf("logged %s, want %q", &logged, tt.logged)
				}

				after, err := env.Client.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer after.Rollback()
				now, err := changes.Observe(t.Context(), after, cell)
				if err != nil {
					t.Fatal(err)
				}
				if acked := now.Acks["o"] == r.seen.StartTS; acked != tt.stored.acked {
					t.Errorf("acknowledged at %d, the run began at %d", now.Acks["o"], r.seen.StartTS)
				}
				for id, f := range now.Failures {
					if f.Attempts != tt.stored.failures[id].Attempts || !strings.Contains(f.Error, tt.stored.failures[id].Error) || f.FirstTS != first || f.ChangeTS != r.seen.ChangeTS {
						t.Errorf("%s: %+v, first at %d", id, f, first)
					}
					until := r.seen.StartTS.Add(res.again)
					if res.upToDate {
						until = never
					}
					if fresh := f.LastTS == r.seen.StartTS; fresh && f.NotBefore != until && f.NotBefore-until > 1000 || fresh == (f.Error == "earlier") || fresh == (tt.stored.failures[id].Error == "earlier") {
						t.Errorf("%s: %+v, want until %d", id, f, until)
					}
				}
				if len(now.Failures) != len(tt.stored.failures) {
					t.Errorf("failures %+v, want %+v", now.Failures, tt.stored.failures)
				}
				var letters []changes.DeadLetter
				for d, err := range changes.DeadLetters(t.Context(), env.Client) {
					if err != nil {
						t.Fatal(err)
					}
					if d.Cell != cell || d.ChangeTS != r.seen.ChangeTS || d.FirstTS != first || d.ParkedTS <= first {
						t.Errorf("%+v", d)
					}
					if n := len(tt.stored.letters); n > 0 && strings.Contains(d.Error, tt.stored.letters[0].Error) {
						d.Error = tt.stored.letters[0].Error
					}
					letters = append(letters, changes.DeadLetter{Observer: d.Observer, Attempts: d.Attempts, Error: d.Error, TraceParent: d.TraceParent})
				}
				if d := cmp.Diff(tt.stored.letters, letters); d != "" {
					t.Errorf("dead letters (-want +got):\n%s", d)
				}
			})
		})
	}
}

var errAny, errNone = errors.New("any"), errors.New("none")

// isError reports whether err is want, or else what it was before.
func isError(err, want, was error) bool {
	switch want {
	case nil:
		return errors.Is(err, was)
	case errAny:
		return err != nil
	case errNone:
		return err == nil
	}
	return status.Code(err) == status.Code(want) && strings.Contains(err.Error(), "acknowledging a dropped change")
}

// TestDroppedBehindALaterRun: to drop a change takes no acknowledgment back that a later run has stored, and acknowledges
// nothing for an observer that is not registered.
func TestDroppedBehindALaterRun(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, _ *txntest.Faults) {
		observed(t, env.Client, "a")
		cell := txn.Cell{Table: "t", Row: "a", Family: "f", Qualifier: "q"}
		observe := func() (*txn.Txn, *changes.Observation) {
			t.Helper()
			tx, err := c.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			o, err := changes.Observe(t.Context(), tx, cell)
			if err != nil {
				t.Fatal(err)
			}
			return tx, o
		}
		early, seen := observe()
		early.Rollback()
		late, later := observe()
		changes.Acknowledge(late, later, "o")
		if _, err := late.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"o", "removed"} {
			r := &run{worker: &Worker{client: c}, handler: &handler{id: id, timeout: time.Minute}, cell: cell, seen: seen}
			upToDate, again := r.drop(t.Context())
			tx, now := observe()
			tx.Rollback()
			if !upToDate || again != 0 || now.Acks["o"] != later.StartTS || len(now.Acks) != 1 || !slices.Equal(now.Observers, []string{"o"}) {
				t.Errorf("%s: %t, %v; acknowledged %v, the later run began at %d", id, upToDate, again, now.Acks, later.StartTS)
			}
		}
	})
}
