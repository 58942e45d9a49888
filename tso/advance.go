package tso

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// advanceTries bounds how often Advance tries while other clients change the row.
const advanceTries = 10

// Advance raises the oracle's row, in any mode, so that every timestamp handed
// out from then on is above to. It reports whether it changed anything: it never
// lowers a row that is above to already. Use it for a row that was lost, or
// restored from a backup that is older than the data in the tables. A row without
// a value becomes one in direct mode.
//
// In served mode no server may lead, because its reserved range is below.
// Advance watches the row for one lease, or not at all if a graceful stop
// released the lease, and fails with [*LeaderError] when a server renews it.
// After an unavailable or deadline error the change may have happened: call
// [ReadRow] to find out.
func Advance(ctx context.Context, table bigtable.TableAPI, cfg RowConfig, to Timestamp) (changed bool, err error) {
	r := cfg.open(table)
	switch {
	case to < Min:
		return false, fmt.Errorf("tso: advancing oracle row %q to %d: it is below the smallest possible timestamp, %d", r.Key, to, Min)
	case to >= Max:
		return false, fmt.Errorf("tso: advancing oracle row %q to %d: no timestamp would be left: %w", r.Key, to, ErrExhausted)
	}
	var failed error
	unknown := false // whether an attempt that failed may have taken effect
	for range advanceTries {
		s, err := readState(ctx, r)
		switch {
		case err != nil:
			return false, errors.Join(failed, err)
		case s.Limit >= to:
			return unknown, nil
		case s.Mode == "":
			changed, err = r.Initialize(ctx, int64(to))
		case s.Mode == ModeDirect:
			changed, err = r.Advance(ctx, int64(s.Limit), int64(s.Limit), int64(to))
		default:
			if !s.Released {
				if err := watch(ctx, r, s); err != nil {
					return false, err
				}
			}
			// The write is conditional on the lease, and replaces its bytes. So a
			// former leader that was only paused cannot write any more.
			changed, err = r.Swap(ctx, s.lease, nextLease(s), &tsopb.ServedState{Limit: int64(to), Released: true})
		}
		switch {
		case changed:
			return true, nil
		case err != nil && ctx.Err() != nil: // the answer may be that of the server, or the end of ctx
			return false, fmt.Errorf("%w: %w", ctx.Err(), err)
		case err != nil && !row.Retryable(err):
			return false, err
		}
		failed, unknown = err, unknown || err != nil
	}
	return false, errors.Join(failed, fmt.Errorf("tso: oracle row %q was not advanced to %d: other clients changed it during each of %d attempts; try again", r.Key, to, advanceTries))
}
