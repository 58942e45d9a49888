package gc

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/changed"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// notesPerPage is how many notes a run reads at a time. Each has up to 8,192 rows.
const notesPerPage = 16

// changes is a run that follows changes, or what any run does with notes.
type changes struct{ *run }

// noteUntil is the oracle time until which clients have to note the rows that they change: long
// enough for the next runs, so that clients stop if the operator stops them.
func (r changes) noteUntil() tso.Timestamp {
	if r.cfg.FullEvery == 0 {
		return 0
	}
	return r.report.Now.Add(2*r.cfg.FullEvery + r.cfg.Retention)
}

// part collects the rows that clients have noted in a part, page of notes by page, and removes the
// notes. Nobody has resolved the locks below the safe point, so it removes a write record only if
// no lock needs it (rules.settled). What it leaves, a run that reads every row collects. A run that
// was interrupted leaves the notes that it has not finished.
func (r changes) part(ctx context.Context, w *work) error {
	rows := store.RowSet{Ranges: []store.KeyRange{{Start: w.at.row, End: string(w.part.EndRow)}}}
	return r.notes(ctx, rows, true, func(page map[string][]string) error { return r.collectNoted(ctx, page) })
}

// minNotes is how many notes are worth a second collector, and minSpan the time in which their
// changes were committed.
const (
	minNotes = 64
	minSpan  = tso.Timestamp(time.Minute / time.Microsecond)
)

// divide divides the notes up to the safe point by time, if there are many.
func (r changes) divide(ctx context.Context) ([]*recordpb.GarbageRun_Part, error) {
	all := changed.UpTo(r.report.SafePoint)
	var first tso.Timestamp
	var notes int
	err := r.retry(ctx, func() error {
		notes = 0
		var pieces store.Pieces
		_, err := r.client.Metadata.ReadPage(ctx, &pieces, all, minNotes, store.Interleave(store.Chain(store.ExactColumn(store.DeployFamily, changed.Qualifier), bigtable.StripValueFilter())), func(raw bigtable.Row) bool {
			if notes++; notes == 1 {
				first = changed.NotedAt(raw.Key())
			}
			return true
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	name := r.client.Metadata.Name
	starts := []position{{name, all.Ranges[0].Start}}
	if notes == minNotes && first > 0 {
		starts = append(starts, spread(name, first, r.report.SafePoint)...)
	}
	return partsFrom(starts, position{name, all.Ranges[0].End}), nil
}

// spread returns the positions that divide the notes of a time.
func spread(table string, from, to tso.Timestamp) (starts []position) {
	n := min(maxParts/2, (to-from)/minSpan)
	for i := tso.Timestamp(1); i < n; i++ {
		starts = append(starts, position{table, changed.KeyAt(from + i*((to-from)/n))})
	}
	return starts
}

// dropNotes removes the notes that a run has made unnecessary that read every row, and the claims
// below what it has resolved.
func (r changes) dropNotes(ctx context.Context) error {
	if err := r.notes(ctx, changed.UpTo(r.report.SafePoint), false, func(map[string][]string) error { return nil }); err != nil {
		return err
	}
	record, _, err := r.client.SafePoint.ReadRecord(ctx)
	if err != nil {
		return err
	}
	old := map[string][]byte{}
	err = r.claims(ctx, func(row string, value []byte, _ uint64, claim tso.Timestamp) {
		if claim <= tso.Timestamp(record.ResolvedTs) {
			old[row] = value
		}
	})
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.client.Store.Config.Parallelism)
	for row, value := range old {
		g.Go(func() error { return r.dropClaim(gctx, row, value) })
	}
	return g.Wait()
}

// dropClaim removes a claim, unless its client has stored a larger one since the claim was read.
func (r changes) dropClaim(ctx context.Context, row string, value []byte) error {
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn(store.DeployFamily, recovery.SettledQualifier)
	same := store.Interleave(store.Chain(store.ExactColumn(store.DeployFamily, recovery.SettledQualifier), store.ExactValue(value)))
	return r.retry(ctx, func() error {
		return r.pacer.Do(ctx, 1, func() error {
			_, err := r.client.Metadata.CheckAndMutate(ctx, row, same, m, nil)
			return err
		})
	})
}

// notes calls do with each page of notes, and then removes the page. do gets the noted rows of
// each table if read is set.
func (r changes) notes(ctx context.Context, rest store.RowSet, read bool, do func(rows map[string][]string) error) error {
	filter := store.Interleave(store.ExactColumn(store.DeployFamily, changed.Qualifier))
	if !read {
		filter = store.Interleave(store.Chain(store.ExactColumn(store.DeployFamily, changed.Qualifier), bigtable.StripValueFilter()))
	}
	var pieces store.Pieces
	for !rest.Empty() {
		var muts []store.RowMutation
		var rows map[string][]string
		err := r.retry(ctx, func() error {
			muts, rows = nil, map[string][]string{}
			left, err := r.client.Metadata.ReadPage(ctx, &pieces, rest, notesPerPage, filter, func(raw bigtable.Row) bool {
				changed.Decode(raw, rows)
				m := bigtable.NewMutation()
				m.DeleteCellsInColumn(store.DeployFamily, changed.Qualifier)
				muts = append(muts, store.RowMutation{Row: raw.Key(), Mut: m, Ops: 1})
				return true
			})
			if err == nil {
				rest = left
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := do(rows); err != nil {
			return err
		}
		if err := r.applyAll(ctx, r.client.Metadata, muts); err != nil {
			return err
		}
	}
	return nil
}

// collectNoted collects rows of tables.
func (r changes) collectNoted(ctx context.Context, page map[string][]string) error {
	names, err := r.client.TableNames(ctx)
	if err != nil {
		return err
	}
	type part struct {
		table    *store.Table
		rows     store.RowSet
		families []string
	}
	var parts []part // all of them before the first begins, because each may fail here
	for _, name := range names {
		rows := page[name]
		if len(rows) == 0 {
			continue
		}
		t, err := r.client.Table(ctx, name)
		if err != nil {
			return err
		}
		s, err := t.Schema.Fresh(ctx)
		if err != nil {
			return err
		}
		slices.Sort(rows)
		for chunk := range slices.Chunk(slices.Compact(rows), r.page) {
			parts = append(parts, part{t, store.RowSet{Keys: chunk}, s.Families})
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.streams)
	for _, p := range parts {
		g.Go(func() error {
			return r.pages(gctx, p.table, p.rows, p.families, func(page []bigtable.Row, _ store.RowSet) error {
				done := Counts{Rows: int64(len(page))}
				if len(page) == 0 {
					return nil
				}
				if err := r.collectPage(gctx, p.table, page, &done); err != nil {
					return err
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				r.add(ctx, p.table.Name, done)
				r.cfg.Progress(Progress{Phase: PhaseChanges, Table: p.table.Name, Row: page[len(page)-1].Key(), Total: r.report.Total})
				return nil
			})
		})
	}
	return g.Wait()
}

// knowSettled sets what a run needs that has not resolved all locks. A write record decides what
// happens to the locks of its transaction only if it is in the primary. Then one of these says
// that none is left: an earlier run has resolved all locks up to there, the transaction wrote only
// this row, or its client has claimed so (package settled).
func (r changes) knowSettled(ctx context.Context, record *recordpb.SafePoint) error {
	claims := map[uint64]tso.Timestamp{}
	if err := r.claims(ctx, func(_ string, _ []byte, number uint64, ts tso.Timestamp) { claims[number] = ts }); err != nil {
		return err
	}
	r.rules.drained = 0 // what needs a drained safe point stays
	r.rules.settled = settledBy(tso.Timestamp(record.ResolvedTs), claims)
	return nil
}

// settledBy is rules.settled for locks that are resolved up to a safe point, and for claims by number.
func settledBy(resolved tso.Timestamp, claims map[uint64]tso.Timestamp) func(format.Cell, format.WriteRecord) bool {
	return func(cell format.Cell, w format.WriteRecord) bool {
		return w.Primary != cell || w.StartTS <= resolved || w.SettledBy == format.Alone || w.StartTS <= claims[w.SettledBy]
	}
}

// claims calls fn with each stored claim. It leaves out what it cannot read.
func (r changes) claims(ctx context.Context, fn func(row string, value []byte, number uint64, ts tso.Timestamp)) error {
	return r.client.Metadata.ReadRows(ctx, bigtable.PrefixRange(recovery.SettledRowPrefix), func(raw bigtable.Row) bool {
		if number, ts, ok := decodeClaim(raw); ok {
			fn(raw.Key(), raw[store.DeployFamily][0].Value, number, ts)
		}
		return true
	}, bigtable.RowFilter(store.Interleave(store.ExactColumn(store.DeployFamily, recovery.SettledQualifier))))
}

// decodeClaim returns the number of a client and up to where its transactions have no locks.
func decodeClaim(raw bigtable.Row) (number uint64, ts tso.Timestamp, ok bool) {
	var s recordpb.Settled
	items := raw[store.DeployFamily]
	number, err := strconv.ParseUint(strings.TrimPrefix(raw.Key(), recovery.SettledRowPrefix), 16, 64)
	ok = err == nil && len(items) > 0 && proto.Unmarshal(items[0].Value, &s) == nil && s.FormatVersion == format.Version
	return number, tso.Timestamp(s.Ts), ok
}
