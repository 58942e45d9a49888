package notify

import (
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/pause"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A journal finds notifications in the journal of pending work, at a cost that follows the number
// of cells with pending work. It reads the whole journal; of n workers, each does so at every
// n-th interval. While cells wait for a worker, it reads its own part instead, at
// each interval, so that two workers seldom find the same cell. The parts of all workers need not be
// the whole: one may have died, or run other observers too and share with more workers. So each still
// reads the whole journal at every n-th of the longest intervals.
//
// The journal does not contain what clients of older releases committed, and what a restored
// backup brought. So all workers together also sweep each table once a day, piece by piece.
type journal struct {
	scanner     *Scanner
	search      Search
	least, most time.Duration
	pieces      int
	threads     int

	fleet    fleet
	took     time.Duration // the last turn
	rest     time.Duration // of all workers after it
	cost     time.Duration // about how long one request after the other for the whole journal takes
	pace     time.Duration // the same, of the last turn that read its parts completely; 0: none did
	late     time.Time     // since when each turn has left out a part that did not answer; 0: the last one did not
	locks    Locks
	busy     bool      // the worker had more to do than it could take
	whole    time.Time // the last turn that read the whole journal
	offers   map[target]chan changes.Notification
	offering sync.WaitGroup
	missing  sync.Map // tables that were not found

	mu        sync.Mutex
	journaled []string        // tables
	share     int             // of fleet
	old       bool            // of fleet
	covered   map[string]bool // tables of which a sweep has ended since they have a journal
	previous  time.Time       // when the turn before this one began
	began     time.Time
	offered   map[txn.Cell]offered
}

// An offered cell waits in offers, or the worker has taken it a moment ago. The next turn may still
// find it, and does not offer it again.
type offered struct {
	newest tso.Timestamp // notification
	taken  time.Time     // 0: it waits
}

func newJournal(s *Scanner, search Search, least, most time.Duration, pieces, threads int) *journal {
	// Several reads fall into the longest time that a notification may wait.
	return &journal{scanner: s, search: search, least: least, most: max(most/5, least), busy: true, whole: time.Now(), pieces: pieces, threads: threads, offers: map[target]chan changes.Notification{}, offered: map[txn.Cell]offered{}}
}

// begin finds out which tables have a journal. If there are other workers, it waits for a moment:
// many may have been started at once.
func (j *journal) begin(ctx context.Context) error {
	j.locks = changes.AdvisoryLocks(j.search.Client)
	j.fleet.count(ctx, j.search)
	j.share, j.old = j.fleet.share, j.fleet.old
	if j.fleet.share > 1 {
		if err := pause.For(ctx, pause.Jitter(j.least)); err != nil {
			return err
		}
		j.fleet.counted = time.Time{}
		j.fleet.count(ctx, j.search)
		j.share, j.old = j.fleet.share, j.fleet.old
	}
	return j.tolerate(ctx, j.look(ctx, false))
}

// tolerate returns err only if it ends the search. Until the journal can be read, workers sweep
// the tables.
func (j *journal) tolerate(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, txn.ErrClosed) {
		return err
	}
	j.search.Logger.WarnContext(ctx, "reading the journal of pending work failed; the next turn reads it again", "error", err)
	return nil
}

// needsSweeps reports whether the journal may miss notifications of a table for long.
func (j *journal) needsSweeps(table string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.old || !j.covered[table]
}

// look finds out which tables the journal covers. If sweep is set, it also sweeps a piece of each
// table whose turn it is.
func (j *journal) look(ctx context.Context, sweep bool) error {
	var journaled []string
	for _, table := range j.search.Tables {
		ok, err := changes.Journaled(ctx, j.search.Client, table)
		switch {
		case errors.Is(err, txn.ErrClosed):
			return err
		case ok:
			journaled = append(journaled, table) // the sweeper reports those that are missing
		}
	}
	positions, err := changes.SweepPositions(ctx, j.search.Client, j.firstSweep, journaled...)
	if len(positions) == 0 && err != nil {
		return err
	}
	j.mu.Lock()
	j.journaled, j.covered = journaled, map[string]bool{}
	for _, p := range positions {
		j.covered[p.Table] = p.Complete
	}
	j.mu.Unlock()
	errs := []error{err}
	for _, p := range positions {
		if sweep && p.DueTS <= changes.OracleNow(j.search.Client) {
			errs = append(errs, j.sweep(ctx, p))
		}
	}
	return errors.Join(errs...)
}

func (j *journal) firstSweep(ctx context.Context) (time.Duration, error) {
	return firstSweepAfter(ctx, j.search.Client)
}

// sweepEvery is how often all workers together sweep a table that has a journal.
const sweepEvery = 24 * time.Hour

// sweepLease is how long other workers leave a piece to the one that sweeps it.
const sweepLease = 10 * time.Minute

// sweep reads the next piece of a table. If Bigtable does not answer for it, the sweep continues
// with the other pieces.
func (j *journal) sweep(ctx context.Context, p changes.SweepPosition) error {
	p, ok, err := changes.MoveSweep(ctx, j.search.Client, p, p.Row, false, sweepLease)
	if err != nil || !ok {
		return err // another worker has it
	}
	keys, err := changes.SampleRowKeys(ctx, j.search.Client, p.Table)
	if isMissing(ctx, j.search, &j.missing, p.Table, err) {
		p.Missed = true
		return j.moveOn(ctx, p, "", sweepEvery)
	}
	if err != nil {
		return err
	}
	cuts := cutTable(p.Table, keys, j.pieces)
	next := piece{table: p.Table, start: p.Row}
	if i := slices.IndexFunc(cuts, func(c piece) bool { return c.end > p.Row }); i >= 0 {
		next.end = cuts[i].end
	}
	if p.Row == "" {
		j.scanner.sweeps.Add(1)
	}
	j.scanner.pieces.Add(1)
	var failed error
	for n, err := range changes.Sweep(ctx, j.search.Client, p.Table, next.rows()) {
		if failed = err; err != nil {
			break
		}
		j.scanner.notifications.Add(1)
		j.search.Offer(ctx, n, func() {})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.Missed = p.Missed || failed != nil
	return errors.Join(failed, j.moveOn(ctx, p, next.end, sweepEvery/time.Duration(len(cuts))))
}

// moveOn moves a sweep after a piece that begins at p was read. If that took longer than the
// lease, another worker reads the piece again. It may take as long, so what was read counts.
func (j *journal) moveOn(ctx context.Context, p changes.SweepPosition, end string, pause time.Duration) error {
	for {
		_, ok, err := changes.MoveSweep(ctx, j.search.Client, p, end, end == "", pause)
		if ok || err != nil {
			return err
		}
		now, err := changes.SweepPositions(ctx, j.search.Client, nil, p.Table)
		if err != nil || now[0].Row != p.Row || now[0].BegunTS != p.BegunTS {
			return err
		}
		now[0].Missed = now[0].Missed || p.Missed
		p = now[0]
	}
}

// run reads the journal, and sweeps what is due, until ctx ends.
func (j *journal) run(ctx context.Context) error {
	defer j.offering.Wait()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for {
			if err := j.tolerate(ctx, j.turn(ctx)); err != nil {
				return err
			}
			if err := j.wait(ctx); err != nil {
				return err
			}
		}
	})
	g.Go(func() error {
		for {
			if err := j.tolerate(ctx, j.look(ctx, true)); err != nil {
				return err
			}
			j.mu.Lock()
			share := max(j.share, 1)
			j.mu.Unlock()
			if err := pause.For(ctx, time.Duration(share)*pause.Jitter(j.most)); err != nil {
				return err
			}
		}
	})
	return g.Wait()
}

// every returns the time between two reads of the whole journal, by all workers together. All of them
// keep less than a fifth of a node busy with a journal that is not long.
func (j *journal) every() time.Duration { return min(max(j.least, 10*j.cost), j.most) }

// behind reports whether cells wait that the journal has found, or the worker was told of.
func (j *journal) behind() bool {
	for _, ch := range j.offers {
		if len(ch) > 0 {
			return true
		}
	}
	return j.search.behind != nil && j.search.behind()
}

// wait waits until the next turn. With many workers that takes long, and most of them may stop
// meanwhile, so each looks at another one: about once a minute, but all together at most twice a second.
func (j *journal) wait(ctx context.Context) error {
	began, part := time.Now(), 0.5+rand.Float64()/2
	if err := pause.For(ctx, j.least); err != nil {
		return err
	}
	if j.busy = j.busy || j.behind(); j.busy {
		return pause.For(ctx, 3*j.took-time.Since(began))
	}
	each := part * float64(j.every())
	if j.cost >= longRead {
		each = part * float64(j.most) / 8 // mostly another worker has read the journal lately, and this one only asks
	}
	for {
		left := max(time.Duration(float64(j.fleet.share)*each), j.rest) - time.Since(began)
		look := max(5*j.most, time.Duration(j.fleet.share)*time.Second/2)
		if err := pause.For(ctx, min(left, look)); err != nil || left <= look {
			return err
		}
		j.fleet.recount(ctx, j.search)
	}
}

// turn reads the journal once.
func (j *journal) turn(ctx context.Context) error {
	began := time.Now()
	j.fleet.count(ctx, j.search)
	tables := j.starts(began)
	if len(tables) == 0 {
		return nil
	}
	j.rest = 0
	first, parts, of := j.fleet.rank, 1, j.fleet.share
	release := func(error) {}
	if !j.busy || time.Since(j.whole) >= time.Duration(of)*j.most {
		r, alone := j.alone(ctx)
		switch {
		case alone:
			parts = j.parts()
			release, first, of, j.whole = r, 0, parts, time.Now()
		case !j.busy:
			return nil
		default:
			j.whole = j.whole.Add(j.most) // try again then
		}
	}
	j.scanner.reads.Add(1)
	sum, nothing, failed := j.read(ctx, tables, first, parts, of)
	took := time.Since(began)
	switch {
	case errors.Is(failed, changes.ErrLate):
		took = min(took, j.took) // the pause does not follow from what was late
		if j.late.IsZero() {
			j.late = began
		}
	default:
		j.late = time.Time{}
		if failed == nil {
			j.pace = max(sum*time.Duration(of)/time.Duration(parts), 1)
		}
	}
	j.ends(took, sum, parts, of, nothing, failed != nil)
	release(errors.Join(failed, ctx.Err()))
	return failed
}

// starts notes that a turn begins, and returns the tables that it reads. It forgets what workers have
// handled since it was offered.
func (j *journal) starts(began time.Time) (tables []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.previous, j.began = j.began, began
	for cell, o := range j.offered {
		if !o.taken.IsZero() && j.search.busy != nil && j.search.busy(cell) {
			j.offered[cell] = offered{o.newest, began} // the worker may finish it before this turn offers what it read
		} else if !j.recent(o) {
			delete(j.offered, cell)
		}
	}
	j.share, j.old = j.fleet.share, j.fleet.old
	return j.journaled
}

// ends notes how long a turn took that read so many parts in sum, and found nothing or ended early.
func (j *journal) ends(took, sum time.Duration, parts, of int, nothing, early bool) {
	switch {
	case early:
	case parts == of:
		j.cost = sum
	case nothing:
		j.cost = max(j.cost, sum*time.Duration(of)) // parts differ
	}
	j.took, j.busy = took, false
	if j.rest = 3 * j.took; parts == of && j.cost >= longRead {
		j.rest = max(j.every(), min(j.cost, 3*j.most)) - j.took
	}
}

// parts returns in how many parts to read the whole journal. A short one costs one request.
func (j *journal) parts() int {
	return min(max(int(j.cost/time.Second), 1), 8*j.threads)
}

// firstPatience is how long a worker waits for a part of the journal before it has read one.
const firstPatience = time.Minute

// patience returns how long a page of one of so many parts of the journal may take: three times as long as
// the whole part did last, or a second. While a part is late, it grows, because the part may only be slow.
// But what is new in other parts waits for it.
func (j *journal) patience(of int) time.Duration {
	if j.pace == 0 {
		return firstPatience
	}
	d := max(time.Second, 3*max(j.pace, j.cost)/time.Duration(of))
	if !j.late.IsZero() {
		d = max(d, min(time.Since(j.late)/10, maxTurn))
	}
	return d
}

// read reads parts of the journal, from the first one on, as many at a time as the worker has threads;
// of is how many there are. It offers what it finds. sum is the time that the parts took, together. A
// tablet of the journal that does not answer holds up the others for about a second, and nobody while
// it was late in the last turn.
func (j *journal) read(ctx context.Context, tables []string, first, parts, of int) (sum time.Duration, nothing bool, failed error) {
	nothing = true
	patience := j.patience(of)
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(j.threads)
	for part := first; part < first+parts; part++ {
		g.Go(func() error {
			began := time.Now()
			for n, err := range changes.Pending(ctx, j.search.Client, tables, changes.Part{N: part, Of: of, Patience: patience, Apart: !j.late.IsZero()}) {
				mu.Lock()
				switch {
				case err == nil:
					j.missing.Delete(n.Cell.Table)
					j.scanner.notifications.Add(1)
					nothing = false
					j.offer(ctx, n)
				case !isMissing(ctx, j.search, &j.missing, n.Cell.Table, err):
					failed = errors.Join(failed, err)
				}
				mu.Unlock()
			}
			mu.Lock()
			defer mu.Unlock()
			sum += time.Since(began)
			return nil
		})
	}
	_ = g.Wait()
	return sum, nothing, failed
}

// longRead is how long a read of the whole journal takes from which on workers read it in turn.
const longRead = 250 * time.Millisecond

// alone reports whether this worker may read the whole journal now. A read may take long although it
// finds little: it also passes what was removed since Bigtable last compacted it. Then an advisory
// lock lets one worker at a time read, with its threads, and none until as much time has passed since it
// began as one thread would need, but at most three intervals. So the cost does not depend on the
// number of workers: about one node, or for a journal too long for that, one for each thread.
// The lock expires, so no worker relies on others, and none waits long for a lock that does not
// answer.
func (j *journal) alone(ctx context.Context) (release func(err error), ok bool) {
	if j.fleet.share == 1 || j.cost < longRead {
		return func(error) {}, true
	}
	own := crand.Text()
	name := fmt.Sprintf("journal/%x", sha256.Sum256(fmt.Appendf(nil, "%q %q", j.search.Tables, j.search.Observers)))
	acquiring, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	held, _, err := j.locks.Acquire(acquiring, name, own, min(max(time.Minute, 2*j.cost/time.Duration(j.threads)), sweepLease))
	return func(err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
		defer cancel()
		if err != nil || j.rest < time.Millisecond {
			_ = j.locks.Release(ctx, name, own) // or it expires
			return
		}
		_, _, _ = j.locks.Acquire(ctx, name, own, j.rest)
	}, held || err != nil
}

// lockWait is how long a worker waits for an answer of the advisory locks. Then it reads without.
const lockWait = 2 * time.Second

// maxOffers is how many notifications of a column wait in memory until the worker takes them.
const maxOffers = 1000

// offer offers a notification to the worker. The worker lets the caller wait while it has much to
// do for the column, and that must not hold up other columns. So each column has its own
// goroutine. What does not fit is found again in the next turn.
func (j *journal) offer(ctx context.Context, n changes.Notification) {
	to := targetOf(n.Cell)
	if j.search.lane != nil {
		to = j.search.lane(n.Cell) // of a pattern, each cell may have another column
	}
	ch := j.offers[to]
	if ch == nil {
		ch = make(chan changes.Notification, maxOffers)
		j.offers[to] = ch
		j.offering.Go(func() {
			for {
				select {
				case n := <-ch:
					j.note(n, time.Now())
					j.search.Offer(ctx, n, func() {})
				case <-ctx.Done():
					return
				}
			}
		})
	}
	if j.known(n) {
		return
	}
	j.note(n, time.Time{})
	select {
	case ch <- n:
	default:
		j.note(n, time.Now().Add(-time.Hour))
	}
}

func newestOf(n changes.Notification) (ts tso.Timestamp) {
	for _, t := range n.Triggers {
		ts = max(ts, t.TS)
	}
	return ts
}

func (j *journal) note(n changes.Notification, taken time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.offered[n.Cell] = offered{newestOf(n), taken}
}

// recent reports whether a cell was taken, or the worker was busy with it, so lately that its
// notification may not be removed yet. The caller holds mu.
func (j *journal) recent(o offered) bool {
	return o.taken.IsZero() || !o.taken.Before(j.previous) || time.Since(o.taken) < 2*j.least
}

// known reports whether the worker has a notification already, as far as the journal knows.
func (j *journal) known(n changes.Notification) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	o, ok := j.offered[n.Cell]
	return ok && j.recent(o) && newestOf(n) <= o.newest
}
