package tso

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

const (
	// maxLease bounds what a row may ask candidates to wait.
	maxLease = 10 * time.Minute

	// minLease leaves something to work with where a Bigtable round trip takes
	// a few milliseconds and being scheduled takes some more.
	minLease = 50 * time.Millisecond

	// rateMargin is the part of a lease, one in rateMargin, that its holder
	// does not use: clocks of two machines may tick at rates that differ by up
	// to that much. Quartz differs by less than one in a thousand; the rest is
	// for virtual machines that catch up after having been held.
	rateMargin = 10

	// renewals is how often a leader renews within one lease, so that one lost
	// request and its repetition do not end it.
	renewals = 3

	// maxReserve bounds how far ahead of use a leader reserves, in µs of oracle
	// time: what a crash lets oracle time jump at most.
	maxReserve Timestamp = 60e6

	// minLook keeps clients that ask a candidate from making it read the row
	// all the time.
	minLook = 10 * time.Millisecond
)

// leadership is one server's part in the election, and the timestamps that it
// hands out while it leads. One goroutine, run, talks to the row; any number of
// them allocate. docs/oracle.md has the state diagram.
type leadership struct {
	row      *oracleRow
	log      *slog.Logger
	clock    func() time.Time
	maxStep  Timestamp
	length   time.Duration // of the lease
	interval time.Duration // between renewals
	poll     time.Duration // between a candidate's looks at the row
	name     string
	address  string
	onChange func(leading bool) // called with mu held

	tel  telemetry
	wake chan struct{} // look at the row, or write, now

	// Used by run alone.
	nonce   uint64   // of this term: no bytes of a lease come back, even where epochs start over
	pending struct { // the lease that a write was last tried for, and when first
		to   lease
		sent time.Time
		wall time.Time // the same moment on the wall clock, which shows how long a suspended machine slept

		above Timestamp // of a takeover: the limit before it
	}
	confirmed Timestamp // the last reading of the clock that was followed
	clockBad  bool      // the last comparison found the local clock off
	seen      lease     // the last one that was found in the row or written there
	floor     Timestamp // highest limit of a released lease: those were handed out

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when waiting may have an end
	leading bool
	epoch   uint64      // of the present or the last term
	until   time.Time   // on the monotonic clock: the end of validity
	wall    time.Time   // what the wall clock showed when until was counted from
	next    Timestamp   // never goes back, not even between terms
	limit   Timestamp   // persisted: next-1 stays at or below it
	ceiling Timestamp   // how far the clock alone may move next
	reserve Timestamp   // how far ahead of use the last write reserved
	offset  Timestamp   // how far the clock is ahead of Bigtable's, if wrong
	leader  string      // address of the leader, as last read
	trouble error       // why nobody can lead; nil if somebody might
	used    uint64      // timestamps handed out
	asked   uint64      // requests answered
	terms   uint64      // how often this process came to lead
	rate    float64     // timestamps per second, between the last two writes
	expiry  *time.Timer // suspends when validity is over

	// Set by tests. generated runs between generating a range and checking that
	// the lease still stands: where stopping a process does the harm. unchecked
	// leaves that check out.
	generated func()
	unchecked bool
}

// held is a lease of this process, as it stands in the row.
type held struct {
	lease lease
	state *tsopb.ServedState
	sent  time.Time // when its write was sent: validity counts from here
	wall  time.Time // the same moment on the wall clock
}

// run stands for election, leads, and stands again, until ctx ends; then it
// releases the lease if it has one.
func (l *leadership) run(ctx context.Context) {
	for ctx.Err() == nil {
		if h, ok := l.campaign(ctx); ok {
			l.lead(ctx, h)
		}
	}
}

// campaign waits until the lease in the row may be taken over, and takes it.
// It returns without one when ctx ends.
func (l *leadership) campaign(ctx context.Context) (held, bool) {
	var watched lease
	var since time.Time // when the first observation of watched was received; zero: none
	l.nonce = rand.Uint64()
	for failures := 0; ctx.Err() == nil; {
		least, pause := minLook, l.poll
		row, err := l.row.readServed(ctx)
		received := time.Now()
		if err == nil {
			err = l.check(row)
		}
		switch {
		case ctx.Err() != nil:
			return held{}, false
		case err != nil:
			// What was watched stays: the takeover itself proves that the lease
			// was the same all the time, since no value ever comes back.
			failures++
			l.stand(ctx, err, "")
			least = backoff(failures)
			pause = max(pause, least)
		case row.mode != servedMode:
			failures, since = 0, time.Time{}
			l.stand(ctx, &ModeError{Row: l.row.key, Mode: row.mode, Want: servedMode}, "")
		case row.lease == l.pending.to && row.lease.nonce == l.nonce:
			// The takeover has landed, and neither its answer nor the row came
			// back before. Nobody has led since, and none can but by replacing
			// these bytes, so this is as if write had found them; watching them
			// as another's would cost a lease.
			return l.begin(ctx, held{row.lease, row.state, l.pending.sent, l.pending.wall}), true
		default:
			if since.IsZero() || row.lease != watched {
				watched, since = row.lease, received
			}
			// The length is the one in the row: its holder counts on it.
			left := time.Duration(row.state.LeaseUs)*time.Microsecond - received.Sub(since)
			if !row.state.Released && left > 0 {
				failures = 0
				l.stand(ctx, nil, row.state.Address)
				pause = min(pause, left)
				break
			}
			tctx, span := l.tel.takeOver(ctx, row.lease.epoch+1)
			h, ok, err := l.takeOver(tctx, row)
			tookOver(span, ok, err)
			if ok {
				return h, true
			}
			l.stand(ctx, err, "")
			pause = minLook
			if err == nil {
				failures = 0 // another was first
				break
			}
			failures++
			least = backoff(failures) // clients that ask do not make it work
			pause = least
		}
		l.sleep(ctx, least, pause)
	}
	return held{}, false
}

// takeOver makes this process the leader if the row's lease is still the one
// that was read.
func (l *leadership) takeOver(ctx context.Context, row servedRow) (held, bool, error) {
	last := max(Timestamp(row.state.Limit), l.high())
	now, err := l.confirm(ctx, last)
	if err != nil {
		return held{}, false, err
	}
	state, err := l.newState(last, now)
	if err != nil {
		return held{}, false, err
	}
	next := lease{row.lease.epoch + 1, 0, l.nonce}
	l.pending.above = last
	h, outcome, err := l.write(ctx, row.lease, next, state)
	if outcome == writeUnknown && ctx.Err() != nil {
		// Stopped while the answer was on its way: a lease that has landed is
		// led with, which now means releasing it.
		after, err := l.row.readServed(context.WithoutCancel(ctx))
		if err == nil && after.mode == servedMode && after.lease == next {
			h, outcome = held{next, after.state, l.pending.sent, l.pending.wall}, writeDone
		}
	}
	if outcome != writeDone {
		return held{}, false, err
	}
	return l.begin(ctx, h), true, nil
}

// begin starts a term: the lease that was to be written by takeOver is in the
// row.
func (l *leadership) begin(ctx context.Context, h held) held {
	l.mu.Lock()
	l.epoch = h.lease.epoch
	l.next = max(l.pending.above+1, l.next)
	l.rate = 0
	l.terms++
	l.mu.Unlock()
	l.log.InfoContext(ctx, "tso: leading", "row", l.row.key, "epoch", h.lease.epoch, "above", l.pending.above, "lease", l.length)
	return h
}

// lead renews the lease and reserves ahead, until another's lease is found in
// the row or ctx ends; then it releases the lease.
func (l *leadership) lead(ctx context.Context, h held) {
	defer l.lose(nil)
	l.extend(h)
	cur, last, used := h.lease, h.sent, l.handedOut()
	for failures := 0; ; {
		least, pause := time.Duration(0), l.interval-time.Since(last)
		if failures > 0 {
			// Often enough to notice a row that is back: the lease is running.
			pause = min(backoff(failures), l.interval/4)
			least = pause
		}
		l.sleep(ctx, least, pause)
		if ctx.Err() != nil {
			l.release(ctx, cur)
			return
		}
		l.measure(time.Since(last), used)
		last = time.Now()
		used = l.handedOut()

		var outcome writeOutcome
		var state *tsopb.ServedState
		now, err := l.confirm(ctx, max(l.high(), l.confirmed))
		if err == nil {
			state, err = l.newState(l.high(), now)
		}
		if err == nil {
			h, outcome, err = l.write(ctx, cur, lease{cur.epoch, cur.counter + 1, l.nonce}, state)
		}
		switch {
		case errors.Is(err, ErrExhausted):
			l.lose(err)
			return
		case outcome == writeDone:
			failures, cur = 0, h.lease
			l.extend(h)
		case outcome == writeLost:
			l.log.WarnContext(ctx, "tso: deposed: another server leads, or the mode was changed", "row", l.row.key, "epoch", cur.epoch)
			l.lose(err)
			return
		case ctx.Err() == nil:
			failures++
			l.log.WarnContext(ctx, "tso: renewing the lease failed, trying again",
				"row", l.row.key, "epoch", cur.epoch, "failures", failures, "error", err)
		}
	}
}

// release gives the lease up: a candidate may take it at once, and starts right
// above the last timestamp that was handed out.
func (l *leadership) release(ctx context.Context, cur lease) {
	l.lose(nil) // from here on nothing is handed out
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.length)
	defer cancel()
	for failures := 1; ctx.Err() == nil; failures++ {
		state := &tsopb.ServedState{Limit: int64(l.high()), Released: true, Leader: l.name, WrittenTs: int64(l.high())}
		h, outcome, _ := l.write(ctx, cur, lease{cur.epoch, cur.counter + 1, l.nonce}, state)
		switch {
		case outcome == writeDone && h.state.Released:
			l.log.InfoContext(ctx, "tso: lease released", "row", l.row.key, "epoch", cur.epoch)
			return
		case outcome == writeDone:
			cur = h.lease // a renewal whose outcome had been unknown
		case outcome == writeLost:
			return
		default:
			pause := backoff(failures)
			l.sleep(ctx, pause, pause)
		}
	}
	l.log.WarnContext(ctx, "tso: releasing the lease failed; it runs out by itself", "row", l.row.key, "epoch", cur.epoch)
}

type writeOutcome int

const (
	writeUnknown writeOutcome = iota // may have happened, may yet happen: try the same step again
	writeDone
	writeLost // what stands in the row is not ours
)

// write moves the row from one lease to the next and settles unknown outcomes
// by reading. What it returns is what stands in the row: perhaps the state of
// an earlier attempt at the same step, and then the time when that was sent.
func (l *leadership) write(ctx context.Context, from, to lease, state *tsopb.ServedState) (held, writeOutcome, error) {
	sent, wall := time.Now(), l.clock().Round(0)
	if l.pending.to != to {
		l.pending.to, l.pending.sent, l.pending.wall = to, sent, wall
	}
	ok, err := l.row.swap(ctx, from, to, state)
	if ok && err == nil {
		l.seen = to
		return held{to, state, sent, wall}, writeDone, nil
	}
	if ctx.Err() != nil {
		return held{}, writeUnknown, err
	}
	row, readErr := l.row.readServed(ctx)
	if readErr == nil {
		readErr = l.check(row)
	}
	switch {
	case ctx.Err() != nil, readErr != nil && retryable(readErr):
		return held{}, writeUnknown, errors.Join(err, readErr)
	case readErr != nil:
		return held{}, writeLost, readErr
	case row.mode != servedMode:
		return held{}, writeLost, &ModeError{Row: l.row.key, Mode: row.mode, Want: servedMode}
	case row.lease == to:
		// Ours has landed, this attempt or an earlier one: assume the first.
		return held{to, row.state, l.pending.sent, l.pending.wall}, writeDone, nil
	case row.lease == from:
		return held{}, writeUnknown, err
	}
	return held{}, writeLost, nil
}

// check refuses a row that has lost what this process knows of it: one that was
// deleted, or restored from a backup. A limit that is lower than another one
// proves nothing, since releasing lowers it to what was handed out.
func (l *leadership) check(row servedRow) error {
	switch {
	case row.mode == "" && l.seen != lease{}:
		return l.row.corruptServed(leaseColumn, "is gone, and everything else too, but this server has seen the row in served mode")
	case row.mode != servedMode:
		return nil
	case row.lease.epoch < l.seen.epoch || row.lease.epoch == l.seen.epoch && row.lease.counter < l.seen.counter:
		return l.row.corruptServed(leaseColumn, fmt.Sprintf("is at epoch %d, write %d, but this server has seen it at epoch %d, write %d",
			row.lease.epoch, row.lease.counter, l.seen.epoch, l.seen.counter))
	case Timestamp(row.state.Limit) < max(l.floor, l.high()):
		return l.row.corruptServed(stateColumn, fmt.Sprintf("says that %d is the highest timestamp, but %d was handed out", row.state.Limit, max(l.floor, l.high())))
	}
	l.seen = row.lease
	if row.state.Released {
		l.floor = max(l.floor, Timestamp(row.state.Limit))
	}
	return nil
}

// newState is the state to write: its limit leaves room above what was handed
// out and above the clock.
func (l *leadership) newState(high, now Timestamp) (*tsopb.ServedState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// At rest the room is one lease: who takes over after a crash has waited
	// that long, so its clock is past the limit and oracle time does not jump.
	// Under load it is what two intervals take. It is never less than two of
	// the largest requests.
	room := max(Timestamp(l.length.Microseconds()), 2*MaxCount)
	room = max(room, min(Timestamp(2*l.rate*l.interval.Seconds()), maxReserve))
	l.reserve = room
	base := max(high, now)
	if base >= Max {
		return nil, ErrExhausted
	}
	return &tsopb.ServedState{
		Limit:     int64(max(l.limit, min(base+room, Max))),
		LeaseUs:   l.length.Microseconds(),
		Leader:    l.name,
		Address:   l.address,
		WrittenTs: int64(base),
	}, nil
}

// extend makes what was persisted count.
func (l *leadership) extend(h held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = h.sent.Add(l.length - l.length/rateMargin)
	l.wall = h.wall
	l.limit = Timestamp(h.state.Limit)
	l.ceiling = min(l.limit, l.confirmed+Timestamp(l.length.Microseconds())*2/renewals)
	left := time.Until(l.until)
	if l.expiry != nil {
		l.expiry.Stop()
	}
	l.expiry = time.AfterFunc(left, l.suspend)
	l.leader, l.trouble = l.address, nil
	l.setLeading(left > 0)
}

// suspend stops answering, unless the lease was renewed in the meantime. The
// term goes on: nobody else may have wanted the lease.
func (l *leadership) suspend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading && !time.Now().Before(l.until) {
		l.log.Warn("tso: the lease was not renewed in time; not answering until it is", "row", l.row.key, "epoch", l.epoch)
		l.setLeading(false)
	}
}

// lose stops answering, for this term.
func (l *leadership) lose(trouble error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if trouble != nil {
		l.trouble = trouble
	}
	if l.leader == l.address {
		l.leader = ""
	}
	if l.expiry != nil {
		l.expiry.Stop()
	}
	l.setLeading(false)
}

// setLeading is called with mu held.
func (l *leadership) setLeading(leading bool) {
	if l.leading != leading {
		l.leading = leading
		l.onChange(leading)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// stand records what a candidate has seen.
func (l *leadership) stand(ctx context.Context, trouble error, leader string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if trouble != nil && (l.trouble == nil || l.trouble.Error() != trouble.Error()) {
		l.log.WarnContext(ctx, "tso: cannot lead", "row", l.row.key, "error", trouble)
	}
	l.trouble, l.leader = trouble, leader
}

// measure updates the rate. Over less than a quarter of an interval it would
// say too much.
func (l *leadership) measure(elapsed time.Duration, usedBefore uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = float64(l.used-usedBefore) / max(elapsed, l.interval/4).Seconds()
}

// confirm returns the time to follow from last, as reserver.confirmedNow does:
// a clock that is ahead by more than maxStep is held against Bigtable's.
func (l *leadership) confirm(ctx context.Context, last Timestamp) (Timestamp, error) {
	raw := FromTime(l.clock())
	now := raw
	if raw-last > l.maxStep {
		if err := l.row.stamp(ctx); err != nil {
			return 0, err
		}
		row, err := l.row.readServed(ctx)
		switch {
		case err != nil:
			return 0, err
		case row.clock == 0:
			return 0, errRowVanished
		}
		off := raw - row.clock
		bad := off > l.maxStep || -off > l.maxStep
		if bad && !l.clockBad {
			l.log.WarnContext(ctx, "tso: the clock of this machine differs from Bigtable's; timestamps follow the earlier one",
				"row", l.row.key, "local", raw.Time(), "bigtable", row.clock.Time())
		}
		l.clockBad = bad
		now = min(raw, row.clock)
	}
	l.confirmed = now
	l.mu.Lock()
	l.offset = raw - now
	l.mu.Unlock()
	return now, nil
}

// high is the highest timestamp that this process may have handed out.
func (l *leadership) high() Timestamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.next-1, 0)
}

func (l *leadership) handedOut() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// sleep waits for the pause, or until ctx ends. A wake cuts it short, but not
// below least.
func (l *leadership) sleep(ctx context.Context, least, pause time.Duration) {
	wait := func(d time.Duration, wake <-chan struct{}) bool {
		if d <= 0 {
			return ctx.Err() == nil
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-wake:
		case <-ctx.Done():
		}
		return false
	}
	least = min(least, pause)
	if wait(least, nil) {
		wait(pause-least, l.wake)
	}
}

// nudge has run look at the row, or write to it, now.
func (l *leadership) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
