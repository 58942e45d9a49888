package watch

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Sample is what some rows of a table hold.
type Sample struct {
	Rows    int `json:"rows"`     // rows that were read
	Cells   int `json:"cells"`    // Bigtable cells in them
	Records int `json:"versions"` // versions, by their write records
	Garbage int `json:"garbage"`  // versions that newer ones hide
}

// sampleRows and sampleCells bound a sample: at 50 bytes a cell, 100 kB. The row that
// exceeds sampleCells is its last.
const (
	sampleRows  = 50
	sampleCells = 2000
)

// sampleFilter returns the write records, and the other cells without their values.
var sampleFilter = bigtable.InterleaveFilters(bigtable.ChainFilters(family(format.WriteFamily), bigtable.CellsPerRowLimitFilter(200)),
	bigtable.ChainFilters(bigtable.StripValueFilter(), bigtable.CellsPerRowLimitFilter(1000)))

// An Edge says that runs of an observer write a column.
type Edge struct {
	Column   string `json:"column"`   // the observed column: table, family and qualifier
	Observer string `json:"observer"` // id of the observer
	Writes   string `json:"writes"`   // a column that its runs write
}

// EdgeOf is what the primary of a transaction says of a cell that it wrote: the primary of an
// observer's run is its acknowledgment.
func EdgeOf(primary, wrote format.Cell) (e Edge, ok bool) {
	col, observer, ok := format.ObserverOf(primary.Column())
	if !ok || wrote.Family == format.AckFamily {
		return e, false
	}
	return Edge{primary.Table + "/" + col.String(), observer, wrote.Table + "/" + wrote.Column().String()}, true
}

// readSample reads some rows from start on.
func readSample(ctx context.Context, bt *bigtable.Client, table, start, end string) (s Sample, edges []Edge, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err = bt.Open(table).ReadRows(ctx, bigtable.NewRange(start, end), func(r bigtable.Row) bool {
		s.Rows++
		columns := map[string]int{}
		for family, items := range r {
			for _, item := range items {
				if family == format.WriteFamily && len(item.Value) == 0 {
					continue // it comes again with its value
				}
				if s.Cells++; family != format.WriteFamily {
					continue
				}
				columns[item.Column]++
				_, cell, err := format.MetadataCell(table, r.Key(), item)
				if err != nil {
					continue
				}
				if w, err := format.DecodeWrite(cell, tso.FromCell(item.Timestamp), item.Value); err == nil {
					if e, ok := EdgeOf(w.Primary, cell); ok {
						edges = append(edges, e)
					}
				}
			}
		}
		for _, n := range columns {
			s.Records += n
			s.Garbage += n - 1
		}
		return s.Cells < sampleCells
	}, bigtable.RowFilter(sampleFilter), bigtable.LimitRows(sampleRows))
	return s, edges, err
}
