package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// The safe point P is the oldest timestamp that may be read: below it, garbage
// collection removes versions, and the evidence that decides conflicts and
// fates. So a read needs S ≥ P and a commit S > P. Each client knows P from the
// metadata table and goes by what it read for at most gctime.SafePointMaxAge. A
// collector publishes a safe point and then waits for longer than that before
// it acts on it (docs/gc.md).
//
// The checks are made where they hold whatever was late: a read is checked when
// its answer is there, a commit between its prewrites' answers and its commit
// point. What is sent without a condition is checked before, and has a deadline
// that was set before the check.

const (
	GCRowKey           = "gc"
	safePointQualifier = "safe-point"
)

// SafePoint is what a client knows of the deployment's safe point.
type SafePoint struct {
	store *Store
	View  atomic.Pointer[SafePointView]
	// reading holds one token while the safe point is read.
	reading chan struct{}
	stop    context.CancelFunc
	stopped chan struct{}
}

// SafePointView is one answer: P was at most ts when it was asked for.
type SafePointView struct {
	TS    tso.Timestamp
	asked time.Time
	wall  time.Time // asked, by the wall clock alone
}

func newSafePointView(ts tso.Timestamp, asked time.Time) *SafePointView {
	return &SafePointView{ts, asked, asked.Round(0)}
}

// fresh reports whether the view may still be gone by. The wall clock counts
// besides the monotonic one, which stands still while a machine sleeps.
func (v *SafePointView) fresh() bool {
	return max(time.Since(v.asked), time.Since(v.wall)) <= gctime.SafePointMaxAge()
}

// newSafePoint reads the safe point, which is also the first request of a
// client, and keeps it fresh until close.
func newSafePoint(ctx context.Context, st *Store) (*SafePoint, error) {
	s := &SafePoint{store: st, reading: make(chan struct{}, 1), stopped: make(chan struct{})}
	s.View.Store(&SafePointView{})
	if err := s.read(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// KeepFresh starts to keep the safe point fresh, and calls also each time, with a context
// that ends when the next time comes.
func (s *SafePoint) KeepFresh(also func(context.Context)) {
	var ctx context.Context
	ctx, s.stop = context.WithCancel(telemetry.Untraced)
	go func() {
		defer close(s.stopped)
		interval := gctime.SafePointMaxAge() / 3
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			rctx, cancel := context.WithTimeout(ctx, interval)
			err := s.readNewer(rctx, s.View.Load())
			also(rctx)
			cancel()
			if err != nil && ctx.Err() == nil {
				s.store.Log.WarnContext(ctx, "reading the safe point failed; transactions stop when it is older than allowed", "age", time.Since(s.View.Load().asked), "max_age", gctime.SafePointMaxAge(), "error", err)
			}
		}
	}()
}

func (s *SafePoint) Close() {
	s.stop()
	<-s.stopped
}

// read asks for the safe point once.
func (s *SafePoint) read(ctx context.Context) error {
	asked := time.Now() // before the request: what is published later may be missed
	record, _, err := s.ReadRecord(ctx)
	if err != nil {
		return err
	}
	s.note(tso.Timestamp(record.GetTs()), asked)
	return nil
}

// note takes in an answer. A safe point never decreases; a smaller one comes of
// a restored backup, and what was collected stays collected.
func (s *SafePoint) note(ts tso.Timestamp, asked time.Time) {
	for {
		old := s.View.Load()
		if asked.Before(old.asked) {
			asked = old.asked
		}
		next := newSafePointView(max(ts, old.TS), asked)
		if s.View.CompareAndSwap(old, next) {
			return
		}
	}
}

// readNewer returns once a view newer than old is there, whoever reads it.
func (s *SafePoint) readNewer(ctx context.Context, old *SafePointView) error {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return Ended(ctx, "waiting for the safe point", nil)
	}
	if v := s.View.Load(); v != old && v.fresh() {
		return nil
	}
	return s.read(ctx)
}

// Current returns a safe point that every collection that has begun by now is
// at or below. It costs nothing as long as the background keeps up, and fails
// when the safe point cannot be read: then nothing is sure.
func (s *SafePoint) Current(ctx context.Context) (tso.Timestamp, error) {
	var last error
	for pause := s.store.Config.Backoff.Start(); ; {
		v := s.View.Load()
		if v.fresh() {
			return v.TS, nil
		}
		err := s.readNewer(ctx, v)
		switch {
		case Permanent(err), errors.Is(err, format.ErrFormatVersion), errors.Is(err, format.ErrCorrupt):
			return 0, err
		case err != nil:
			last = err
			if pause.Wait(ctx, 0) != nil {
				return 0, Ended(ctx, fmt.Sprintf("the safe point was last read %v ago, and transactions go by it for at most %v; reading it from row %q of table %q", time.Since(v.asked).Round(time.Millisecond), gctime.SafePointMaxAge(), GCRowKey, s.store.Metadata.Name), last)
			}
		}
	}
}

// CheckRead fails with a TooOldError when what was read at ts may lack versions.
// It belongs behind a read: then no collection that could have hidden something
// from it had begun when it was answered.
func (s *SafePoint) CheckRead(ctx context.Context, ts tso.Timestamp) error {
	p, err := s.Current(ctx)
	if err == nil && ts < p {
		return &format.TooOldError{TS: ts, SafePoint: p}
	}
	return err
}

// AfterRead is the outcome of a read at ts that ended with err: records that
// contradict each other are what a collection leaves for those who come too
// late.
func (s *SafePoint) AfterRead(ctx context.Context, ts tso.Timestamp, err error) error {
	if err != nil && !errors.Is(err, format.ErrCorrupt) {
		return err
	}
	if e := s.CheckRead(ctx, ts); e != nil {
		return e
	}
	return err
}

// CheckWrite fails with a TooOldError when the transaction that started at ts
// may not write: others' commits that it conflicts with may be forgotten, and
// its locks would be resolved.
func (s *SafePoint) CheckWrite(ctx context.Context, ts tso.Timestamp) error {
	p, err := s.Current(ctx)
	if err == nil && ts <= p {
		return &format.TooOldError{TS: ts, SafePoint: p, Write: true}
	}
	return err
}

// Forgotten reports whether the records of the transaction that started at ts
// may have been collected before now: what its primary lacks proves nothing
// then, and a rollback marker does not either (design §8 rule 6). It belongs
// behind the read of the primary.
func (s *SafePoint) Forgotten(ctx context.Context, ts tso.Timestamp) (bool, error) {
	p, err := s.Current(ctx)
	return err != nil || ts <= p, err
}

// splitTooOld splits off the mutations of transactions that may not write any
// more: they are failed, and whoever meets the locks settles them. On an
// error, it is not known which those are, and muts is returned.
func (s *SafePoint) splitTooOld(ctx context.Context, muts []RowMutation) (keep, tooOld []RowMutation, err error) {
	checked := false
	var p tso.Timestamp
	for _, m := range muts {
		if m.StartTS == 0 {
			continue
		}
		if !checked {
			if p, err = s.Current(ctx); err != nil {
				return muts, nil, err
			}
			checked = true
		}
		if m.StartTS <= p {
			tooOld = append(tooOld, m)
			tooOld[len(tooOld)-1].Err = &format.TooOldError{TS: m.StartTS, SafePoint: p, Write: true}
		}
	}
	if len(tooOld) == 0 {
		return muts, nil, nil
	}
	keep = slices.DeleteFunc(slices.Clone(muts), func(m RowMutation) bool { return m.StartTS != 0 && m.StartTS <= p })
	return keep, tooOld, nil
}

// ReadRecord reads the record; a deployment that never collected garbage has
// none, and an empty one is returned. raw is its stored form.
func (s *SafePoint) ReadRecord(ctx context.Context) (record *recordpb.SafePoint, raw []byte, err error) {
	row, err := s.store.Metadata.ReadRow(ctx, GCRowKey, Interleave(ExactColumn(DeployFamily, safePointQualifier)))
	if err != nil {
		return nil, nil, err
	}
	record = &recordpb.SafePoint{}
	if len(row[DeployFamily]) == 0 {
		return record, nil, nil
	}
	raw = row[DeployFamily][0].Value
	if err := proto.Unmarshal(raw, record); err != nil {
		return nil, nil, fmt.Errorf("txn: the safe point in row %q of table %q: %w: it does not parse: %w", GCRowKey, s.store.Metadata.Name, format.ErrCorrupt, err)
	}
	if err := format.CheckVersion(record, fmt.Sprintf("the safe point in row %q of table %q", GCRowKey, s.store.Metadata.Name)); err != nil {
		return nil, nil, fmt.Errorf("txn: %w", err)
	}
	return record, raw, nil
}

// Publish raises the stored safe point to ts. It never lowers it: what
// stands there afterwards is returned, and it may be higher. Only an exact
// match of what was read is replaced, so of two collectors the higher wins,
// in whatever order they come.
func (s *SafePoint) Publish(ctx context.Context, ts, now tso.Timestamp, retention time.Duration) (tso.Timestamp, error) {
	var last error
	for pause := s.store.Config.Backoff.Start(); ; {
		asked := time.Now()
		record, raw, err := s.ReadRecord(ctx)
		if err == nil {
			if stored := tso.Timestamp(record.Ts); stored >= ts {
				s.note(stored, asked)
				return stored, nil
			}
			m := bigtable.NewMutation()
			m.Set(DeployFamily, safePointQualifier, 0, format.Marshal(&recordpb.SafePoint{
				FormatVersion: format.Version, Ts: int64(ts), PublishedTs: int64(now), RetentionMicros: retention.Microseconds(),
			}))
			at := ExactColumn(DeployFamily, safePointQualifier)
			if raw == nil {
				_, err = s.store.Metadata.CheckAndMutate(ctx, GCRowKey, Interleave(at), nil, m)
			} else {
				_, err = s.store.Metadata.CheckAndMutate(ctx, GCRowKey, Interleave(Chain(at, bigtable.ValueRangeFilter(raw, append(slices.Clone(raw), 0)))), m, nil)
			}
		}
		// Whatever came of it is read back above.
		switch {
		case Permanent(err), errors.Is(err, format.ErrFormatVersion), errors.Is(err, format.ErrCorrupt):
			return 0, err
		case err != nil:
			last = err
			if pause.Wait(ctx, 0) != nil {
				return 0, Ended(ctx, "publishing the safe point", last)
			}
		}
	}
}
