package session

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/admin"
)

// An Extent knows how far a walk over tables is. Bigtable says where it would divide a
// table, into parts of about the same size.
type Extent struct {
	tables []string
	parts  [][]bigtable.RowSet
	total  int
}

// Extent asks Bigtable for the parts of a range of tables, one request for each table.
func (s *Session) Extent(ctx context.Context, r Range, tables ...string) *Extent {
	e := &Extent{tables: tables}
	for _, name := range tables {
		parts := admin.Parts(ctx, s.Bigtable, name, r.Start, r.End)
		e.parts, e.total = append(e.parts, parts), e.total+len(parts)
	}
	return e
}

// At is the part of the tables that comes before a row of a table, between 0 and 1.
func (e *Extent) At(table, row string) float64 {
	before := 0
	for i, name := range e.tables {
		if name != table {
			before += len(e.parts[i])
			continue
		}
		for j, p := range e.parts[i] {
			if r, ok := p.(bigtable.RowRange); ok && r.Contains(row) {
				before += j
			}
		}
		break
	}
	return float64(before) / float64(max(e.total, 1))
}
