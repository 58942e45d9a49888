package recovery

import (
	"context"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A read of the latest state has no timestamp. It reads the newest cells of a row, and shows
// the row as of T, the newest commit_ts in the answer (docs/design/reads.md):
//
//   - A transaction with a lock in the answer and a start_ts above T commits above T, or not at
//     all. So the row at T does not depend on it. But the transaction may have committed
//     before this read began, and then the caller has to see it. That is impossible if the
//     lock is the primary lock. For another lock the client asks the primary: if the
//     transaction is not committed there, it was not when the row was read. So the read waits
//     for no such lock.
//   - A transaction with a lock and a start_ts below T may commit below T. Reads at T will show
//     that, so this read resolves the lock, as a read at T does. Such a lock is in another
//     column than the commit at T.
//
// Values expire by the client's estimate of the oracle's time. If a value that the client may
// still show to a later snapshot has expired, the client asks the oracle and reads again.
//
// What was found out about a lock only counts for the answer that contains the lock. If a lock
// was resolved, the client reads the row again.

// ReadLatest reads one row at its newest committed state. It needs one request, unless it must
// resolve a lock, or another transaction has prewritten a column.
func ReadLatest(ctx context.Context, r *Resolver, t *store.Table, row string, sel store.Selection) (bigtable.Row, error) {
	first := sel.First
	sel.First = 0 // several requests for one row would show several states
	f := t.Newest(sel)
	var before []ExactRead
	for {
		raw, err := t.ReadRow(ctx, row, f)
		if err != nil {
			return nil, err
		}
		newest, err := newestCommit(ctx, r, t, raw)
		if err != nil {
			return nil, err
		}
		now := max(r.Clock.Now(), r.Clock.Newest())
		if now == 0 && t.Schema.Expiries() != nil {
			if now, err = r.Clock.Timestamp(ctx); err != nil {
				return nil, err
			}
		}
		e, err := Evaluate(ctx, t, raw, sel, now, nil)
		if err != nil {
			return nil, err
		}
		if len(e.Locks) > 0 {
			ignored := Ignored{}
			readAgain, err := resolveEach(ctx, r, e.Locks, ignored, func(ctx context.Context, l *format.Lock) (bool, error) {
				return r.resolveOneForLatest(ctx, l, newest, now)
			})
			if err != nil {
				return nil, err
			}
			if readAgain {
				continue
			}
			if e, err = Evaluate(ctx, t, raw, sel, now, ignored); err != nil {
				return nil, err
			}
		}
		for _, l := range e.Stranded {
			r.Background.Run(func(ctx context.Context) {
				if _, err := r.ResolveLock(ctx, *l); err != nil {
					r.Log.DebugContext(ctx, "could not resolve a stranded lock that a read found", "cell", l.Cell, "start_ts", l.StartTS, "error", err)
				}
			})
		}
		missing, err := e.readExact(ctx, t, row, true)
		if err != nil {
			return nil, err
		}
		// Later snapshots of the client must not show what has expired here, so the estimate is
		// not enough.
		if e.Expired != 0 && e.Expired >= r.Clock.Newest() {
			if _, err := r.Clock.Timestamp(ctx); err != nil {
				return nil, err
			}
			continue
		}
		// Between the two requests, another transaction may have committed, and garbage
		// collection may have removed what the first answer named. If the next answer
		// names the same data, it was missing while it was the newest. Plain data that never existed needs no
		// other answer (ExactRead.unchanged).
		known := func(m ExactRead) bool { return slices.Contains(before, m) }
		if !slices.ContainsFunc(missing, func(m ExactRead) bool { return !known(m) }) {
			r.Clock.NoteLatest(newest)
			return store.FirstCells(e.Row, first), missingData(t, row, missing)
		}
		before = missing
	}
}

// newestCommit returns the newest commit_ts in an answer, and 0 if there is none.
func newestCommit(ctx context.Context, r *Resolver, t *store.Table, raw bigtable.Row) (newest tso.Timestamp, err error) {
	var cell format.Cell
	for _, item := range raw[format.WriteFamily] {
		if ts := tso.FromCell(item.Timestamp); ts > newest {
			newest = ts
			if _, cell, err = format.MetadataCell(t.Name, raw.Key(), item); err != nil {
				return 0, err
			}
		}
	}
	return newest, r.Clock.Confirm(ctx, cell, newest)
}
