package demo

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// recoverTimeout bounds the recovery: the locks of killed workers can be resolved
// after lockTTL at the latest.
const recoverTimeout = 10 * lockTTL

// recoverLocks resolves every lock that is left. No worker runs any more, so all of
// them belong to workers that were killed. A worker that was killed a moment ago
// counts as alive until its token is stale.
func recoverLocks(ctx context.Context, client *txn.Client) error {
	ctx, cancel := context.WithTimeoutCause(ctx, recoverTimeout, errors.New("locks are left that cannot be resolved"))
	defer cancel()
	for {
		var left atomic.Int64
		var g errgroup.Group
		g.SetLimit(16)
		for _, t := range index.Tables {
			for l, err := range admin.Locks(ctx, client, t.Name, nil) {
				if err != nil {
					return errors.Join(err, g.Wait())
				}
				left.Add(1)
				g.Go(func() error {
					_, err := admin.Resolve(ctx, client, l)
					return err
				})
			}
		}
		if err := g.Wait(); err != nil || left.Load() == 0 {
			return err
		}
		select {
		case <-time.After(tokenTTL / 10):
		case <-ctx.Done():
			return fmt.Errorf("%w: %d", context.Cause(ctx), left.Load())
		}
	}
}

// check runs the consistency check over the tables.
func check(ctx context.Context, client *txn.Client) (violations []string, err error) {
	for _, t := range index.Tables {
		for v, err := range admin.Check(ctx, client, t.Name, nil) {
			if err != nil {
				return nil, err
			}
			violations = append(violations, v.String())
		}
	}
	return violations, nil
}

// notifications counts the notifications that are left.
func notifications(ctx context.Context, client *txn.Client) (left int, err error) {
	for _, t := range index.Tables {
		for _, err := range changes.Notifications(ctx, client, t.Name, nil) {
			if err != nil {
				return 0, err
			}
			left++
		}
	}
	return left, nil
}
