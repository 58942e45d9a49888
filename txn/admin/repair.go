package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A RepairKind says what is wrong with a cell, of what can be mended without
// guessing.
type RepairKind string

// The kinds of repairs.
const (
	// RepairOrphanData: data of a transaction that no record and no lock of the
	// cell names, and of which there is no trace in any table. No transaction
	// reads it; plain readers take it for the newest value. Mended by deleting
	// it. A cell that may be from before the table was transactional, with a
	// timestamp in nanoseconds for example, is left: it has to be later than the
	// table's adoption, or, where that was not recorded, than a commit in its
	// row.
	RepairOrphanData RepairKind = "orphan data"
	// RepairRedundantLock: a lock beside the record that its own transaction left
	// in the cell, where the primary says the same. The record decides; mended by
	// deleting the lock, and after a rollback its data.
	RepairRedundantLock RepairKind = "redundant lock"
	// RepairOldMarker: a rollback marker that has done its work: it is old, and
	// no lock of its transaction is left in any table. Mended by deleting it.
	RepairOldMarker RepairKind = "old rollback marker"
)

// A Repair is one cell that can be mended.
type Repair struct {
	Kind    RepairKind
	Cell    format.Cell
	StartTS tso.Timestamp // of the transaction it is about
	// CommitTS is the record's beside a RepairRedundantLock; 0 after a rollback.
	CommitTS tso.Timestamp
	// Why it can be mended, or not.
	Why string

	// since is from when on the row is known to hold data of transactions; 0
	// for unknown.
	since tso.Timestamp
}

// A RepairPlan is what [Client.PlanRepairs] found.
type RepairPlan struct {
	Repairs []Repair
	// Undecided look like the above, but something else is known of their
	// transactions; Why says what. They are left to people.
	Undecided []Repair
	// More is set when the plan is full: there may be more to mend.
	More bool
}

// RepairConfig configures [Client.PlanRepairs].
type RepairConfig struct {
	// MarkerAge is how old a rollback marker has to be, in oracle time. It has to
	// be longer than any request can be on its way, and is at least an hour.
	// Defaults to 24 hours.
	MarkerAge time.Duration
	// Most bounds the plan.
	// Defaults to 10,000 repairs.
	Most int
}

// PlanRepairs looks through rows of a table (nil: all rows) for what can be
// mended without guessing, and, when there is something, through the locks and
// records of all tables for what is known of the transactions. It changes
// nothing and may run beside live transactions.
func PlanRepairs(ctx context.Context, client *txn.Client, name string, rs bigtable.RowSet, cfg RepairConfig) (*RepairPlan, error) {
	c := access.Resolver(client)
	if cfg.MarkerAge == 0 {
		cfg.MarkerAge = 24 * time.Hour
	}
	if cfg.Most == 0 {
		cfg.Most = 10_000
	}
	if cfg.MarkerAge < time.Hour || cfg.Most < 0 {
		return nil, format.Invalidf("RepairConfig with MarkerAge %v, Most %d; a marker has to be at least an hour old", cfg.MarkerAge, cfg.Most)
	}
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return nil, err
	}
	d, err := describe(ctx, c, name)
	if err != nil {
		return nil, err
	}
	p := &RepairPlan{}
	var found []Repair
	err = c.Pages(ctx, name, rs, allVersions, func(t *store.Table, page []bigtable.Row) (bool, error) {
		for _, raw := range page {
			found = append(found, rowRepairs(repairHistories(t, raw), d.AdoptedTS, now-tso.Timestamp(cfg.MarkerAge.Microseconds()))...)
			if len(found) >= cfg.Most {
				p.More = true
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil || len(found) == 0 {
		return p, err
	}
	known, err := findEvidence(ctx, c, found)
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		ok, err := confirmRepair(ctx, c, &r, known[r.StartTS], now)
		if err != nil {
			return nil, err
		}
		if ok {
			p.Repairs = append(p.Repairs, r)
		} else {
			p.Undecided = append(p.Undecided, r)
		}
	}
	return p, nil
}

// repairHistory is what is stored of one column of one row.
type repairHistory struct {
	cell       format.Cell
	data       []tso.Timestamp
	locks      []tso.Timestamp
	committed  map[tso.Timestamp]tso.Timestamp // start_ts → commit_ts
	markers    []tso.Timestamp                 // rollback markers
	unreadable bool
}

// repairHistories are those of a row, in order of columns. A column with
// something unreadable in it has none: what it says nobody knows.
func repairHistories(t *store.Table, raw bigtable.Row) []*repairHistory {
	byColumn := map[format.Column]*repairHistory{}
	for family, items := range raw {
		for _, item := range items {
			v := newVersion(t, raw.Key(), family, item)
			h := byColumn[v.Cell.Column()]
			if h == nil {
				h = &repairHistory{cell: v.Cell, committed: map[tso.Timestamp]tso.Timestamp{}}
				byColumn[v.Cell.Column()] = h
			}
			switch v.Kind {
			case VersionData:
				h.data = append(h.data, v.TS)
			case VersionLock:
				h.locks = append(h.locks, v.TS)
			case VersionWrite, VersionLockOnly:
				h.committed[v.StartTS] = v.CommitTS
			case VersionRollback:
				h.markers = append(h.markers, v.TS)
			case VersionUnreadable:
				h.unreadable = true
			}
		}
	}
	var all []*repairHistory
	for _, h := range byColumn {
		if !h.unreadable {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b *repairHistory) int { return cmp.Compare(a.cell.Column().Key(), b.cell.Column().Key()) })
	return all
}

// rowRepairs are the candidates of a row.
func rowRepairs(row []*repairHistory, adopted, markersUpTo tso.Timestamp) (found []Repair) {
	since := adopted
	if since == 0 {
		for _, h := range row {
			for _, commitTS := range h.committed {
				if since == 0 || commitTS < since {
					since = commitTS
				}
			}
		}
	}
	for _, h := range row {
		for _, r := range h.repairs(markersUpTo) {
			r.since = since
			found = append(found, r)
		}
	}
	return found
}

// ofTransaction: the data is later than the first that transactions wrote, and
// not of the future.
func (r *Repair) ofTransaction(now tso.Timestamp) bool {
	return r.since > 0 && r.StartTS > r.since && r.StartTS < now
}

// repairs are the candidates; markers count up to a timestamp.
func (h *repairHistory) repairs(markersUpTo tso.Timestamp) []Repair {
	var found []Repair
	for _, ts := range h.data {
		if _, ok := h.committed[ts]; !ok && !slices.Contains(h.locks, ts) {
			found = append(found, Repair{Kind: RepairOrphanData, Cell: h.cell, StartTS: ts})
		}
	}
	for _, ts := range h.locks {
		if commitTS, ok := h.committed[ts]; ok || slices.Contains(h.markers, ts) {
			found = append(found, Repair{Kind: RepairRedundantLock, Cell: h.cell, StartTS: ts, CommitTS: commitTS})
		}
	}
	for _, ts := range h.markers {
		if ts <= markersUpTo && !slices.Contains(h.locks, ts) {
			found = append(found, Repair{Kind: RepairOldMarker, Cell: h.cell, StartTS: ts})
		}
	}
	slices.SortFunc(found, func(a, b Repair) int { return cmp.Compare(a.StartTS, b.StartTS) })
	return found
}

// Evidence is what is known of a transaction in all tables.
type evidence struct {
	committed tso.Timestamp
	at        format.Cell // a cell that says so, or that is locked
	locked    *format.Lock
}

// traces looks through the locks and records of all tables.
func findEvidence(ctx context.Context, c *recovery.Resolver, of []Repair) (map[tso.Timestamp]*evidence, error) {
	known := map[tso.Timestamp]*evidence{}
	oldest := of[0].StartTS
	for _, r := range of {
		known[r.StartTS] = &evidence{}
		oldest = min(oldest, r.StartTS)
	}
	tables, err := c.TableNames(ctx)
	if err != nil {
		return nil, err
	}
	filter := func(*store.Table) bigtable.Filter {
		return store.Interleave(store.Chain(store.AnyOf([]bigtable.Filter{store.WholeFamily(format.LockFamily), store.WholeFamily(format.WriteFamily), store.WholeFamily(format.MarkFamily)}), store.From(oldest)))
	}
	for _, name := range tables {
		err := c.Pages(ctx, name, nil, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
			for _, raw := range page {
				for family, items := range raw {
					for _, item := range items {
						v := newVersion(t, raw.Key(), family, item)
						k := known[v.StartTS]
						switch {
						case k == nil:
						case v.Kind == VersionLock:
							k.locked = v.Lock
						case v.CommitTS != 0:
							k.committed, k.at = v.CommitTS, v.Cell
						}
					}
				}
			}
			return true, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return known, nil
}

// confirmRepair says whether what is known of the transaction allows the repair.
func confirmRepair(ctx context.Context, c *recovery.Resolver, r *Repair, known *evidence, now tso.Timestamp) (bool, error) {
	switch r.Kind {
	case RepairOrphanData:
		switch {
		case !r.ofTransaction(now):
			r.Why = "it may be no transaction's: a cell with such a timestamp may have been there before the table was transactional"
			return false, nil
		case known.committed != 0:
			r.Why = fmt.Sprintf("its transaction committed at %d, as %s says: the record of this cell is lost, or its data should be", known.committed, known.at)
			return false, nil
		case known.locked != nil:
			r.Why = fmt.Sprintf("its transaction has a lock on %s: resolve its locks first", known.locked.Cell)
			return false, nil
		}
		r.Why = "no table has a trace of its transaction; no transaction reads it"
		return true, nil
	case RepairOldMarker:
		if known.locked != nil {
			r.Why = fmt.Sprintf("its transaction has a lock on %s: resolve it first", known.locked.Cell)
			return false, nil
		}
		r.Why = "no lock of its transaction is left"
		return true, nil
	}
	return confirmRedundantLock(ctx, c, r, known)
}

func confirmRedundantLock(ctx context.Context, c *recovery.Resolver, r *Repair, known *evidence) (bool, error) {
	if known.locked == nil || known.locked.StartTS != r.StartTS {
		r.Why = "its lock is gone meanwhile"
		return false, nil
	}
	t, err := c.Table(ctx, known.locked.Primary.Table)
	if err != nil {
		return false, err
	}
	s, err := recovery.ReadStatus(ctx, t, known.locked.Primary, r.StartTS)
	switch {
	case err != nil:
		return false, err
	case r.CommitTS != 0 && s.State == format.StateCommitted && s.CommitTS == r.CommitTS:
		r.Why = fmt.Sprintf("the cell and the primary %s are committed at %d", known.locked.Primary, r.CommitTS)
		return true, nil
	case r.CommitTS == 0 && s.State == format.StateRolledBack:
		r.Why = fmt.Sprintf("the cell has a rollback marker, and the primary %s is rolled back", known.locked.Primary)
		return true, nil
	}
	r.Why = fmt.Sprintf("the primary %s is %v, and the cell says otherwise", known.locked.Primary, s.State)
	return false, nil
}

// ApplyRepair mends one cell, if it is still as it was planned: it looks at the
// row again, and then deletes by a conditional mutation that fails if anything
// of the transaction has appeared since. done is false when the cell has
// changed; nothing was changed then. Applying it twice is harmless.
func ApplyRepair(ctx context.Context, client *txn.Client, r Repair) (done bool, err error) {
	c := access.Resolver(client)
	if err := format.CheckCell(r.Cell); err != nil {
		return false, err
	}
	if r.StartTS <= 0 {
		return false, format.Invalidf("repair of start_ts %d", r.StartTS)
	}
	if err := c.Enter(); err != nil {
		return false, err
	}
	defer c.Leave()
	t, err := c.Table(ctx, r.Cell.Table)
	if err != nil {
		return false, err
	}
	// Before the row is read: a commit of the transaction that comes after the
	// look stands above it, because it takes its commit_ts after its prewrites.
	asOf, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return false, err
	}
	if ok, err := stillThere(ctx, c, t, r, asOf); err != nil || !ok {
		return false, err
	}
	col := r.Cell.Column()
	key := col.Key()
	m := bigtable.NewMutation()
	lock := store.Chain(store.ExactColumn(format.LockFamily, key), store.At(r.StartTS))
	for pause := c.Store.Config.Backoff.Start(); ; {
		var matched bool
		switch r.Kind {
		case RepairRedundantLock:
			store.RemoveCell(m, format.LockFamily, key, r.StartTS)
			if r.CommitTS == 0 {
				store.RemoveCell(m, col.Family, col.Qualifier, r.StartTS)
			}
			matched, err = t.CheckAndMutate(ctx, r.Cell.Row, store.Interleave(lock), m, nil)
			done = matched
		case RepairOldMarker:
			store.RemoveCell(m, format.MarkFamily, key, r.StartTS)
			matched, err = t.CheckAndMutate(ctx, r.Cell.Row, store.Interleave(lock), nil, m)
			done = !matched
		default:
			store.RemoveCell(m, col.Family, col.Qualifier, r.StartTS)
			appeared := store.Chain(store.AnyOf([]bigtable.Filter{store.ExactColumn(format.WriteFamily, key), store.ExactColumn(format.MarkFamily, key)}), store.From(asOf))
			matched, err = t.CheckAndMutate(ctx, r.Cell.Row, store.Interleave(lock, appeared), nil, m)
			done = !matched
		}
		if err == nil || store.Permanent(err) {
			return done && err == nil, err
		}
		// Whether it was applied or not, sending it again is harmless.
		if pause.Wait(ctx, 0) != nil {
			return false, store.Ended(ctx, "repairing "+r.Cell.String(), err)
		}
		m = bigtable.NewMutation()
	}
}

// stillThere looks at the row again.
func stillThere(ctx context.Context, c *recovery.Resolver, t *store.Table, r Repair, now tso.Timestamp) (bool, error) {
	d, err := describe(ctx, c, t.Name)
	if err != nil {
		return false, err
	}
	raw, err := t.ReadRow(ctx, r.Cell.Row, allVersions(t))
	if err != nil {
		return false, err
	}
	for _, again := range rowRepairs(repairHistories(t, raw), d.AdoptedTS, now-tso.Timestamp(time.Hour.Microseconds())) {
		if again.Cell != r.Cell || again.Kind != r.Kind || again.StartTS != r.StartTS || again.CommitTS != r.CommitTS {
			continue
		}
		switch r.Kind {
		case RepairOrphanData:
			return again.ofTransaction(now), nil
		case RepairRedundantLock:
			return stillRedundant(ctx, c, t, r)
		}
		return true, nil
	}
	return false, nil
}

// stillRedundant asks the primary again.
func stillRedundant(ctx context.Context, c *recovery.Resolver, t *store.Table, r Repair) (bool, error) {
	raw, err := t.ReadRow(ctx, r.Cell.Row, store.Interleave(store.LockAt(r.Cell.Column(), r.StartTS)))
	if err != nil || len(raw[format.LockFamily]) == 0 {
		return false, err
	}
	l, err := format.DecodeLock(r.Cell, r.StartTS, raw[format.LockFamily][0].Value)
	if err != nil {
		return false, err
	}
	return confirmRedundantLock(ctx, c, &r, &evidence{locked: l})
}
