package gc

import (
	"context"
	"maps"
	"slices"
	"strconv"

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
	return r.report.Now + tso.Timestamp((2*r.cfg.FullEvery + r.cfg.Retention).Microseconds())
}

// collect collects the rows that clients have noted, page of notes by page, and removes the
// notes. It has not resolved the locks below the safe point, so it removes a write record only
// if no lock needs it (rules.settled). What it leaves, a run that reads every row collects. The
// notes are its position: a run that was interrupted leaves those that it has not finished.
func (r changes) collect(ctx context.Context) error {
	if err := r.save(ctx, recordpb.GarbageRun_PHASE_CHANGES); err != nil {
		return err
	}
	if err := r.knowSettled(ctx); err != nil {
		return err
	}
	counts := map[string]*Counts{}
	err := r.phase(ctx, "collect changes", "", func(ctx context.Context) error {
		return r.notes(ctx, true, func(page map[string][]string) error { return r.collectNoted(ctx, page, counts) })
	})
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		r.report.Tables = append(r.report.Tables, *counts[name])
	}
	if err != nil {
		return err
	}
	return r.finish(ctx)
}

// dropNotes removes the notes that a run has made unnecessary that read every row, and the claims
// below what it has resolved.
func (r changes) dropNotes(ctx context.Context) error {
	if err := r.notes(ctx, false, func(map[string][]string) error { return nil }); err != nil {
		return err
	}
	record, _, err := r.client.SafePoint.ReadRecord(ctx)
	if err != nil {
		return err
	}
	var muts []store.RowMutation
	err = r.claims(ctx, func(row string, _ uint64, claim tso.Timestamp) {
		if claim <= tso.Timestamp(record.ResolvedTs) {
			m := bigtable.NewMutation()
			m.DeleteCellsInColumn(store.DeployFamily, recovery.SettledQualifier)
			muts = append(muts, store.RowMutation{Row: row, Mut: m, Ops: 1})
		}
	})
	if err != nil {
		return err
	}
	return r.applyAll(ctx, r.client.Metadata, muts)
}

// notes calls do with each page of notes up to the safe point, and then removes the page. do gets
// the noted rows of each table if read is set.
func (r changes) notes(ctx context.Context, read bool, do func(rows map[string][]string) error) error {
	filter := store.Interleave(store.ExactColumn(store.DeployFamily, changed.Qualifier))
	if !read {
		filter = store.Interleave(store.Chain(store.ExactColumn(store.DeployFamily, changed.Qualifier), bigtable.StripValueFilter()))
	}
	rest, err := store.NewRowSet(changed.UpTo(r.report.SafePoint))
	if err != nil {
		return err
	}
	var pieces store.Pieces
	for !rest.Empty() {
		var muts []store.RowMutation
		rows := map[string][]string{}
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
func (r changes) collectNoted(ctx context.Context, page map[string][]string, counts map[string]*Counts) error {
	names, err := r.client.TableNames(ctx)
	if err != nil {
		return err
	}
	type part struct {
		table  *store.Table
		rows   store.RowSet
		filter bigtable.Filter
		count  *Counts
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
		if counts[name] == nil {
			counts[name] = &Counts{Table: name}
		}
		slices.Sort(rows)
		for chunk := range slices.Chunk(slices.Compact(rows), r.page) {
			set, err := store.NewRowSet(bigtable.RowList(chunk))
			if err != nil {
				return err
			}
			parts = append(parts, part{t, set, r.rules.filter(s.Families), counts[name]})
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.streams)
	for _, p := range parts {
		g.Go(func() error {
			return r.pages(gctx, p.table, p.rows, p.filter, func(page []bigtable.Row, _ store.RowSet) error {
				done := Counts{Rows: int64(len(page))}
				if len(page) == 0 {
					return nil
				}
				if err := r.collectPage(gctx, p.table, page, &done); err != nil {
					return err
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				r.measure.page(ctx, p.table.Name, done)
				p.count.add(done)
				r.report.Total.add(done)
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
func (r changes) knowSettled(ctx context.Context) error {
	record, _, err := r.client.SafePoint.ReadRecord(ctx)
	if err != nil {
		return err
	}
	claims := map[uint64]tso.Timestamp{}
	if err := r.claims(ctx, func(_ string, number uint64, ts tso.Timestamp) { claims[number] = ts }); err != nil {
		return err
	}
	resolved := tso.Timestamp(record.ResolvedTs)
	r.rules.drained = 0 // what needs a drained safe point stays
	r.rules.settled = func(cell format.Cell, w format.WriteRecord) bool {
		return w.Primary != cell || w.StartTS <= resolved || w.SettledBy == format.Alone || w.StartTS <= claims[w.SettledBy]
	}
	return nil
}

// claims calls fn with each stored claim. It leaves out what it cannot read.
func (r changes) claims(ctx context.Context, fn func(row string, number uint64, ts tso.Timestamp)) error {
	return r.client.Metadata.ReadRows(ctx, bigtable.PrefixRange(recovery.SettledRowPrefix), func(raw bigtable.Row) bool {
		var s recordpb.Settled
		number, err := strconv.ParseUint(raw.Key()[len(recovery.SettledRowPrefix):], 16, 64)
		if items := raw[store.DeployFamily]; err == nil && len(items) > 0 && proto.Unmarshal(items[0].Value, &s) == nil && s.FormatVersion == format.Version {
			fn(raw.Key(), number, tso.Timestamp(s.Ts))
		}
		return true
	}, bigtable.RowFilter(store.Interleave(store.ExactColumn(store.DeployFamily, recovery.SettledQualifier))))
}
