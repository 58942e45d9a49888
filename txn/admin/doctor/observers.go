package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/words"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// oldNotification is how old a change may be that an observer has still to see:
// workers find one within about a minute, and retry a failed one every ten at
// the latest.
const oldNotification = tso.Timestamp(10 * time.Minute / time.Microsecond)

// observers looks for observers that nobody runs, and for what they are behind
// with; it ends after a number of notifications of each table, or at its timeout.
var observers = Check{Name: "observers", Client: true, Timeout: scanTimeout, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	clients, err := admin.Workers(ctx, d.Client)
	if err != nil {
		return err
	}
	now, err := d.now(ctx)
	if err != nil {
		return err
	}
	if err := deadLetters(ctx, d, r); err != nil {
		return err
	}
	var registered atomic.Int64
	var observed sync.Map // tables
	// The notifications of a few large tables may take all the time, so they come last.
	reached := r.reached
	r.reached = nil
	err = r.eachTable(ctx, d, func(ctx context.Context, table string, r *Result) error {
		columns, err := changes.ObservedColumns(ctx, d.Client, table)
		if unreadable(err) || errors.Is(err, txn.ErrNotInitialized) {
			return nil // another check says so
		}
		if err != nil {
			return err
		}
		for _, col := range columns {
			registered.Add(int64(len(col.Observers)))
			for _, id := range col.Observers {
				if !slices.ContainsFunc(clients, func(w admin.Worker) bool { return w.State == admin.OwnerFresh && slices.Contains(w.Observers, id) }) {
					r.find(Warning, id, fmt.Sprintf("no live worker runs it, and it is registered for %s/%s", table, col.Column),
						"changes of the column wait for it, and their notifications stay", "start its workers; if you have retired it, percctl observer remove "+table+" "+id)
				}
			}
		}
		if len(columns) == 0 {
			return nil
		}
		observed.Store(table, true)
		return journal(ctx, d, r, table, now)
	})
	if r.reached = reached; err == nil {
		err = r.eachTable(ctx, d, func(ctx context.Context, table string, r *Result) error {
			if _, ok := observed.Load(table); !ok {
				return nil
			}
			return oldNotifications(ctx, d, r, table, now)
		})
	}
	r.Detail = words.Count(int(registered.Load()), "observer") + " registered"
	return err
}}

// overdue is how long after its time the daily sweep of a table may continue.
const overdue = tso.Timestamp(24 * time.Hour / time.Microsecond)

// journal says whether workers can rely on the journal of pending work of a table.
func journal(ctx context.Context, d *Deployment, r *Result, table string, now tso.Timestamp) error {
	subject := "journal of " + table
	has, err := changes.Journaled(ctx, d.Client, table)
	if err == nil && !has {
		r.find(Note, subject, "the table has no journal of pending work", "workers find a change of another process only by sweeps of the table, which takes hours if it is large", "when every client runs this release, percctl table init "+table)
	}
	if err != nil || !has {
		return err
	}
	positions, err := changes.SweepPositions(ctx, d.Client, nil, table)
	if errors.Is(err, format.ErrCorrupt) || errors.Is(err, format.ErrFormatVersion) {
		r.find(Warning, subject, err.Error(), "workers sweep the table all the time", "percctl version on all machines; if the record is damaged, remove row sweep/"+table+" of the metadata table")
		return nil
	}
	if err != nil {
		return err
	}
	p := positions[0]
	if !p.Complete {
		r.find(Note, subject, "it is not complete before a sweep of the table has ended; the next piece is due at "+words.Stamp(p.DueTS), "until then workers also sweep the table as without a journal", "wait")
	}
	if p.DueTS+overdue < now {
		r.find(Warning, subject, "the daily sweep has not continued since "+words.Stamp(p.DueTS), "a change that the journal lacks waits for it, for example one of a restored backup", "start the workers of its observers; their logs say why they cannot sweep")
	}
	return nil
}

// oldNotifications finds what observers of a table are behind with.
func oldNotifications(ctx context.Context, d *Deployment, r *Result, table string, now tso.Timestamp) error {
	looked, old, oldest := 0, 0, now
	var end error
	for seen, err := range changes.Observations(ctx, d.Client, table, nil) {
		if unreadable(err) {
			break // another check says so
		}
		if err != nil {
			end = err
			break
		}
		if ts := waitsSince(&seen); ts != 0 && ts+oldNotification < now {
			old++
			oldest = min(oldest, ts)
		}
		if looked++; looked >= d.Rows {
			break
		}
	}
	if old == 0 {
		return end
	}
	count := words.Count(old, "notification")
	if looked >= d.Rows || end != nil {
		count = "at least " + count
	}
	r.find(Warning, table, fmt.Sprintf("%s older than %s; the oldest of a change %s ago, at %s", count, words.Duration(time.Duration(oldNotification)*time.Microsecond), words.Between(oldest, now), words.Stamp(oldest)),
		"their observers have not run for these changes, or fail on them", "percctl notify list "+table+" --older-than 10m says why; see docs/operations.md")
	return end
}

// waitsSince is the oldest change that an observer has still to handle; 0: there
// is none. What was given up is a dead letter, and waits for nobody.
func waitsSince(seen *changes.Observation) tso.Timestamp {
	var oldest tso.Timestamp
	for _, id := range seen.Observers {
		f, failed := seen.Failures[id]
		if !seen.Pending(id) || failed && f.ChangeTS == seen.ChangeTS && f.NotBefore == format.Never {
			continue
		}
		for _, t := range seen.Triggers {
			if t.TS > seen.Acks[id] && (oldest == 0 || t.TS < oldest) {
				oldest = t.TS
			}
		}
	}
	return oldest
}

// deadLetters counts what was given up, by observer.
func deadLetters(ctx context.Context, d *Deployment, r *Result) error {
	looked, count := 0, map[string]int{}
	for letter, err := range changes.DeadLetters(ctx, d.Client) {
		if unreadable(err) {
			r.find(Warning, "dead letters", err.Error(), "another version of the library wrote it, or it is damaged", "percctl version on all machines")
			break
		}
		if err != nil {
			return err
		}
		count[letter.Observer]++
		if looked++; looked >= d.Rows {
			break
		}
	}
	for _, id := range slices.Sorted(maps.Keys(count)) {
		what := words.Count(count[id], "dead letter")
		if looked >= d.Rows {
			what = "at least " + what
		}
		r.find(Warning, id, what, "its observer failed too often on these changes, so they have no effect", "percctl notify list --dead --observer "+id+"; when the cause is fixed, percctl notify replay --observer "+id)
	}
	return nil
}
