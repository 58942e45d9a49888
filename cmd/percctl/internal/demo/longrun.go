package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/index"
	"github.com/percolator-bigtable/percolator/txn"

	txnchanges "github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// This file is percctl demo --duration: a deployment to look at, in which
// everything that can happen does, again and again.

const (
	// shorterGC divides the durations of garbage collection: the fence takes two
	// seconds, and ten are retained.
	shorterGC = 60
	retention = 10 * time.Second

	roundsEvery    = 2 * time.Second // after the round before
	compareEvery   = time.Minute
	killsEvery     = 5 * time.Second
	failoversEvery = 8 * time.Second
	lossesEvery    = 2 * time.Second
	gcEvery        = 2 * time.Second // after the run before
)

// longSummary is what a demo that went on did besides.
type longSummary struct {
	Rounds            int   `json:"rounds"` // of changes
	LeadersKilled     int   `json:"leaders_killed"`
	LeadersStopped    int   `json:"leaders_stopped"`
	Visits            int64 `json:"visits"`
	VisitorsLost      int   `json:"visitors_lost"`
	GCRuns            int   `json:"gc_runs"`
	VersionsReclaimed int64 `json:"versions_reclaimed"`
	DeadLetters       int   `json:"dead_letters"`
}

// The critic is an observer that fails.
const (
	criticID     = "critic"
	malformedDoc = "demo/malformed"
)

// criticized is the observer whose column the critic watches too.
func criticized() index.Observer { return index.Observers()[0] }

// criticize gives documents up that are malformed on purpose.
func criticize(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	_, there, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
	if err == nil && there && strings.HasPrefix(cell.Row, malformedDoc) {
		return errors.New("percctl demo made this document malformed")
	}
	return err
}

// goOn changes documents for as long as --duration says, while timestamps fail
// over, visitors are lost and garbage is collected. The fleet kills workers
// meanwhile.
func (d *demo) goOn(ctx context.Context, client *txn.Client, c *corpus, clusters []index.Cluster, sum *summary) error {
	sum.Long = &longSummary{}
	v := &visits{client: client}
	side, stop := context.WithCancel(ctx)
	defer stop()
	g, side := errgroup.WithContext(side)
	for i := range visitors {
		g.Go(func() error { return v.visit(side, i) })
	}
	g.Go(func() error {
		return every(side, lossesEvery, func(i int) error {
			err := v.lose(side, d.at, d.config, []crashPoint{beforeCommit, afterCommit}[i%2])
			if err != nil && side.Err() == nil {
				return fmt.Errorf("losing a visitor: %w", err)
			}
			return nil
		})
	})
	g.Go(func() error {
		return every(side, failoversEvery, func(i int) error { return d.oracles.failOver(side, i%2 == 0) })
	})
	g.Go(func() error {
		return every(side, gcEvery, func(int) error { return d.collect(side, client, sum.Long) })
	})
	g.Go(func() error {
		defer stop()
		return d.rounds(side, client, c, clusters, sum)
	})
	err := g.Wait()
	if ctx.Err() != nil || err != nil {
		return err
	}
	sum.Long.LeadersKilled, sum.Long.LeadersStopped = d.oracles.killed, d.oracles.stopped
	sum.Long.Visits, sum.Long.VisitorsLost = v.committed.Load(), v.lost

	d.fleet.ending.Store(true)
	if err := d.spare(ctx, client, c, c.names(), sum); err != nil {
		return err
	}
	began := time.Now()
	batch, err := d.percolate(ctx, client, c, sum)
	if err != nil {
		return err
	}
	sum.Percolated, sum.Cells = round(time.Since(began).Seconds()), len(batch.State)
	off, err := v.check(ctx)
	sum.Mismatches += off
	return err
}

// every calls f, counting, with pauses until ctx ends.
func every(ctx context.Context, pause time.Duration, f func(i int) error) error {
	for i := 0; ; i++ {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		if err := f(i); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// rounds changes documents. Now and then it waits until that has percolated, and
// compares; not each time, because to wait is to settle all locks, and some are
// to be left to garbage collection.
func (d *demo) rounds(ctx context.Context, client *txn.Client, c *corpus, clusters []index.Cluster, sum *summary) error {
	over, compare := time.After(d.opts.duration), time.NewTicker(compareEvery)
	defer compare.Stop()
	for n := 0; ; n++ {
		before := c.restore()
		ch, err := c.change(d.opts.seed+uint64(n), clusters)
		if err != nil {
			return err
		}
		malformed := fmt.Sprintf("%s%d", malformedDoc, n)
		c.overlay[malformed] = index.Document{Name: malformed, Contents: []byte(malformed)}
		names := c.touched(before)
		if err := d.load(ctx, client, c.documents(names), sum); err != nil {
			return err
		}
		sum.Long.Rounds++
		sum.Changed, sum.Added, sum.Deleted = sum.Changed+ch.changed, sum.Added+ch.added+1, sum.Deleted+ch.deleted
		select {
		case <-time.After(roundsEvery):
		case <-compare.C:
			if _, err := d.percolate(ctx, client, c, sum); err != nil {
				return err
			}
		case <-over:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// collect runs garbage collection once. That live transactions are in the way,
// or that timestamps are missing, is for the next run.
func (d *demo) collect(ctx context.Context, client *txn.Client, sum *longSummary) error {
	report, err := gc.Run(ctx, client, gc.Config{Retention: retention, LockWait: time.Second})
	if report != nil {
		sum.VersionsReclaimed += report.Total.Versions
	}
	switch {
	case err == nil:
		sum.GCRuns++
	case ctx.Err() == nil:
		d.progress.event("garbage collection: %v", err)
	}
	return nil
}

// letters counts the dead letters, which the critic alone should have left.
func (d *demo) letters(ctx context.Context, client *txn.Client, sum *summary) error {
	for l, err := range txnchanges.DeadLetters(ctx, client) {
		if err != nil {
			return err
		}
		if l.Observer != criticID {
			sum.Mismatches++
			d.list("dead letter", []string{fmt.Sprintf("%s of %s: %s", l.Cell, l.Observer, l.Error)})
			continue
		}
		sum.Long.DeadLetters++
	}
	return nil
}
