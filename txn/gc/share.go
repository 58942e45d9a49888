package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Collectors share a run: each takes parts of it, in the record of the run. The one with the lease
// leads. It chooses the safe point, waits for the fence, and begins each phase. What the others
// rely on is in the record, is true for any reader, and stays true: the fence has ended, or all
// locks up to the safe point are resolved. A part that two collectors work on is collected twice,
// which does no harm. A part is taken out of the record by a collector that has finished it, and
// only if the record is as that collector has read it.

const (
	// maxParts limits the parts of a phase, and with them the record. A tablet is never divided.
	maxParts = 512
	// syncInterval is how often a collector writes how far it is, and so how much of its work
	// another one may repeat.
	syncInterval = 5 * time.Second
	// minSyncInterval is how soon a collector writes again that still has work, or waits for the
	// last parts of a phase.
	minSyncInterval = time.Second
)

// errPhaseOver says that the collectors of the run are in another phase by now, or in another run.
var errPhaseOver = errors.New("gc: the phase of the run has ended")

// A position is a place in the tables: a row, which need not exist.
type position struct{ table, row string }

func (p position) compare(o position) int {
	return cmp.Or(cmp.Compare(p.table, o.table), cmp.Compare(p.row, o.row))
}

// A work is a part that this collector works on.
type work struct {
	part *recordpb.GarbageRun_Part
	// at is where the part continues. It is guarded by run.mu, like what follows.
	at      position
	done    bool
	stopped bool // it is not done, and this collector gives it up
}

// rows returns the rows of a table that are left of the part.
func (w *work) rows(table string) store.RowSet {
	all := store.KeyRange{}
	switch {
	case table < w.at.table, w.part.EndTable != "" && table > w.part.EndTable:
		return store.RowSet{}
	case table == w.at.table:
		all.Start = w.at.row
	}
	if table == w.part.EndTable {
		if all.End = string(w.part.EndRow); all.End <= all.Start {
			return store.RowSet{}
		}
	}
	return store.RowSet{Ranges: []store.KeyRange{all}}
}

// divide divides what is left from a position on into parts: tablets, as far as Bigtable says
// where they end, or several if there are many. The parts leave out nothing, not even tables that
// do not exist yet. A run with a rate that one stream reads is one part: other collectors would
// only wait for the rate.
func divide(ctx context.Context, r *run, tables []*store.Table, from position) []*recordpb.GarbageRun_Part {
	starts := []position{from}
	for _, t := range tables {
		if t.Name < from.table || r.streams == 1 {
			continue
		}
		for _, tablet := range t.Tablets(ctx, store.AllAfter("")) {
			if at := (position{t.Name, tablet.Ranges[0].Start}); at.compare(from) > 0 {
				starts = append(starts, at)
			}
		}
	}
	return partsFrom(atMost(starts), position{})
}

// atMost leaves out starts if there are more than maxParts.
func atMost(starts []position) (fewer []position) {
	for chunk := range slices.Chunk(starts, len(starts)/maxParts+1) {
		fewer = append(fewer, chunk[0])
	}
	return fewer
}

// partsFrom returns the parts that begin at starts. The last one ends at end.
func partsFrom(starts []position, end position) (parts []*recordpb.GarbageRun_Part) {
	for i, at := range starts {
		to := end
		if i+1 < len(starts) {
			to = starts[i+1]
		}
		parts = append(parts, &recordpb.GarbageRun_Part{Id: uint32(i + 1), Table: at.table, Row: []byte(at.row), EndTable: to.table, EndRow: []byte(to.row)})
	}
	return parts
}

// A share is what this collector does of one phase.
type share struct {
	*run
	phase recordpb.GarbageRun_Phase
	width int // parts at a time
	do    func(context.Context, *work) error
	group *errgroup.Group

	joined bool            // the record names this collector
	gaveUp map[uint32]bool // parts that this collector has stopped
	wake   chan struct{}   // a part has ended
	synced time.Time
	ended  error // of the context, between two syncs
}

// shareParts works on parts of a phase until all of them are done, by this collector or another one. It
// fails with errPhaseOver if it cannot know that.
func shareParts(ctx context.Context, r *run, width int, do func(context.Context, *work) error) error {
	s := &share{run: r, phase: r.state.Phase, width: width, do: do, gaveUp: map[uint32]bool{}, wake: make(chan struct{}, 1)}
	var gctx context.Context
	s.group, gctx = errgroup.WithContext(ctx)
	s.group.Go(func() error { return s.takeParts(gctx) })
	err := s.group.Wait()
	if err == nil {
		err = s.ended
	}
	if err != nil {
		// The next collector need not repeat what is collected, and need not wait for this one.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_, _ = s.sync(last, true) // otherwise its parts are free once it has expired
	}
	r.works = nil
	if err != nil && ctx.Err() != nil && !errors.As(err, new(*BlockedError)) {
		return store.Ended(ctx, "gc: collecting garbage", nil)
	}
	return err
}

// takeParts takes parts and begins to work on them, until none is left.
func (s *share) takeParts(ctx context.Context) error {
	for {
		taken, err := s.sync(ctx, false)
		if err != nil || len(s.state.Parts) == 0 {
			return err
		}
		for _, w := range taken {
			s.group.Go(func() error {
				err := s.do(ctx, w)
				s.mu.Lock()
				w.done = err == nil && !w.stopped
				s.mu.Unlock()
				select {
				case s.wake <- struct{}{}:
				default:
				}
				return err
			})
		}
		if blocked := s.locks.blocked(); blocked != nil && !slices.ContainsFunc(s.state.Parts, func(p *recordpb.GarbageRun_Part) bool { return p.Owner != "" }) {
			return blocked
		}
		if s.ended = s.pause(ctx); s.ended != nil {
			return nil // a part that waits for live locks says more
		}
	}
}

// pause waits until it is time for another sync.
func (s *share) pause(ctx context.Context) error {
	due := time.After(syncInterval)
	if len(s.works) == 0 {
		due = time.After(minSyncInterval)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due:
			return nil
		case <-s.wake:
			s.mu.Lock()
			works := slices.ContainsFunc(s.works, func(w *work) bool { return !w.done && !w.stopped })
			s.mu.Unlock()
			if !works {
				return nil
			}
			due = time.After(minSyncInterval - time.Since(s.synced))
		}
	}
}

// sync writes how far this collector is, and returns the parts that it has taken: its fair share
// of what is left, and those of collectors that are gone. leaving gives all of them back.
func (s *share) sync(ctx context.Context, leaving bool) (taken []*work, err error) {
	now, err := s.client.Clock.Timestamp(ctx)
	if err != nil {
		return nil, err
	}
	s.synced = time.Now()
	var kept []*work
	var rejoins bool
	err = s.update(ctx, func(g *recordpb.GarbageRun) error {
		if !s.same(g) || g.Phase != s.phase {
			return errPhaseOver
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		kept, taken, rejoins = s.distribute(g, now, leaving)
		return nil
	})
	if err != nil || leaving {
		return nil, err
	}
	s.setRate(len(s.state.Collectors))
	s.mu.Lock()
	s.works = append(kept, taken...)
	s.mu.Unlock()
	if rejoins {
		// From now on Exclude finds this collector in the record. Before, it may have taken the lease.
		holder, err := leaseHolder(ctx, s.client)
		if err != nil {
			return nil, err
		}
		if holder.Owner != "" && holder.Owner != s.owner && holder.Owner != s.state.Owner {
			return nil, &BusyError{Holder: holder.Owner, Left: holder.Left, Lost: s.joined}
		}
	}
	s.joined = true
	return taken, nil
}

// distribute writes into the record how far this collector is, and returns the parts that it keeps
// and takes. rejoins says that the record did not name it.
func (s *share) distribute(g *recordpb.GarbageRun, now tso.Timestamp, leaving bool) (kept, taken []*work, rejoins bool) {
	live := map[string]bool{}
	g.Collectors = slices.DeleteFunc(g.Collectors, func(c *recordpb.GarbageRun_Collector) bool {
		live[c.Owner] = tso.Timestamp(c.ExpiresTs) > now
		return !live[c.Owner] || c.Owner == s.owner
	})
	rejoins = !live[s.owner]
	live[s.owner] = false // what it works on gets its name again
	if !leaving {
		c := &recordpb.GarbageRun_Collector{Owner: s.owner, ExpiresTs: int64(now) + gctime.LeaseTTL().Microseconds()}
		if s.scans != nil && s.phase != recordpb.GarbageRun_PHASE_CHANGES {
			c.Scans = uint32(s.scans.Limit())
		}
		g.Collectors = append(g.Collectors, c)
	}
	g.Parts = slices.DeleteFunc(g.Parts, func(p *recordpb.GarbageRun_Part) bool {
		i := slices.IndexFunc(s.works, func(w *work) bool { return w.part.Id == p.Id })
		switch {
		case i >= 0 && s.works[i].done: // also if another collector has it by now
			return true
		case !live[p.Owner]:
			p.Owner = ""
		}
		if i < 0 || p.Owner != "" {
			return false
		}
		w := s.works[i]
		p.Table, p.Row, p.Owner = w.at.table, []byte(w.at.row), s.owner
		if w.stopped || leaving {
			s.gaveUp[p.Id] = true
			p.Owner = ""
			return false
		}
		kept = append(kept, w)
		return false
	})
	if !leaving {
		fair := min(s.width, (len(g.Parts)+len(g.Collectors)-1)/len(g.Collectors))
		for _, p := range g.Parts {
			if p.Owner == "" && !s.gaveUp[p.Id] && len(kept)+len(taken) < fair {
				p.Owner = s.owner
				taken = append(taken, &work{part: p, at: position{p.Table, string(p.Row)}})
			}
		}
	}
	g.UpdatedTs = int64(now)
	setPosition(g)
	return kept, taken, rejoins
}

// setPosition sets table and row, for people and for releases that do not know parts: everything
// up to there is done.
func setPosition(g *recordpb.GarbageRun) {
	if len(g.Parts) == 0 || g.Phase != recordpb.GarbageRun_PHASE_COLLECT {
		return
	}
	first := slices.MinFunc(g.Parts, func(a, b *recordpb.GarbageRun_Part) int {
		return position{a.Table, string(a.Row)}.compare(position{b.Table, string(b.Row)})
	})
	g.Table, g.Row = first.Table, []byte(store.RowSet{Ranges: []store.KeyRange{{Start: string(first.Row)}}}.Before())
}

// noCollectors fails with a BusyError if a collector shares a run now.
func noCollectors(ctx context.Context, r *run) error {
	now, err := r.client.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	if err := r.read(ctx); err != nil {
		return fmt.Errorf("gc: looking for collectors: %w", err)
	}
	for _, c := range r.state.Collectors {
		if left := tso.Timestamp(c.ExpiresTs) - now; left > 0 {
			return &BusyError{Holder: c.Owner, Left: time.Duration(left) * time.Microsecond}
		}
	}
	return nil
}
