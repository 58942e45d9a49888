package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/wire"
)

const (
	// rateMargin is the part of a lease, one in rateMargin, that its holder does
	// not use: the clocks of two machines may tick at rates that differ by up to
	// that much. Quartz differs by less than one in a thousand; the rest is for
	// virtual machines that catch up after they were stopped.
	rateMargin = 10

	// maxReserve bounds how far ahead of use a leader reserves, in µs of oracle
	// time. After a crash, oracle time jumps by at most that much.
	maxReserve tso.Timestamp = 60e6
)

// allocator hands out the timestamps of the range that the leader reserved in
// the row. Any number of goroutines allocate; leadership sets the range.
type allocator struct {
	cfg      *Config
	log      *slog.Logger
	row      string             // row key in the metadata table
	onChange func(leading bool) // called with mu held
	wake     chan struct{}      // leadership reads or writes the row now

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when callers that wait should check again
	leading bool
	epoch   uint64        // of the present or the last term
	until   time.Time     // on the monotonic clock: the end of validity
	wall    time.Time     // the time of the wall clock from which until was counted
	next    tso.Timestamp // never goes back, not even between terms
	limit   tso.Timestamp // persisted: next-1 stays at or below it
	ceiling tso.Timestamp // how far the clock alone may move next
	reserve tso.Timestamp // how far ahead of use the last write reserved
	offset  tso.Timestamp // how far the clock is ahead of Bigtable's, if wrong
	leader  string        // address of the leader, as last read
	trouble error         // why no server can lead; nil if one may
	used    uint64        // timestamps handed out
	asked   uint64        // requests answered
	terms   uint64        // how often this process became the leader
	rate    float64       // timestamps per second, between the last two writes

	// Set by tests. generated runs between generating a range and checking that
	// the lease is still valid, where stopping a process does the most harm.
	// unchecked omits that check.
	generated func()
	unchecked bool
}

// allocate returns the first of count consecutive timestamps, generated during
// the call, while this process was certain to lead. It waits if the reserved
// range is used up, which the reserve should prevent. It fails with
// ErrNotLeader, and then a number may have been lost.
func (a *allocator) allocate(ctx context.Context, count tso.Timestamp) (tso.Timestamp, error) {
	for tries := 0; ; tries++ {
		first, wait, err := a.generate(count)
		if wait == nil {
			return first, err
		}
		if tries == renewals {
			return 0, tso.ErrNotLeader // this leader cannot write; another server may
		}
		patience := time.NewTimer(a.cfg.interval())
		select {
		case <-wait:
		case <-patience.C:
		case <-ctx.Done():
		}
		patience.Stop()
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

// generate takes count timestamps out of the range in memory. If there are too
// few, it returns a channel to wait for.
func (a *allocator) generate(count tso.Timestamp) (first tso.Timestamp, wait <-chan struct{}, err error) {
	a.mu.Lock()
	if !a.leading {
		a.mu.Unlock()
		a.nudge() // a client needs a leader: see whether there is none
		return 0, nil, tso.ErrNotLeader
	}
	// The clock moves timestamps up to the ceiling, which the last write set:
	// a clock that jumps ahead moves them no further before it is confirmed.
	first = max(a.next, min(tso.FromTime(a.cfg.Clock())-a.offset, a.ceiling))
	if first > tso.Max-count+1 {
		a.mu.Unlock()
		return 0, nil, tso.ErrExhausted
	}
	if first+count-1 > a.limit {
		wait = a.changed
		a.mu.Unlock()
		a.nudge()
		return 0, wait, nil
	}
	a.next = first + count
	a.used += uint64(count)
	a.asked++
	low := a.limit-a.next < a.reserve/2
	until, wall := a.until, a.wall
	a.mu.Unlock()
	if low {
		a.nudge()
	}
	if a.generated != nil {
		a.generated()
	}

	// Only now it is certain that the range was generated in time. A process
	// that was stopped and continues believes that it leads until its timer runs,
	// and finds requests in its sockets that were sent after another leader had
	// answered. Those must not get the rest of the old range.
	if !a.unchecked && !a.within(until, wall) {
		a.nudge()
		return 0, nil, tso.ErrNotLeader
	}
	return first, nil, nil
}

// within reports whether the present is certain to be before until. It uses two
// clocks: the monotonic clock, and the wall clock, which runs while a machine
// is suspended. A wall clock that was set ahead costs one renewal; one that was
// set back changes nothing.
func (a *allocator) within(until, wall time.Time) bool {
	return time.Now().Before(until) && a.cfg.Clock().Round(0).Sub(wall) < a.cfg.Lease-a.cfg.Lease/rateMargin
}

// nudge makes leadership read the row, or write to it, now.
func (a *allocator) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// isLeading reports whether this server leads.
func (a *allocator) isLeading() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.leading {
		a.nudge()
	}
	return a.leading
}

// begin starts a term above a timestamp.
func (a *allocator) begin(epoch uint64, above tso.Timestamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch = epoch
	a.next = max(above+1, a.next)
	a.rate = 0
	a.terms++
}

// newState is the state to write: its limit leaves room above the highest
// timestamp handed out and above the clock. After the largest timestamp there is no
// room: then this process leads, and callers get ErrExhausted.
func (a *allocator) newState(high, now tso.Timestamp) *tsopb.ServedState {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Without load the room is one lease: a server that takes over after a crash
	// has waited that long, so its clock is past the limit and oracle time does
	// not jump. Under load it is the use of two intervals. It is never less than
	// two of the largest requests.
	room := max(tso.Timestamp(a.cfg.Lease.Microseconds()), 2*tso.MaxCount)
	room = max(room, min(tso.Timestamp(2*a.rate*a.cfg.interval().Seconds()), maxReserve))
	a.reserve = room
	base := max(high, now)
	return &tsopb.ServedState{
		Limit:     int64(max(a.limit, min(base+room, tso.Max))),
		LeaseUs:   a.cfg.Lease.Microseconds(),
		Leader:    a.cfg.Name,
		Address:   a.cfg.Address,
		WrittenTs: int64(base),
	}
}

// extend makes a lease and a limit valid that are in the row. confirmed is the
// last reading of the clock that was followed.
func (a *allocator) extend(h held, confirmed tso.Timestamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = h.sent.Add(a.cfg.Lease - a.cfg.Lease/rateMargin)
	a.wall = h.wall
	a.limit = tso.Timestamp(h.state.Limit)
	a.ceiling = min(a.limit, confirmed.Add(a.cfg.Lease*2/renewals))
	left := time.Until(a.until)
	time.AfterFunc(left, a.suspend) // which does nothing after a renewal, or after the term
	a.leader, a.trouble = a.cfg.Address, nil
	a.setLeading(left > 0)
}

// suspend stops answering, unless the lease was renewed in the meantime. The
// term continues if no other server took the lease.
func (a *allocator) suspend() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leading && !time.Now().Before(a.until) {
		a.log.Warn("tso: the lease was not renewed in time; not answering until it is", "row", a.row, "epoch", a.epoch)
		a.setLeading(false)
	}
}

// lose stops answering, for this term.
func (a *allocator) lose(trouble error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if trouble != nil {
		a.trouble = trouble
	}
	if a.leader == a.cfg.Address {
		a.leader = ""
	}
	a.setLeading(false)
}

// setLeading is called with mu held.
func (a *allocator) setLeading(leading bool) {
	if a.leading != leading {
		a.leading = leading
		a.onChange(leading)
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// stand records what a candidate found in the row.
func (a *allocator) stand(ctx context.Context, trouble error, leader string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if trouble != nil && (a.trouble == nil || a.trouble.Error() != trouble.Error()) {
		a.log.WarnContext(ctx, "tso: cannot lead", "row", a.row, "error", trouble)
	}
	a.trouble, a.leader = trouble, leader
}

// measure updates the rate. It treats less than a quarter of an interval as a
// quarter, because the rate of a shorter time varies too much.
func (a *allocator) measure(elapsed time.Duration, usedBefore uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rate = float64(a.used-usedBefore) / max(elapsed, a.cfg.interval()/4).Seconds()
}

// follow sets how far the clock is ahead of the time to follow.
func (a *allocator) follow(offset tso.Timestamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.offset = offset
}

// high is the highest timestamp that this process may have handed out.
func (a *allocator) high() tso.Timestamp {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.next-1, 0)
}

// ahead returns how far oracle time is ahead of the clock; negative when it is
// behind. It reports whether this server leads.
func (a *allocator) ahead() (tso.Timestamp, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.leading {
		return 0, false
	}
	return a.next - (tso.FromTime(a.cfg.Clock()) - a.offset), true
}

// handedOut is the number of timestamps handed out.
func (a *allocator) handedOut() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// refusal says why there are no timestamps here, and which server leads.
func (a *allocator) refusal(err error) *tsopb.NotLeader {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := &tsopb.NotLeader{}
	if a.leader != a.cfg.Address {
		n.LeaderAddress = a.leader
	}
	if errors.Is(err, tso.ErrNotLeader) && a.trouble != nil {
		err = a.trouble
	}
	n.Reason = err.Error()
	n.Trouble = wire.Trouble(err)
	return n
}

// status is the part of the server's status that allocator knows.
func (a *allocator) status() *tsopb.StatusResponse {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &tsopb.StatusResponse{
		Server:        a.cfg.Name,
		Address:       a.cfg.Address,
		Leading:       a.leading,
		LeaderAddress: a.leader,
		Epoch:         a.epoch,
		Limit:         int64(a.limit),
		Clock:         int64(tso.FromTime(a.cfg.Clock())),
		LeaseUs:       a.cfg.Lease.Microseconds(),
		Timestamps:    a.used,
		Requests:      a.asked,
		Rate:          a.rate,
		Terms:         a.terms,
	}
	switch {
	case a.leading:
		// The next request gets this timestamp or a larger one.
		r.Next = int64(max(a.next, min(tso.Timestamp(r.Clock)-a.offset, a.ceiling)))
		r.LeaseLeftUs = max(time.Until(a.until).Microseconds(), 0)
	case a.trouble != nil:
		r.Reason = a.trouble.Error()
	case a.leader != "":
		r.Reason = "standing by"
	default:
		r.Reason = "no leader is known"
	}
	return r
}
