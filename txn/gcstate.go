package txn

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

const (
	gcRunQualifier = "run"
	gcLeaseName    = "gc"
)

// A GCStatus is what the metadata table says of garbage collection.
type GCStatus struct {
	// SafePoint is 0 when nothing was ever collected.
	SafePoint tso.Timestamp
	// PublishedTS is when it was published, and Retention what it came of.
	PublishedTS tso.Timestamp
	Retention   time.Duration
	// Now is the oracle's time.
	Now tso.Timestamp
	// Run is the last run.
	Run GCRunStatus
	// Lease says who collects now; empty: nobody.
	Lease tso.Holder
	// Holds are all clients with open transactions, or snapshots taken with Hold,
	// the oldest first.
	Holds []GCHold
}

// A GCRunStatus is how far a run came, and what it has reclaimed since it began,
// interruptions included.
type GCRunStatus struct {
	// Phase is GCNone, GCFence (locks being resolved, too), GCCollect or GCDone.
	Phase     GCPhase
	SafePoint tso.Timestamp
	// Table and Row: everything up to there is collected.
	Table, Row           string
	StartedTS, UpdatedTS tso.Timestamp
	Owner                string
	Rows, Versions       int64
	Cells, Bytes         int64
}

// SafePoint returns a safe point that every read below fails at by now. It is
// at most half a minute behind the published one, and costs no request.
func SafePoint(ctx context.Context, client *Client) (tso.Timestamp, error) {
	c := resolverOf(client)
	return c.safePoint.current(ctx)
}

// GCStatus reads the state of garbage collection, and changes nothing.
func ReadGCStatus(ctx context.Context, client *Client) (*GCStatus, error) {
	c := resolverOf(client)
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	record, _, err := c.safePoint.readRecord(ctx)
	if err != nil {
		return nil, err
	}
	run, err := readGCRun(ctx, c)
	if err != nil {
		return nil, err
	}
	s := &GCStatus{
		SafePoint: tso.Timestamp(record.Ts), PublishedTS: tso.Timestamp(record.PublishedTs), Retention: time.Duration(record.RetentionMicros) * time.Microsecond,
		Run: GCRunStatus{
			Phase: gcPhases[run.Phase], SafePoint: tso.Timestamp(run.SafePoint), Table: run.Table, Row: string(run.Row),
			StartedTS: tso.Timestamp(run.StartedTs), UpdatedTS: tso.Timestamp(run.UpdatedTs), Owner: run.Owner,
			Rows: run.Rows, Versions: run.Versions, Cells: run.Cells, Bytes: run.Bytes,
		},
	}
	locks, err := gcLocks(c)
	if err != nil {
		return nil, err
	}
	if s.Lease, err = locks.Holder(ctx, gcLeaseName); err != nil {
		return nil, err
	}
	if s.Now, err = c.clock.timestamp(ctx); err != nil {
		return nil, err
	}
	s.Holds, err = readHolds(ctx, c, s.Now)
	return s, err
}

var gcPhases = map[recordpb.GarbageRun_Phase]GCPhase{
	recordpb.GarbageRun_PHASE_UNSPECIFIED: GCNone,
	recordpb.GarbageRun_PHASE_FENCE:       GCFence,
	recordpb.GarbageRun_PHASE_COLLECT:     GCCollect,
	recordpb.GarbageRun_PHASE_DONE:        GCDone,
}

// readHolds returns what clients have open, the oldest first.
func readHolds(ctx context.Context, c *resolver, now tso.Timestamp) ([]GCHold, error) {
	holds := []GCHold{}
	err := c.metadata.readRows(ctx, bigtable.PrefixRange(tokenRowPrefix), func(r bigtable.Row) bool {
		w, ok := decodeToken(r)
		if ok && w.OldestTs > 0 && now < tso.Timestamp(w.ExpiresTs)+tso.Timestamp(gctime.HoldGrace().Microseconds()) {
			holds = append(holds, GCHold{Owner: r.Key()[len(tokenRowPrefix):], Host: w.Host, PID: w.Pid, OldestTS: tso.Timestamp(w.OldestTs), ExpiresTS: tso.Timestamp(w.ExpiresTs)})
		}
		return true
	}, bigtable.RowFilter(interleave(column(deployFamily, tokenQualifier))))
	slices.SortFunc(holds, func(a, b GCHold) int { return cmp.Compare(a.OldestTS, b.OldestTS) })
	return holds, err
}

// readGCRun reads how far the last run came. One that this library cannot read
// is as good as none: a run can always begin anew.
func readGCRun(ctx context.Context, c *resolver) (*recordpb.GarbageRun, error) {
	row, err := c.metadata.readRow(ctx, gcRowKey, interleave(column(deployFamily, gcRunQualifier)))
	if err != nil {
		return nil, err
	}
	run := &recordpb.GarbageRun{}
	if items := row[deployFamily]; len(items) > 0 {
		if err := proto.Unmarshal(items[0].Value, run); err != nil || run.FormatVersion != FormatVersion {
			c.log.WarnContext(ctx, "the record of the last garbage collection cannot be read; the next one begins anew", "format_version", run.FormatVersion, "error", err)
			return &recordpb.GarbageRun{}, nil
		}
	}
	return run, nil
}

// save stores how far the run is. It needs no condition: whatever position it
// replaces, and whenever it lands, it only says what was done for a safe point,
// and that stays done.
func (r *gcRun) save(ctx context.Context, phase recordpb.GarbageRun_Phase) error {
	now, err := r.client.clock.timestamp(ctx)
	if err != nil {
		return err
	}
	t := r.report.Total
	r.state.FormatVersion, r.state.Phase, r.state.UpdatedTs, r.state.Owner = FormatVersion, phase, int64(now), r.owner
	r.state.Rows, r.state.Versions = r.before.Rows+t.Rows, r.before.Versions+t.Versions
	r.state.Cells, r.state.Bytes = r.before.Cells+t.Cells, r.before.Bytes+t.Bytes
	m := bigtable.NewMutation()
	m.Set(deployFamily, gcRunQualifier, 0, marshal(r.state))
	return r.applyAll(ctx, r.client.metadata, []rowMutation{{row: gcRowKey, mut: m, ops: 1}})
}

// gcLease keeps a second collector from working at the same time. It is
// advisory: two at once do the same twice, and no harm (docs/gc.md).
type gcLease struct {
	locks   *tso.RowLocks
	owner   string
	cancel  context.CancelFunc
	lost    atomic.Pointer[GCBusyError] // to whom
	stopped chan struct{}
}

func gcLocks(c *resolver) (*tso.RowLocks, error) {
	return tso.NewRowLocks(c.metadata.api, tso.RowLocksConfig{Oracle: c.clock.oracle, RPCTimeout: c.store.cfg.RPCTimeout})
}

// takeGCLease takes the lease and renews it until release. The context it
// returns ends when the lease is lost.
func takeGCLease(ctx context.Context, c *resolver) (*gcLease, context.Context, error) {
	locks, err := gcLocks(c)
	if err != nil {
		return nil, nil, err
	}
	host, _ := os.Hostname()
	l := &gcLease{locks: locks, owner: fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:6]), stopped: make(chan struct{})}
	ok, by, err := locks.Acquire(ctx, gcLeaseName, l.owner, gctime.LeaseTTL())
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, ended(ctx, "taking the lease of garbage collection", err)
		}
		return nil, nil, fmt.Errorf("txn: taking the lease of garbage collection: %w", err)
	}
	if !ok {
		return nil, nil, &GCBusyError{Holder: by.Owner, Left: by.Left}
	}
	ctx, l.cancel = context.WithCancel(ctx)
	go l.renew(ctx, c)
	return l, ctx, nil
}

func (l *gcLease) renew(ctx context.Context, c *resolver) {
	defer close(l.stopped)
	ttl := gctime.LeaseTTL()
	tick := time.NewTicker(ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		rctx, cancel := context.WithTimeout(ctx, ttl/3)
		ok, by, err := l.locks.Acquire(rctx, gcLeaseName, l.owner, ttl)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			// Whoever takes it meanwhile is noticed by the next attempt.
			c.log.WarnContext(ctx, "renewing the lease of garbage collection failed", "error", err)
		case err == nil && !ok:
			l.lost.Store(&GCBusyError{Holder: by.Owner, Left: by.Left, Lost: true})
			l.cancel()
			return
		}
	}
}

// explain names the loss of the lease where that ended the run.
func (l *gcLease) explain(err error) error {
	if lost := l.lost.Load(); err != nil && lost != nil {
		return lost
	}
	return err
}

func (l *gcLease) release(ctx context.Context) {
	l.cancel()
	<-l.stopped
	// The run may have been interrupted; the next must not wait for that.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = l.locks.Release(ctx, gcLeaseName, l.owner) // else it runs out
}
