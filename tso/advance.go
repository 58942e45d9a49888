package tso

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// advanceTries bounds how often Advance tries a row that others change.
const advanceTries = 10

// Advance raises the oracle's row, in whatever mode, so that every timestamp that
// is handed out from then on is above to, and reports whether it changed
// anything: a row that is there already stays as it is. It never lowers it. It is
// for a row that was lost, or restored from a backup that is older than what is in
// the tables; a row without a value becomes one in direct mode.
//
// In served mode no server may lead: what it has reserved is below. It watches the
// row for one lease, or less if a graceful stop released it, and fails with
// [*LeaderError] when somebody renews. After an error whose errors.Is says
// Unavailable or deadline the change may have happened: [ReadRow] tells.
func Advance(ctx context.Context, table bigtable.TableAPI, cfg RowConfig, to Timestamp) (changed bool, err error) {
	row := cfg.open(table)
	switch {
	case to < minTimestamp:
		return false, fmt.Errorf("tso: advancing oracle row %q to %d: it is below the smallest possible timestamp, %d", row.key, to, minTimestamp)
	case to >= Max:
		return false, fmt.Errorf("tso: advancing oracle row %q to %d: nothing would be left: %w", row.key, to, ErrExhausted)
	}
	var failed error
	unknown := false // whether an attempt that failed has happened all the same
	for range advanceTries {
		s, err := readState(ctx, row)
		switch {
		case err != nil:
			return false, errors.Join(failed, err)
		case s.Limit >= to:
			return unknown, nil
		case s.Mode == "":
			changed, err = row.initialize(ctx, to)
		case s.Mode == ModeDirect:
			changed, err = row.compareAndSet(ctx, s.Limit, to)
		default:
			if !s.Released {
				if err := watch(ctx, row, s); err != nil {
					return false, err
				}
			}
			// The lease is part of the condition, and new bytes take its place: who
			// led before, and was only paused, cannot write any more.
			next := lease{s.lease.epoch + 1, 0, rand.Uint64()}
			changed, err = row.swap(ctx, s.lease, next, &tsopb.ServedState{Limit: int64(to), Released: true})
		}
		switch {
		case changed && err == nil:
			return true, nil
		case err != nil && (ctx.Err() != nil || !retryable(err)):
			return false, err
		}
		failed, unknown = err, unknown || err != nil
	}
	return false, errors.Join(failed, fmt.Errorf("tso: oracle row %q was not advanced to %d: others change it all the time, try again", row.key, to))
}
