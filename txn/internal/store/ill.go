package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// A tablet that moves, or whose node has failed, answers nothing for some seconds. Its rows are ill
// (docs/design/tablets.md): a row is, once a request for it has stalled, and its
// tablet is, once a second row of it has. Ill rows have two states:
//
//   - closed: nothing is sent to them but probes, one at a time from each client. All else waits,
//     and holds nothing that another transaction needs. The first answer opens them.
//   - suspect: they have answered a probe. Commits prewrite them before other rows. The first
//     prewrite after minSuspect that is answered quickly makes them well.
//
// Those that wait send the probes, so an ill row that nobody wants costs nothing.

// illness is what a client knows about the ill rows of a table.
type illness struct {
	some atomic.Bool // ranges is not empty
	mu   sync.Mutex
	// ranges are the ill rows, the newest last. They do not overlap.
	ranges []*illRange
}

// An illRange is an ill row, or an ill tablet. Bigtable says only about where tablets end, so the
// first row outside of [low, high] that answers ends the range.
type illRange struct {
	start, end string        // end is exclusive; "" is the end of the table
	low, high  string        // the first and the last row that has stalled
	opened     chan struct{} // is closed when the range changes; nil: suspect
	probing    chan struct{} // holds a token while a row in [low, high] is probed, and in the pause after that
	pause      Waiter        // between probes
	waiting    int           // how many have begun to wait since the range was closed
	// patience is after how long another request counts as stalled: a row that is slow and not away
	// must not stall each time.
	patience time.Duration
	until    time.Time // suspect at least until then
}

const (
	// minStall is how long a request takes at least that counts as stalled.
	minStall = time.Second
	// slowFactor is how many times as long as the usual one a request takes that counts as stalled.
	slowFactor = 8
	// maxIll bounds how many rows and tablets of a table may be ill. The oldest are forgotten.
	maxIll = 256
	// maxProbe bounds a probe: how soon another request asks whether the tablet is back.
	maxProbe = 5 * time.Second
	// minProbePause is the longest first pause after a probe without an answer. The pauses have jitter, and grow to
	// Config.Backoff.Max.
	minProbePause = 50 * time.Millisecond
	// minSuspect is how long rows are suspect at least. A tablet that comes and goes would stall
	// commits that hold other locks each time. Meanwhile commits of several rows take a round trip more.
	minSuspect = 10 * time.Second
	// releasePace is how soon after the one before it a waiting call continues, once the rows answer.
	releasePace = time.Millisecond
	// maxRelease bounds that.
	maxRelease = time.Second
)

// A StallError says that a row has not answered for so long that its transaction gives up the locks
// of other rows.
type StallError struct {
	Table *Table
	Row   string
	// Lock says that the transaction writes another row, which has a lock whose primary is in this one.
	Lock bool
	// After is how long this call waited, and Err the last error. They are zero if an earlier one had.
	After time.Duration
	Err   error
}

func (e *StallError) Error() string {
	msg := fmt.Sprintf("percolator: row %q of table %q does not answer", e.Row, e.Table.Name)
	if e.Err != nil {
		msg += fmt.Sprintf(" (for %v: %v)", e.After.Round(time.Millisecond), e.Err)
	}
	return msg
}

func (e *StallError) Unwrap() error { return e.Err }

// StallAfter returns after how long a request counts as stalled: one second, or more if conditional
// mutations usually take long.
func (s *Store) StallAfter() time.Duration {
	return max(time.Duration(s.minStall.Load()), min(slowFactor*time.Duration(s.usual.Load()), s.Config.RPCTimeout))
}

// StallAfter returns after how long a request for a row counts as stalled.
func (t *Table) StallAfter(row string) time.Duration {
	limit := t.store.StallAfter()
	if t.ill.some.Load() {
		t.ill.mu.Lock()
		defer t.ill.mu.Unlock()
		if r := t.ill.find(row); r != nil {
			limit = max(limit, r.patience)
		}
	}
	return limit
}

// SetMinStall replaces the second of StallAfter, for tests that hold a prewrite back.
func (s *Store) SetMinStall(d time.Duration) { s.minStall.Store(int64(d)) }

// noteAnswered notes that a conditional mutation of a row was answered.
func (t *Table) noteAnswered(row string, took time.Duration) {
	usual := t.store.usual.Load()
	t.store.usual.Store(usual + (int64(took)-usual)/16)
	if !t.ill.some.Load() || took > t.store.StallAfter()/2 {
		return
	}
	i := &t.ill
	i.mu.Lock()
	defer i.mu.Unlock()
	if r := i.find(row); r == nil || r.cut(row) || r.opened != nil {
		return
	} else if time.Now().Before(r.until) {
		r.patience = t.store.StallAfter() // it is not slow
	} else {
		i.remove(func(x *illRange) bool { return x == r })
	}
}

// cut ends the range at a row that has answered, and returns false if rows on both sides have stalled.
// i.mu is held.
func (r *illRange) cut(row string) bool {
	switch {
	case row < r.low:
		r.start = row + "\x00"
	case row > r.high:
		r.end = row
	default:
		return false
	}
	if r.opened != nil {
		close(r.opened)
		r.opened = make(chan struct{})
	}
	return true
}

// stalled notes that a row of the range has stalled. i.mu is held.
func (r *illRange) stalled(row string) { r.low, r.high = min(r.low, row), max(r.high, row) }

// NoteStall says that a row has not answered for long. Until it answers a probe, Await waits.
func (t *Table) NoteStall(row string) {
	bounds := t.knownBounds()
	i := &t.ill
	i.mu.Lock()
	defer i.mu.Unlock()
	if at := slices.IndexFunc(i.ranges, func(r *illRange) bool { return r.has(row) }); at >= 0 {
		r := i.ranges[at]
		if r.stalled(row); r.opened == nil {
			r.opened, r.waiting, r.patience = make(chan struct{}), 0, min(2*r.patience, t.store.Config.RPCTimeout)
		}
		return
	}
	ill := &illRange{start: row, end: row + "\x00", low: row, high: row, opened: make(chan struct{}), probing: make(chan struct{}, 1), patience: 2 * t.store.StallAfter()}
	ill.pause = t.probePause()
	if bounds == nil {
		t.store.Background.Run(t.tabletBounds)
	}
	i.ranges = append(i.ranges, ill)
	i.widen(ill, bounds)
	if len(i.ranges) > maxIll {
		oldest := i.ranges[0]
		i.remove(func(r *illRange) bool { return r == oldest })
	}
	i.some.Store(true)
}

// widen makes an ill row an ill tablet, if another row of it is ill and the client knows where it ends. Those
// that wait for the other row look again, and then wait for the tablet. i.mu is held.
func (i *illness) widen(ill *illRange, bounds []string) {
	if bounds == nil || ill.end != ill.start+"\x00" || !slices.Contains(i.ranges, ill) {
		return
	}
	row := ill.start
	tablet := illRange{start: tabletStart(bounds, row), end: tabletEnd(bounds, row)}
	i.remove(func(r *illRange) bool {
		if r == ill || !tablet.has(r.start) {
			return false
		}
		ill.start, ill.end = tablet.start, tablet.end
		ill.stalled(r.low)
		ill.stalled(r.high)
		return true
	})
}

// probePause paces the probes of one illness.
func (t *Table) probePause() Waiter {
	return Backoff{Min: min(minProbePause, t.store.Config.Backoff.Max), Max: t.store.Config.Backoff.Max}.Start()
}

// knownBounds returns where the tablets of the table end, and nil if the client has not asked.
func (t *Table) knownBounds() []string {
	t.tablets.mu.Lock()
	defer t.tablets.mu.Unlock()
	return t.tablets.bounds
}

// tabletStart returns where the tablet of a row starts.
func tabletStart(bounds []string, row string) string {
	i, found := slices.BinarySearch(bounds, row)
	switch {
	case found:
		return row
	case i == 0:
		return ""
	}
	return bounds[i-1]
}

// tabletEnd returns where the tablet of a row ends.
func tabletEnd(bounds []string, row string) string {
	i, found := slices.BinarySearch(bounds, row)
	if found {
		i++
	}
	if i == len(bounds) {
		return ""
	}
	return bounds[i]
}

func (r *illRange) has(row string) bool { return r.start <= row && (r.end == "" || row < r.end) }

// remove removes ranges, lets those that wait for them look again, and reports whether there were
// any. i.mu is held.
func (i *illness) remove(which func(*illRange) bool) (some bool) {
	i.ranges = slices.DeleteFunc(i.ranges, func(r *illRange) bool {
		if !which(r) {
			return false
		}
		if some = true; r.opened != nil {
			close(r.opened)
		}
		return true
	})
	i.some.Store(len(i.ranges) > 0)
	return some
}

// find returns the ill rows that a row belongs to, or nil.
func (i *illness) find(row string) *illRange {
	for _, r := range i.ranges {
		if r.has(row) {
			return r
		}
	}
	return nil
}

// IsIll reports whether a row is ill.
func (t *Table) IsIll(row string) bool {
	if !t.ill.some.Load() {
		return false
	}
	t.ill.mu.Lock()
	defer t.ill.mu.Unlock()
	return t.ill.find(row) != nil
}

// IsClosed reports whether a row is ill and has not answered since.
func (t *Table) IsClosed(row string) bool {
	if !t.ill.some.Load() {
		return false
	}
	t.ill.mu.Lock()
	defer t.ill.mu.Unlock()
	r := t.ill.find(row)
	return r != nil && r.opened != nil
}

// Await returns when a row is not closed, or when ctx ends. Those that wait for the same rows continue
// in the order in which they came, one after the other. The caller must hold nothing that others need.
func (t *Table) Await(ctx context.Context, row string) error { return t.await(ctx, row, true) }

// await is Await. Without inOrder, the call has no place among the others, and continues after the first one.
func (t *Table) await(ctx context.Context, row string, inOrder bool) error {
	if !t.ill.some.Load() {
		return nil
	}
	for place := -1; ; {
		if ctx.Err() != nil {
			return t.awaitEnded(ctx, row)
		}
		if err := t.store.CheckOpen(); err != nil {
			return err
		}
		t.ill.mu.Lock()
		r := t.ill.find(row)
		if r == nil || r.opened == nil {
			t.ill.mu.Unlock()
			if place <= 0 {
				return nil
			}
			wait := min(time.Duration(place)*releasePace, maxRelease)
			if err := Sleep(ctx, wait); err != nil {
				return t.awaitEnded(ctx, row)
			}
			place = -1
			continue // they may be ill again
		}
		if place < 0 && inOrder {
			place = r.waiting
			r.waiting++
		} else if !inOrder {
			place = 1
		}
		opened, known := r.opened, r.low <= row && row <= r.high
		t.ill.mu.Unlock()
		if !known {
			t.probed(ctx, r, row, t.probe(ctx, t.store.StallAfter(), row))
			place = -1 // it may be one of those that are well
			continue
		}
		select {
		case r.probing <- struct{}{}:
			// Not with ctx: a call that waits only for a moment must not end a probe for all.
			t.store.Background.probe(func(ctx context.Context) { t.probeOnce(ctx, r, opened, row) })
		case <-opened:
		case <-ctx.Done():
		}
	}
}

// probeOnce sends a probe for those that wait for opened, and pauses if it has no answer.
func (t *Table) probeOnce(ctx context.Context, r *illRange, opened chan struct{}, row string) {
	defer func() { <-r.probing }()
	select {
	case <-opened: // by the probe before
		return
	default:
	}
	if t.probe(ctx, maxProbe, row) {
		r.pause = t.probePause()
		t.probed(ctx, r, row, true)
		return
	}
	bounds := t.knownBounds() // rows that stalled before the client knew them
	t.ill.mu.Lock()
	t.ill.widen(r, bounds)
	t.ill.mu.Unlock()
	if r.pause.Wait(ctx, 0) != nil { // the client closes: nobody must wait any more
		t.ill.mu.Lock()
		defer t.ill.mu.Unlock()
		t.ill.remove(func(x *illRange) bool { return x == r })
	}
}

// AwaitFor is Await for a limited time. If it ends, the error is not about ctx.
func (t *Table) AwaitFor(ctx context.Context, limit time.Duration, row string) error {
	rctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return t.Await(rctx, row)
}

func (t *Table) awaitEnded(ctx context.Context, row string) error {
	return Ended(ctx, fmt.Sprintf("percolator: waiting for row %q of table %q, whose tablet does not answer", row, t.Name), nil)
}

// probe reports whether a row answers. It is a conditional mutation that changes nothing, because the
// Bigtable client repeats reads that a tablet refuses, 17 times in maxProbe.
func (t *Table) probe(ctx context.Context, limit time.Duration, row string) bool {
	never := bigtable.NewMutation()
	never.DeleteTimestampRange(format.LockFamily, "probe", 0, 1)
	_, err := t.CheckAndMutateWithin(ctx, limit, row, bigtable.BlockAllFilter(), never, nil)
	return err == nil || Permanent(err)
}

// probed notes the result of a probe of a row in r.
func (t *Table) probed(ctx context.Context, r *illRange, row string, answered bool) {
	t.ill.mu.Lock()
	defer t.ill.mu.Unlock()
	switch {
	case ctx.Err() != nil && !answered, !slices.Contains(t.ill.ranges, r), !r.has(row):
	case !answered:
		r.stalled(row)
	case r.cut(row):
	case r.opened != nil:
		close(r.opened)
		r.opened, r.until = nil, time.Now().Add(minSuspect)
	}
}
