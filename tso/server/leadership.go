package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

const (
	// minLease is long enough where a Bigtable round trip takes a few
	// milliseconds and scheduling a goroutine takes some more.
	minLease = 50 * time.Millisecond

	// renewals is how often a leader renews within one lease, so that one lost
	// request and its repetition do not end it.
	renewals = 3

	// minLook is the least time between two reads of a candidate, whatever the
	// number of clients that ask it.
	minLook = 10 * time.Millisecond
)

// leadership is one server's part in the election. One goroutine, run, reads and
// writes the row. docs/oracle.md has the state diagram.
type leadership struct {
	cfg   *Config
	log   *slog.Logger
	tel   telemetry.Telemetry
	row   *row.Row
	alloc *allocator

	nonce   uint64   // of this term: no bytes of a lease come back, even if epochs start over
	pending struct { // the lease that the last write was for, and when its first attempt was sent
		to   format.Lease
		sent time.Time
		wall time.Time // the same moment on the wall clock, which shows how long a suspended machine slept

		above tso.Timestamp // of a takeover: the limit before it
	}
	confirmed tso.Timestamp // the last reading of the clock that was followed
	clockBad  bool          // the last comparison found the local clock off
	seen      format.Lease  // the last one that was found in the row or written there
	floor     tso.Timestamp // highest limit of a released lease: those were handed out
}

// held is a lease of this process in the row.
type held struct {
	lease format.Lease
	state *tsopb.ServedState
	sent  time.Time // when its write was sent: validity counts from here
	wall  time.Time // the same moment on the wall clock
}

// run campaigns, leads, and campaigns again until ctx ends. Then it releases the
// lease if it has one.
func (l *leadership) run(ctx context.Context) {
	for ctx.Err() == nil {
		if h, ok := l.campaign(ctx); ok {
			l.lead(ctx, h)
		}
	}
}

// campaign waits until this process may take over the lease in the row, and
// takes it. It returns without a lease when ctx ends.
func (l *leadership) campaign(ctx context.Context) (held, bool) {
	var watched format.Lease
	var since time.Time // when the first read that found watched was answered; zero: none
	l.nonce = rand.Uint64()
	for failures := 0; ctx.Err() == nil; {
		least, pause := minLook, l.cfg.poll()
		found, err := l.row.Read(ctx)
		received := time.Now()
		if err == nil {
			err = l.check(found)
		}
		switch {
		case ctx.Err() != nil: // the loop ends
		case err != nil:
			// The watch continues: the takeover itself proves that the lease was
			// the same all the time, because no value ever comes back.
			failures++
			l.alloc.stand(ctx, err, "")
			least = row.Backoff(failures)
		case found.Mode != format.ModeServed:
			failures, since = 0, time.Time{}
			l.alloc.stand(ctx, l.modeError(found), "")
		case found.Lease.Nonce == l.nonce:
			// The takeover took effect, but its answer was lost, and so was the
			// read after it. No other server has led since, because that would
			// have replaced these bytes. So this is the same as if write had found
			// them; to watch them like another server's would cost a lease.
			return l.begin(ctx, held{found.Lease, found.Served, l.pending.sent, l.pending.wall}), true
		default:
			if since.IsZero() || found.Lease != watched {
				watched, since = found.Lease, received
			}
			// The length is the one in the row: the owner of the lease relies on it.
			left := time.Duration(found.Served.LeaseUs)*time.Microsecond - received.Sub(since)
			if !found.Served.Released && left > 0 {
				failures = 0
				l.alloc.stand(ctx, nil, found.Served.Address)
				pause = min(pause, left)
				break
			}
			tctx, span := l.tel.TakeOver(ctx, found.Lease.Epoch+1)
			h, ok, err := l.takeOver(tctx, found)
			l.tel.TookOver(span, ok, err)
			if ok {
				return h, true
			}
			l.alloc.stand(ctx, err, "")
			pause = minLook
			if err == nil {
				failures = 0 // another was first
				break
			}
			failures++
			least = row.Backoff(failures) // requests of clients do not shorten it
			pause = least
		}
		l.sleep(ctx, least, pause)
	}
	return held{}, false
}

// takeOver makes this process the leader if the row's lease is still the one
// that was read.
func (l *leadership) takeOver(ctx context.Context, found row.State) (held, bool, error) {
	last := max(tso.Timestamp(found.Served.Limit), l.alloc.high())
	now, err := l.confirm(ctx, last)
	if err != nil {
		return held{}, false, err
	}
	state := l.alloc.newState(last, now)
	next := format.Lease{Epoch: found.Lease.Epoch + 1, Nonce: l.nonce}
	l.pending.above = last
	h, outcome, err := l.write(ctx, found.Lease, next, state)
	if outcome == writeUnknown && ctx.Err() != nil {
		// The server was stopped before the answer came. If the takeover took
		// effect, lead: that now means to release the lease.
		after, _ := l.row.Read(context.WithoutCancel(ctx)) // without a mode after an error
		if after.Mode == format.ModeServed && after.Lease == next {
			h, outcome = held{next, after.Served, l.pending.sent, l.pending.wall}, writeDone
		}
	}
	if outcome != writeDone {
		return held{}, false, err
	}
	return l.begin(ctx, h), true, nil
}

// begin starts a term: the row has the lease that takeOver wrote.
func (l *leadership) begin(ctx context.Context, h held) held {
	l.alloc.begin(h.lease.Epoch, l.pending.above)
	l.log.InfoContext(ctx, "tso: leading", "row", l.row.Key, "epoch", h.lease.Epoch, "above", l.pending.above, "lease", l.cfg.Lease)
	return h
}

// lead renews the lease and reserves ahead, until the row has the lease of
// another server or ctx ends; then it releases the lease.
func (l *leadership) lead(ctx context.Context, h held) {
	l.alloc.extend(h, l.confirmed)
	cur, last, used := h.lease, h.sent, l.alloc.handedOut()
	for failures := 0; ; {
		least, pause := time.Duration(0), l.cfg.interval()-time.Since(last)
		if failures > 0 {
			// Short, to succeed soon after Bigtable is back: the lease is running.
			pause = min(row.Backoff(failures), l.cfg.interval()/4)
			least = pause
		}
		l.sleep(ctx, least, pause)
		if ctx.Err() != nil {
			l.release(ctx, cur)
			return
		}
		l.alloc.measure(time.Since(last), used)
		last = time.Now()
		used = l.alloc.handedOut()

		var outcome writeOutcome
		now, err := l.confirm(ctx, max(l.alloc.high(), l.confirmed))
		if err == nil {
			h, outcome, err = l.write(ctx, cur, l.after(cur), l.alloc.newState(l.alloc.high(), now))
		}
		switch {
		case outcome == writeDone:
			failures, cur = 0, h.lease
			l.alloc.extend(h, l.confirmed)
		case outcome == writeLost:
			l.log.WarnContext(ctx, "tso: deposed: another server leads, or the mode was changed", "row", l.row.Key, "epoch", cur.Epoch)
			l.alloc.lose(err)
			return
		case ctx.Err() == nil:
			failures++
			l.log.WarnContext(ctx, "tso: renewing the lease failed, trying again",
				"row", l.row.Key, "epoch", cur.Epoch, "failures", failures, "error", err)
		}
	}
}

// after is the next lease of the same term.
func (l *leadership) after(cur format.Lease) format.Lease {
	return format.Lease{Epoch: cur.Epoch, Counter: cur.Counter + 1, Nonce: l.nonce}
}

// release gives up the lease: a candidate may take it at once, and starts right
// above the last timestamp that was handed out.
func (l *leadership) release(ctx context.Context, cur format.Lease) {
	l.alloc.lose(nil) // from here on nothing is handed out
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.Lease)
	defer cancel()
	for failures := 1; ctx.Err() == nil; failures++ {
		high := int64(l.alloc.high())
		state := &tsopb.ServedState{Limit: high, Released: true, Leader: l.cfg.Name, WrittenTs: high}
		h, outcome, _ := l.write(ctx, cur, l.after(cur), state)
		switch {
		case outcome == writeDone && h.state.Released:
			l.log.InfoContext(ctx, "tso: lease released", "row", l.row.Key, "epoch", cur.Epoch)
			return
		case outcome == writeDone:
			cur = h.lease // a renewal whose outcome was unknown
		case outcome == writeLost:
			return
		default:
			pause := row.Backoff(failures)
			l.sleep(ctx, pause, pause)
		}
	}
	l.log.WarnContext(ctx, "tso: releasing the lease failed; it expires by itself", "row", l.row.Key, "epoch", cur.Epoch)
}

type writeOutcome int

const (
	writeUnknown writeOutcome = iota // may have happened, or may happen later: try the same step again
	writeDone
	writeLost // the row has the lease of another server, or none
)

// write moves the row from one lease to the next and settles unknown outcomes by
// reading. It returns what is in the row. That may be the state of an earlier
// attempt at the same step, with the time when that attempt was sent.
func (l *leadership) write(ctx context.Context, from, to format.Lease, state *tsopb.ServedState) (held, writeOutcome, error) {
	sent, wall := time.Now(), l.cfg.Clock().Round(0)
	if l.pending.to != to {
		l.pending.to, l.pending.sent, l.pending.wall = to, sent, wall
	}
	ok, err := l.row.Swap(ctx, from, to, state)
	if ok {
		l.seen = to
		return held{to, state, sent, wall}, writeDone, nil
	}
	found, readErr := l.row.Read(ctx)
	if readErr == nil {
		readErr = l.check(found)
	}
	switch {
	case ctx.Err() != nil, readErr != nil && row.Retryable(readErr):
		return held{}, writeUnknown, errors.Join(err, readErr)
	case readErr != nil:
		return held{}, writeLost, readErr
	case found.Mode != format.ModeServed:
		// Whatever the lease: an operator who changes the mode by hand leaves it.
	case found.Lease == to:
		// This attempt or an earlier one took effect: assume the first one.
		return held{to, found.Served, l.pending.sent, l.pending.wall}, writeDone, nil
	case found.Lease == from:
		return held{}, writeUnknown, err
	}
	return held{}, writeLost, nil
}

func (l *leadership) modeError(found row.State) error {
	return &tso.ModeError{Row: l.row.Key, Mode: found.Mode, Want: format.ModeServed}
}

// check refuses a row that contradicts what this process knows of it: one that
// was deleted, or restored from a backup. A limit that is lower than another one
// proves nothing, because a release lowers it to the last timestamp handed out.
func (l *leadership) check(found row.State) error {
	switch {
	case found.Mode == "" && l.seen != format.Lease{}:
		return l.row.CorruptColumn(format.ColumnLease, "is gone, and everything else too, but this server has seen the row in served mode")
	case found.Mode != format.ModeServed:
		return nil
	case found.Lease.Epoch < l.seen.Epoch || found.Lease.Epoch == l.seen.Epoch && found.Lease.Counter < l.seen.Counter:
		return l.row.CorruptColumn(format.ColumnLease, fmt.Sprintf("is at epoch %d, write %d, but this server has seen it at epoch %d, write %d",
			found.Lease.Epoch, found.Lease.Counter, l.seen.Epoch, l.seen.Counter))
	}
	limit := tso.Timestamp(found.Served.Limit)
	if high := max(l.floor, l.alloc.high()); limit < high {
		return l.row.CorruptColumn(format.ColumnState, fmt.Sprintf("says that %d is the highest timestamp, but %d was handed out", limit, high))
	}
	l.seen = found.Lease
	if found.Served.Released {
		l.floor = max(l.floor, limit)
	}
	return nil
}

// confirm returns the time to follow from last, as direct mode does: if the
// clock is ahead by more than MaxStep, confirm compares it with Bigtable's.
func (l *leadership) confirm(ctx context.Context, last tso.Timestamp) (tso.Timestamp, error) {
	raw := tso.FromTime(l.cfg.Clock())
	now := raw
	if most := tso.Timestamp(l.cfg.MaxStep.Microseconds()); raw-last > most {
		if err := l.row.Stamp(ctx); err != nil {
			return 0, err
		}
		found, err := l.row.Read(ctx)
		server := tso.Timestamp(found.Clock)
		switch {
		case err != nil:
			return 0, err
		case server == 0:
			return 0, row.ErrVanished
		}
		off := raw - server
		bad := off > most || -off > most
		if bad && !l.clockBad {
			l.log.WarnContext(ctx, "tso: the clock of this machine differs from Bigtable's; timestamps follow the earlier one",
				"row", l.row.Key, "local", raw.Time(), "bigtable", server.Time())
		}
		l.clockBad = bad
		now = min(raw, server)
	}
	l.confirmed = now
	l.alloc.follow(raw - now)
	return now, nil
}

// sleep waits for the pause, or until ctx ends. A wake makes it shorter, but not
// shorter than least.
func (l *leadership) sleep(ctx context.Context, least, pause time.Duration) {
	end := time.NewTimer(pause)
	defer end.Stop()
	select {
	case <-time.After(least):
	case <-ctx.Done():
	}
	select {
	case <-end.C:
	case <-l.alloc.wake:
	case <-ctx.Done():
	}
}
