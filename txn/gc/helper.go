package gc

import (
	"context"
	"errors"
	"time"

	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A helper shares a run that another collector leads.
type helper struct{ *run }

// help shares the run of the collector that has the lease, until the run is complete. If that
// collector dies, this one takes the lease and leads.
func (r helper) help(ctx context.Context, busy *BusyError) error {
	if err := r.read(ctx); err != nil {
		return err
	}
	if r.cfg.Restart || r.state.Owner != busy.Holder || r.state.Phase == recordpb.GarbageRun_PHASE_DONE {
		return busy
	}
	if _, err := r.begin(ctx); err != nil {
		return err
	}
	r.adopt()
	r.report.Helped = true
	for {
		if over, err := r.over(); over {
			return err
		}
		if len(r.state.Parts) > 0 {
			if err := r.work(ctx); err != nil && !errors.Is(err, errPhaseOver) {
				return err
			}
		} else if lease, lctx, err := takeLease(ctx, r.client, r.owner); err == nil {
			defer lease.release(ctx)
			return lease.explain(leader(r).lead(lctx))
		} else if ctx.Err() != nil {
			return err
		} else if store.Sleep(ctx, r.poll()) != nil {
			return store.Ended(ctx, "gc: waiting for the collector that leads the run", nil)
		}
		if err := r.read(ctx); err != nil {
			return err
		}
	}
}

// poll is how soon a helper reads the record again.
func (r helper) poll() time.Duration {
	if r.state.Phase == recordpb.GarbageRun_PHASE_FENCE {
		return syncInterval
	}
	return minSyncInterval
}

// over reports whether the run that this collector shares has ended, as far as it has read.
func (r helper) over() (bool, error) {
	if !r.same(r.state) {
		return true, &BusyError{Holder: r.state.Owner, Lost: true}
	}
	r.report.Finished = r.state.Phase == recordpb.GarbageRun_PHASE_DONE
	return r.report.Finished, nil
}
