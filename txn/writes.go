package txn

// A write is one buffered write of a cell.
type write struct {
	cell     Cell
	kind     Kind
	value    []byte
	promoted bool // a lock that a serializable transaction took for a read
	observed bool // set when the commit begins
}

// rowWrites are a transaction's writes of one row, in order of their columns.
type rowWrites struct {
	table  *table
	row    string
	writes []*write
	// touched: a prewrite may have been sent.
	touched bool
}

// observed are the row's cells that get a notify cell.
func (r *rowWrites) observed() []Cell {
	var cells []Cell
	for _, w := range r.writes {
		if w.observed {
			cells = append(cells, w.cell)
		}
	}
	return cells
}

func (r *rowWrites) columns() []Column {
	cols := make([]Column, len(r.writes))
	for i, w := range r.writes {
		cols[i] = w.cell.Column()
	}
	return cols
}

// maxNamedColumns is up to how many columns of a row a prewrite names at once: the
// emulator copies the row for each of them, and Bigtable looks for each.
const maxNamedColumns = 8

// wide reports that a prewrite should not name all of the row's columns at once.
func (r *rowWrites) wide() bool {
	if len(r.writes) > maxNamedColumns {
		return true
	}
	all := 0
	for _, w := range r.writes {
		all += prewriteCost(w.cell.Column())
	}
	return all > filterBudget
}

// split cuts the row's writes so that a prewrite of each part fits into
// Bigtable's limit on filters. Cells are locked one by one in the protocol, so a
// row may be prewritten in parts.
func (r *rowWrites) split() []*rowWrites {
	var parts []*rowWrites
	cost := filterBudget
	for _, w := range r.writes {
		c := prewriteCost(w.cell.Column())
		if cost+c > filterBudget {
			parts = append(parts, &rowWrites{table: r.table, row: r.row})
			cost = 0
		}
		last := parts[len(parts)-1]
		last.writes = append(last.writes, w)
		cost += c
	}
	return parts
}

func (r *rowWrites) holds(c Cell) bool { return r.table.name == c.Table && r.row == c.Row }

// check bounds what a commit sends for one row: the prewrite's two
// and the commit's three changes a column, and the row's bytes.
func (r *rowWrites) check() error {
	if n := 3 * len(r.writes); n > maxMutations {
		return limit("%d columns written in row %q of table %q; at most %d fit into the one mutation that commits a row", len(r.writes), r.row, r.table.name, maxMutations/3)
	}
	bytes := 0
	for _, w := range r.writes {
		bytes += len(w.value) + 2*len(w.cell.Qualifier)
	}
	if bytes > maxRowBytes {
		return limit("%d bytes written to row %q of table %q; Bigtable allows %d in a row", bytes, r.row, r.table.name, maxRowBytes)
	}
	return nil
}

// names bounds the bytes of names in a mutation of the row: each cell's up to
// three times, and those of the primary in each record.
func (r *rowWrites) names(primary Cell) int {
	n := len(r.writes) * (len(primary.Row) + len(primary.Qualifier))
	for _, w := range r.writes {
		n += 3 * (len(w.cell.Family) + len(w.cell.Qualifier))
	}
	return n
}
