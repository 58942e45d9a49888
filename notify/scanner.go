package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/pause"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A Scanner finds the notifications of all processes. If a table has a journal of pending work, the
// worker reads that (changes.Pending), and all workers together sweep the table once a day. Its
// cost follows what is pending.
//
// Other tables it scans as the paper does (§2.4): each worker runs a few threads, and each
// thread reads the notify family of a random piece of a random table, from a random row in it. If
// another worker turns out to work there, the thread jumps to another piece. It also resolves
// locks that dead clients left in observed columns, because such a lock may hide a change
// (changes.Sweep). It does the same while a worker token is fresh that a release without a
// journal wrote.
//
// A sweep reads every piece once, in random order, so one sweep finds everything that was
// there when it began. Workers share the work: of n workers, each reads an n-th of its pieces,
// waits for an interval, and reads the next ones. So the cost does not depend on the number of
// workers. If sweeps find nothing, the intervals grow from MinInterval to MaxInterval. If the
// table is so large that all workers together would read all the time, they read about as much
// as one of them could. Bigtable may have to skip everything else in a row to read its notify
// family.
//
// The zero value is usable. Do not change the fields once a worker runs.
type Scanner struct {
	// Threads is how many scans this worker has under way. If the journal is long, one worker
	// at a time reads it, with all its threads, so this is also about how many nodes of Bigtable
	// that may take.
	// Defaults to 2.
	Threads int

	// MinInterval is the time from one look at the journal to the next, by any worker: about
	// the longest time that a change of another process waits. For tables without a journal it
	// is the time from the begin of one sweep to the begin of the next, while sweeps find
	// something.
	// Defaults to 1 second.
	MinInterval time.Duration

	// MaxInterval is the time between two sweeps of tables without a journal after many
	// that found nothing, unless one worker needs longer for a sweep. A fifth of it bounds
	// the time between two looks at a journal that takes long to read.
	// Defaults to 1 minute.
	MaxInterval time.Duration

	// Pieces bounds into how many pieces the scanner cuts a table. It cuts at the keys
	// that Bigtable's SampleRowKeys returns.
	// Defaults to 1000.
	Pieces int

	// NoTeleport has a scan continue where another worker turns out to work.
	// Defaults to false.
	NoTeleport bool

	sweeps, pieces, notifications, teleports, reads atomic.Int64
}

// ScannerStats are counts since the Scanner was first used.
type ScannerStats struct {
	// Sweeps counts sweeps begun, Pieces the pieces read, and Notifications the cells
	// with notifications that they contained.
	Sweeps        int64 `json:"sweeps"`
	Pieces        int64 `json:"pieces"`
	Notifications int64 `json:"notifications"`
	// Teleports counts jumps away from other workers.
	Teleports int64 `json:"teleports"`
}

// Stats returns the scanner's counts.
func (s *Scanner) Stats() ScannerStats {
	return ScannerStats{s.sweeps.Load(), s.pieces.Load(), s.notifications.Load(), s.teleports.Load()}
}

// Find implements [Finder]. Fails with txn.ErrInvalid if a field is negative, or
// MaxInterval is below MinInterval.
func (s *Scanner) Find(ctx context.Context, search Search) error {
	sw := &sweeper{scanner: s, search: search, least: cmp.Or(s.MinInterval, time.Second), most: cmp.Or(s.MaxInterval, time.Minute), cuts: map[string]cut{}}
	threads, pieces := cmp.Or(s.Threads, 2), cmp.Or(s.Pieces, 1000)
	if threads < 0 || pieces < 0 || sw.least < 0 || sw.most < sw.least {
		return fmt.Errorf("notify: %w: Scanner{Threads: %d, Pieces: %d, MinInterval: %v, MaxInterval: %v}: all must be positive, and MaxInterval must not be below MinInterval", txn.ErrInvalid, threads, pieces, sw.least, sw.most)
	}
	sw.threads, sw.pieces, sw.interval = threads, pieces, sw.least
	j := newJournal(s, search, sw.least, sw.most, pieces, threads)
	if err := j.begin(ctx); err != nil {
		return err
	}
	sw.fleet, sw.swept = j.fleet, j.needsSweeps // before the journal runs
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return j.run(ctx) })
	g.Go(func() error { return sw.run(ctx) })
	return g.Wait()
}

// A sweeper makes one worker's sweeps.
type sweeper struct {
	scanner     *Scanner
	search      Search
	threads     int
	pieces      int
	least, most time.Duration

	todo     []piece       // that this sweep has not read yet
	all      int           // pieces of this sweep
	part     float64       // of the sweep that the last turn was
	took     time.Duration // the last turn; 0 if it found something
	interval time.Duration // between the sweeps of all workers together
	fleet    fleet         // the workers that share the sweeps
	swept    func(table string) bool
	cuts     map[string]cut
	missing  sync.Map // tables that this sweep has not found
}

// A cut is where a table was cut into pieces, and when.
type cut struct {
	at     time.Time
	pieces []piece
}

// cutMaxAge is how long a sweeper uses a table's pieces. Old pieces are of less equal
// size, but together they are always the whole table.
const cutMaxAge = time.Minute

// maxTurn bounds a turn: after that, a worker begins no further piece. A piece that Bigtable does
// not answer for may take longer, and does not lengthen the pause.
const maxTurn = 30 * time.Second

// pause returns the time from the begin of this worker's last turn to its next one: its part of
// one interval for each worker. While there is nothing to find, about one worker reads at a time:
// wait waits for three quarters of the pause, on average.
func (s *sweeper) pause() time.Duration {
	return max(time.Duration(s.fleet.share)*time.Duration(s.part*float64(s.interval)), time.Duration(s.fleet.share-1)*s.took*4/3)
}

// run makes one turn after the other until ctx ends.
func (s *sweeper) run(ctx context.Context) error {
	for {
		began := time.Now()
		switch err := s.turn(ctx); {
		case err == nil:
		case ctx.Err() != nil || errors.Is(err, txn.ErrClosed):
			return err
		default:
			// The sweep continues with its other pieces.
			s.search.Logger.WarnContext(ctx, "a sweep could not read a part of a table; the next sweep reads it again", "error", err)
			_ = pause.For(ctx, findPause) // wait sees that ctx has ended
		}
		if err := s.wait(ctx, began); err != nil {
			return err
		}
	}
}

// wait waits until the next turn is due. With many workers that takes long, and most of
// them may stop meanwhile, so it counts the workers again from time to time.
func (s *sweeper) wait(ctx context.Context, began time.Time) error {
	part := 0.5 + rand.Float64()/2
	for {
		left := time.Duration(part*float64(s.pause())) - time.Since(began)
		if left <= 0 {
			return ctx.Err()
		}
		if err := pause.For(ctx, min(left, max(s.most, workersMaxAge))); err != nil {
			return err
		}
		if s.all > 0 {
			s.fleet.count(ctx, s.search)
		}
	}
}

// isMissing reports whether err says that a table is missing, for example because it was
// deleted while it had observers. The search then continues with the other tables. It warns once of
// those that are not in missing.
func isMissing(ctx context.Context, s Search, missing *sync.Map, table string, err error) bool {
	if status.Code(err) != codes.NotFound && !errors.Is(err, txn.ErrNotInitialized) {
		return false
	}
	if _, known := missing.LoadOrStore(table, nil); !known {
		s.Logger.WarnContext(ctx, "a table with observers is missing; the next sweep tries it again", "table", table, "error", err)
	}
	return true
}

// turn reads this worker's share of the pieces that its sweep has not read yet. It begins a new
// sweep if there are none.
func (s *sweeper) turn(ctx context.Context) error {
	began := time.Now()
	tables := s.tables()
	if len(tables) == 0 {
		s.todo, s.all, s.part, s.took, s.interval = nil, 0, 1, 0, s.least
		return nil
	}
	s.fleet.count(ctx, s.search)
	if len(s.todo) == 0 {
		s.scanner.sweeps.Add(1)
		s.missing.Clear()
		all, err := s.shuffled(ctx, tables)
		if err != nil {
			return err
		}
		s.todo, s.all = all, max(len(all), 1)
	}
	n := s.due()
	todo, later := &pieces{todo: slices.Clone(s.todo[:n])}, s.todo[n:]
	var found atomic.Int64
	var g errgroup.Group // an error does not end the scans of other pieces
	for range s.threads {
		g.Go(func() (first error) {
			for time.Since(began) < maxTurn && ctx.Err() == nil {
				p, ok := todo.next()
				if !ok {
					break
				}
				n, rest, err := s.scan(ctx, p)
				if err != nil && !isMissing(ctx, s.search, &s.missing, p.table, err) && first == nil {
					first = err
				}
				found.Add(int64(n))
				todo.again(rest)
			}
			return first
		})
	}
	err := g.Wait()
	s.todo = append(todo.todo, later...)
	s.read(n-len(todo.todo), found.Load() > 0, time.Since(began))
	return err
}

// read decides when the next turn is, after one that read so many pieces.
func (s *sweeper) read(pieces int, found bool, took time.Duration) {
	s.part = float64(max(pieces, 1)) / float64(s.all)
	if found {
		s.interval, s.took = s.least, 0
	} else {
		s.interval, s.took = min(s.interval*2, s.most), min(took, maxTurn)
	}
}

// due is how many pieces a turn reads: the worker's share of the sweep, or what is left of it.
func (s *sweeper) due() int {
	return min((s.all+s.fleet.share-1)/s.fleet.share, len(s.todo))
}

// scan reads a piece from a random row to its end, and then from its beginning to that
// row. If another worker turns out to work there, it returns the rest of the piece, which
// the sweep reads last.
func (s *sweeper) scan(ctx context.Context, p piece) (found int, rest []piece, err error) {
	s.scanner.pieces.Add(1)
	parts := p.turn()
	for i, part := range parts {
		var contended atomic.Bool
		row := part.start
		for n, err := range changes.Sweep(ctx, s.search.Client, p.table, part.rows()) {
			if err != nil {
				return found, nil, err
			}
			// Between rows, because the rest begins with a whole row.
			if contended.Load() && n.Cell.Row != row && !p.resumed && !s.scanner.NoTeleport {
				s.scanner.teleports.Add(1)
				rest = append(rest, piece{p.table, n.Cell.Row, part.end, true})
				for _, other := range parts[i+1:] {
					rest = append(rest, piece{p.table, other.start, other.end, true})
				}
				return found, rest, nil
			}
			row = n.Cell.Row
			s.scanner.notifications.Add(1)
			if s.search.Offer(ctx, n, func() { contended.Store(true) }) {
				found++
			}
		}
	}
	return found, nil, nil
}

// tables returns the tables that the journal does not cover.
func (s *sweeper) tables() []string {
	return slices.DeleteFunc(slices.Clone(s.search.Tables), func(t string) bool { return !s.swept(t) })
}

// shuffled returns the pieces of tables in random order.
func (s *sweeper) shuffled(ctx context.Context, tables []string) ([]piece, error) {
	var all []piece
	for _, table := range tables {
		c := s.cuts[table]
		if time.Since(c.at) > cutMaxAge {
			keys, err := changes.SampleRowKeys(ctx, s.search.Client, table)
			switch {
			case err == nil:
			case isMissing(ctx, s.search, &s.missing, table, err):
				continue
			default:
				return nil, err
			}
			c = cut{time.Now(), cutTable(table, keys, s.pieces)}
			s.cuts[table] = c
		}
		all = append(all, c.pieces...)
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, nil
}
