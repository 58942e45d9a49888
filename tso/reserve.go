package tso

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/percolator-bigtable/percolator/tso/internal/row"
)

// catchUpSlack is how far the row may lag the clock before a reservation by
// increment pays a second round trip to catch up. Ages of locks are measured in
// oracle time against ttls of seconds, so 5 ms do not matter; a round trip takes
// about as long. With it, a row that busy processes share costs one extra round
// trip per 5 ms, not one per batch.
const catchUpSlack Timestamp = 5000 // µs

// reserver reserves ranges of timestamps in the oracle's row. It is not safe
// for concurrent use: callers form a batch because there is one reservation at
// a time.
//
// The rule is exactly next = max(last+1, now), for any number of processes.
// Neither of the two atomic operations can do that alone:
//
//   - A fetch-and-add cannot follow the clock. If each process added the gap
//     that it sees after a stall, the value would overshoot by the gap times the
//     number of processes. Oracle time in the future makes every lock look
//     expired.
//   - A compare-and-set follows the clock exactly, but starves under
//     contention, and a lost response leaves its outcome unknown.
//
// So a process that knows the current value compares and sets: one round trip.
// Otherwise it increments, which always succeeds and yields a range of its own.
// If that range lags the clock, the process tries one compare-and-set from
// there. If that fails, it uses the range it has.
type reserver struct {
	row     *row.Row
	clock   func() time.Time
	maxStep Timestamp
	log     *slog.Logger

	seen     bool      // the row was found, or made, initialised
	known    bool      // value is the row's value, as far as this process knows
	value    Timestamp // meaningful while known
	shared   bool      // others move the row too: a compare would probably fail
	high     Timestamp // highest timestamp reserved by this process
	clockBad bool      // the last comparison found the local clock off
}

// reserve returns the last timestamp of a range of n for the caller alone,
// reserved between call and return. After an error a range may have been
// reserved and lost; that is harmless.
func (r *reserver) reserve(ctx context.Context, n int64) (last Timestamp, err error) {
	if !r.seen {
		if err := r.find(ctx); err != nil {
			return 0, err
		}
	}
	if r.known && !r.shared {
		ok, err := r.advance(ctx, n)
		switch {
		case ok:
			return r.value, nil
		case err != nil && (ctx.Err() != nil || !row.Retryable(err)):
			return 0, err
		}
		// Not matched, or an unknown outcome: an increment is right in both cases.
	}
	return r.increment(ctx, n)
}

// find reads the row and initialises it where it is missing. Reading comes
// first, so that a row of another mode is refused before anything is written.
func (r *reserver) find(ctx context.Context) error {
	state, err := r.row.ReadDirect(ctx)
	if err != nil {
		return err
	}
	if value := Timestamp(state.Value); value != 0 {
		if value < r.high {
			return r.steppedBack(value)
		}
		r.seen, r.known, r.value = true, true, value
		return nil
	}
	floor := max(r.high, Min)
	now, err := r.confirmedNow(ctx, floor)
	if err != nil {
		return err
	}
	v := max(floor, now-1)
	set, err := r.row.Initialize(ctx, int64(v))
	if err != nil {
		return err
	}
	// A process that lost the race knows that there is a value, not which one.
	r.seen, r.known, r.value = true, set, v
	return nil
}

// advance moves the row from the known value to the clock, n timestamps ahead,
// and reports whether it did; then r.value is the new value. After an error of
// the compare itself its outcome stays unknown, and so does the value.
func (r *reserver) advance(ctx context.Context, n int64) (bool, error) {
	now, err := r.confirmedNow(ctx, r.value)
	if err != nil {
		return false, err
	}
	next := max(r.value, now-1) + Timestamp(n)
	if next > Max {
		return false, ErrExhausted
	}
	ok, err := r.row.CompareAndSet(ctx, int64(r.value), int64(next))
	r.known = ok && err == nil
	switch {
	case err != nil:
		return false, err
	case !ok:
		r.shared = true
		return false, nil
	}
	r.value, r.high = next, next
	return true, nil
}

// increment reserves by fetch-and-add.
func (r *reserver) increment(ctx context.Context, n int64) (Timestamp, error) {
	wasKnown, was := r.known, r.value
	r.known = false
	sum, err := r.row.Add(ctx, n)
	if err != nil {
		return 0, r.diagnose(ctx, err)
	}
	before := sum - n
	if before >= 0 && Timestamp(before) < Min {
		// It counted from 0: the row was deleted. No caller ever receives
		// numbers as small as these.
		r.seen = false
		return 0, row.ErrVanished
	}
	if err := r.row.Validate(before); err != nil {
		r.seen = false // read, and change nothing more, until it is repaired
		return 0, err
	}
	if Timestamp(sum) > Max {
		return 0, ErrExhausted
	}
	if Timestamp(before) < r.high {
		return 0, r.steppedBack(Timestamp(before))
	}
	if wasKnown {
		r.shared = Timestamp(before) != was
	}
	last := Timestamp(sum)
	r.known, r.value, r.high = true, last, last

	if FromTime(r.clock())-Timestamp(before) > catchUpSlack {
		switch ok, err := r.advance(ctx, n); {
		case ok:
			return r.value, nil
		case err != nil && ctx.Err() == nil:
			r.log.WarnContext(ctx, "tso: could not move the oracle up to the clock; using the range at hand",
				"row", r.row.Key, "lag", r.clock().Sub(last.Time()), "error", err)
		}
	}
	return last, nil
}

// diagnose finds out whether an increment failed because of the value in the
// row. If so, it returns the error that says so, else err.
func (r *reserver) diagnose(ctx context.Context, err error) error {
	if ctx.Err() != nil || !row.BlamesRow(err) {
		return err
	}
	r.seen = false // read the row again before anything else
	if _, readErr := r.row.ReadDirect(ctx); readErr != nil && !row.Retryable(readErr) {
		return readErr
	}
	return err
}

// steppedBack is the error for a row below a timestamp that this process received.
func (r *reserver) steppedBack(v Timestamp) error {
	r.seen, r.known = false, false
	return r.row.CorruptValue(int64(v), fmt.Sprintf("is below %d, which was handed out already", r.high))
}

// confirmedNow returns the time to advance to from last. If the clock is ahead
// of last by more than maxStep, there was a long pause or the clock is wrong;
// confirmedNow compares it with Bigtable's own clock, in two round trips. A
// clock that is late needs no guard: timestamps continue from last, one by one.
func (r *reserver) confirmedNow(ctx context.Context, last Timestamp) (Timestamp, error) {
	now := FromTime(r.clock())
	if now-last <= r.maxStep {
		return now, nil
	}
	if err := r.row.Stamp(ctx); err != nil {
		return 0, err
	}
	state, err := r.row.ReadDirect(ctx)
	if err != nil {
		return 0, err
	}
	server := Timestamp(state.Clock)
	if server == 0 {
		r.seen = false
		return 0, row.ErrVanished // deleted in between
	}
	// The server's time was taken after ours and is cut to milliseconds.
	off := now - server
	bad := off > r.maxStep || -off > r.maxStep
	if bad && !r.clockBad {
		r.log.WarnContext(ctx, "tso: the clock of this machine differs from Bigtable's; timestamps follow the earlier one",
			"row", r.row.Key, "local", now.Time(), "bigtable", server.Time())
	}
	r.clockBad = bad
	return min(now, server), nil
}
