package tso

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// catchUpSlack is how far the row may lag the clock before a reservation that
// was made by increment pays a second round trip to catch up. Lock ages are
// judged in oracle time and ttls are counted in seconds, so 5 ms change no
// verdict; a round trip takes about as long. A row that is shared by busy
// processes so costs one extra round trip per 5 ms, not one per batch.
const catchUpSlack Timestamp = 5000 // µs

// reserver reserves ranges of timestamps in the oracle's row. It is not safe
// for concurrent use: one reservation at a time is what makes a batch.
//
// The rule is next = max(last+1, now), exactly, for any number of processes.
// Neither of the two atomic operations can do that alone:
//
//   - A fetch-and-add cannot follow the clock. Letting each process add the gap
//     it sees overshoots after a stall, by the gap times the number of
//     processes, and oracle time in the future makes every lock look expired.
//   - A compare-and-set follows the clock exactly, but starves under
//     contention, and its lost responses leave its outcome unknown.
//
// So a process that knows the current value compares and sets: one round trip.
// Otherwise it increments, which always succeeds and yields a range of its
// own; and if that range lags the clock, it tries to compare and set from there
// once, with the range in hand to fall back on.
type reserver struct {
	row     *oracleRow
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

// reserve returns the last timestamp of a range of n that belongs to the
// caller, reserved between call and return. After an error the range, if one
// was reserved, is lost; losing numbers is harmless.
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
		case err != nil && (ctx.Err() != nil || !retryable(err)):
			return 0, err
		}
		// Not matched, or an unknown outcome: the increment settles it.
	}
	return r.increment(ctx, n)
}

// find reads the row and initialises it where it is missing. Reading comes
// first, so that a row of another mode is refused before anything is written.
func (r *reserver) find(ctx context.Context) error {
	state, err := r.row.read(ctx)
	if err != nil {
		return err
	}
	if state.value != 0 {
		if state.value < r.high {
			return r.steppedBack(state.value)
		}
		r.seen, r.known, r.value = true, true, state.value
		return nil
	}
	floor := max(r.high, minTimestamp)
	now, err := r.confirmedNow(ctx, floor)
	if err != nil {
		return err
	}
	v := max(floor, now-1)
	set, err := r.row.initialize(ctx, v)
	if err != nil {
		return err
	}
	// Whoever lost the race knows that there is a value, not which.
	r.seen, r.known, r.value = true, set, v
	return nil
}

// advance moves the row from the known value to the clock, n timestamps ahead,
// and reports whether it did; then r.value is the new value. After an error of
// the compare itself its outcome is unknown for ever, and so is the value.
func (r *reserver) advance(ctx context.Context, n int64) (bool, error) {
	now, err := r.confirmedNow(ctx, r.value)
	if err != nil {
		return false, err
	}
	next := max(r.value, now-1) + Timestamp(n)
	if next > Max {
		return false, ErrExhausted
	}
	ok, err := r.row.compareAndSet(ctx, r.value, next)
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
	sum, err := r.row.add(ctx, n)
	if err != nil {
		return 0, r.diagnose(ctx, err)
	}
	before := sum - n
	if before >= 0 && Timestamp(before) < minTimestamp {
		// It counted from 0: the row was deleted. Nobody is ever given
		// numbers as small as these.
		r.seen = false
		return 0, errRowVanished
	}
	if err := r.row.validate(before); err != nil {
		r.seen = false // read, and change nothing more, until it is repaired
		return 0, err
	}
	if Timestamp(sum) > Max || sum < 0 {
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
			r.log.WarnContext(ctx, "tso: could not move the oracle up to the clock; going on with the range at hand",
				"row", r.row.key, "lag", r.clock().Sub(last.Time()), "error", err)
		}
	}
	return last, nil
}

// diagnose finds out whether an increment failed because of what the row
// holds, and returns the error that says so, else err.
func (r *reserver) diagnose(ctx context.Context, err error) error {
	if ctx.Err() != nil || !blamesRow(err) {
		return err
	}
	r.seen = false // look at the row again before anything else
	if _, readErr := r.row.read(ctx); readErr != nil && !retryable(readErr) {
		return readErr
	}
	return err
}

// steppedBack is the error for a row below what this process was given.
func (r *reserver) steppedBack(v Timestamp) error {
	r.seen, r.known = false, false
	return r.row.corrupt(int64(v), fmt.Sprintf("is below %d, which was handed out already", r.high))
}

// confirmedNow returns the time to advance to from last. A clock that is ahead
// of last by more than maxStep follows a long pause, or is wrong; Bigtable's
// own clock tells, at the price of two round trips. A clock that is behind
// needs no guard: then timestamps go on from last, one by one.
func (r *reserver) confirmedNow(ctx context.Context, last Timestamp) (Timestamp, error) {
	now := FromTime(r.clock())
	if now-last <= r.maxStep {
		return now, nil
	}
	if err := r.row.stamp(ctx); err != nil {
		return 0, err
	}
	state, err := r.row.read(ctx)
	if err != nil {
		return 0, err
	}
	if state.clock == 0 {
		r.seen = false
		return 0, errRowVanished // deleted in between
	}
	// The server's time was taken after ours and is cut to milliseconds.
	off := now - state.clock
	bad := off > r.maxStep || -off > r.maxStep
	if bad && !r.clockBad {
		r.log.WarnContext(ctx, "tso: the clock of this machine differs from Bigtable's; timestamps follow the earlier one",
			"row", r.row.key, "local", now.Time(), "bigtable", state.clock.Time())
	}
	r.clockBad = bad
	return min(now, state.clock), nil
}
