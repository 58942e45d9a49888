package txn

import (
	"context"
	"fmt"
	"sync/atomic"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
)

// commit is one two-phase commit (paper §2.2, Figure 6; design §4): prewrite
// every row, take the commit timestamp, commit the primary's row, then the
// secondaries.
type commit struct {
	txn     *Txn
	client  *Client
	startTS tso.Timestamp
	primary Cell
	rows    []*rowWrites // the primary's row first
	// notified are the cells of weak notifications.
	notified []Cell

	traceParent string
	heartbeat   heartbeat
	latch       *latch

	failed atomic.Bool // a row's prewrite has
}

func (c *commit) run(ctx context.Context) (_ tso.Timestamp, err error) {
	c.traceParent = traceParent(ctx) // the transaction's
	ctx, span := c.client.trace.begin(ctx, "commit", "")
	defer func() { span.end(err) }()
	if err := c.queue(ctx); err != nil {
		c.client.trace.conflict(ctx, err)
		return 0, err
	}
	defer c.unlatch()
	if err := c.client.admit(ctx); err != nil {
		return 0, err
	}
	defer c.client.dismiss()
	c.client.token.ensure(ctx)

	c.heartbeat.start(ctx, c)
	defer c.heartbeat.stop()
	if err := c.prewriteAll(ctx); err != nil {
		c.client.trace.conflict(ctx, err)
		c.client.recent.conflicted(err)
		c.txn.askAgain(ctx, err)
		c.abort(ctx)
		return 0, err
	}
	// Only now: a transaction that starts above commit_ts has to meet either
	// the locks or the write records.
	commitTS, asked, err := c.client.clock.ask(ctx)
	if err != nil {
		c.abort(ctx)
		return 0, err
	}
	if c.txn.opts.writeOnly {
		c.client.askAhead()
	}
	if commitTS <= c.startTS {
		c.abort(ctx)
		return 0, fmt.Errorf("txn: the timestamp oracle went backwards: start_ts %d, then commit_ts %d; nothing was committed", c.startTS, commitTS)
	}
	// Behind the prewrites: a collection that begins from now on meets the locks,
	// and none that had forgotten a conflict began before (docs/gc.md).
	if err := c.client.safePoint.checkWrite(ctx, c.startTS); err != nil {
		c.abort(ctx)
		return 0, err
	}
	if ctx.Err() != nil {
		// The last moment at which nothing can have happened.
		c.abort(ctx)
		return 0, ended(ctx, "about to commit", nil)
	}
	if err := c.sendNotifications(ctx, commitTS); err != nil {
		c.abort(ctx)
		return 0, err
	}
	if commitTS, err = c.commitPrimary(ctx, commitTS); err != nil {
		return 0, err
	}
	c.heartbeat.stop()
	c.client.recent.committed(c.rows, commitTS)
	if len(c.rows) > 1 {
		// Who meets a secondary's lock here need not ask the primary.
		c.client.known.put(c.startTS, Status{State: StateCommitted, CommitTS: commitTS})
	}
	c.client.clock.madeCommit(commitTS, asked)
	c.client.counters.committed.Add(1)
	c.client.hints.hint(c.rows[0].observed()...)
	c.client.hints.hint(c.notified...)
	c.commitSecondaries(ctx, commitTS)
	return commitTS, nil
}

// sendNotifications writes the weak notifications, at commit_ts and before the
// commit point: they are in no lock record, so nobody could write them for a
// client that dies after it. An observer that runs early waits for the locks of
// this transaction; one that runs for a transaction that is rolled back in the
// end runs in vain, as weak notifications may. (Paper §2.4.)
func (c *commit) sendNotifications(ctx context.Context, commitTS tso.Timestamp) error {
	if len(c.notified) == 0 {
		return nil
	}
	ctx, span := c.client.trace.begin(ctx, "notify", "")
	err := writeNotifications(ctx, c.client.store, c.notified, commitTS, encodeTrigger(c.traceParent, c.txn.hops))
	span.end(err)
	return err
}

// commitPrimary sends the commit point: one conditional mutation of the
// primary's row that turns every lock of the row into a write record if the
// primary lock is still there. Its outcome may be unknown; then it is read
// back, and sent again with the same commit_ts, never with another (hazards 4
// and 5), unless the lock says that the first never lands (pass.go). It returns
// the commit_ts.
func (c *commit) commitPrimary(ctx context.Context, commitTS tso.Timestamp) (tso.Timestamp, error) {
	row := c.rows[0]
	m := bigtable.NewMutation()
	c.addRow(m, row, commitTS)
	p := &primaryCommit{resolver: c.client.resolver, table: row.table, primary: c.primary, startTS: c.startTS, commitTS: commitTS, mutation: m}
	if p.passable = c.client.cfg.PassLocks; p.passable {
		p.commitAt = func(ctx context.Context, ts tso.Timestamp) (*bigtable.Mutation, error) {
			m := bigtable.NewMutation()
			c.addRow(m, row, ts)
			return m, c.sendNotifications(ctx, ts)
		}
	}
	ctx, span := c.client.trace.begin(ctx, "commit primary", row.table.name)
	err := p.run(ctx)
	if err == nil && span.on() {
		span.AddEvent("commit point", trace.WithAttributes(attrCommitTS.Int64(int64(p.commitTS))))
	}
	span.end(err)
	if Retryable(err) {
		// Rolled back, and nothing else: after any other error the commit may
		// stand.
		c.heartbeat.stop()
		c.client.background.run(c.cleanUp)
	}
	return p.commitTS, err
}

// addRow adds the commit of all of a row's cells.
func (c *commit) addRow(m *bigtable.Mutation, row *rowWrites, commitTS tso.Timestamp) (ops int) {
	for _, w := range row.writes {
		ops += addCommit(m, c.lock(w), commitTS)
	}
	return ops
}

// commitSecondaries commits the other rows. The transaction is committed
// whatever happens here: a lock that is left is rolled forward by whoever
// meets it.
func (c *commit) commitSecondaries(ctx context.Context, commitTS tso.Timestamp) {
	if len(c.rows) == 1 {
		return
	}
	byTable := map[*table][]rowMutation{}
	span := c.client.trace.secondaries(ctx, len(c.rows)-1)
	for _, row := range c.rows[1:] {
		m := bigtable.NewMutation()
		ops := c.addRow(m, row, commitTS)
		byTable[row.table] = append(byTable[row.table], rowMutation{row: row.row, mut: m, ops: ops, names: row.names(c.primary), hints: row.observed(), startTS: c.startTS, secondaries: span})
	}
	for t, muts := range byTable {
		if !c.client.cfg.SyncSecondaries && c.client.background.add(t, muts) {
			continue
		}
		// The queue is full: the one who fills it helps to empty it.
		failed, err := t.apply(ctx, muts)
		c.client.background.applied(muts, failed)
		if err != nil {
			if !c.client.background.add(t, failed) {
				for _, m := range failed {
					m.secondaries.fail(m.err)
				}
			}
			c.client.log.WarnContext(ctx, "committing secondaries failed; their locks are rolled forward by whoever meets them", "table", t.name, "rows", len(failed), "start_ts", c.startTS, "commit_ts", commitTS, "error", err)
		}
	}
}

// abort removes what prewrites may have left. No commit was sent, so no one
// can commit this transaction any more and the removal needs no condition: a
// lock that a late prewrite still leaves is an orphan that its ttl ends
// (design §4, "Abort by the owner").
func (c *commit) abort(ctx context.Context) {
	c.heartbeat.stop()
	ctx, span := c.client.trace.begin(ctx, "roll back", "")
	defer span.end(nil) // what fails here is somebody else's to do
	byTable := map[*table][]rowMutation{}
	for _, row := range c.rows {
		if !row.touched {
			continue
		}
		m := bigtable.NewMutation()
		for _, w := range row.writes {
			removeLockAndData(m, w.cell.Column(), c.startTS)
		}
		byTable[row.table] = append(byTable[row.table], rowMutation{row: row.row, mut: m, ops: 2 * len(row.writes), names: row.names(c.primary)})
	}
	for t, muts := range byTable {
		if ctx.Err() != nil {
			// The caller is gone; so is its right to make anyone wait.
			c.client.background.add(t, muts)
			continue
		}
		if failed, err := t.apply(ctx, muts); err != nil {
			c.client.background.add(t, failed)
		}
	}
}

// cleanUp removes the locks of a transaction that was rolled back after its
// commit had been sent: only by conditional mutation from then on (hazard 16).
// What it leaves is removed by whoever meets it.
func (c *commit) cleanUp(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(c.client.store.cfg.Parallelism)
	for _, row := range c.rows {
		for _, w := range row.writes {
			if w.cell == c.primary {
				continue
			}
			g.Go(func() error {
				m := bigtable.NewMutation()
				removeLockAndData(m, w.cell.Column(), c.startTS)
				_, err := row.table.checkAndMutate(ctx, row.row, lockAt(w.cell.Column(), c.startTS), m, nil)
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		c.client.log.DebugContext(ctx, "removing the locks of a rolled-back transaction failed", "start_ts", c.startTS, "error", err)
	}
}
