package gc

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
)

// NotesDivided returns the first rows of the parts into which a run with a safe point divides the notes.
func NotesDivided(ctx context.Context, c *recovery.Resolver, safePoint tso.Timestamp) (rows []string, err error) {
	r, err := newRun(c, Config{})
	if err != nil {
		return nil, err
	}
	r.setSafePoint(safePoint, false)
	parts, err := changes{r}.divide(ctx)
	for _, p := range parts {
		rows = append(rows, string(p.Row))
	}
	return rows, err
}

// CollectRow collects a row as a run with a safe point does that has read the row. It returns what
// the run has done with locks, too.
func CollectRow(ctx context.Context, c *recovery.Resolver, safePoint, drained tso.Timestamp, table, key string) (Counts, LockCounts, error) {
	r, err := newRun(c, Config{})
	if err != nil {
		return Counts{}, LockCounts{}, err
	}
	r.setSafePoint(safePoint, false)
	r.rules.drained = drained
	t, err := c.Table(ctx, table)
	if err != nil {
		return Counts{}, LockCounts{}, err
	}
	raw, err := t.ReadRow(ctx, key, r.rules.filter(t.Schema.Current().Families, nil))
	if err != nil {
		return Counts{}, LockCounts{}, err
	}
	n, err := r.collectRow(ctx, t, raw)
	return n, r.report.Locks, err
}
