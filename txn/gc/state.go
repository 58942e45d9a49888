package gc

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

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

const (
	runQualifier = "run"
	leaseName    = "gc"
)

// A GCStatus is what the metadata table says of garbage collection.
type Status struct {
	// SafePoint is 0 when nothing was ever collected.
	SafePoint tso.Timestamp
	// PublishedTS is when it was published, and Retention what it came of.
	PublishedTS tso.Timestamp
	Retention   time.Duration
	// Now is the oracle's time.
	Now tso.Timestamp
	// Run is the last run.
	Run RunStatus
	// Lease says who collects now; empty: nobody.
	Lease tso.Holder
	// Holds are all clients with open transactions, or snapshots taken with Hold,
	// the oldest first.
	Holds []Hold
}

// A GCRunStatus is how far a run came, and what it has reclaimed since it began,
// interruptions included.
type RunStatus struct {
	// Phase is GCNone, GCFence (locks being resolved, too), GCCollect or GCDone.
	Phase     Phase
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
func SafePoint(ctx context.Context, client *txn.Client) (tso.Timestamp, error) {
	c := access.Resolver(client)
	return c.SafePoint.Current(ctx)
}

// GCStatus reads the state of garbage collection, and changes nothing.
func ReadStatus(ctx context.Context, client *txn.Client) (*Status, error) {
	c := access.Resolver(client)
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	record, _, err := c.SafePoint.ReadRecord(ctx)
	if err != nil {
		return nil, err
	}
	run, err := readRun(ctx, c)
	if err != nil {
		return nil, err
	}
	s := &Status{
		SafePoint: tso.Timestamp(record.Ts), PublishedTS: tso.Timestamp(record.PublishedTs), Retention: time.Duration(record.RetentionMicros) * time.Microsecond,
		Run: RunStatus{
			Phase: phases[run.Phase], SafePoint: tso.Timestamp(run.SafePoint), Table: run.Table, Row: string(run.Row),
			StartedTS: tso.Timestamp(run.StartedTs), UpdatedTS: tso.Timestamp(run.UpdatedTs), Owner: run.Owner,
			Rows: run.Rows, Versions: run.Versions, Cells: run.Cells, Bytes: run.Bytes,
		},
	}
	locks, err := leaseLocks(c)
	if err != nil {
		return nil, err
	}
	if s.Lease, err = locks.Holder(ctx, leaseName); err != nil {
		return nil, err
	}
	if s.Now, err = c.Clock.Timestamp(ctx); err != nil {
		return nil, err
	}
	s.Holds, err = readHolds(ctx, c, s.Now)
	return s, err
}

var phases = map[recordpb.GarbageRun_Phase]Phase{
	recordpb.GarbageRun_PHASE_UNSPECIFIED: None,
	recordpb.GarbageRun_PHASE_FENCE:       Fence,
	recordpb.GarbageRun_PHASE_COLLECT:     Collect,
	recordpb.GarbageRun_PHASE_DONE:        Done,
}

// readHolds returns what clients have open, the oldest first.
func readHolds(ctx context.Context, c *recovery.Resolver, now tso.Timestamp) ([]Hold, error) {
	holds := []Hold{}
	err := c.Metadata.ReadRows(ctx, bigtable.PrefixRange(recovery.TokenRowPrefix), func(r bigtable.Row) bool {
		w, ok := recovery.DecodeToken(r)
		if ok && w.OldestTs > 0 && now < tso.Timestamp(w.ExpiresTs)+tso.Timestamp(gctime.HoldGrace().Microseconds()) {
			holds = append(holds, Hold{Owner: r.Key()[len(recovery.TokenRowPrefix):], Host: w.Host, PID: w.Pid, OldestTS: tso.Timestamp(w.OldestTs), ExpiresTS: tso.Timestamp(w.ExpiresTs)})
		}
		return true
	}, bigtable.RowFilter(store.Interleave(store.ExactColumn(store.DeployFamily, recovery.TokenQualifier))))
	slices.SortFunc(holds, func(a, b Hold) int { return cmp.Compare(a.OldestTS, b.OldestTS) })
	return holds, err
}

// readRun reads how far the last run came. One that this library cannot read
// is as good as none: a run can always begin anew.
func readRun(ctx context.Context, c *recovery.Resolver) (*recordpb.GarbageRun, error) {
	row, err := c.Metadata.ReadRow(ctx, store.GcRowKey, store.Interleave(store.ExactColumn(store.DeployFamily, runQualifier)))
	if err != nil {
		return nil, err
	}
	run := &recordpb.GarbageRun{}
	if items := row[store.DeployFamily]; len(items) > 0 {
		if err := proto.Unmarshal(items[0].Value, run); err != nil || run.FormatVersion != format.Version {
			c.Log.WarnContext(ctx, "the record of the last garbage collection cannot be read; the next one begins anew", "format_version", run.FormatVersion, "error", err)
			return &recordpb.GarbageRun{}, nil
		}
	}
	return run, nil
}

// save stores how far the run is. It needs no condition: whatever position it
// replaces, and whenever it lands, it only says what was done for a safe point,
// and that stays done.
func (r *run) save(ctx context.Context, phase recordpb.GarbageRun_Phase) error {
	now, err := r.client.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	t := r.report.Total
	r.state.FormatVersion, r.state.Phase, r.state.UpdatedTs, r.state.Owner = format.Version, phase, int64(now), r.owner
	r.state.Rows, r.state.Versions = r.before.Rows+t.Rows, r.before.Versions+t.Versions
	r.state.Cells, r.state.Bytes = r.before.Cells+t.Cells, r.before.Bytes+t.Bytes
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, runQualifier, 0, format.Marshal(r.state))
	return r.applyAll(ctx, r.client.Metadata, []store.RowMutation{{Row: store.GcRowKey, Mut: m, Ops: 1}})
}

// lease keeps a second collector from working at the same time. It is
// advisory: two at once do the same twice, and no harm (docs/gc.md).
type lease struct {
	locks   *tso.RowLocks
	owner   string
	cancel  context.CancelFunc
	lost    atomic.Pointer[BusyError] // to whom
	stopped chan struct{}
}

func leaseLocks(c *recovery.Resolver) (*tso.RowLocks, error) {
	return tso.NewRowLocks(c.Metadata.API, tso.RowLocksConfig{Oracle: c.Clock.Oracle, RPCTimeout: c.Store.Config.RPCTimeout})
}

// takeLease takes the lease and renews it until release. The context it
// returns ends when the lease is lost.
func takeLease(ctx context.Context, c *recovery.Resolver) (*lease, context.Context, error) {
	locks, err := leaseLocks(c)
	if err != nil {
		return nil, nil, err
	}
	host, _ := os.Hostname()
	l := &lease{locks: locks, owner: fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:6]), stopped: make(chan struct{})}
	ok, by, err := locks.Acquire(ctx, leaseName, l.owner, gctime.LeaseTTL())
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, store.Ended(ctx, "taking the lease of garbage collection", err)
		}
		return nil, nil, fmt.Errorf("txn: taking the lease of garbage collection: %w", err)
	}
	if !ok {
		return nil, nil, &BusyError{Holder: by.Owner, Left: by.Left}
	}
	ctx, l.cancel = context.WithCancel(ctx)
	go l.renew(ctx, c)
	return l, ctx, nil
}

func (l *lease) renew(ctx context.Context, c *recovery.Resolver) {
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
		ok, by, err := l.locks.Acquire(rctx, leaseName, l.owner, ttl)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			// Whoever takes it meanwhile is noticed by the next attempt.
			c.Log.WarnContext(ctx, "renewing the lease of garbage collection failed", "error", err)
		case err == nil && !ok:
			l.lost.Store(&BusyError{Holder: by.Owner, Left: by.Left, Lost: true})
			l.cancel()
			return
		}
	}
}

// explain names the loss of the lease where that ended the run.
func (l *lease) explain(err error) error {
	if lost := l.lost.Load(); err != nil && lost != nil {
		return lost
	}
	return err
}

func (l *lease) release(ctx context.Context) {
	l.cancel()
	<-l.stopped
	// The run may have been interrupted; the next must not wait for that.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = l.locks.Release(ctx, leaseName, l.owner) // else it runs out
}
