package notify_test

import (
	"context"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// effects returns what every run has seen that committed, by its start_ts. It checks what the runs
// were told about the runs before.
func (s *simulation) effects(ctx context.Context) map[promise]map[tso.Timestamp]string {
	snapshot, err := s.env.Client.Snapshot(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	type told struct {
		of       promise
		ack      tso.Timestamp
		previous string
	}
	var all []told
	runs := map[promise]map[tso.Timestamp]string{}
	changes := map[string]bool{}
	for row, err := range snapshot.Table("effects").ReadRows(ctx, nil) {
		if err != nil {
			s.t.Fatal(err)
		}
		var id, name, qualifier, seen, previous string
		var change, start, ack tso.Timestamp
		if _, err := fmt.Sscanf(string(row["e"][0].Value), "%s %s %s %d %d %s %d %s", &id, &name, &qualifier, &change, &start, &seen, &ack, &previous); err != nil {
			s.t.Fatal(err)
		}
		p := promise{id, cellIn(columnOf(watched[id].table, watched[id].RealFamily(), qualifier), name)}
		if key := fmt.Sprintf("%v %d", p, change); changes[key] {
			s.t.Errorf("observer %s committed two effects of change %d of %s", id, change, p.cell)
		} else {
			changes[key] = true
		}
		if runs[p] == nil {
			runs[p] = map[tso.Timestamp]string{}
		}
		runs[p][start] = seen
		if previous != "unasked" {
			all = append(all, told{p, ack, previous})
		}
		s.counts["effects"]++
	}
	for _, run := range all {
		want, ran := runs[run.of][run.ack]
		if !ran {
			want, ran = s.drops[run.of][run.ack]
		}
		if !ran {
			want = seenValue(nil, false)
		}
		if s.counts["previous values"]++; run.previous != want {
			s.t.Errorf("a run of %s for %s was told the previous value %s; the run at %d has seen %s", run.of.observer, run.of.cell, run.previous, run.ack, want)
		}
	}
	return runs
}

// check checks that everything promised was done, and that nothing is left.
func (s *simulation) check(ctx context.Context) {
	tables := []string{"docs", "effects"}
	if s.adopted {
		tables = append(tables, adopted.table)
	}
	runs := s.effects(ctx)
	tx, err := s.env.Client.Begin(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	defer tx.Rollback()
	for _, p := range s.promises() {
		id := p.observer
		o, err := changes.Observe(ctx, tx, p.cell)
		if err != nil {
			s.t.Fatal(err)
		}
		ack := o.Acks[id]
		_, ran := runs[p][ack]
		_, dropped := s.drops[p][ack]
		if ack > 0 && !ran && !dropped {
			s.t.Errorf("observer %s acknowledged %s at %d without a run", id, p.cell, ack)
		}
		if want, why := s.owed(p, o); want > ack {
			s.t.Errorf("LOST: observer %s has acknowledged %s up to %d, and not the change at %d (%s); the newest that is stored is %d", id, p.cell, ack, want, why, o.ChangeTS)
		}
	}
	for _, table := range tables {
		for n, err := range changes.Notifications(ctx, s.env.Client, table, nil) {
			s.t.Errorf("left: %+v (error: %v)", n, err)
		}
		if _, err := workload.ResolveAll(ctx, s.env.Client, table); err != nil {
			s.t.Error(err)
		}
		for v, err := range admin.Check(ctx, s.env.Client, table, nil) {
			s.t.Errorf("consistency check: %v (error: %v)", v, err)
		}
	}
	for _, d := range s.letters(ctx, s.env.Client) {
		s.t.Errorf("left: %+v", d)
	}
}

// promises are all that the registered observers are owed something for.
func (s *simulation) promises() (all []promise) {
	for _, id := range observerIDs {
		for _, col := range columnsOf(id) {
			for _, row := range s.mix.rows {
				if !s.since[id].IsZero() {
					all = append(all, promise{id, cellIn(col, row)})
				}
			}
		}
	}
	return all
}

// owed returns the newest change that an observer must have seen, and why.
func (s *simulation) owed(p promise, o *changes.Observation) (want tso.Timestamp, why string) {
	from := s.since[p.observer].Add(noticed)
	dropped := s.dropped[p]
	add := func(ts tso.Timestamp, at time.Time, because string) {
		// An operator who drops a dead letter gives up what was asked for before.
		if ts > want && (ts > dropped.change || at.After(dropped.began)) {
			want, why = ts, because
		}
	}
	newest := o.ChangeTS
	for _, ts := range s.written[p.cell] {
		newest = max(newest, ts)
		if at := time.UnixMicro(int64(ts)); at.After(from) {
			add(ts, at, "committed")
		}
	}
	if at := time.UnixMicro(int64(o.ChangeTS)); at.After(from) {
		add(o.ChangeTS, at, "stored")
	}
	for _, r := range s.asked {
		if r.began.Before(from) {
			continue
		}
		switch {
		case r.observer != "":
			if (promise{r.observer, r.cell}) == p {
				add(r.change, r.began, "replayed")
			}
		// Nothing shows that a delete is pending once it is collected. A Backfill
		// finds values only.
		case newest > r.ts || newest != o.ChangeTS || !s.present(p.cell):
		case r.cell == p.cell:
			add(newest, r.began, "notified")
		case r.of.table == p.cell.Table && r.of.Column.Matches(p.cell.Column()):
			add(newest, r.began, "backfilled")
		}
	}
	return want, why
}

func (s *simulation) present(cell txn.Cell) bool {
	return value(s.t, s.env.Client, column{cell.Table, cell.Column()}, cell.Row) != ""
}
