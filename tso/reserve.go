package tso

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/percolator-bigtable/percolator/tso/internal/row"
)

// How far a row that other processes move too may lag the clock. Ages of locks are measured in
// oracle time against ttls of seconds, so some milliseconds do not matter.
const (
	// lagSome is a lag from which some of the processes move the row up to the clock instead
	// of adding to it: one is enough, and those that come too late pay another request.
	lagSome Timestamp = 20_000 // µs
	// lagAll is a lag from which all of them do. A range that lags more is not used if the
	// row can be moved up.
	lagAll Timestamp = 50_000
	// addsAfterLoss is how many reservations only add after a move that came too late: clocks of
	// other processes are ahead. It is fewer if a range lags nevertheless.
	addsAfterLoss = 16
	// lagLimit is how far timestamps should be behind the clock at most. If they are farther
	// for lagLasts, the log says so, and again every lagSaid.
	lagLimit = 100 * time.Millisecond
	lagLasts = 10 * time.Second
	lagSaid  = time.Minute
)

// reserver reserves ranges of timestamps in the oracle's row. It is not safe
// for concurrent use: callers form a batch because there is one reservation at
// a time.
//
// The rule is next = max(last+1, now), for any number of processes, except that busy
// processes that share the row let it lag by up to lagAll. Neither of the two atomic
// operations can do that alone:
//
//   - A fetch-and-add cannot follow the clock. If each process added the gap
//     that it sees after a stall, the value would overshoot by the gap times the
//     number of processes. Oracle time in the future makes every lock look
//     expired.
//   - A move to the clock, on the condition that the row is below the new range, follows the
//     clock exactly. It needs no knowledge of the row's value. But it fails if the row is at
//     the clock already, because another process was faster or its clock is ahead.
//
// So a process that is alone, or that last saw a row that lags, moves it: one request. If that
// fails, and in all other cases, it increments, which always succeeds and yields a range of
// its own. Busy processes that share the row send little more than one request a batch: a few
// move the row up, too late, after another one.
type reserver struct {
	row     *row.Row
	clock   func() time.Time
	maxStep Timestamp
	log     *slog.Logger

	seen     bool      // the row was found, or made, initialised
	known    bool      // value is what this process left in the row
	value    Timestamp // of the row when this process last saw it; it is at least that now
	shared   bool      // others move the row too
	high     Timestamp // highest timestamp reserved by this process
	took     Timestamp // how long the last reservation took
	adds     int       // how many reservations add to a shared row, because others move it
	clockBad bool      // the last comparison found the local clock off

	behind time.Time // since when the row lags more than lagLimit; zero if it does not
	said   time.Time // when the log last said so
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
	began := FromTime(r.clock())
	defer func() { r.took = FromTime(r.clock()) - began }()
	if r.shouldMove() {
		ok, err := r.advance(ctx, n)
		switch {
		case ok:
			return r.value, nil
		case err != nil && (ctx.Err() != nil || !row.Retryable(err)):
			return 0, err
		}
		// Not matched, or an unknown outcome: an increment is right in both cases.
	}
	return r.add(ctx, n)
}

// shouldMove reports whether to move the row to the clock rather than to add to it.
func (r *reserver) shouldMove() bool {
	// When the answer is there, if no other process moves the row until then.
	lag := FromTime(r.clock()) + r.took - r.value
	switch {
	case !r.shared:
		return r.known
	case r.adds > 0 && lag < lagAll+3*r.took: // it was busy until now
		r.adds--
		return false
	case lag > r.maxStep:
		// Another process may have moved the row meanwhile. An increment shows it, and may save
		// the comparison of clocks.
		return false
	}
	return lag > lagAll || lag > lagSome && rand.N(4) == 0
}

// measure returns how far the last timestamp is behind the clock. It logs if that lasts.
func (r *reserver) measure(ctx context.Context, last Timestamp) time.Duration {
	now := r.clock()
	lag := now.Sub(last.Time())
	switch {
	case lag <= lagLimit:
		r.behind = time.Time{}
	case r.behind.IsZero():
		r.behind = now
	case now.Sub(r.behind) > lagLasts && now.Sub(r.said) > lagSaid:
		r.said = now
		r.log.WarnContext(ctx, "tso: timestamps are behind the clock: the oracle's row is at its limit, or Bigtable is slow; docs/oracle.md says how to change to servers",
			"row", r.row.Key, "lag", lag, "since", now.Sub(r.behind))
	}
	return max(lag, 0)
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

// advance moves the row to the clock, n timestamps ahead, and reports whether it did; then
// r.value is the new value. It moves a row that is between r.value and the new range. So the
// range is this process's alone: all timestamps that were handed out are at or below the old
// value, and all later ones above the new one. An advance whose outcome stays unknown does no
// harm when it arrives late: it changes only a row that is below its range, and then no other
// process ever has a timestamp of that range.
func (r *reserver) advance(ctx context.Context, n int64) (bool, error) {
	now, err := r.confirmedNow(ctx, r.value)
	if err != nil {
		return false, err
	}
	from := max(r.value, now-1)
	next := from + Timestamp(n)
	if next > Max {
		return false, ErrExhausted
	}
	ok, err := r.row.Advance(ctx, int64(r.value), int64(from), int64(next))
	r.known = ok // not after an error
	switch {
	case err != nil:
		return false, err
	case !ok:
		r.shared, r.adds = true, addsAfterLoss
		return false, nil
	}
	r.value, r.high = next, next
	return true, nil
}

// add reserves by fetch-and-add. It moves a row that lags up to the clock. If another process
// moved it meanwhile, it adds once more: the range at hand is old.
func (r *reserver) add(ctx context.Context, n int64) (Timestamp, error) {
	last, err := r.increment(ctx, n)
	if err != nil || FromTime(r.clock())-last <= lagAll {
		return last, err
	}
	r.adds = 0
	switch ok, err := r.advance(ctx, n); {
	case ok:
		return r.value, nil
	case err == nil:
		return r.increment(ctx, n)
	case ctx.Err() == nil:
		r.log.WarnContext(ctx, "tso: could not move the oracle up to the clock; using the range at hand",
			"row", r.row.Key, "lag", r.clock().Sub(last.Time()), "error", err)
	}
	return last, nil
}

// increment is one fetch-and-add. It checks what it adds to.
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
	r.known, r.value, r.high = true, Timestamp(sum), Timestamp(sum)
	return r.high, nil
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
	r.seen = false
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
