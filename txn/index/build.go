package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/jobs"
)

// A build creates or drops an index.
type build struct {
	*Indexes
	client *txn.Client
	index  *Index
}

func (b *build) create(ctx context.Context, report func(jobs.Status)) error {
	r, err := b.advance(ctx, Absent, DeleteOnly, 0)
	if err == nil && r.State == DeleteOnly {
		r, err = b.announce(ctx, r)
	}
	if err == nil && r.State == Building {
		err = b.fill(ctx, r, report)
	}
	if err == nil {
		err = b.sweepProgress(ctx)
	}
	return err
}

func (b *build) drop(ctx context.Context) error {
	r, err := b.advance(ctx, Ready, Dropping, 0)
	if err == nil && r.State == Absent {
		// The registration of a Create that died may have arrived after an earlier Drop.
		var late changes.Index
		if b.index.Table, late, err = changes.FindIndex(ctx, b.client, b.index.Name, b.place()); err == nil && b.index.Table != "" {
			b.index.Columns = late.Columns
			r, err = b.advance(ctx, Ready, Dropping, 0) // no Create can begin meanwhile
		}
	}
	if err == nil && r.State == Dropping {
		err = b.empty(ctx, r)
	}
	if err == nil {
		err = b.sweepProgress(ctx)
	}
	return err
}

// announce makes clients that do not keep indexes refuse to write the columns, and waits until
// all others know the state DeleteOnly.
func (b *build) announce(ctx context.Context, r record) (record, error) {
	err := changes.RegisterIndex(ctx, b.client, b.index.Table, changes.Index{Name: b.index.Name, Columns: b.index.Columns, Entries: b.place()})
	if err == nil {
		err = wait(ctx, b.client, r.ts+whole)
	}
	if err != nil {
		return r, err
	}
	if r, err = b.advance(ctx, DeleteOnly, Building, r.ts); errors.Is(err, ErrState) {
		if s, stateErr := b.State(ctx, b.client, b.index.Name); stateErr == nil && s == Absent {
			err = errors.Join(err, b.unregister(ctx, b.index.Table)) // Drop was faster than the registration
		}
	}
	return r, err
}

// unregister lets clients write the columns that do not keep indexes. The table may be gone.
func (b *build) unregister(ctx context.Context, table string) error {
	err := changes.UnregisterIndex(ctx, b.client, table, changes.Index{Name: b.index.Name, Entries: b.place()})
	if errors.Is(err, txn.ErrNotInitialized) {
		return nil
	}
	return err
}

// fill adds the entries of all rows, and makes the index readable. r is the record of the
// state Building.
func (b *build) fill(ctx context.Context, r record, report func(jobs.Status)) error {
	// From then on, no client writes the columns that does not know of the index.
	err := changes.AwaitIndex(ctx)
	if err == nil {
		err = wait(ctx, b.client, r.ts+whole)
	}
	if err != nil {
		return err
	}
	// The timestamp distinguishes this build from an earlier one.
	job := b.job(r, report)
	_, err = job.RunBatches(ctx, b.client, func(ctx context.Context, tx *txn.Txn, rows []bigtable.Row) error {
		if err := b.checkState(ctx, tx, Building, r.ts); err != nil {
			return err
		}
		return b.addEntries(ctx, tx, rows)
	})
	if err == nil {
		_, err = b.advance(ctx, Building, Ready, r.ts)
	}
	if err != nil {
		switch now, stateErr := b.readRecord(ctx, b.client, b.index.Name); {
		case stateErr != nil || now.ts == r.ts:
		case now.State == Ready:
			return nil // another call of Create was faster
		default:
			return fmt.Errorf("index: %s: %w: it was dropped meanwhile: %w", b.index.Name, ErrState, err)
		}
	}
	return err
}

// checkState fails if the index has left a state that it entered at ts. The transaction then
// commits before a change of the state that it does not see can have been waited for.
func (b *build) checkState(ctx context.Context, tx *txn.Txn, s State, ts tso.Timestamp) error {
	r, err := b.recordIn(ctx, tx.Table(b.table), b.index.Name)
	tx.CommitBefore(tx.StartTS() + whole)
	if err != nil || r.State == s && r.ts == ts {
		return err
	}
	return fmt.Errorf("index: %s: %w: it is not %s any more", b.index.Name, ErrState, s)
}

// addEntries adds the entries of rows. A transaction that changes one of the rows meanwhile
// writes the same entries, so one of the two conflicts.
func (b *build) addEntries(ctx context.Context, tx *txn.Txn, rows []bigtable.Row) error {
	all := map[string]entry{}
	var at bigtable.RowList
	for _, row := range rows {
		entries, err := b.index.entries(row.Key(), valuesOf(row))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if other, ok := all[e.at]; ok && other.Row != e.Row {
				return &UniqueError{b.index.Name, e.Key, e.Row, other.Row}
			}
			all[e.at] = e
			at = append(at, e.at)
		}
	}
	if len(at) == 0 {
		return nil
	}
	table, c := tx.Table(b.table), b.rowColumn()
	for row, err := range table.ReadRows(ctx, at, txn.Columns(c)) {
		if err != nil {
			return err
		}
		e := all[row.Key()]
		if other := string(row[b.family][0].Value); other != e.Row {
			return &UniqueError{b.index.Name, e.Key, e.Row, other}
		}
		delete(all, row.Key())
	}
	for at, e := range all {
		table.Set(at, c.Family, c.Qualifier, []byte(e.Row))
	}
	return nil
}

// empty removes all entries, and then the record. r is the record of the state Dropping.
func (b *build) empty(ctx context.Context, r record) error {
	if err := wait(ctx, b.client, r.ts+whole); err != nil {
		return err
	}
	job := b.job(r, nil)
	_, err := job.RunBatches(ctx, b.client, func(ctx context.Context, tx *txn.Txn, rows []bigtable.Row) error {
		for c := b.rowColumn(); len(rows) > 0; rows = rows[1:] {
			tx.Table(b.table).Delete(rows[0].Key(), c.Family, c.Qualifier)
		}
		return b.checkState(ctx, tx, Dropping, r.ts)
	})
	if err == nil {
		err = b.unregister(ctx, r.Table)
	}
	if err == nil {
		_, err = b.advance(ctx, Dropping, Absent, r.ts)
	}
	if err != nil {
		if now, stateErr := b.readRecord(ctx, b.client, b.index.Name); stateErr == nil && now.ts != r.ts {
			return nil // another call of Drop was faster
		}
	}
	return err
}

// sweepProgress removes what builds and drops of an index have left of their progress, except
// for one that is under way.
func (b *build) sweepProgress(ctx context.Context) error {
	_, err := b.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		table := tx.Table(b.table)
		r, err := b.recordIn(ctx, table, b.index.Name)
		if err != nil {
			return err
		}
		for _, kind := range []string{"build", "drop"} {
			of := progressName(kind, b.index.Name, 0)
			// An index of the same name may have its progress in another family of the rows.
			for row, err := range table.ReadRows(ctx, prefix(strings.TrimSuffix(of, "0")), txn.Families(b.family)) {
				if err != nil {
					return err
				}
				if current := progressName(kind, b.index.Name, r.ts); row.Key() != current && !strings.HasPrefix(row.Key(), current+"/") {
					for _, item := range row[b.family] {
						table.Delete(row.Key(), b.family, item.Column[len(b.family)+1:])
					}
				}
			}
		}
		return nil
	})
	return err
}

func progressName(kind, index string, ts tso.Timestamp) string {
	return fmt.Sprintf("!%s/%s/%d", kind, index, ts)
}

// job is the job of the state Building or Dropping. Its progress is in the table of entries.
func (b *build) job(r record, report func(jobs.Status)) jobs.Job {
	job := jobs.Job{Progress: b.table, Family: b.family, BatchRows: 200, Report: report}
	if r.State == Dropping {
		job.Name, job.Table, job.Range, job.Options = progressName("drop", b.index.Name, r.ts), b.table, jobs.Prefix(b.index.base()), []txn.ReadOption{txn.Columns(b.rowColumn())}
	} else {
		if b.index.Keys != nil {
			job.BatchRows = 20 // a row may have maxKeys keys
		}
		job.Name, job.Table, job.Options = progressName("build", b.index.Name, r.ts), b.index.Table, []txn.ReadOption{txn.Columns(b.index.Columns...)}
	}
	return job
}

// progress reads how far the job has come.
func (b *build) progress(ctx context.Context) (jobs.Status, error) {
	r, err := b.readRecord(ctx, b.client, b.index.Name)
	if err != nil || r.State != Building && r.State != Dropping {
		return jobs.Status{}, err
	}
	job := b.job(r, nil)
	return job.Status(ctx, b.client)
}

// advance moves an index from one state to the next, and returns the record, unless it has moved it
// to a last state. If it is in a later state, advance leaves it there. since, if not 0, is when it entered the state from.
func (b *build) advance(ctx context.Context, from, to State, since tso.Timestamp) (r record, err error) {
	_, err = b.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		table, c := tx.Table(b.table), b.stateColumn()
		if r, err = b.recordIn(ctx, table, b.index.Name); err != nil {
			return err
		}
		next := b.index.record(to)
		switch {
		case to == Absent:
			if r.State == Dropping && r.ts == since {
				table.Delete(statePrefix+b.index.Name, c.Family, c.Qualifier)
			}
			return nil
		case to == Dropping:
			switch {
			case r.State == Dropping, r.State == Absent && b.index.Table == "":
				return nil
			case r.State != Absent:
				next = r
				next.State = to
			}
		case r.State == Dropping:
			return fmt.Errorf("index: %s: %w: it is being dropped; finish that first (Drop)", b.index.Name, ErrState)
		case r.State != Absent && b.index.check(r) != nil:
			return b.index.check(r)
		case r.State.rank() >= to.rank():
			return nil
		case r.State != from || since != 0 && r.ts != since:
			return fmt.Errorf("index: %s: %w: it was dropped meanwhile", b.index.Name, ErrState)
		}
		text, err := json.Marshal(next)
		if err != nil {
			return err
		}
		table.Set(statePrefix+b.index.Name, c.Family, c.Qualifier, text)
		r = record{}
		return nil
	})
	if err != nil || r.ts != 0 || to == Absent || to == Ready {
		return r, err
	}
	// The timestamp of the record is that of its commit, also if it was written just now.
	return b.readRecord(ctx, b.client, b.index.Name)
}

// wait waits until the oracle's time is above ts.
func wait(ctx context.Context, client *txn.Client, ts tso.Timestamp) error {
	for {
		now, err := client.Timestamp(ctx)
		if err != nil || now > ts {
			return err
		}
		timer := time.NewTimer(time.Duration(ts-now+1) * time.Microsecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("index: waiting until every client knows the state of an index: %w", ctx.Err())
		}
	}
}
