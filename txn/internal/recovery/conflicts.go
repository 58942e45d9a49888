package recovery

import (
	"cmp"
	"context"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// LocksIn returns how many locks in raw are those of the transaction that started at startTS, and
// adds the others to others.
func LocksIn(row *store.RowWrites, raw bigtable.Row, startTS tso.Timestamp, others *[]*format.Lock) (own int, err error) {
	for _, item := range raw[format.LockFamily] {
		_, cell, err := format.MetadataCell(row.Table.Name, row.Row, item)
		if err != nil {
			return 0, err
		}
		l, err := format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
		if err != nil {
			return 0, err
		}
		if l.StartTS == startTS {
			own++
		} else {
			*others = append(*others, l)
		}
	}
	return own, nil
}

// ResolveOthers resolves locks that the prewrite of the transaction that started at startTS found: the
// first one of each transaction, and then the others, whose outcome is known by then. It
// returns a conflict if one is of an older transaction that is alive, or of one that committed at or
// above startTS. It calls unlatch before it waits.
func ResolveOthers(ctx context.Context, r *Resolver, others []*format.Lock, startTS tso.Timestamp, unlatch func()) error {
	if len(others) == 1 {
		return resolveOther(ctx, r, others[0], startTS, unlatch)
	}
	var first, rest []*format.Lock
	known := map[tso.Timestamp]bool{}
	for _, l := range others {
		if known[l.StartTS] {
			rest = append(rest, l)
		} else {
			first, known[l.StartTS] = append(first, l), true
		}
	}
	for _, some := range [][]*format.Lock{first, rest} {
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(r.Store.Config.Parallelism)
		for _, l := range some {
			if gctx.Err() != nil {
				break
			}
			g.Go(func() error { return resolveOther(gctx, r, l, startTS, unlatch) })
		}
		if err := cmp.Or(g.Wait(), ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

func resolveOther(ctx context.Context, r *Resolver, l *format.Lock, startTS tso.Timestamp, unlatch func()) error {
	o, err := r.ResolveForWrite(ctx, l, startTS, unlatch)
	switch {
	case err != nil:
		return err
	case o.CommitTS >= startTS:
		// The lock is a write record now.
		return &format.ConflictError{Cell: l.Cell, StartTS: startTS, ConflictTS: o.CommitTS, Reason: format.ConflictWrite}
	case !o.LockGone && !o.Final():
		return &format.ConflictError{Cell: l.Cell, StartTS: startTS, ConflictTS: l.StartTS, Reason: format.ConflictLock}
	}
	return nil
}

// FindConflict returns a ConflictError if the row has a write record or mark at or above
// start_ts. The transaction's own rollback marker takes precedence over later records.
func FindConflict(row *store.RowWrites, raw bigtable.Row, startTS tso.Timestamp) error {
	var found *format.ConflictError
	for _, family := range []string{format.WriteFamily, format.MarkFamily} {
		for _, item := range raw[family] {
			_, cell, err := format.MetadataCell(row.Table.Name, row.Row, item)
			if err != nil {
				return err
			}
			ts := tso.FromCell(item.Timestamp)
			switch {
			case ts == startTS:
				return &format.ConflictError{Cell: cell, StartTS: startTS, Reason: format.ConflictRolledBack}
			case found == nil:
				found = &format.ConflictError{Cell: cell, StartTS: startTS, ConflictTS: ts, Reason: conflictReason(cell, item)}
			}
		}
	}
	if found == nil {
		return nil
	}
	return found
}

// conflictReason distinguishes rollback markers from committed writes.
func conflictReason(cell format.Cell, item bigtable.ReadItem) format.ConflictReason {
	if m, err := format.DecodeMark(cell, tso.FromCell(item.Timestamp), item.Value); err == nil && m.Kind == format.KindRollback {
		return format.ConflictMarker
	}
	return format.ConflictWrite
}
