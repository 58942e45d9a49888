package txn

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
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
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
	gcRowKey           = "gc"
	safePointQualifier = "safe-point"
)

// safePoint is what a client knows of the deployment's safe point.
type safePoint struct {
	store *store
	view  atomic.Pointer[safePointView]
	// reading holds one token while the safe point is read.
	reading chan struct{}
	stop    context.CancelFunc
	stopped chan struct{}
}

// safePointView is one answer: P was at most ts when it was asked for.
type safePointView struct {
	ts    tso.Timestamp
	asked time.Time
	wall  time.Time // asked, by the wall clock alone
}

func newSafePointView(ts tso.Timestamp, asked time.Time) *safePointView {
	return &safePointView{ts, asked, asked.Round(0)}
}

// fresh reports whether the view may still be gone by. The wall clock counts
// besides the monotonic one, which stands still while a machine sleeps.
func (v *safePointView) fresh() bool {
	return max(time.Since(v.asked), time.Since(v.wall)) <= gctime.SafePointMaxAge()
}

// newSafePoint reads the safe point, which is also the first request of a
// client, and keeps it fresh until close.
func newSafePoint(ctx context.Context, st *store) (*safePoint, error) {
	s := &safePoint{store: st, reading: make(chan struct{}, 1), stopped: make(chan struct{})}
	s.view.Store(&safePointView{})
	if err := s.read(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// keep starts to keep the safe point fresh, and calls also each time, with a context
// that ends when the next time comes.
func (s *safePoint) keep(also func(context.Context)) {
	var ctx context.Context
	ctx, s.stop = context.WithCancel(untraced)
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
			err := s.readAgain(rctx, s.view.Load())
			also(rctx)
			cancel()
			if err != nil && ctx.Err() == nil {
				s.store.log.WarnContext(ctx, "reading the safe point failed; transactions stop when it is older than allowed", "age", time.Since(s.view.Load().asked), "max_age", gctime.SafePointMaxAge(), "error", err)
			}
		}
	}()
}

func (s *safePoint) close() {
	s.stop()
	<-s.stopped
}

// read asks for the safe point once.
func (s *safePoint) read(ctx context.Context) error {
	asked := time.Now() // before the request: what is published later may be missed
	record, _, err := s.readRecord(ctx)
	if err != nil {
		return err
	}
	s.learn(tso.Timestamp(record.GetTs()), asked)
	return nil
}

// learn takes in an answer. A safe point never decreases; a smaller one comes of
// a restored backup, and what was collected stays collected.
func (s *safePoint) learn(ts tso.Timestamp, asked time.Time) {
	for {
		old := s.view.Load()
		if asked.Before(old.asked) {
			asked = old.asked
		}
		next := newSafePointView(max(ts, old.ts), asked)
		if s.view.CompareAndSwap(old, next) {
			return
		}
	}
}

// readAgain returns once a view newer than old is there, whoever reads it.
func (s *safePoint) readAgain(ctx context.Context, old *safePointView) error {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return ended(ctx, "waiting for the safe point", nil)
	}
	if v := s.view.Load(); v != old && v.fresh() {
		return nil
	}
	return s.read(ctx)
}

// current returns a safe point that every collection that has begun by now is
// at or below. It costs nothing as long as the background keeps up, and fails
// when the safe point cannot be read: then nothing is sure.
func (s *safePoint) current(ctx context.Context) (tso.Timestamp, error) {
	var last error
	for pause := s.store.cfg.Backoff.start(); ; {
		v := s.view.Load()
		if v.fresh() {
			return v.ts, nil
		}
		err := s.readAgain(ctx, v)
		switch {
		case permanent(err), errors.Is(err, ErrFormatVersion), errors.Is(err, ErrCorrupt):
			return 0, err
		case err != nil:
			last = err
			if pause.wait(ctx, 0) != nil {
				return 0, ended(ctx, fmt.Sprintf("the safe point was last read %v ago, and transactions go by it for at most %v; reading it from row %q of table %q", time.Since(v.asked).Round(time.Millisecond), gctime.SafePointMaxAge(), gcRowKey, s.store.metadata.name), last)
			}
		}
	}
}

// checkRead fails with a TooOldError when what was read at ts may lack versions.
// It belongs behind a read: then no collection that could have hidden something
// from it had begun when it was answered.
func (s *safePoint) checkRead(ctx context.Context, ts tso.Timestamp) error {
	p, err := s.current(ctx)
	if err == nil && ts < p {
		return &TooOldError{TS: ts, SafePoint: p}
	}
	return err
}

// afterRead is the outcome of a read at ts that ended with err: records that
// contradict each other are what a collection leaves for those who come too
// late.
func (s *safePoint) afterRead(ctx context.Context, ts tso.Timestamp, err error) error {
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return err
	}
	if e := s.checkRead(ctx, ts); e != nil {
		return e
	}
	return err
}

// checkWrite fails with a TooOldError when the transaction that started at ts
// may not write: others' commits that it conflicts with may be forgotten, and
// its locks would be resolved.
func (s *safePoint) checkWrite(ctx context.Context, ts tso.Timestamp) error {
	p, err := s.current(ctx)
	if err == nil && ts <= p {
		return &TooOldError{TS: ts, SafePoint: p, Write: true}
	}
	return err
}

// forgotten reports whether the records of the transaction that started at ts
// may have been collected before now: what its primary lacks proves nothing
// then, and a rollback marker does not either (design §8 rule 6). It belongs
// behind the read of the primary.
func (s *safePoint) forgotten(ctx context.Context, ts tso.Timestamp) (bool, error) {
	p, err := s.current(ctx)
	return err != nil || ts <= p, err
}

// keepAbove splits off the mutations of transactions that may not write any
// more: they are failed, and whoever meets the locks settles them. On an
// error, it is not known which those are, and muts is returned.
func (s *safePoint) keepAbove(ctx context.Context, muts []rowMutation) (keep, tooOld []rowMutation, err error) {
	checked := false
	var p tso.Timestamp
	for _, m := range muts {
		if m.startTS == 0 {
			continue
		}
		if !checked {
			if p, err = s.current(ctx); err != nil {
				return muts, nil, err
			}
			checked = true
		}
		if m.startTS <= p {
			tooOld = append(tooOld, m)
			tooOld[len(tooOld)-1].err = &TooOldError{TS: m.startTS, SafePoint: p, Write: true}
		}
	}
	if len(tooOld) == 0 {
		return muts, nil, nil
	}
	keep = slices.DeleteFunc(slices.Clone(muts), func(m rowMutation) bool { return m.startTS != 0 && m.startTS <= p })
	return keep, tooOld, nil
}

// readRecord reads the record; a deployment that never collected garbage has
// none, and an empty one is returned. raw is its stored form.
func (s *safePoint) readRecord(ctx context.Context) (record *recordpb.SafePoint, raw []byte, err error) {
	row, err := s.store.metadata.readRow(ctx, gcRowKey, interleave(column(deployFamily, safePointQualifier)))
	if err != nil {
		return nil, nil, err
	}
	record = &recordpb.SafePoint{}
	if len(row[deployFamily]) == 0 {
		return record, nil, nil
	}
	raw = row[deployFamily][0].Value
	if err := proto.Unmarshal(raw, record); err != nil {
		return nil, nil, fmt.Errorf("txn: the safe point in row %q of table %q: %w: it does not parse: %w", gcRowKey, s.store.metadata.name, ErrCorrupt, err)
	}
	if err := checkFormat(record, fmt.Sprintf("the safe point in row %q of table %q", gcRowKey, s.store.metadata.name)); err != nil {
		return nil, nil, fmt.Errorf("txn: %w", err)
	}
	return record, raw, nil
}

// publish raises the stored safe point to ts. It never lowers it: what
// stands there afterwards is returned, and it may be higher. Only an exact
// match of what was read is replaced, so of two collectors the higher wins,
// in whatever order they come.
func (s *safePoint) publish(ctx context.Context, ts, now tso.Timestamp, retention time.Duration) (tso.Timestamp, error) {
	var last error
	for pause := s.store.cfg.Backoff.start(); ; {
		asked := time.Now()
		record, raw, err := s.readRecord(ctx)
		if err == nil {
			if stored := tso.Timestamp(record.Ts); stored >= ts {
				s.learn(stored, asked)
				return stored, nil
			}
			m := bigtable.NewMutation()
			m.Set(deployFamily, safePointQualifier, 0, marshal(&recordpb.SafePoint{
				FormatVersion: FormatVersion, Ts: int64(ts), PublishedTs: int64(now), RetentionMicros: retention.Microseconds(),
			}))
			at := column(deployFamily, safePointQualifier)
			if raw == nil {
				_, err = s.store.metadata.checkAndMutate(ctx, gcRowKey, interleave(at), nil, m)
			} else {
				_, err = s.store.metadata.checkAndMutate(ctx, gcRowKey, interleave(chain(at, bigtable.ValueRangeFilter(raw, append(slices.Clone(raw), 0)))), m, nil)
			}
		}
		// Whatever came of it is read back above.
		switch {
		case permanent(err), errors.Is(err, ErrFormatVersion), errors.Is(err, ErrCorrupt):
			return 0, err
		case err != nil:
			last = err
			if pause.wait(ctx, 0) != nil {
				return 0, ended(ctx, "publishing the safe point", last)
			}
		}
	}
}
