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
