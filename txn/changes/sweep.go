package changes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A SweepPosition is how far the sweep of a table is that has a journal. All workers share it.
type SweepPosition struct {
	Table string
	// Row is the next row to read.
	Row string
	// DueTS is the oracle time at which a worker may continue.
	DueTS tso.Timestamp
	// BegunTS is when this sweep began.
	BegunTS tso.Timestamp
	// Complete says that everything that is pending has journal entries, as far as the
	// commits of clients of this release go: the table always had a journal, or a sweep has
	// ended since.
	Complete bool
	// Missed says that a piece of this sweep could not be read. Then its end completes nothing.
	Missed bool

	record *recordpb.Sweep
	stored []byte // nil: nothing is stored
}

// SweepPositions reads how far the sweeps of tables with a journal are. If it returns some, an error
// is about the others. If a table got its journal later, and no worker has noticed that yet,
// SweepPositions stores that the first sweep begins after a time that first returns: longer than
// any client uses a schema from before, and a commit takes. If first is nil, it stores nothing.
func SweepPositions(ctx context.Context, client *txn.Client, first func(context.Context) (time.Duration, error), tables ...string) (all []SweepPosition, err error) {
	c := access.ResolverOf(client)
	if len(tables) == 0 {
		return nil, nil
	}
	var rows bigtable.RowList
	for _, t := range tables {
		rows = append(rows, journal.SweepRow(t))
	}
	stored := map[string][]byte{}
	err = c.Metadata.ReadRows(ctx, rows, func(r bigtable.Row) bool {
		for _, item := range r[store.DeployFamily] {
			stored[r.Key()] = item.Value
		}
		return true
	}, bigtable.RowFilter(store.Interleave(store.ExactColumn(store.DeployFamily, journal.SweepQualifier))))
	if err != nil {
		return nil, err
	}
	now, err := timeNow(ctx, c)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range slices.Sorted(slices.Values(tables)) {
		t, err := c.Table(ctx, name)
		if err != nil {
			return nil, err
		}
		p, err := positionOf(t.Schema.Journal(), name, now, stored[journal.SweepRow(name)])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if p.stored == nil && !p.Complete && first != nil {
			after, err := first(ctx)
			if err != nil {
				return nil, err
			}
			if p, _, err = MoveSweep(ctx, client, p, "", false, after); err != nil {
				return nil, err
			}
		}
		all = append(all, p)
	}
	return all, errors.Join(errs...)
}

// timeNow returns about the oracle's time.
func timeNow(ctx context.Context, c *recovery.Resolver) (tso.Timestamp, error) {
	if now := c.Clock.Now(); now != 0 {
		return now, nil
	}
	return c.Clock.Timestamp(ctx)
}

func positionOf(j recordpb.Journal, table string, now tso.Timestamp, stored []byte) (p SweepPosition, err error) {
	m := &recordpb.Sweep{}
	if err := proto.Unmarshal(stored, m); err != nil {
		return p, fmt.Errorf("changes: sweep of table %q: %w: its record does not parse: %w", table, format.ErrCorrupt, err)
	}
	always := j == recordpb.Journal_JOURNAL_ALWAYS
	if stored == nil {
		m = &recordpb.Sweep{FormatVersion: format.Version, BegunTs: int64(now), DueTs: int64(now)}
	} else if err := format.CheckVersion(m, fmt.Sprintf("sweep of table %q", table)); err != nil {
		return p, fmt.Errorf("changes: %w", err)
	}
	return SweepPosition{table, string(m.Row), tso.Timestamp(m.DueTs), tso.Timestamp(m.BegunTs), always || m.CompleteTs > 0, m.Missed, m, stored}, nil
}

// MoveSweep stores that a sweep continues at row after a pause. If end is set, the sweep has
// ended, and the next one begins then. ok is false if another worker was faster, and nothing is
// stored.
func MoveSweep(ctx context.Context, client *txn.Client, p SweepPosition, row string, end bool, pause time.Duration) (moved SweepPosition, ok bool, err error) {
	c := access.ResolverOf(client)
	ts, err := timeNow(ctx, c)
	if err != nil {
		return p, false, err
	}
	now := int64(ts)
	m := &recordpb.Sweep{FormatVersion: format.Version, Row: []byte(row), BegunTs: p.record.BegunTs, DueTs: now + pause.Microseconds(), CompleteTs: p.record.CompleteTs, Missed: p.Missed}
	if end {
		if !p.Missed {
			m.CompleteTs = m.BegunTs
		}
		m.BegunTs, m.Missed = now, false
	}
	value := format.Marshal(m)
	set := bigtable.NewMutation()
	set.Set(store.DeployFamily, journal.SweepQualifier, 0, value)
	column := store.ExactColumn(store.DeployFamily, journal.SweepQualifier)
	predicate, onMatch, onMiss := store.Chain(column, store.ExactValue(p.stored)), set, (*bigtable.Mutation)(nil)
	if p.stored == nil {
		predicate, onMatch, onMiss = column, nil, set
	}
	matched, err := c.Metadata.CheckAndMutate(ctx, journal.SweepRow(p.Table), store.Interleave(predicate), onMatch, onMiss)
	if err != nil || matched != (p.stored != nil) {
		return p, false, err
	}
	return SweepPosition{p.Table, row, tso.Timestamp(m.DueTs), tso.Timestamp(m.BegunTs), p.Complete || m.CompleteTs > 0, m.Missed, m, value}, true, nil
}
