package index

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/jobs"
)

// A Problem is a difference between a table and an index of it.
type Problem struct {
	Index string
	// What is missing, wrong, orphan or damaged:
	//
	//   - missing: the row has the key, and there is no entry of it;
	//   - wrong: the entry of the row's key in a unique index is about the row Other;
	//   - orphan: the entry is about a row that does not have the key;
	//   - damaged: the entry cannot be read, and Other is its place.
	What string
	Key  Key
	Row  string
	// Other is another row, or a place in the table of entries.
	Other string
}

// String describes the problem.
func (p Problem) String() string {
	return fmt.Sprintf("index %s: %s: key %q, row %q, %q", p.Index, p.What, []string(p.Key), p.Row, p.Other)
}

// verifyRows is how many rows and entries Verify compares at once.
const verifyRows = 256

// verify does the work of Indexes.Verify.
func verify(ctx context.Context, x *Indexes, client *txn.Client, name string, report func(Problem)) error {
	i, err := x.find(name)
	if err != nil {
		return err
	}
	snapshot, err := client.Snapshot(ctx, txn.Hold())
	if errors.Is(err, txn.ErrInvalid) { // the client has no worker token
		snapshot, err = client.Snapshot(ctx)
	}
	if err != nil {
		return err
	}
	defer snapshot.Release()
	if _, err = x.At(snapshot).stateApart(ctx, i); err != nil {
		return err
	}
	v := &verification{x: x, i: i, snapshot: snapshot, report: report}
	if err := v.inBatches(ctx, client, i.Table, jobs.Range{}, txn.Columns(i.Columns...), v.rows); err != nil {
		return err
	}
	return v.inBatches(ctx, client, x.table, jobs.Prefix(i.base()), txn.Columns(x.rowColumn()), v.entries)
}

type verification struct {
	x        *Indexes
	i        *Index
	snapshot *txn.Snapshot

	mu     sync.Mutex // of report
	report func(Problem)
}

// inBatches calls f for all rows of a range, verifyRows at a time.
func (v *verification) inBatches(ctx context.Context, client *txn.Client, table string, r jobs.Range, columns txn.ReadOption, f func(context.Context, []bigtable.Row) error) error {
	const parallel = 8
	var batches [parallel][]bigtable.Row
	err := jobs.Scan{Snapshot: v.snapshot, Table: table, Range: r, Parallel: parallel, Options: []txn.ReadOption{columns}}.Run(ctx, client, func(ctx context.Context, part int, row bigtable.Row) error {
		batches[part] = append(batches[part], row)
		if len(batches[part]) < verifyRows {
			return nil
		}
		defer func() { batches[part] = nil }()
		return f(ctx, batches[part])
	})
	for _, rest := range batches {
		if err == nil && len(rest) > 0 {
			err = f(ctx, rest)
		}
	}
	return err
}

// rows checks that the entries of rows are there.
func (v *verification) rows(ctx context.Context, rows []bigtable.Row) error {
	want := map[string]entry{}
	var at bigtable.RowList
	for _, row := range rows {
		entries, err := v.i.entries(row.Key(), valuesOf(row))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if other, ok := want[e.at]; ok && other.Row != e.Row {
				v.found(Problem{What: "wrong", Key: e.Key, Row: e.Row, Other: other.Row})
				continue
			}
			want[e.at] = e
			at = append(at, e.at)
		}
	}
	if len(at) == 0 {
		return nil
	}
	for row, err := range v.snapshot.Table(v.x.table).ReadRows(ctx, at, txn.Columns(v.x.rowColumn())) {
		if err != nil {
			return err
		}
		e := want[row.Key()]
		if other := string(row[v.x.family][0].Value); other != e.Row {
			v.found(Problem{What: "wrong", Key: e.Key, Row: e.Row, Other: other})
		}
		delete(want, row.Key())
	}
	for _, e := range want {
		v.found(Problem{What: "missing", Key: e.Key, Row: e.Row})
	}
	return nil
}

// entries checks that rows have the keys of entries.
func (v *verification) entries(ctx context.Context, entries []bigtable.Row) error {
	byRow := map[string][]entry{}
	var keys bigtable.RowList
	for _, row := range entries {
		of := string(row[v.x.family][0].Value)
		e, err := v.i.decodeEntry(row.Key(), of)
		if err != nil || format.CheckRowKey(of) != nil {
			v.found(Problem{What: "damaged", Row: of, Other: row.Key()})
			continue
		}
		if byRow[of] == nil {
			keys = append(keys, of)
		}
		byRow[of] = append(byRow[of], entry{e, row.Key()})
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	for row, err := range v.snapshot.Table(v.i.Table).ReadRows(ctx, keys, txn.Columns(v.i.Columns...)) {
		if err != nil {
			return err
		}
		have, err := v.i.entries(row.Key(), valuesOf(row))
		if err != nil {
			return err
		}
		byRow[row.Key()] = slices.DeleteFunc(byRow[row.Key()], func(e entry) bool {
			return slices.ContainsFunc(have, func(h entry) bool { return h.at == e.at })
		})
	}
	for _, orphans := range byRow {
		for _, e := range orphans {
			v.found(Problem{What: "orphan", Key: e.Key, Row: e.Row, Other: e.at})
		}
	}
	return nil
}

func (v *verification) found(p Problem) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p.Index = v.i.Name
	v.report(p)
}
