package admin

import (
	"context"
	"maps"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A cellScan searches a table for a cell that belongs to transactions: a cell in a
// metadata family, or one of data at 1e17 µs or above. It reads page by page, and
// of each row at most one cell for each kind, without its value.
type cellScan struct {
	table *store.Table
	// metadata are the metadata families that the table has.
	metadata []string
	// sample limits the rows that are read, spread over the table; 0 is all.
	sample   int
	progress func(rows int)

	rows  int  // read so far
	whole bool // the table has no others
}

type foundCell struct {
	cell   format.Cell
	family string
	at     bigtable.Timestamp
}

// sampleParts is how many places of the table a sample reads.
const sampleParts = 64

func (s *cellScan) run(ctx context.Context) (*foundCell, error) {
	parts := []store.KeyRange{{}}
	s.whole = true
	if s.sample > 0 {
		parts = split(ctx, s.table)
		for len(parts) > sampleParts {
			parts, s.whole = everyOther(parts), false
		}
	}
	for i, part := range parts {
		most := 0
		if s.sample > 0 {
			// The rows that a small part lacks are read in the next ones.
			most = max(1, (s.sample-s.rows)/(len(parts)-i))
		}
		found, err := s.part(ctx, part, most)
		if found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// split divides a table as Bigtable's tablets do. If Bigtable does not say how, the
// result is the whole table.
func split(ctx context.Context, t *store.Table) []store.KeyRange {
	rctx, cancel := t.Timeout(ctx)
	defer cancel()
	keys, err := t.API.SampleRowKeys(rctx)
	if err != nil {
		return []store.KeyRange{{}}
	}
	slices.Sort(keys)
	var parts []store.KeyRange
	start := ""
	for _, k := range slices.Compact(keys) {
		if k > start {
			parts = append(parts, store.KeyRange{Start: start, End: k})
			start = k
		}
	}
	return append(parts, store.KeyRange{Start: start, End: ""})
}

func everyOther(parts []store.KeyRange) []store.KeyRange {
	var some []store.KeyRange
	for i := 0; i < len(parts); i += 2 {
		some = append(some, parts[i])
	}
	return some
}

// part reads at most that many rows of a range, or all if most is 0.
func (s *cellScan) part(ctx context.Context, part store.KeyRange, most int) (found *foundCell, err error) {
	first := store.Chain(bigtable.CellsPerRowLimitFilter(1), bigtable.StripValueFilter())
	filters := []bigtable.Filter{
		first, // so that every row counts, and a page ends
		store.Chain(bigtable.TimestampRangeFilterMicros(format.PlainBefore, 0), first),
	}
	for _, f := range s.metadata {
		filters = append(filters, store.Chain(store.WholeFamily(f), first))
	}
	rest := store.RowSet{Ranges: []store.KeyRange{part}}
	var pieces store.Pieces
	for seen := 0; !rest.Empty(); {
		page := store.MaxPageRows
		if most > 0 {
			page = min(page, most-seen)
		}
		n := 0
		var err error
		rest, err = s.table.ReadPage(ctx, &pieces, rest, page, store.Interleave(filters...), func(row bigtable.Row) bool {
			n++
			found = s.cell(row)
			return found == nil
		})
		s.rows += n
		seen += n
		if found != nil || err != nil || rest.Empty() {
			return found, err
		}
		if s.progress != nil {
			s.progress(s.rows)
		}
		if most > 0 && seen >= most {
			s.whole = false
			return nil, nil
		}
	}
	return nil, nil
}

func (s *cellScan) cell(row bigtable.Row) *foundCell {
	for _, family := range slices.Sorted(maps.Keys(row)) {
		for _, item := range row[family] {
			if item.Timestamp < format.PlainBefore && !slices.Contains(s.metadata, family) {
				continue
			}
			c, _ := format.SplitColumn(item.Column)
			return &foundCell{format.Cell{Table: s.table.Name, Row: row.Key(), Family: c.Family, Qualifier: c.Qualifier}, family, item.Timestamp}
		}
	}
	return nil
}
