package gc

import (
	"context"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A SkipReason says why a run did not collect a row.
type SkipReason string

// The reasons.
const (
	// SkippedLarge: Bigtable returns at most 256 MB of a row, and the row has more, even without
	// its values.
	SkippedLarge SkipReason = "too large"
	// SkippedDamaged: a record of the row cannot be read. percctl check names it.
	SkippedDamaged SkipReason = "damaged"
	// SkippedUnnamed: data of the row has no write record and no lock, so its record was lost. percctl
	// check names it, and percctl repair restores the record, or deletes the data.
	SkippedUnnamed SkipReason = "unnamed data"
	// SkippedBusy: other clients changed the row each time that it was read, or one of them keeps a
	// lock.
	SkippedBusy SkipReason = "busy"
)

// A SkippedRow is a row whose garbage stays. The run has resolved its locks, like all others, so the
// safe point moves on.
type SkippedRow struct {
	Table  string     `json:"table"`  // table of the row
	Row    string     `json:"row"`    // its key
	Reason SkipReason `json:"reason"` // why it was not collected: too large, damaged, unnamed data or busy
}

// maxSkipped limits the skipped rows that a report and the record of a run name.
const maxSkipped = 100

// skip notes that a row is not collected.
func (r *run) skip(ctx context.Context, t *store.Table, row string, why SkipReason, err error) {
	r.client.Log.WarnContext(ctx, "garbage collection skips a row", "table", t.Name, "row", row, "reason", why, "error", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := (SkippedRow{t.Name, row, why}); len(r.report.Skipped) < maxSkipped && !slices.Contains(r.report.Skipped, s) {
		r.report.Skipped = append(r.report.Skipped, s)
	}
}

// noteSkipped adds skipped rows to the record of a run.
func noteSkipped(g *recordpb.GarbageRun, all []SkippedRow) {
	for _, s := range all {
		known := slices.ContainsFunc(g.Skipped, func(k *recordpb.GarbageRun_Skipped) bool { return k.Table == s.Table && string(k.Row) == s.Row })
		if !known && len(g.Skipped) < maxSkipped {
			g.Skipped = append(g.Skipped, &recordpb.GarbageRun_Skipped{Table: s.Table, Row: []byte(s.Row), Reason: string(s.Reason)})
		}
	}
}

// largeRow reads the first row of rest, after Bigtable refused to return a page because of a row that
// is too large, and returned no row before it. It reads the row without its values. If that is too
// large, too, it skips the row.
func (r *run) largeRow(ctx context.Context, t *store.Table, rest store.RowSet, families []string) (page []bigtable.Row, left store.RowSet, err error) {
	var pieces store.Pieces
	var key string
	one := store.Interleave(store.Chain(bigtable.CellsPerRowLimitFilter(1), bigtable.StripValueFilter()))
	err = r.retry(ctx, func() (err error) {
		key = ""
		left, err = t.ReadPage(ctx, &pieces, rest, 1, one, func(raw bigtable.Row) bool {
			key = raw.Key()
			return false
		})
		return err
	})
	if err != nil || key == "" {
		return nil, left, err
	}
	var raw bigtable.Row
	err = r.retry(ctx, func() (err error) {
		raw, err = t.ReadRow(ctx, key, r.rules.filter(families, bigtable.StripValueFilter()))
		return err
	})
	switch {
	case err == nil && len(raw) > 0:
		return []bigtable.Row{raw}, left, nil
	case !store.RowTooLarge(err):
		return nil, left, err
	}
	r.skip(ctx, t, key, SkippedLarge, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(ctx, t.Name, Counts{Rows: 1, RowsSkipped: 1})
	return nil, left, nil
}
