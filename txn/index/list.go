package index

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// An Info is what is recorded of an index. If Function is true, Index lacks its Keys.
type Info struct {
	Index
	Function bool
	State    State
	Since    tso.Timestamp // when it entered the state
}

// List reads the records of all indexes whose entries are in a family of a table, in order of
// their names.
func List(ctx context.Context, client *txn.Client, table, family string) ([]Info, error) {
	x, err := New(table, family)
	if err != nil {
		return nil, err
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var all []Info
	for row, err := range snapshot.Table(table).ReadRows(ctx, prefix(statePrefix), txn.Columns(x.stateColumn())) {
		if err != nil {
			return all, err
		}
		name, item := row.Key()[len(statePrefix):], row[family][0]
		r, err := decodeRecord(name, item.Value, tso.Timestamp(item.Timestamp))
		if err != nil {
			return all, err
		}
		i, err := r.index(name)
		if err != nil {
			return all, err
		}
		all = append(all, Info{*i, r.Keys, r.State, r.ts})
	}
	return all, nil
}
