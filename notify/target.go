package notify

import "github.com/percolator-bigtable/percolator/txn"

// A target is what an observer watches: one column of a table, in every row, or the columns of a
// pattern.
type target struct {
	table  string
	column txn.Column
}

func targetOf(cell txn.Cell) target { return target{cell.Table, cell.Column()} }

// contains reports whether a target is other, or a pattern that other is in.
func (t target) contains(other target) bool {
	return t.table == other.table && t.column.Matches(other.column)
}

// String returns table/family:qualifier.
func (t target) String() string { return t.table + "/" + t.column.String() }
