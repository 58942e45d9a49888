package notify

import "github.com/percolator-bigtable/percolator/txn"

// A target is what an observer watches: one column of a table, in every row.
type target struct {
	table  string
	column txn.Column
}

func targetOf(cell txn.Cell) target { return target{cell.Table, cell.Column()} }

// String returns table/family:qualifier.
func (t target) String() string { return t.table + "/" + t.column.String() }
