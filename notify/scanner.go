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

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A Scanner is the paper's distributed scan (§2.4): a few threads per worker
// that each read the notify column of a random piece of a random table, from a
// random place in it, and jump elsewhere when they meet another worker. It also
// settles locks of observed columns that dead clients have left, because these
// may hide a change (txn.Client.Sweep).
//
// A sweep reads every piece once, in random order, so that what is there is
// found within one. How often sweeps follow each other does not depend on the
// number of workers: each does its share of the fleet's sweeps. An idle fleet
// sweeps more and more seldom.
//
// Reading the notify family alone, Bigtable may still have to pass over
// everything in a row; that is what a sweep costs, and what MaxInterval bounds.
type Scanner struct {
	// Threads is how many scans this worker has under way.
	// Defaults to 2.
	Threads int

	// MinInterval is how long after one of the fleet's sweeps the next one
	// begins, while there is something to find.
	// Defaults to 1 second.
	MinInterval time.Duration

	// MaxInterval is the same when nothing was found for long: what a
	// notification without a hint has to wait at most, roughly.
	// Defaults to 1 minute.
	MaxInterval time.Duration

	// Pieces bounds into how many pieces a table is cut. They are cut where
	// Bigtable's SampleRowKeys does.
	// Defaults to 1000.
	Pieces int

	// NoTeleport has a scan go on where it has met another worker.
	// Defaults to false.
	NoTeleport bool

	sweeps, pieces, notifications, teleports atomic.Int64
}

// ScannerStats are counts since the Scanner was first used.
type ScannerStats struct {
	// Sweeps begun, pieces read, and cells with notifications met.
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

// Find implements [Finder].
func (s *Scanner) Find(ctx context.Context, search Search) error {
	sw := &sweeper{scanner: s, search: search, least: cmp.Or(s.MinInterval, time.Second), most: cmp.Or(s.MaxInterval, time.Minute), share: 1, cuts: map[string]cut{}}
	threads, pieces := cmp.Or(s.Threads, 2), cmp.Or(s.Pieces, 1000)
	if threads < 0 || pieces < 0 || sw.least < 0 || sw.most < sw.least {
		return fmt.Errorf("notify: %w: Scanner{Threads: %d, Pieces: %d, MinInterval: %v, MaxInterval: %v}: all have to be positive, and MaxInterval not below MinInterval", txn.ErrInvalid, threads, pieces, sw.least, sw.most)
	}
	sw.threads, sw.pieces, sw.interval = threads, pieces, sw.least
	for {
		began := time.Now()
		if err := sw.sweep(ctx); err != nil {
			return err
		}
		if err := sw.wait(ctx, began); err != nil {
			return err
		}
	}
}

// wait waits until the next sweep is due. In a large fleet that may be long,
// and most of the fleet may go away meanwhile, so the workers are counted again
// from time to time.
func (s *sweeper) wait(ctx context.Context, began time.Time) error {
	part := 0.5 + rand.Float64()/2
	for {
		left := time.Duration(part*float64(s.pause())) - time.Since(began)
		if left <= 0 {
			return ctx.Err()
		}
		if err := sleep(ctx, min(left, max(s.most, workersMaxAge))); err != nil {
			return err
		}
		s.countWorkers(ctx)
	}
}

// sweeper makes one worker's sweeps.
type sweeper struct {
	scanner     *Scanner
	search      Search
	threads     int
	pieces      int
	least, most time.Duration

	interval time.Duration // of the fleet's sweeps
	share    int           // of how many workers this is one
	counted  time.Time     // when share was last looked up
	cuts     map[string]cut
	missing  sync.Map // tables that this sweep has not found
}

// A cut is where a table was cut into pieces, and when.
type cut struct {
	at     time.Time
	pieces []piece
}

// cutMaxAge is how long a table's pieces are used. Old ones cost nothing but
// balance: together they are always the whole table.
const cutMaxAge = time.Minute

// workersMaxAge is how long the number of workers is used.
const workersMaxAge = 10 * time.Second

// pause is how long after the begin of this worker's last sweep its next one is
// due: the fleet's interval for each of its workers.
func (s *sweeper) pause() time.Duration { return s.interval * time.Duration(s.share) }

// skip reports that a table need not be there for the others to be swept: one that
// was deleted while it still had observers.
func (s *sweeper) skip(ctx context.Context, table string, err error) bool {
	if status.Code(err) != codes.NotFound && !errors.Is(err, txn.ErrNotInitialized) {
		return false
	}
	if _, known := s.missing.LoadOrStore(table, true); !known {
		s.search.Logger.WarnContext(ctx, "a table with observers is not there; it is looked for again with the next sweep", "table", table, "error", err)
	}
	return true
}

// sweep reads every piece of every table once.
func (s *sweeper) sweep(ctx context.Context) error {
	s.scanner.sweeps.Add(1)
	s.missing.Clear()
	s.countWorkers(ctx)
	todo, err := s.shuffled(ctx)
	if err != nil {
		return err
	}
	var found atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	for range s.threads {
		g.Go(func() error {
			for p, ok := todo.next(); ok; p, ok = todo.next() {
				n, rest, err := s.scan(gctx, p)
				if err != nil && !s.skip(ctx, p.table, err) {
					return err
				}
				found.Add(int64(n))
				todo.again(rest)
			}
			return nil
		})
	}
	err = g.Wait()
	if found.Load() > 0 {
		s.interval = s.least
	} else {
		s.interval = min(s.interval*2, s.most)
	}
	return err
}

// scan reads a piece from a random place in it to its end, and then from its
// beginning to that place. When it meets another worker it leaves what is left
// of the piece for the end of the sweep.
func (s *sweeper) scan(ctx context.Context, p piece) (found int, rest []piece, err error) {
	s.scanner.pieces.Add(1)
	parts := p.turn()
	for i, part := range parts {
		var met atomic.Bool
		row := part.start
		for n, err := range changes.Sweep(ctx, s.search.Client, p.table, part.rows()) {
			if err != nil {
				return found, nil, err
			}
			// Between rows: the rest of this row would be skipped.
			if met.Load() && n.Cell.Row != row && !p.resumed && !s.scanner.NoTeleport {
				s.scanner.teleports.Add(1)
				rest = append(rest, piece{p.table, n.Cell.Row, part.end, true})
				for _, other := range parts[i+1:] {
					rest = append(rest, piece{p.table, other.start, other.end, true})
				}
				return found, rest, nil
			}
			row = n.Cell.Row
			s.scanner.notifications.Add(1)
			if s.search.Offer(ctx, n, func() { met.Store(true) }) {
				found++
			}
		}
	}
	return found, nil, nil
}

// countWorkers looks up how many workers share the scan: those that run any of this
// one's observers. Others sweep other tables.
func (s *sweeper) countWorkers(ctx context.Context) {
	if time.Since(s.counted) < workersMaxAge {
		return
	}
	workers, err := admin.Workers(ctx, s.search.Client)
	if err != nil {
		s.search.Logger.DebugContext(ctx, "counting the workers failed", "error", err)
		return
	}
	n := 0
	for _, w := range workers {
		mine := func(id string) bool { return slices.Contains(s.search.Observers, id) }
		if slices.ContainsFunc(w.Observers, mine) && w.State == admin.OwnerFresh {
			n++
		}
	}
	s.share, s.counted = max(n, 1), time.Now()
}

// shuffled returns the pieces of all tables in random order.
func (s *sweeper) shuffled(ctx context.Context) (*pieces, error) {
	var all []piece
	for _, table := range s.search.Tables {
		c, ok := s.cuts[table]
		if !ok || time.Since(c.at) > cutMaxAge {
			keys, err := changes.SampleRowKeys(ctx, s.search.Client, table)
			switch {
			case err == nil:
			case s.skip(ctx, table, err):
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
	return &pieces{todo: all}, nil
}
