package store

import (
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A write is one buffered write of a cell.
type Write struct {
	Cell     format.Cell
	Kind     format.Kind
	Value    []byte
	Promoted bool // a lock that a serializable transaction took for a read
	Observed bool // set when the commit begins
}

// RowWrites are a transaction's writes of one row, in order of their columns.
type RowWrites struct {
	Table  *Table
	Row    string
	Writes []*Write
	// Touched: a prewrite may have been sent.
	Touched bool
}

// Observed are the row's cells that get a notify cell.
func (r *RowWrites) Observed() []format.Cell {
	var cells []format.Cell
	for _, w := range r.Writes {
		if w.Observed {
			cells = append(cells, w.Cell)
		}
	}
	return cells
}

func (r *RowWrites) Columns() []format.Column {
	cols := make([]format.Column, len(r.Writes))
	for i, w := range r.Writes {
		cols[i] = w.Cell.Column()
	}
	return cols
}

// maxNamedColumns is up to how many columns of a row a prewrite names at once: the
// emulator copies the row for each of them, and Bigtable looks for each.
const maxNamedColumns = 8

// Wide reports that a prewrite should not name all of the row's columns at once.
func (r *RowWrites) Wide() bool {
	if len(r.Writes) > maxNamedColumns {
		return true
	}
	all := 0
	for _, w := range r.Writes {
		all += PrewriteCost(w.Cell.Column())
	}
	return all > FilterBudget
}

// Split cuts the row's writes so that a prewrite of each part fits into
// Bigtable's limit on filters. Cells are locked one by one in the protocol, so a
// row may be prewritten in parts.
func (r *RowWrites) Split() []*RowWrites {
	var parts []*RowWrites
	cost := FilterBudget
	for _, w := range r.Writes {
		c := PrewriteCost(w.Cell.Column())
		if cost+c > FilterBudget {
			parts = append(parts, &RowWrites{Table: r.Table, Row: r.Row})
			cost = 0
		}
		last := parts[len(parts)-1]
		last.Writes = append(last.Writes, w)
		cost += c
	}
	return parts
}

func (r *RowWrites) IsRowOf(c format.Cell) bool { return r.Table.Name == c.Table && r.Row == c.Row }

// Check bounds what a commit sends for one row: the prewrite's two
// and the commit's three changes a column, and the row's bytes.
func (r *RowWrites) Check() error {
	if n := 3 * len(r.Writes); n > format.MaxMutations {
		return format.Limitf("%d columns written in row %q of table %q; at most %d fit into the one mutation that commits a row", len(r.Writes), r.Row, r.Table.Name, format.MaxMutations/3)
	}
	bytes := 0
	for _, w := range r.Writes {
		bytes += len(w.Value) + 2*len(w.Cell.Qualifier)
	}
	if bytes > format.MaxRowBytes {
		return format.Limitf("%d bytes written to row %q of table %q; Bigtable allows %d in a row", bytes, r.Row, r.Table.Name, format.MaxRowBytes)
	}
	return nil
}

// NameBytes bounds the bytes of names in a mutation of the row: each cell's up to
// three times, and those of the primary in each record.
func (r *RowWrites) NameBytes(primary format.Cell) int {
	n := len(r.Writes) * (len(primary.Row) + len(primary.Qualifier))
	for _, w := range r.Writes {
		n += 3 * (len(w.Cell.Family) + len(w.Cell.Qualifier))
	}
	return n
}
