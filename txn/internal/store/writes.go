package store

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Write is one buffered write of a cell.
type Write struct {
	Cell     format.Cell
	Kind     format.Kind
	Value    []byte
	Promoted bool // a lock-only write that a serializable transaction makes for a read
	Observed bool // the column is observed; set when the commit begins
}

// RowWrites are a transaction's writes of one row, in the order of their columns.
type RowWrites struct {
	Table  *Table
	Row    string
	Writes []*Write
	// Checked is the schema by which the commit has checked the writes.
	Checked *Schema
	// Touched says that a prewrite of the row may have taken effect.
	Touched bool
	// Unanswered says that the outcome of a prewrite of the row was unknown.
	Unanswered bool
	// IsPart says that these are some of the row's writes.
	IsPart bool
	// waits is since when a prewrite of the row has not been answered, in nanoseconds since 1970; 0:
	// none is under way.
	waits int64
}

// Sent notes that a prewrite of the row is sent, unless one is under way.
func (r *RowWrites) Sent(at time.Time) { atomic.CompareAndSwapInt64(&r.waits, 0, at.UnixNano()) }

// Answered notes that the row has answered.
func (r *RowWrites) Answered() { atomic.StoreInt64(&r.waits, 0) }

// Waits returns for how long a prewrite of the row has not been answered; 0: none is under way.
func (r *RowWrites) Waits() time.Duration {
	if since := atomic.LoadInt64(&r.waits); since != 0 {
		return time.Duration(time.Now().UnixNano() - since)
	}
	return 0
}

// Observed returns the cells of the row that get a notify cell.
func (r *RowWrites) Observed() []format.Cell {
	var cells []format.Cell
	for _, w := range r.Writes {
		if w.Observed {
			cells = append(cells, w.Cell)
		}
	}
	return cells
}

// Columns returns the columns of the row's writes.
func (r *RowWrites) Columns() []format.Column {
	cols := make([]format.Column, len(r.Writes))
	for i, w := range r.Writes {
		cols[i] = w.Cell.Column()
	}
	return cols
}

// maxNamedColumns is how many columns of a row one prewrite names at most. The emulator
// copies the row for each of them, and Bigtable searches for each.
const maxNamedColumns = 8

// Wide reports whether one prewrite should not name all of the row's columns.
func (r *RowWrites) Wide() bool {
	if len(r.Writes) > maxNamedColumns {
		return true
	}
	cost := 0
	for _, w := range r.Writes {
		cost += PrewriteCost(w.Cell.Column())
	}
	return cost > FilterBudget
}

// Split divides the row's writes so that the prewrite of each part fits into Bigtable's limit
// on filters. The protocol locks cells one by one, so the parts of a row may be prewritten
// one after the other.
func (r *RowWrites) Split() []*RowWrites {
	var parts []*RowWrites
	cost := FilterBudget
	for _, w := range r.Writes {
		c := PrewriteCost(w.Cell.Column())
		if cost+c > FilterBudget {
			parts = append(parts, &RowWrites{Table: r.Table, Row: r.Row, IsPart: true})
			cost = 0
		}
		last := parts[len(parts)-1]
		last.Writes = append(last.Writes, w)
		cost += c
	}
	return parts
}

// IsRowOf reports whether the cell is in this row.
func (r *RowWrites) IsRowOf(c format.Cell) bool { return r.Table.Name == c.Table && r.Row == c.Row }

// Check returns an error that matches format.ErrLimit if the commit of the row would exceed a
// limit: a prewrite makes two changes for each column, the commit three.
func (r *RowWrites) Check() error {
	if n := 3 * len(r.Writes); n > format.MaxMutations {
		return format.Limitf("%d columns written in row %q of table %q; the mutation that commits a row has room for %d", len(r.Writes), r.Row, r.Table.Name, format.MaxMutations/3)
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

// ByTable divides rows by their tables.
func ByTable(rows []*RowWrites) (parts [][]*RowWrites) {
	if !slices.ContainsFunc(rows, func(r *RowWrites) bool { return r.Table != rows[0].Table }) {
		return [][]*RowWrites{rows}
	}
	for _, row := range rows {
		i := slices.IndexFunc(parts, func(p []*RowWrites) bool { return p[0].Table == row.Table })
		if i < 0 {
			i, parts = len(parts), append(parts, nil)
		}
		parts[i] = append(parts[i], row)
	}
	return parts
}

// NameBytes returns an upper bound of the bytes that names take in a mutation of the row: up
// to three times the name of each cell, and the name of the primary in each record.
func (r *RowWrites) NameBytes(primary format.Cell) int {
	n := len(r.Writes) * (len(primary.Row) + len(primary.Qualifier))
	for _, w := range r.Writes {
		n += 3 * (len(w.Cell.Family) + len(w.Cell.Qualifier))
	}
	return n
}
