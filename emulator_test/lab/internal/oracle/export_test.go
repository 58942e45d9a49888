package oracle

import (
	"context"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// Load measures a line, and returns how many timestamps and which median it has.
func Load(ctx context.Context, callers int, d time.Duration, ask func(context.Context) (tso.Timestamp, error)) (count uint64, p50 float64, err error) {
	r, err := load(ctx, order{Callers: callers, Duration: d}, ask)
	return r.Count, r.quantile(.5), err
}
