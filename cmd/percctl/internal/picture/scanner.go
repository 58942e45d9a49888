package picture

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/gccmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/tsocmd"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/pause"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Limits bound what a scanner asks of Bigtable.
type Limits struct {
	Requests int // per second
	Bytes    int // of answers, per second
}

// Defaults of the limits. An emulator takes 40 µs of CPU for a row of about 60 bytes of
// answer, on the machine of who looks: 50 kB/s keep it below 5 % of a core.
const (
	defaultRequests = 20
	defaultBytes    = 1_000_000
	emulatorBytes   = 50_000
)

// Add adds the flags.
func (l *Limits) Add(cmd *cobra.Command, o *session.Options) {
	cmd.Flags().IntVar(&l.Requests, "max-requests", defaultRequests, "requests per second to Bigtable, at most")
	cmd.Flags().IntVar(&l.Bytes, "max-bytes", 0, "bytes per second of Bigtable's answers, at most (0: 1000000, and 50000 of an emulator)")
	cli.AtLeast(&o.Checks, "max-requests", &l.Requests, 1, "positive")
	cli.AtLeast(&o.Checks, "max-bytes", &l.Bytes, 0, "positive, or 0 for the default")
}

// For returns the limits with the default for a Bigtable or an emulator.
func (l Limits) For(c *connect.Flags) Limits {
	if l.Bytes == 0 {
		l.Bytes = defaultBytes
		if c.IsEmulator() {
			l.Bytes = emulatorBytes
		}
	}
	return l
}

// PageRows is how many rows one piece of a pass reads.
func (l Limits) PageRows() int { return min(pageRows, max(20, l.Bytes/100)) }

// Pause is how long a pause has to be after requests.
func (l Limits) Pause(cost watch.Usage) time.Duration {
	seconds := max(float64(cost.Requests)/float64(l.Requests), float64(cost.Bytes)/float64(l.Bytes))
	return time.Duration(seconds * float64(time.Second))
}

// A Scanner keeps a picture of a deployment up to date. However many look at the picture,
// one request is under way at a time, and after each the scanner pauses until the limits
// allow the next. It reads, in turn: what is small (the oracle, tokens, garbage collection,
// dead letters) once per refresh; rows with locks or notifications again; the primaries of
// transactions with locks; and the next page of a pass over all rows, which finds new ones.
type Scanner struct {
	Refresh time.Duration  // how old what is known may become; what is older says so
	Metrics *watch.Metrics // of clients; nil: none

	keeper  *Keeper
	options Options
	meter   *watch.Meter
	limits  Limits
	turn    int
	debt    time.Duration // of pauses
	least   time.Duration // the pause for the last read of what is small

	scan    watch.Scan    // its lock is for all that follows, too
	wanted  time.Time     // when a viewer asked
	woke    time.Time     // when a viewer asked after a time without
	wake    chan struct{} // a viewer asks again
	err     error         // of the last read
	good    time.Time     // when Bigtable gave the last answer
	session *session.Session
	listed  time.Time // when names were read
	small   small
	txns    map[txnID]*described
	points  []Point
	last    *Picture // at the last small
	whole   *Picture // of Complete
	spent   watch.Usage
	window  []spending
}

type small struct {
	at      time.Time
	took    time.Duration
	ts      tso.Timestamp
	oracle  *tsocmd.Report
	own     tso.ClientStats
	workers []admin.Worker
	letters []changes.DeadLetter
	more    bool
	gc      *gccmd.Status
}

type txnID struct {
	startTS tso.Timestamp
	primary txn.Cell
}

type described struct {
	t  *inspect.Transaction
	at time.Time
}

type spending struct {
	at   time.Time
	used watch.Usage
}

// watchFor is how long the scanner continues after a viewer asked.
const watchFor = 30 * time.Second

// How many rows one piece of a pass reads.
const (
	pageRows = 400
	oncePage = 5000 // when nothing bounds the scan
)

// maxLetters is how many dead letters are read.
const maxLetters = 1000

// NewScanner returns a scanner that asks through a keeper whose flags have the meter.
func NewScanner(k *Keeper, o Options, m *watch.Meter, l Limits) *Scanner {
	return &Scanner{
		Refresh: 2 * time.Second, keeper: k, options: o, meter: m, limits: l.For(&k.flags.Connect),
		scan: watch.Scan{Limit: o.Limit, Start: o.Tables.Range.Rows.Start, End: o.Tables.Range.Rows.End},
		wake: make(chan struct{}, 1), txns: map[txnID]*described{},
	}
}

// Run reads while there are viewers, until the context ends.
func (s *Scanner) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if !s.watched() {
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
			continue
		}
		s.Metrics.Refresh(ctx)
		worked, err := s.step(ctx, time.Now(), false)
		s.scan.Lock()
		if s.err = err; worked && err == nil {
			s.good = time.Now()
		}
		s.scan.Unlock()
		// Something large may have used much, the checks for example. What is small stays
		// up to date while the rest waits.
		s.debt += s.pause()
		wait := min(s.debt, s.refresh())
		s.debt -= wait
		if err != nil || !worked {
			wait = max(wait, min(s.refresh(), time.Second)/4)
		}
		_ = pause.For(ctx, wait) // the loop sees that ctx has ended
	}
}

// Limits are how many requests and bytes a second the scanner uses at most.
func (s *Scanner) Limits() (requests, bytes int) { return s.limits.Requests, s.limits.Bytes }

// refresh is Refresh, or longer: what is small gets at most half of what the limits allow.
func (s *Scanner) refresh() time.Duration { return max(s.Refresh, 2*s.least) }

// Look says that there is a viewer.
func (s *Scanner) Look() {
	s.scan.Lock()
	now := time.Now()
	if now.Sub(s.wanted) >= watchFor {
		s.woke = now
	}
	s.wanted = now
	s.scan.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Scanner) watched() bool {
	s.scan.Lock()
	defer s.scan.Unlock()
	return time.Since(s.wanted) < watchFor
}

// pause is how long the limits ask for a pause, for all that the connection was used for.
func (s *Scanner) pause() time.Duration {
	now, used := time.Now(), s.meter.Used()
	s.scan.Lock()
	defer s.scan.Unlock()
	cost := used.Minus(s.spent)
	s.spent = used
	s.window = append(s.window, spending{now, used})
	for len(s.window) > 2 && now.Sub(s.window[1].at) > 10*time.Second {
		s.window = s.window[1:]
	}
	return s.limits.Pause(cost)
}

// Complete reads everything once, without pauses, and returns what it found. The keeper's
// timeout bounds all of it.
func (s *Scanner) Complete(ctx context.Context) (*Picture, error) {
	began := time.Now()
	if t := s.keeper.timeout; t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t, expired(t))
		defer cancel()
	}
	for {
		worked, err := s.step(ctx, began, true)
		if err != nil {
			return nil, err
		}
		if worked {
			continue
		}
		s.scan.Lock()
		defer s.scan.Unlock()
		p := s.picture()
		p.taken, p.Took = began, time.Since(began).Seconds()
		p.Scan.MaxRequests, p.Scan.MaxBytes = 0, 0
		p.Since(s.whole)
		s.whole = p
		return p, nil
	}
}

// Picture returns what is known, at least the small things. It fails if nothing could be
// read since the last one.
func (s *Scanner) Picture(ctx context.Context) (*Picture, error) {
	s.Look()
	for {
		s.scan.Lock()
		known, err := !s.small.at.IsZero() && time.Since(s.small.at) < max(watchFor, 3*s.Refresh), s.err
		if known && err == nil {
			defer s.scan.Unlock()
			p := s.picture()
			if s.last != nil {
				p.Rates = s.last.Rates
			}
			return p, nil
		}
		s.scan.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// step does the next piece of work, if there is any. In a complete scan, it is what has not
// been done since a time.
func (s *Scanner) step(ctx context.Context, since time.Time, complete bool) (worked bool, err error) {
	err = s.keeper.Do(ctx, func(ctx context.Context, at *session.Session) error {
		s.use(at)
		stale := time.Now().Add(-s.refresh())
		if complete {
			stale = since
		}
		if worked, err = s.list(ctx, stale, complete); worked || err != nil {
			return err
		}
		s.scan.PageRows = s.limits.PageRows()
		if complete {
			s.scan.PageRows = oncePage
		}
		for range len(turns) {
			s.turn++
			turn := turns[s.turn%len(turns)]
			if s.debt > 0 && !complete {
				turn = (*Scanner).takeSmall
			}
			if worked, err = turn(s, ctx, stale, complete); worked || err != nil {
				return err
			}
		}
		return nil
	})
	return worked, err
}

// turns are the pieces of work that the scanner takes turns with. A complete scan reads all
// rows once: what is known of them has to wait for that.
var turns = []func(s *Scanner, ctx context.Context, stale time.Time, complete bool) (worked bool, err error){
	(*Scanner).takeSmall,
	func(s *Scanner, ctx context.Context, stale time.Time, complete bool) (bool, error) {
		if complete {
			return false, nil
		}
		return s.scan.ReadAgain(ctx, s.session.Bigtable, stale)
	},
	func(s *Scanner, ctx context.Context, stale time.Time, _ bool) (bool, error) {
		return s.scan.Pass(ctx, s.session.Bigtable, stale)
	},
	func(s *Scanner, ctx context.Context, stale time.Time, complete bool) (bool, error) {
		if complete && !s.scan.Passed(stale) {
			return false, nil
		}
		return s.scan.Observe(ctx, s.session.Client(), stale)
	},
	(*Scanner).describe,
	func(s *Scanner, ctx context.Context, stale time.Time, complete bool) (bool, error) {
		if !complete {
			stale = time.Now().Add(-lookEvery)
		}
		return s.scan.Look(ctx, s.session.Client(), s.session.Bigtable, stale, !complete)
	},
}

// lookEvery is how often a table's observers and a sample of its rows are read.
const lookEvery = time.Minute

// use sets the session.
func (s *Scanner) use(at *session.Session) {
	s.scan.Lock()
	defer s.scan.Unlock()
	s.session = at
}

// listEvery is how often the tables of the deployment are listed.
const listEvery = 30 * time.Second

func (s *Scanner) list(ctx context.Context, stale time.Time, complete bool) (bool, error) {
	if !complete {
		stale = time.Now().Add(-listEvery)
	}
	if s.listed.After(stale) {
		return false, nil
	}
	o := s.options
	o.Tables.All = len(o.Tables.Names) == 0
	names, err := o.Tables.Open(ctx, s.session)
	if err != nil {
		return false, err
	}
	s.scan.SetTables(names)
	s.scan.Lock()
	defer s.scan.Unlock()
	s.listed = time.Now()
	return true, nil
}

// takeSmall reads what is small, and makes a point of the strip charts.
func (s *Scanner) takeSmall(ctx context.Context, stale time.Time, complete bool) (bool, error) {
	// Most of the time is for the rest, also where Bigtable is slow.
	if s.small.at.After(stale) || !complete && time.Since(s.small.at) < 4*s.small.took {
		return false, nil
	}
	n, used := small{at: time.Now()}, s.meter.Used()
	var err error
	if n.ts, err = s.session.Now(ctx); err != nil {
		return false, err
	}
	if n.oracle, err = tsocmd.Look(ctx, s.session.Bigtable.OpenTable(s.session.Connect.MetadataTable), &s.session.Connect.Oracle); err != nil {
		return false, err
	}
	if s.session.Served != nil {
		n.own = s.session.Served.Stats()
	}
	if n.workers, err = admin.Workers(ctx, s.session.Client()); err != nil {
		return false, err
	}
	if n.gc, err = gccmd.NewStatus(ctx, s.session); err != nil {
		return false, err
	}
	for d, err := range changes.DeadLetters(ctx, s.session.Client()) {
		if err != nil {
			return false, err
		}
		if len(n.letters) == maxLetters {
			n.more = true
			break
		}
		n.letters = append(n.letters, d)
	}
	n.took, s.least = time.Since(n.at), s.limits.Pause(s.meter.Used().Minus(used))
	s.scan.Lock()
	defer s.scan.Unlock()
	s.small = n
	p := s.picture()
	p.Since(s.last)
	s.last = p
	s.points = append(s.points, s.point(p, n.at))
	s.points = s.points[max(0, len(s.points)-keptPoints):]
	for _, t := range s.scan.Tables {
		t.Heat.Add(t.Rows, n.at)
	}
	return true, nil
}

func (s *Scanner) point(p *Picture, at time.Time) Point {
	pt := Point{
		Time: float64(at.UnixMilli()) / 1000, Locks: p.Locks.Locks, Oldest: p.Locks.OldestAge,
		Pending: p.Notifications.Pending, Failing: p.Notifications.Failing, Dead: p.Notifications.Dead,
	}
	pt.Clients, _ = s.Metrics.Rates()
	for _, o := range p.Observers {
		pt.Lag = max(pt.Lag, o.Lag)
	}
	for _, t := range p.Locks.Listed {
		if t.Stranded() {
			pt.Stranded += len(t.Locks)
		}
	}
	if p.Rates != nil {
		pt.Rate = p.Rates.Timestamps
	}
	return pt
}

// parallelDescribes is how many transactions are looked at together.
const parallelDescribes = 8

func (s *Scanner) describe(ctx context.Context, stale time.Time, complete bool) (bool, error) {
	if complete && !s.scan.Passed(stale) {
		return false, nil
	}
	groups := s.scan.Groups()
	groups = groups[:min(len(groups), s.options.Transactions)]
	var due [][]format.Lock
	listed := map[txnID]bool{}
	for _, g := range groups {
		id := txnID{g[0].StartTS, g[0].Primary}
		listed[id] = true
		if d := s.txns[id]; d == nil || d.at.Before(stale) {
			due = append(due, g)
		}
	}
	slices.SortStableFunc(due, func(a, b []format.Lock) int { return s.describedAt(a).Compare(s.describedAt(b)) })
	due = due[:min(len(due), parallelDescribes)]
	at := time.Now()
	var all []*inspect.Transaction
	if len(due) > 0 {
		var err error
		if all, err = inspect.Describe(ctx, s.session, due); err != nil {
			return false, err
		}
	}
	s.scan.Lock()
	defer s.scan.Unlock()
	maps.DeleteFunc(s.txns, func(id txnID, _ *described) bool { return !listed[id] })
	for i, t := range all {
		s.txns[txnID{due[i][0].StartTS, due[i][0].Primary}] = &described{t, at}
		if e, ok := watch.EdgeOf(due[i][0].Primary, due[i][0].Cell); ok {
			s.scan.AddEdges(e)
		}
	}
	return len(due) > 0, nil
}

func (s *Scanner) describedAt(g []format.Lock) time.Time {
	if d := s.txns[txnID{g[0].StartTS, g[0].Primary}]; d != nil {
		return d.at
	}
	return time.Time{}
}
