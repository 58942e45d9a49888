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

// The safe point P is the oldest timestamp that may be read. Below it, garbage collection
// removes versions, and with them the records that decide conflicts and outcomes. So a read
// needs S ≥ P, and a commit needs S > P. Each client reads P from the metadata table and
// relies on the answer for at most gctime.SafePointMaxAge. A collector publishes a safe point
// and then waits longer than that before it removes anything (docs/gc.md).
//
// The client checks at a moment that makes delays harmless. It checks a read after the answer
// arrived, and a commit between the answers to its prewrites and its commit point. It checks
// a request without a condition before sending it, with a deadline that it set before the
// check.

const (
	// GCRowKey is the row of the metadata table that holds the safe point and the state of
	// garbage collection.
	GCRowKey           = "gc"
	safePointQualifier = "safe-point"
)

// SafePoint is what a client knows about the deployment's safe point.
type SafePoint struct {
	store *Store
	// View is the latest answer.
	View atomic.Pointer[SafePointView]
	// reading holds one token while the safe point is read.
	reading chan struct{}
	stop    context.CancelFunc
	stopped chan struct{} // closed when the work of KeepFresh has ended
	// used says that the client needed the safe point since KeepFresh last looked.
	used atomic.Bool
	// resting says that KeepFresh reads nothing, because the client is idle.
	resting atomic.Bool
	wake    chan struct{} // the client is not idle any more
}

// A SafePointView is one answer: at asked, the safe point was at most TS.
type SafePointView struct {
	TS    tso.Timestamp
	asked time.Time
	wall  time.Time // asked, without the monotonic clock
	// noteUntil is the oracle time until which clients note the rows that they change.
	noteUntil tso.Timestamp
}

func newSafePointView(ts tso.Timestamp, asked time.Time) *SafePointView {
	return &SafePointView{TS: ts, asked: asked, wall: asked.Round(0)}
}

// NotesChanges reports whether a collector reads what clients note about the rows that they
// change.
func (s *SafePoint) NotesChanges() bool {
	until := s.View.Load().noteUntil
	return until != 0 && s.store.Clock.Now() < until
}

// fresh reports whether the client may still rely on the view. It compares the wall clock as
// well, because the monotonic clock stands still while a machine sleeps.
func (v *SafePointView) fresh() bool {
	return max(time.Since(v.asked), time.Since(v.wall)) <= gctime.SafePointMaxAge()
}

// newSafePoint reads the safe point, which is the first request of a client. It tries again
// as other reads do.
func newSafePoint(ctx context.Context, st *Store) (*SafePoint, error) {
	s := &SafePoint{store: st, reading: make(chan struct{}, 1), stopped: make(chan struct{}), wake: make(chan struct{}, 1)}
	s.View.Store(&SafePointView{})
	for a := st.Metadata.attempts(); ; {
		err := s.read(ctx)
		if err != nil {
			if err = a.again(ctx, err); err == nil {
				continue
			}
			return nil, err
		}
		return s, nil
	}
}

// KeepFresh reads the safe point again in the background, three times in
// gctime.SafePointMaxAge, until Close, unless the client has not used the safe point since
// the last time, and is not busy. Each time it also calls also, with a context that ends when the
// next time comes.
func (s *SafePoint) KeepFresh(busy func() bool, also func(context.Context)) {
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
				s.resting.Store(!s.used.Swap(false) && !busy())
			case <-s.wake:
			}
			rctx, cancel := context.WithTimeout(ctx, interval)
			var err error
			if !s.resting.Load() {
				err = s.readNewer(rctx, s.View.Load())
			}
			also(rctx)
			cancel()
			if err != nil && ctx.Err() == nil {
				s.store.Log.WarnContext(ctx, "reading the safe point failed; transactions wait while it is older than max_age", "age", time.Since(s.View.Load().asked), "max_age", gctime.SafePointMaxAge(), "error", err)
			}
		}
	}()
}

// Need says that the client will need the safe point soon. An idle client reads it then, beside
// the request that it waits for.
func (s *SafePoint) Need() {
	if s.resting.Load() && s.resting.Swap(false) {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// Close ends KeepFresh.
func (s *SafePoint) Close() {
	s.stop()
	<-s.stopped
}

// read asks for the safe point once.
func (s *SafePoint) read(ctx context.Context) error {
	asked := time.Now() // before the request, which may miss what is published meanwhile
	record, _, err := s.ReadRecord(ctx)
	if err != nil {
		return err
	}
	s.note(record, asked)
	return nil
}

// note remembers an answer. A safe point never decreases. If a restored backup contains a
// smaller one, the larger one stays: what was collected below it does not come back.
func (s *SafePoint) note(record *recordpb.SafePoint, asked time.Time) {
	for {
		old := s.View.Load()
		if asked.Before(old.asked) {
			asked = old.asked
		}
		next := newSafePointView(max(tso.Timestamp(record.GetTs()), old.TS), asked)
		next.noteUntil = max(tso.Timestamp(record.GetNoteUntilTs()), old.noteUntil)
		if s.View.CompareAndSwap(old, next) {
			return
		}
	}
}

// readNewer returns when there is a view newer than old, which this call or another one has
// read.
func (s *SafePoint) readNewer(ctx context.Context, old *SafePointView) error {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return Ended(ctx, "percolator: waiting for the safe point", nil)
	}
	if v := s.View.Load(); v != old && v.fresh() {
		return nil
	}
	return s.read(ctx)
}

// Current returns a safe point that is not below that of any collection that has begun. It
// costs nothing as long as KeepFresh reads it. Otherwise Current reads the safe point itself,
// and tries until ctx ends, because without it nothing may be read.
func (s *SafePoint) Current(ctx context.Context) (tso.Timestamp, error) {
	if !s.used.Load() {
		s.used.Store(true)
	}
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
				return 0, Ended(ctx, fmt.Sprintf("percolator: reading the safe point from row %q of table %q (last read %v ago; transactions may rely on it for %v)", GCRowKey, s.store.Metadata.Name, time.Since(v.asked).Round(time.Millisecond), gctime.SafePointMaxAge()), last)
			}
		}
	}
}

// CheckRead returns a TooOldError if a read at ts may have missed versions. The caller calls it
// after the read: then no collection that could hide versions from the read had begun when
// Bigtable answered.
func (s *SafePoint) CheckRead(ctx context.Context, ts tso.Timestamp) error {
	p, err := s.Current(ctx)
	if err == nil && ts < p {
		return &format.TooOldError{TS: ts, SafePoint: p}
	}
	return err
}

// AfterRead returns the error of a read at ts that ended with err. If the read found records
// that contradict each other, it may have been too late: a collection leaves such records
// below the safe point. The result is a TooOldError then.
func (s *SafePoint) AfterRead(ctx context.Context, ts tso.Timestamp, err error) error {
	if err != nil && !errors.Is(err, format.ErrCorrupt) {
		return err
	}
	if e := s.CheckRead(ctx, ts); e != nil {
		return e
	}
	return err
}

// CheckWrite returns a TooOldError if the transaction that started at ts may not write any
// more. Garbage collection may have removed commits that it conflicts with, and may resolve
// its locks.
func (s *SafePoint) CheckWrite(ctx context.Context, ts tso.Timestamp) error {
	p, err := s.Current(ctx)
	if err == nil && ts <= p {
		return &format.TooOldError{TS: ts, SafePoint: p, Write: true}
	}
	return err
}

// Forgotten reports whether garbage collection may have removed the records of the transaction
// that started at ts. If so, missing records at the primary prove nothing, and neither does a
// rollback marker (design §8 rule 6). The caller calls it after it read the primary.
func (s *SafePoint) Forgotten(ctx context.Context, ts tso.Timestamp) (bool, error) {
	p, err := s.Current(ctx)
	return err != nil || ts <= p, err
}

// splitTooOld separates the mutations of transactions that may not write any more. They fail;
// the next client that reaches their locks resolves them. On an error, it is unknown which
// mutations these are, and keep is muts.
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

// ReadRecord reads the stored safe point. raw is its stored form. If no garbage was ever
// collected, record is empty and raw is nil.
func (s *SafePoint) ReadRecord(ctx context.Context) (record *recordpb.SafePoint, raw []byte, err error) {
	row, err := s.store.Metadata.TryReadRow(ctx, GCRowKey, Interleave(ExactColumn(DeployFamily, safePointQualifier)))
	if err != nil {
		return nil, nil, err
	}
	record = &recordpb.SafePoint{}
	if len(row[DeployFamily]) == 0 {
		return record, nil, nil
	}
	raw = row[DeployFamily][0].Value
	if err := proto.Unmarshal(raw, record); err != nil {
		return nil, nil, fmt.Errorf("percolator: the safe point in row %q of table %q: %w: it does not parse: %w", GCRowKey, s.store.Metadata.Name, format.ErrCorrupt, err)
	}
	if err := format.CheckVersion(record, fmt.Sprintf("the safe point in row %q of table %q", GCRowKey, s.store.Metadata.Name)); err != nil {
		return nil, nil, fmt.Errorf("percolator: %w", err)
	}
	return record, raw, nil
}

// Publish raises the stored safe point to ts and returns the stored one, which may be higher.
// It never lowers the safe point. now is the oracle's time. Until noteUntil, clients note the rows
// that they change; 0 changes nothing of that.
func (s *SafePoint) Publish(ctx context.Context, ts, now tso.Timestamp, retention time.Duration, noteUntil tso.Timestamp) (tso.Timestamp, error) {
	asked := time.Now()
	record, err := s.update(ctx, func(r *recordpb.SafePoint) bool {
		raises, notes := r.Ts < int64(ts), r.NoteUntilTs < int64(noteUntil)
		if raises {
			r.Ts, r.PublishedTs, r.RetentionMicros = int64(ts), int64(now), retention.Microseconds()
		}
		r.NoteUntilTs = max(r.NoteUntilTs, int64(noteUntil))
		return raises || notes
	})
	if err != nil {
		return 0, err
	}
	s.note(record, asked)
	return tso.Timestamp(record.Ts), nil
}

// LocksResolved stores that every lock at or below ts, which was published, is resolved. It
// returns the drained safe point: no request of a transaction at or below that arrives any
// more. now is an oracle time after the publication.
func (s *SafePoint) LocksResolved(ctx context.Context, ts, now tso.Timestamp, retention time.Duration) (tso.Timestamp, error) {
	record, err := s.update(ctx, func(r *recordpb.SafePoint) bool { return noteResolved(r, ts, now, retention) })
	return tso.Timestamp(record.GetDrainedTs()), err
}

// noteResolved does the work of LocksResolved, and reports whether r has changed. A second
// call with the same arguments changes nothing, so update ends.
func noteResolved(r *recordpb.SafePoint, ts, now tso.Timestamp, retention time.Duration) (changed bool) {
	set := func(field *int64, ts tso.Timestamp) {
		changed = changed || *field != int64(ts)
		*field = int64(ts)
	}
	set(&r.ResolvedTs, max(ts, tso.Timestamp(r.ResolvedTs)))
	if drained := Drained(r, now, retention); int64(drained) >= r.DrainingTs {
		// None drains, so this one begins, unless it is drained already.
		set(&r.DrainedTs, drained)
		if ts > drained {
			set(&r.DrainingTs, ts)
			set(&r.DrainingSinceTs, now)
		}
	}
	return changed
}

// Drained returns the drained safe point at oracle time now. Clients check the safe point, and
// then send a request. Once a safe point is published, they send no more requests of
// transactions at or below it. A retention later, no such request arrives any more
// (docs/guarantees.md). The age of a transaction does not show that: while it is open, it
// holds the safe point back, so its requests may be younger than its start timestamp by any
// number of retentions.
func Drained(r *recordpb.SafePoint, now tso.Timestamp, retention time.Duration) tso.Timestamp {
	if r.DrainingTs > r.DrainedTs && int64(now)-r.DrainingSinceTs >= retention.Microseconds() {
		return tso.Timestamp(r.DrainingTs)
	}
	return tso.Timestamp(r.DrainedTs)
}

// IsLate reports whether a lock of the transaction that started at ts comes from a prewrite
// that took effect late: after a collector had resolved every lock up to there. Whatever the
// transaction's outcome, another client has resolved its lock on this cell before, or the
// transaction did not commit: it checks the safe point after its last prewrite.
func (s *SafePoint) IsLate(ctx context.Context, ts tso.Timestamp) (bool, error) {
	if below, err := s.Forgotten(ctx, ts); !below || err != nil {
		return false, err
	}
	unchanged := func(*recordpb.SafePoint) bool { return false }
	record, err := s.update(ctx, unchanged) // it reads until it is answered
	return err == nil && int64(ts) <= record.ResolvedTs, err
}

// update changes the stored safe point as change says, and returns what is stored then. change
// returns false if nothing has to change. update replaces the record only if its bytes are
// those that it read. So if two collectors change it at once, none of the changes is lost.
func (s *SafePoint) update(ctx context.Context, change func(*recordpb.SafePoint) bool) (*recordpb.SafePoint, error) {
	var last error
	for pause := s.store.Config.Backoff.Start(); ; {
		record, raw, err := s.ReadRecord(ctx)
		if err == nil {
			if !change(record) {
				return record, nil
			}
			record.FormatVersion = format.Version
			m := bigtable.NewMutation()
			m.Set(DeployFamily, safePointQualifier, 0, format.Marshal(record))
			column := ExactColumn(DeployFamily, safePointQualifier)
			if raw == nil {
				_, err = s.store.Metadata.CheckAndMutate(ctx, GCRowKey, Interleave(column), nil, m)
			} else {
				_, err = s.store.Metadata.CheckAndMutate(ctx, GCRowKey, Interleave(Chain(column, ExactValue(raw))), m, nil)
			}
		}
		// The next round reads the result.
		switch {
		case Permanent(err), errors.Is(err, format.ErrFormatVersion), errors.Is(err, format.ErrCorrupt):
			return nil, err
		case err != nil:
			last = err
			if pause.Wait(ctx, 0) != nil {
				return nil, Ended(ctx, "percolator: reading and storing the safe point", last)
			}
		}
	}
}
