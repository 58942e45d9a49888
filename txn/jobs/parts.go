package jobs

import (
	"context"
	"fmt"
	"slices"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A Range is a part of a table: the keys from Start to before End. An empty End is the end of
// the table.
type Range struct{ Start, End string }

// Prefix returns the range of the keys that begin with prefix.
func Prefix(prefix string) Range { return Range{prefix, txn.PrefixEnd(prefix)} }

// Rows returns the range for txn.View.ReadRows.
func (r Range) Rows() bigtable.RowRange {
	if r.End == "" {
		return bigtable.InfiniteRange(r.Start)
	}
	return bigtable.NewRange(r.Start, r.End)
}

func (r Range) check() error {
	if r.End != "" && r.Start >= r.End {
		return fmt.Errorf("jobs: %w: the range from %q to before %q is empty", txn.ErrInvalid, r.Start, r.End)
	}
	return nil
}

// maxParts bounds the parts of a job or scan.
const maxParts = 1000

// Partitions divides a range of a table into at most n parts of about equal size, where
// Bigtable's tablets begin. A table with few tablets has fewer parts. Bigtable's client reports where
// tablets begin, and not how large they are, so sizes are counted in tablets. What a part contains
// follows from the snapshot with which it is read.
func Partitions(ctx context.Context, client *txn.Client, table string, r Range, n int) ([]Range, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if n < 1 || n > maxParts {
		return nil, fmt.Errorf("jobs: %w: %d parts; 1 to %d are possible", txn.ErrInvalid, n, maxParts)
	}
	keys, err := changes.SampleRowKeys(ctx, client, table)
	if err != nil {
		return nil, err
	}
	slices.Sort(keys)
	keys = slices.DeleteFunc(slices.Compact(keys), func(k string) bool { return k <= r.Start || r.End != "" && k >= r.End })
	n = min(n, len(keys)+1)
	parts := make([]Range, 0, n)
	start := r.Start
	for i := 1; i < n; i++ {
		end := keys[i*(len(keys)+1)/n-1]
		parts = append(parts, Range{start, end})
		start = end
	}
	return append(parts, Range{start, r.End}), nil
}

// A Scan reads a range of a table in parts, some at the same time.
type Scan struct {
	// Snapshot is what the scan reads. For a scan that takes longer than versions are kept, take it
	// with txn.Hold.
	Snapshot *txn.Snapshot
	Table    string
	// Range defaults to the whole table.
	Range Range
	// Parallel bounds the parts: 1 to 1000. They are read at the same time.
	Parallel int
	// Options are for the reads.
	Options []txn.ReadOption
}

// Run calls f for each row: in order of the keys within a part, and concurrently for different
// parts. part is the number of the part, from 0. The first error ends the scan.
func (s Scan) Run(ctx context.Context, client *txn.Client, f func(ctx context.Context, part int, row bigtable.Row) error) error {
	parts, err := Partitions(ctx, client, s.Table, s.Range, s.Parallel)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for i, part := range parts {
		g.Go(func() error {
			for row, err := range s.Snapshot.Table(s.Table).ReadRows(ctx, part.Rows(), s.Options...) {
				if err == nil {
					err = f(ctx, i, row)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}
