package gc

import (
	"context"
	"errors"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// Run collects the garbage of all transactional tables of the deployment. It
// moves the safe point to [Config.Retention] ago, or to just below the oldest open
// transaction or held snapshot if that is older. It waits until no client uses an
// older safe point (two minutes), resolves every lock at or below the new one, and
// removes the versions that no read at or above it can see. A run that was
// interrupted is continued where it stopped; run it once more for what has
// become garbage since.
//
// From then on reads below the safe point fail with txn.ErrTooOld, and so do
// commits of transactions that started at or below it.
//
// If another collector works on a run, Run shares it: it takes parts of the tables until the run
// is complete, and leads the run if that collector dies. The report is then of its own part.
// With [Config.Restart] it fails with a [BusyError] instead.
//
// Run fails with a [BusyError] while garbage collection is excluded, and with a
// [BlockedError] if live transactions keep their locks for longer than
// [Config.LockWait]. It returns the report with every error that comes after the
// run began. After an error, or when ctx ends, what was removed stays removed,
// and the stored position stays.
func Run(ctx context.Context, client *txn.Client, cfg Config) (*Report, error) {
	c := access.ResolverOf(client)
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	ctx, span := c.Trace.Call(ctx, "collect garbage", "")
	report, err := collect(ctx, c, cfg, span)
	span.EndWith(err)
	return report, err
}

func collect(ctx context.Context, c *recovery.Resolver, cfg Config, s telemetry.Span) (*Report, error) {
	began := time.Now()
	r, err := newRun(c, cfg)
	if err != nil {
		return nil, err
	}
	lease, lctx, err := takeLease(ctx, c, r.owner)
	var busy *BusyError
	switch {
	case err == nil:
		defer lease.release(ctx)
		err = lease.explain(leader{r}.lead(lctx))
	case errors.As(err, &busy):
		if err = (helper{r}).help(ctx, busy); !r.report.Helped {
			return nil, err
		}
	default:
		return nil, err
	}
	r.end(began)
	r.measure.ran(ctx, s, r.report, err)
	return r.report, err
}

// Plan counts what [Run] would remove now, and changes nothing. It reads every
// row of every table. It does not resolve locks, so the numbers are estimates
// where transactions have not ended. It takes no lease, and works beside a
// collector.
func Plan(ctx context.Context, client *txn.Client, cfg Config) (*Report, error) {
	c := access.ResolverOf(client)
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	began := time.Now()
	r, err := newRun(c, cfg)
	if err != nil {
		return nil, err
	}
	r.report.DryRun = true
	err = r.plan(ctx)
	r.end(began)
	return r.report, err
}

// SafePoint returns a safe point below which every read fails by now. It may be
// up to 30 seconds older than the published one. It costs no request.
func SafePoint(ctx context.Context, client *txn.Client) (tso.Timestamp, error) {
	c := access.ResolverOf(client)
	return c.SafePoint.Current(ctx)
}
