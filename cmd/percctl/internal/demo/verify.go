package demo

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// recoverTimeout bounds the end of the recovery: killed clients' locks can be
// settled after lockTTL at the latest.
const recoverTimeout = 10 * lockTTL

// recoverLocks settles every lock that is left. No client runs any more, so
// all of them belong to clients that were killed; those killed just now are
// taken for alive until their tokens are stale.
func recoverLocks(ctx context.Context, client *txn.Client) error {
	ctx, cancel := context.WithTimeoutCause(ctx, recoverTimeout, errors.New("locks are left that cannot be settled"))
	defer cancel()
	for {
		var left atomic.Int64
		var g errgroup.Group
		g.SetLimit(16)
		for _, t := range tables {
			for l, err := range client.Locks(ctx, t.Name, nil) {
				if err != nil {
					return errors.Join(err, g.Wait())
				}
				left.Add(1)
				g.Go(func() error {
					_, err := client.Resolve(ctx, l)
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
	for _, t := range tables {
		for v, err := range client.Check(ctx, t.Name, nil) {
			if err != nil {
				return nil, err
			}
			violations = append(violations, v.String())
		}
	}
	return violations, nil
}

// compareCommits holds what clients were told against what is in the tables:
// a document whose commit was acknowledged is there with that commit
// timestamp. It also counts the commits that are there.
func compareCommits(docs []document, acknowledged map[int]tso.Timestamp, commits map[string]tso.Timestamp) (mismatches []string, committed int) {
	distinct := map[tso.Timestamp]bool{}
	for _, ts := range commits {
		distinct[ts] = true
	}
	for id, d := range docs {
		if told, there := acknowledged[id], commits[d.path]; told != 0 && told != there {
			mismatches = append(mismatches, fmt.Sprintf("document %s: its commit at %d was acknowledged, but it is there with %d", d.path, told, there))
		}
	}
	return mismatches, len(distinct)
}
