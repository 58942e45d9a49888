package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/latch"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/settled"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// A commit is one two-phase commit (paper §2.2, Figure 6; docs/protocol.md): it prewrites
// every row, takes the commit timestamp, and commits the primary's row and then the other
// rows.
type commit struct {
	txn     *Txn
	client  *Client
	startTS tso.Timestamp
	primary Cell
	rows    []*store.RowWrites // the primary's row first
	// notified are the cells of the weak notifications.
	notified []Cell

	entries *journal.Pending // of the observed cells

	owner string // the worker token that the locks name; empty: the client had none when the commit began

	traceParent string // of the transaction's span; locks carry it
	settles     *settled.Commit
	settledBy   uint64 // what the primary's write record says (format.WriteRecord)
	heartbeat   heartbeat
	latch       *latch.Latch

	failed atomic.Bool // the prewrite of a row has failed
	// stall.go
	ill     bool        // some of the rows have been ill
	holds   atomic.Bool // a row that is prewritten now may hold up others that are locked
	stalled bool        // the commit gave its locks up
	watch   watch
}

func (c *commit) run(ctx context.Context) (_ tso.Timestamp, err error) {
	c.traceParent = format.TraceParent(ctx) // before the commit's own span begins
	ctx, span := c.client.resolver.Trace.Begin(ctx, "commit", "")
	defer func() { span.EndWith(err) }()
	defer c.releaseLatch()
	if err := c.awaitIll(ctx); err != nil {
		return 0, err
	}
	if err := c.takeLatch(ctx); err != nil {
		c.client.resolver.Trace.Conflict(ctx, err)
		return 0, err
	}
	if err := c.enter(ctx); err != nil {
		return 0, err
	}
	defer c.leave()
	c.client.resolver.Token.Begin(ctx)
	c.owner = c.client.resolver.Token.Owner()
	c.settles, c.settledBy = c.client.resolver.Claims.Begin(c.startTS, len(c.rows))
	sent := false // the commit of the primary
	defer func() {
		switch {
		case errors.Is(err, ErrUndetermined):
			c.settles.Unknown()
		case err != nil && !(sent && errors.Is(err, ErrCorrupt)):
			c.settles.Ended() // there is no write record, and there will be none
		}
	}()

	c.heartbeat.start(ctx, c) // abort and commitPrimary stop it
	c.entries = c.client.resolver.Journal.Begin(ctx, c.rows, c.startTS)
	if err := prewriteAll(ctx, c); err != nil {
		return 0, c.giveUp(ctx, err)
	}
	// Only after all prewrites: a transaction that starts above commit_ts must find
	// either the locks or the write records.
	commitTS, asked, err := c.client.resolver.Clock.CommitTimestamp(ctx)
	if err != nil {
		return 0, c.giveUp(ctx, err)
	}
	if err := c.mayCommit(ctx, commitTS); err != nil {
		c.abort(ctx)
		return 0, err
	}
	sent = true
	if commitTS, err = c.commitPrimary(ctx, commitTS); err != nil {
		return 0, err
	}
	c.client.recent.Committed(c.rows, commitTS)
	c.client.changed.Note(c.rows, commitTS)
	if len(c.rows) > 1 {
		// If this client finds the lock of a secondary, it need not read the primary.
		c.client.resolver.Outcomes.Put(c.startTS, Status{State: StateCommitted, CommitTS: commitTS})
	}
	c.client.resolver.Clock.NoteCommit(commitTS, asked)
	c.client.resolver.Counters.Committed.Add(1)
	c.client.resolver.Hints.Publish(c.rows[0].Observed()...)
	c.client.resolver.Hints.Publish(c.notified...)
	c.commitSecondaries(ctx, commitTS)
	return commitTS, nil
}

// mayCommit makes the last checks before the commit point, and writes the weak notifications.
func (c *commit) mayCommit(ctx context.Context, commitTS tso.Timestamp) error {
	if commitTS <= c.startTS {
		return fmt.Errorf("txn: the timestamp oracle went backwards: start_ts %d, then commit_ts %d; nothing was committed", c.startTS, commitTS)
	}
	if err := c.checkBound(commitTS); err != nil {
		return err
	}
	// Only after the prewrites: a garbage collection that begins from now on finds the
	// locks. If an earlier one may have removed a conflicting record, this check fails
	// (docs/gc.md).
	if err := c.client.resolver.SafePoint.CheckWrite(ctx, c.startTS); err != nil {
		return err
	}
	// Before the commit point: no scan of the journal must miss a change that may be pending.
	if err := c.entries.Wait(ctx); err != nil {
		return err
	}
	if err := c.recheckSchemas(ctx, commitTS); err != nil {
		return err
	}
	if ctx.Err() != nil {
		// From here on the transaction may take effect, so this is the last check.
		return store.Ended(ctx, "txn: before sending the commit", nil)
	}
	return c.sendNotifications(ctx, commitTS)
}

// sendNotifications writes the weak notifications, at commit_ts and before the commit point.
// No lock records them, so if the client died after the commit point, no other client could
// write them. An observer that runs early waits for the locks of this transaction. If the
// transaction is rolled back, the observer finds nothing to do, which weak notifications
// allow (paper §2.4).
func (c *commit) sendNotifications(ctx context.Context, commitTS tso.Timestamp) error {
	if len(c.notified) == 0 {
		return nil
	}
	ctx, span := c.client.resolver.Trace.Begin(ctx, "notify", "")
	err := c.client.resolver.Journal.Notify(ctx, c.notified, commitTS, format.EncodeNotifyCell(c.traceParent, c.txn.hops))
	span.EndWith(err)
	return err
}

// commitPrimary sends the commit point: one conditional mutation of the primary's row. If the
// primary lock is still there, it turns every lock of the transaction in the row into a write
// record. If its outcome is unknown, commitPrimary reads the row back and sends the mutation
// again with the same commit_ts, never with another one (hazards 4 and 5). The only
// exception is a lock that proves that the first mutation can never take effect: a reader
// raised its minimum commit_ts (recovery/pass.go). commitPrimary returns the commit_ts.
func (c *commit) commitPrimary(ctx context.Context, commitTS tso.Timestamp) (tso.Timestamp, error) {
	row := c.rows[0]
	m := bigtable.NewMutation()
	c.addRowCommit(m, row, commitTS)
	p := &recovery.PrimaryCommit{Resolver: c.client.resolver, Table: row.Table, Primary: c.primary, StartTS: c.startTS, CommitTS: commitTS, Mutation: m}
	if p.Passable = c.client.cfg.PassLocks; p.Passable {
		p.CommitAt = func(ctx context.Context, ts tso.Timestamp) (*bigtable.Mutation, error) {
			if err := cmp.Or(c.checkBound(ts), c.recheckSchemas(ctx, ts)); err != nil {
				return nil, err
			}
			m := bigtable.NewMutation()
			c.addRowCommit(m, row, ts)
			return m, c.sendNotifications(ctx, ts)
		}
	}
	ctx, span := c.client.resolver.Trace.Begin(ctx, "commit primary", row.Table.Name)
	err := p.Run(ctx)
	c.heartbeat.stop()
	if err == nil && span.Recording() {
		span.AddEvent("commit point", trace.WithAttributes(telemetry.AttrCommitTS.Int64(int64(p.CommitTS))))
	}
	span.EndWith(err)
	switch {
	case Retryable(err):
		// Another client has rolled the transaction back.
		c.client.resolver.Background.Run(c.cleanUp)
	case store.Permanent(err) && !errors.Is(err, ErrUndetermined):
		// Bigtable refused the commit. It would still be wrong to remove locks without a
		// condition: nothing but a rollback at the primary proves the outcome.
		c.rollBackRefused(ctx, p)
	}
	if err != nil {
		p.CommitTS, err = c.settle(ctx, err)
	}
	return p.CommitTS, err
}

// checkBound fails if commitTS is not below the bound of CommitBefore.
func (c *commit) checkBound(commitTS tso.Timestamp) error {
	if bound := c.txn.commitBound; bound != 0 && commitTS >= bound {
		return &ConflictError{Cell: c.primary, StartTS: c.startTS, ConflictTS: bound, Reason: format.ConflictBound}
	}
	return nil
}

// recheckSchemas fails if the commit has taken so long that an index or an observer of its columns was
// registered meanwhile, and clients at commitTS rely on every commit to know it. It comes after
// commit_ts is taken: a registration that this read misses is later.
func (c *commit) recheckSchemas(ctx context.Context, commitTS tso.Timestamp) error {
	changed, err := store.Recheck(ctx, c.rows, c.client.hooks.Load().keeps)
	if changed != nil {
		return &ConflictError{Cell: *changed, StartTS: c.startTS, ConflictTS: commitTS, Reason: format.ConflictBound}
	}
	return err
}

// settle finds out the outcome of a commit that returned err, if SettleWithin allows it, also
// after ctx has ended. If a reader has passed a commit that is too late to take a new
// commit_ts, it can only be rolled back.
func (c *commit) settle(ctx context.Context, err error) (tso.Timestamp, error) {
	var unknown *UndeterminedError
	within := c.txn.opts.settleWithin
	if errors.Is(err, ErrConflict) {
		within = max(within, c.client.cfg.LockTTL)
	}
	if within == 0 || !errors.As(err, &unknown) {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	switch status, settleErr := recovery.Settle(ctx, c.client.resolver, unknown); {
	case settleErr != nil:
		return 0, err
	case status.State == StateCommitted:
		return status.CommitTS, nil
	}
	c.client.resolver.Background.Run(c.cleanUp)
	return 0, &ConflictError{Cell: c.primary, StartTS: c.startTS, Reason: format.ConflictRolledBack}
}

// rollBackRefused rolls back a transaction whose commit Bigtable refused for good. If it
// fails, the next reader removes the locks, which expire meanwhile.
func (c *commit) rollBackRefused(ctx context.Context, p *recovery.PrimaryCommit) {
	ctx, cancel := context.WithTimeout(ctx, c.client.cfg.LockTTL)
	defer cancel()
	ctx, span := c.client.resolver.Trace.Begin(ctx, "roll back", "")
	done, err := p.RollBack(ctx)
	if done {
		c.cleanUp(ctx)
	}
	span.EndWith(err)
}

// addRowCommit adds the commit of each cell of a row to m, and returns how many operations
// that takes.
func (c *commit) addRowCommit(m *bigtable.Mutation, row *store.RowWrites, commitTS tso.Timestamp) (ops int) {
	for _, w := range row.Writes {
		lock := lockOf(c, w)
		ops += store.AddCommit(m, &lock, commitTS, c.settledBy)
	}
	return ops
}

// commitSecondaries commits the other rows. The transaction is committed whatever happens
// here: the next reader rolls a remaining lock forward.
func (c *commit) commitSecondaries(ctx context.Context, commitTS tso.Timestamp) {
	if len(c.rows) == 1 {
		return
	}
	span := c.client.resolver.Trace.Secondaries(ctx, len(c.rows)-1)
	for _, rows := range store.ByTable(c.rows[1:]) {
		t, muts := rows[0].Table, make([]store.RowMutation, 0, len(rows))
		for _, row := range rows {
			m := bigtable.NewMutation()
			ops := c.addRowCommit(m, row, commitTS)
			muts = append(muts, store.RowMutation{Row: row.Row, Mut: m, Ops: ops, NameBytes: row.NameBytes(c.primary), Hints: row.Observed(), StartTS: c.startTS, Secondaries: span, Settles: c.settles})
		}
		if !c.client.cfg.SyncSecondaries && c.client.resolver.Background.Add(t, muts) {
			continue
		}
		// The queue is full, or Config.SyncSecondaries is set: this commit sends them
		// itself.
		failed, err := t.Apply(ctx, muts)
		c.client.resolver.Background.NoteApplied(muts, failed)
		if err != nil {
			c.client.resolver.Background.AddOrGiveUp(t, failed, err)
			c.client.resolver.Log.WarnContext(ctx, "committing secondaries failed; the next reader rolls their locks forward", "table", t.Name, "rows", len(failed), "start_ts", c.startTS, "commit_ts", commitTS, "error", err)
		}
	}
}

// giveUp aborts because of err, which may be a conflict or a stall, and returns the commit's error.
func (c *commit) giveUp(ctx context.Context, err error) error {
	err = c.gaveUp(err)
	c.client.resolver.Trace.Conflict(ctx, err)
	c.client.noteConflict(err)
	c.abort(ctx)
	return err
}

// abort removes what prewrites may have left. No commit was sent, so no client can commit
// this transaction any more, and the removal needs no condition. If a late prewrite still
// leaves a lock, that lock is an orphan and expires with its ttl (docs/protocol.md, state
// Aborted).
func (c *commit) abort(ctx context.Context) {
	c.heartbeat.stop()
	ctx, span := c.client.resolver.Trace.Begin(ctx, "roll back", "")
	defer span.EndWith(nil) // if the removal fails, the next reader removes the locks
	defer c.client.resolver.Journal.Withdraw(c.entries)
	byTable := map[*store.Table][]store.RowMutation{}
	for _, row := range c.rows {
		if !row.Touched {
			continue
		}
		m := bigtable.NewMutation()
		for _, w := range row.Writes {
			store.RemoveLockAndData(m, w.Cell.Column(), c.startTS)
		}
		mut := store.RowMutation{Row: row.Row, Mut: m, Ops: 2 * len(row.Writes), NameBytes: row.NameBytes(c.primary)}
		if c.stalled && row.Unanswered {
			defer c.client.resolver.Background.AddOrGiveUp(row.Table, []store.RowMutation{mut}, errNoAnswer) // it waits for the row
			continue
		}
		byTable[row.Table] = append(byTable[row.Table], mut)
	}
	if c.stalled {
		// The removal of the other locks must not wait for another row that is ill.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.client.resolver.Store.StallAfter())
		defer cancel()
	}
	for t, muts := range byTable {
		if ctx.Err() != nil {
			// The caller does not wait any more.
			c.client.resolver.Background.AddOrGiveUp(t, muts, context.Cause(ctx))
			continue
		}
		if failed, err := t.Apply(ctx, muts); err != nil {
			c.client.resolver.Background.AddOrGiveUp(t, failed, err)
		}
	}
}

// cleanUp removes the locks of a transaction that was rolled back after its commit had been
// sent. From then on the owner may remove locks only by conditional mutations (hazard 16), one for
// each row: a lock at start_ts is one of this transaction, in whichever column. If cleanUp fails,
// the next reader removes the locks.
func (c *commit) cleanUp(ctx context.Context) {
	c.client.resolver.Journal.Withdraw(c.entries)
	var g errgroup.Group
	g.SetLimit(c.client.resolver.Store.Config.Parallelism)
	for _, row := range c.rows {
		m, some := bigtable.NewMutation(), false
		for _, w := range row.Writes {
			if w.Cell != c.primary {
				store.RemoveLockAndData(m, w.Cell.Column(), c.startTS)
				some = true
			}
		}
		if some {
			g.Go(func() error {
				_, err := row.Table.CheckAndMutate(ctx, row.Row, store.AnyLockAt(c.startTS), m, nil)
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		c.client.resolver.Log.DebugContext(ctx, "removing the locks of a rolled-back transaction failed; the next reader removes them", "start_ts", c.startTS, "error", err)
	}
}
