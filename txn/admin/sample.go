package admin

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// samplingTimeout bounds a request that only makes later ones smaller.
const samplingTimeout = 10 * time.Second

// Parts divides the rows of a table from start to before end (empty: the end of the table)
// where Bigtable would, so that each part can be read in a bounded time. If Bigtable does
// not say where, there is one part.
func Parts(ctx context.Context, bt *bigtable.Client, table, start, end string) []bigtable.RowSet {
	ctx, cancel := context.WithTimeout(ctx, samplingTimeout)
	defer cancel()
	keys, err := bt.Open(table).SampleRowKeys(ctx)
	if err != nil {
		keys = nil
	}
	var parts []bigtable.RowSet
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		if k > start && (end == "" || k < end) {
			parts = append(parts, bigtable.NewRange(start, k))
			start = k
		}
	}
	return append(parts, bigtable.NewRange(start, end))
}

// A RowSample counts what a sample of rows holds.
type RowSample struct {
	Rows          int  `json:"rows"`           // rows read
	Whole         bool `json:"all_rows"`       // whether these are all rows of the table
	Parts         int  `json:"tablets"`        // parts in which Bigtable would split the table
	Values        int  `json:"values"`         // data cells, all versions
	Plain         int  `json:"plain_values"`   // data cells written without transactions
	Bytes         int  `json:"value_bytes"`    // length of the values of data cells
	Locks         int  `json:"locks"`          // locks
	Writes        int  `json:"write_records"`  // write records
	Marks         int  `json:"marks"`          // rollback markers and lock-only commits
	Notifications int  `json:"notifications"`  // notify cells
	MetadataBytes int  `json:"metadata_bytes"` // length of the values of locks, records, markers and notify cells
}

// SampleRows counts what the first rows of each tablet hold, about n rows in all. It
// reads the stored cells, and decides nothing: the counts of a table that transactions
// write are approximate.
func SampleRows(ctx context.Context, bt *bigtable.Client, table string, n int) (*RowSample, error) {
	parts := Parts(ctx, bt, table, "", "")
	c := &RowSample{Whole: true, Parts: len(parts)}
	// What transactions decide is not decided here, so no filter is needed that
	// sees a row in one piece.
	for i, rows := range parts {
		most, got := max(1, (n-c.Rows)/(len(parts)-i)), 0
		if c.Rows >= n {
			c.Whole = false
			break
		}
		err := bt.OpenTable(table).ReadRows(ctx, rows, func(r bigtable.Row) bool {
			got++
			c.add(r)
			return true
		}, bigtable.LimitRows(int64(most)))
		if err != nil {
			return nil, err
		}
		c.Whole = c.Whole && got < most
	}
	return c, nil
}

func (c *RowSample) add(r bigtable.Row) {
	c.Rows++
	for family, items := range r {
		bytes := 0
		for _, it := range items {
			bytes += len(it.Value)
		}
		switch family {
		case format.LockFamily:
			c.Locks += len(items)
		case format.WriteFamily:
			c.Writes += len(items)
		case format.MarkFamily:
			c.Marks += len(items)
		case format.NotifyFamily:
			c.Notifications += len(items)
		default:
			c.Values += len(items)
			c.Bytes += bytes
			for _, it := range items {
				if it.Timestamp < format.PlainBefore {
					c.Plain++
				}
			}
			continue
		}
		c.MetadataBytes += bytes
	}
}
