package admin

import (
	"cmp"
	"context"
	"errors"
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

// A RepairKind is a kind of damage that can be repaired without a guess.
type RepairKind string

// The kinds of repairs.
const (
	// RepairOrphanData: data of a transaction that no record and no lock of the cell
	// names, and that left no trace in any table. No transaction reads it, but plain
	// readers see it as the newest value. The repair deletes it. The data must be
	// later than the table's adoption or, if that is not recorded, than a commit in
	// its row. Otherwise it may be older than the table's first transaction (a
	// timestamp in nanoseconds, for example), and stays.
	RepairOrphanData RepairKind = "orphan data"
	// RepairLostRecord: data of a committed transaction without a write record. The repair
	// writes the record at the commit_ts that the primary's record names, as a client that
	// rolls the cell forward does. Only a prewrite writes data at a start_ts, and always
	// with a lock. A transaction commits after all its prewrites, and then nothing but the
	// write of the record removes the lock, until garbage collection. So the record was
	// there. If the primary's own record is lost, that of a secondary says the same. The
	// cell stays if garbage collection may have removed the record, or if another version or
	// a lock blocks it. Collection removes all versions below one that stays. So it did not
	// if an older version is there, and no newer one up to the safe point.
	RepairLostRecord RepairKind = "lost record"
	// RepairRedundantLock: a lock in a cell that also has the record of the same
	// transaction, and the primary agrees with the record. The repair deletes the
	// lock, and after a rollback its data.
	RepairRedundantLock RepairKind = "redundant lock"
	// RepairOldMarker: an old rollback marker whose transaction has no lock left in
	// any table. The repair deletes it.
	RepairOldMarker RepairKind = "old rollback marker"
	// RepairLockAbove: a lock whose start_ts is more than an hour above the oracle's time.
	// It blocks all writers of the cell. The oracle hands out no timestamp twice, and none
	// from the future. So no transaction of this oracle wrote the lock, and none will commit
	// it. The repair deletes the lock and its data, that of the primary first. It leaves no
	// rollback marker, which would block the cell as well. The lock stays if something says
	// that the oracle is behind: a commit above its time in any table, or a worker token of
	// the owner that is as far ahead. In that case `percctl tso advance` repairs the oracle.
	RepairLockAbove RepairKind = "lock above the oracle"
	// RepairMarkerAbove: a rollback marker so far above the oracle's time, whose transaction
	// has no lock. It blocks the cell as such a lock does. It stops no transaction of this
	// oracle, because none has its start_ts. The repair deletes it. It stays if something
	// says that the oracle is behind.
	RepairMarkerAbove RepairKind = "marker above the oracle"
	// RepairRecordAbove: a record so far above the oracle's time. No read up to now has
	// seen it, and it blocks writers of the cell. The oracle may be behind, because it was
	// restored or replaced: then the record is a commit, and `percctl tso advance` makes it
	// visible. If RepairConfig.TrustOracle says that it is not, no transaction wrote the
	// record. The repair deletes it, and its data if that is above the oracle as well. A
	// client remembers recent conflicts: restart those that conflicted on it.
	RepairRecordAbove RepairKind = "record above the oracle"
)

// RepairKinds are all kinds.
var RepairKinds = []RepairKind{RepairOrphanData, RepairLostRecord, RepairRedundantLock, RepairOldMarker, RepairLockAbove, RepairMarkerAbove, RepairRecordAbove}

// aboveBy is how far above the oracle's time a lock must be. Until the oracle gets there, the
// repair's requests have arrived. A lock that is nearer will soon be an ordinary lock.
const aboveBy = tso.Timestamp(time.Hour / time.Microsecond)

// A Repair is one damaged cell.
type Repair struct {
	Kind    RepairKind
	Cell    format.Cell
	StartTS tso.Timestamp // of the transaction that left it
	// CommitTS is that of the record in a RepairRedundantLock (0 after a rollback), a
	// RepairLostRecord and a RepairRecordAbove.
	CommitTS tso.Timestamp
	// Witness is the cell whose record says so, in a RepairLostRecord.
	Witness format.Cell
	// Why says why the cell can be repaired, or why not.
	Why string

	// since is a time at which the row had data of transactions; 0 if unknown.
	since tso.Timestamp
}

// A RepairPlan is what [PlanRepairs] found.
type RepairPlan struct {
	// Repairs are the cells that [ApplyRepair] can repair.
	Repairs []Repair
	// Undecided are cells that need a person's decision, because another cell says
	// something about the same transaction. Why says what.
	Undecided []Repair
	// More is set if the plan is full, so that there may be more damage.
	More bool
}

// RepairConfig configures [PlanRepairs].
type RepairConfig struct {
	// MarkerAge is how old a rollback marker must be, in oracle time. It must be
	// longer than any request takes to arrive.
	// Defaults to 24 hours; at least 1 hour.
	MarkerAge time.Duration
	// TrustOracle says that the oracle was never restored from a backup or replaced, so that
	// no transaction wrote what is above its time.
	// Defaults to false: a record above its time stays, and with it locks and markers.
	TrustOracle bool
	// Most limits the plan.
	// Defaults to 10,000 repairs.
	Most int
}

// PlanRepairs searches rows of a table (nil: all rows) for damage that can be
// repaired without a guess. If it finds some, it reads the locks and records of all
// tables, to find what else is stored about the transactions. It changes nothing,
// and may run while transactions do.
func PlanRepairs(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet, cfg RepairConfig) (*RepairPlan, error) {
	c := access.ResolverOf(client)
	if cfg.MarkerAge == 0 {
		cfg.MarkerAge = 24 * time.Hour
	}
	if cfg.Most == 0 {
		cfg.Most = 10_000
	}
	if cfg.MarkerAge < time.Hour || cfg.Most < 0 {
		return nil, invalidf("RepairConfig with MarkerAge %v, Most %d; MarkerAge must be at least 1h, and Most not negative", cfg.MarkerAge, cfg.Most)
	}
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return nil, err
	}
	d, err := describe(ctx, c, table)
	if err != nil {
		return nil, err
	}
	p := &RepairPlan{}
	var found []Repair
	err = c.Pages(ctx, table, rs, allVersions, func(t *store.Table, page []bigtable.Row) (bool, error) {
		for _, raw := range page {
			found = append(found, rowRepairs(repairHistories(t, raw), d.AdoptedTS, now, cfg.MarkerAge)...)
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
	known, newest, err := findEvidence(ctx, c, found, now)
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		k := known[r.StartTS]
		var ok bool
		switch {
		case !r.above():
			ok, err = confirmRepair(ctx, c, &r, k, now)
		case !cfg.TrustOracle && r.Kind == RepairRecordAbove:
			r.Why = fmt.Sprintf("the oracle is at %d, and the commit at %d: if the oracle was restored or replaced, run percctl tso advance; if it never was, set RepairConfig.TrustOracle", now, r.CommitTS)
		case !cfg.TrustOracle && newest.ts > now:
			r.Why = fmt.Sprintf("the commit at %d of %s is above the oracle's time as well: the oracle may be behind; see percctl tso advance", newest.ts, newest.cell)
		case r.Kind == RepairMarkerAbove && k.locked != nil:
			r.Why = lockedElsewhere(k.locked)
		case r.Kind == RepairLockAbove:
			_, ok, err = confirmLockAbove(ctx, c, &r, k.locked)
		default:
			ok, err = confirmAbove(ctx, c, &r)
		}
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

// repairHistory is what is stored in one column of a row.
type repairHistory struct {
	cell       format.Cell
	data       []tso.Timestamp
	locks      []tso.Timestamp
	committed  map[tso.Timestamp]tso.Timestamp // start_ts → commit_ts
	markers    []tso.Timestamp                 // rollback markers
	unreadable bool
}

// repairHistories returns those of a row, in order of columns. It leaves out columns
// with an unreadable cell, because that may say anything.
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

// rowRepairs returns the possible repairs of a row.
func rowRepairs(row []*repairHistory, adopted, now tso.Timestamp, markerAge time.Duration) (found []Repair) {
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
		for _, r := range h.repairs(now, now.Add(-markerAge)) {
			r.since = since
			found = append(found, r)
		}
	}
	return found
}

// ofTransaction reports that the data is certainly a transaction's: it is later than
// the first transaction of the table or row, and not later than now.
func (r *Repair) ofTransaction(now tso.Timestamp) bool {
	return r.since > 0 && r.StartTS > r.since && r.StartTS < now
}

// repairs returns the possible repairs of a column at oracle time now, with markers up to
// markersUpTo.
func (h *repairHistory) repairs(now, markersUpTo tso.Timestamp) []Repair {
	var found []Repair
	for startTS, commitTS := range h.committed {
		if commitTS-aboveBy > now {
			found = append(found, Repair{Kind: RepairRecordAbove, Cell: h.cell, StartTS: startTS, CommitTS: commitTS})
		}
	}
	for _, ts := range h.data {
		if _, ok := h.committed[ts]; !ok && !slices.Contains(h.locks, ts) {
			found = append(found, Repair{Kind: RepairOrphanData, Cell: h.cell, StartTS: ts})
		}
	}
	for _, ts := range h.locks {
		if commitTS, ok := h.committed[ts]; ok || slices.Contains(h.markers, ts) {
			found = append(found, Repair{Kind: RepairRedundantLock, Cell: h.cell, StartTS: ts, CommitTS: commitTS})
		} else if ts-aboveBy > now {
			found = append(found, Repair{Kind: RepairLockAbove, Cell: h.cell, StartTS: ts})
		}
	}
	for _, ts := range h.markers {
		if ts-aboveBy > now {
			found = append(found, Repair{Kind: RepairMarkerAbove, Cell: h.cell, StartTS: ts})
		}
		if ts <= markersUpTo && !slices.Contains(h.locks, ts) {
			found = append(found, Repair{Kind: RepairOldMarker, Cell: h.cell, StartTS: ts})
		}
	}
	slices.SortFunc(found, func(a, b Repair) int { return cmp.Compare(a.StartTS, b.StartTS) })
	return found
}

// evidence is what all tables say about a transaction.
type evidence struct {
	committed tso.Timestamp // its commit_ts; 0 if no record is left
	at        format.Cell   // a cell with such a record
	primary   format.Cell   // that the record names
	differ    bool          // its records name different commits or primaries
	locked    *format.Lock  // one of its locks
}

// findEvidence reads the locks and records of all tables. newest is the newest commit that it
// finds.
func findEvidence(ctx context.Context, c *recovery.Resolver, of []Repair, now tso.Timestamp) (known map[tso.Timestamp]*evidence, newest cellTime, err error) {
	known = map[tso.Timestamp]*evidence{}
	oldest := now // a commit above it says that the oracle is behind
	for _, r := range of {
		known[r.StartTS] = &evidence{}
		oldest = min(oldest, r.StartTS)
	}
	tables, err := c.TableNames(ctx)
	if err != nil {
		return nil, newest, err
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
						newest.raise(v.Cell, v.CommitTS)
						k := known[v.StartTS]
						switch {
						case k == nil:
						case v.Kind == VersionLock:
							k.locked = v.Lock
						case v.CommitTS != 0:
							k.differ = k.differ || k.committed != 0 && (k.committed != v.CommitTS || k.primary != v.Primary)
							k.committed, k.at, k.primary = v.CommitTS, v.Cell, v.Primary
						}
					}
				}
			}
			return true, nil
		})
		if err != nil {
			return nil, newest, err
		}
	}
	return known, newest, nil
}

// confirmRepair decides whether the evidence allows a repair, and sets its Why.
func confirmRepair(ctx context.Context, c *recovery.Resolver, r *Repair, known *evidence, now tso.Timestamp) (bool, error) {
	switch r.Kind {
	case RepairOrphanData:
		switch {
		case known.committed != 0:
			return confirmLostRecord(ctx, c, r, known)
		case !r.ofTransaction(now):
			r.Why = "no transaction may have written it: it may be older than the table's first transaction"
			return false, nil
		case known.locked != nil:
			r.Why = lockedElsewhere(known.locked)
			return false, nil
		}
		r.Why = "no table has a trace of its transaction; no transaction reads it"
		return true, nil
	case RepairOldMarker:
		if known.locked != nil {
			r.Why = lockedElsewhere(known.locked)
			return false, nil
		}
		r.Why = "no lock of its transaction is left"
		return true, nil
	}
	return confirmRedundantLock(ctx, c, r, known)
}

func lockedElsewhere(l *format.Lock) string {
	return fmt.Sprintf("its transaction has a lock on %s: resolve it first", l.Cell)
}

// confirmLostRecord makes orphan data of a committed transaction a lost record, if the records
// of the transaction allow that, and sets r.Why.
func confirmLostRecord(ctx context.Context, c *recovery.Resolver, r *Repair, known *evidence) (bool, error) {
	l := Repair{Kind: RepairLostRecord, Cell: r.Cell, StartTS: r.StartTS, CommitTS: known.committed, Witness: known.primary, since: r.since}
	if known.primary == r.Cell {
		l.Witness = known.at // the primary's own record is lost
	}
	r.Why = fmt.Sprintf("its transaction committed at %d, as %s says: either the record of this cell was lost, or its data should not exist", known.committed, known.at)
	if known.differ {
		return false, nil
	}
	_, why, err := lostRecord(ctx, c, l)
	if err != nil || why != "" {
		r.Why += "; " + why
		return false, err
	}
	l.Why = fmt.Sprintf("its transaction committed at %d, as the record of %s says", l.CommitTS, l.Witness)
	*r = l
	return true, nil
}

// lostRecord reads the row and the witness of a RepairLostRecord. It returns the mutation that
// writes the record, or why it must not be written.
func lostRecord(ctx context.Context, c *recovery.Resolver, r Repair) (m *bigtable.Mutation, why string, err error) {
	safePoint, err := c.SafePoint.Current(ctx)
	if err != nil {
		return nil, "", err
	}
	witness, err := readVersions(ctx, c, r.Witness)
	if err != nil {
		return nil, "", err
	}
	i := slices.IndexFunc(witness, func(v Version) bool { return v.StartTS == r.StartTS && v.CommitTS != 0 })
	switch {
	case i < 0:
		return nil, fmt.Sprintf("%s has no record of it", r.Witness), nil
	case witness[i].CommitTS != r.CommitTS || witness[i].Primary != r.Witness && witness[i].Primary != r.Cell:
		return nil, fmt.Sprintf("the record of %s contradicts that", r.Witness), nil
	}
	here, err := readVersions(ctx, c, r.Cell)
	if err != nil {
		return nil, "", err
	}
	t, err := c.Table(ctx, r.Cell.Table)
	if err != nil {
		return nil, "", err
	}
	m = bigtable.NewMutation()
	l := &format.Lock{Cell: r.Cell, Primary: witness[i].Primary, StartTS: r.StartTS, Kind: format.KindPut, Observed: t.Schema.Current().IsObserved(r.Cell.Column())}
	found, older, newer := false, false, false
	for _, v := range here {
		if v.Kind == VersionWrite {
			older = older || v.CommitTS < r.StartTS
			newer = newer || v.CommitTS > r.StartTS && v.CommitTS <= safePoint
		}
		switch {
		case v.Kind == VersionData && v.StartTS == r.StartTS:
			// Garbage collection may take the data in the meantime: write both.
			found = true
			m.Set(r.Cell.Family, r.Cell.Qualifier, r.StartTS.Cell(), v.Value)
		case v.Kind == VersionLock:
			return nil, "the cell is locked: resolve the lock first", nil
		case v.CommitTS != 0 && v.StartTS <= r.CommitTS && v.CommitTS >= r.StartTS, v.Kind == VersionRollback && v.StartTS == r.StartTS:
			return nil, fmt.Sprintf("the %s at %d blocks it", v.Kind, v.TS), nil
		case v.Kind == VersionUnreadable:
			return nil, "a record of the cell cannot be read", nil
		}
	}
	switch {
	case !found:
		return nil, "its data is gone", nil
	case r.StartTS <= safePoint && (newer || !older):
		return nil, fmt.Sprintf("it is not above the safe point %d, so the record may have been collected", safePoint), nil
	}
	store.AddCommit(m, l, r.CommitTS, 0)
	return m, "", nil
}

// readVersions reads everything that is stored of a cell.
func readVersions(ctx context.Context, c *recovery.Resolver, cell format.Cell) (all []Version, err error) {
	t, err := c.Table(ctx, cell.Table)
	if err != nil {
		return nil, err
	}
	key := cell.Column().Key()
	raw, err := t.ReadRow(ctx, cell.Row, store.Interleave(store.ExactColumn(format.LockFamily, key), store.ExactColumn(format.WriteFamily, key), store.ExactColumn(format.MarkFamily, key), store.ExactColumn(cell.Family, cell.Qualifier)))
	for family, items := range raw {
		for _, item := range items {
			all = append(all, newVersion(t, cell.Row, family, item))
		}
	}
	return all, err
}

// above: the cell is above the oracle's time.
func (r *Repair) above() bool {
	return r.Kind == RepairLockAbove || r.Kind == RepairMarkerAbove || r.Kind == RepairRecordAbove
}

// confirmAbove decides whether a marker or record may be deleted that is above the oracle's
// time, and sets r.Why. A client whose token is as far ahead has another oracle.
func confirmAbove(ctx context.Context, c *recovery.Resolver, r *Repair) (ok bool, err error) {
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return false, err
	}
	ok = true
	r.Why = fmt.Sprintf("the oracle is at %d: no transaction of this oracle wrote it", now)
	err = c.MetadataRows(ctx, recovery.TokenRowPrefix, recovery.TokenQualifier, func(row bigtable.Row, _ []byte) (bool, error) {
		if w, readable := recovery.DecodeToken(row); readable && tso.Timestamp(w.ExpiresTs)-aboveBy > now {
			ok, r.Why = false, fmt.Sprintf("the client with pid %d on %s has an oracle that is as far ahead", w.Pid, w.Host)
		}
		return ok, nil
	})
	return ok, err
}

// confirmLockAbove decides whether the lock l allows its repair, and sets r.Why. The timestamp
// with which it compares is from after the lock was read. primary is the primary lock, if that
// is another one and has to go first.
func confirmLockAbove(ctx context.Context, c *recovery.Resolver, r *Repair, l *format.Lock) (primary *Repair, ok bool, err error) {
	if l == nil || l.StartTS != r.StartTS {
		r.Why = "its lock is gone"
		return nil, false, nil
	}
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return nil, false, err
	}
	r.Why = ""
	owner, err := readOwner(ctx, c, l.Owner, now)
	if err != nil {
		return nil, false, err
	}
	s, err := readPrimary(ctx, c, r, l)
	switch {
	case err != nil || r.Why != "":
		return nil, false, err
	case l.StartTS-aboveBy <= now:
		r.Why = fmt.Sprintf("the oracle is at %d, and will soon pass it", now)
	case owner.ExpiresTS >= l.StartTS:
		r.Why = fmt.Sprintf("its owner, pid %d on %s, has an oracle that is as far ahead", owner.PID, owner.Host)
	case s.State == format.StateCommitted:
		r.Why = fmt.Sprintf("the primary %s is committed at %d", l.Primary, s.CommitTS)
	default:
		r.Why = fmt.Sprintf("the oracle is at %d: no transaction of this oracle wrote it", now)
		if s.Lock != nil && s.Lock.IsPrimary() && !l.IsPrimary() {
			primary = &Repair{Kind: RepairLockAbove, Cell: l.Primary, StartTS: l.StartTS}
		}
		return primary, true, nil
	}
	return nil, false, nil
}

// readPrimary reads the status of the transaction of a lock. If its primary can never be read,
// it sets r.Why.
func readPrimary(ctx context.Context, c *recovery.Resolver, r *Repair, l *format.Lock) (s format.Status, err error) {
	t, err := c.Table(ctx, l.Primary.Table)
	if err == nil {
		s, err = recovery.ReadStatus(ctx, t, l.Primary, l.StartTS)
	}
	if errors.Is(err, format.ErrInvalid) || errors.Is(err, format.ErrNotInitialized) || errors.Is(err, format.ErrCorrupt) {
		r.Why = fmt.Sprintf("the primary %s cannot be read: %v", l.Primary, err)
		return s, nil
	}
	return s, err
}

func confirmRedundantLock(ctx context.Context, c *recovery.Resolver, r *Repair, known *evidence) (bool, error) {
	if known.locked == nil || known.locked.StartTS != r.StartTS {
		r.Why = "its lock is gone"
		return false, nil
	}
	r.Why = ""
	s, err := readPrimary(ctx, c, r, known.locked)
	switch {
	case err != nil || r.Why != "":
		return false, err
	case r.CommitTS != 0 && s.State == format.StateCommitted && s.CommitTS == r.CommitTS:
		r.Why = fmt.Sprintf("the cell and the primary %s are committed at %d", known.locked.Primary, r.CommitTS)
		return true, nil
	case r.CommitTS == 0 && s.State == format.StateRolledBack:
		r.Why = fmt.Sprintf("the cell has a rollback marker, and the primary %s is rolled back", known.locked.Primary)
		return true, nil
	}
	r.Why = fmt.Sprintf("the primary %s is %v, and the cell contradicts it", known.locked.Primary, s.State)
	return false, nil
}

// ApplyRepair repairs one cell if it has not changed since the plan. It reads the row
// again, and then deletes with a conditional mutation that does nothing if another
// cell of the transaction has appeared since. done is false if the cell has
// changed; then ApplyRepair changed nothing. To apply a repair twice is harmless.
func ApplyRepair(ctx context.Context, client *txn.Client, r Repair) (done bool, err error) {
	return applyRepair(ctx, access.ResolverOf(client), r)
}

func applyRepair(ctx context.Context, c *recovery.Resolver, r Repair) (done bool, err error) {
	if err := format.CheckStoredCell(r.Cell); err != nil {
		return false, err
	}
	if r.StartTS <= 0 {
		return false, invalidf("repair of start_ts %d", r.StartTS)
	}
	if err := c.Enter(); err != nil {
		return false, err
	}
	defer c.Leave()
	t, err := c.Table(ctx, r.Cell.Table)
	if err != nil {
		return false, err
	}
	// Get the timestamp before the row is read: a transaction gets its commit_ts
	// after its prewrites, so a commit that this read misses is above it.
	asOf, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return false, err
	}
	col := r.Cell.Column()
	key := col.Key()
	m := bigtable.NewMutation()
	if r.Kind == RepairLostRecord {
		// The data is read with its value, which stillThere does not do.
		var why string
		if m, why, err = lostRecord(ctx, c, r); err != nil || why != "" {
			return false, err
		}
	} else if ok, err := stillThere(ctx, c, t, r, asOf, true); err != nil || !ok {
		return false, err
	}
	appeared := store.Chain(store.AnyOf([]bigtable.Filter{store.ExactColumn(format.WriteFamily, key), store.ExactColumn(format.MarkFamily, key)}), store.From(asOf))
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
		case RepairLockAbove:
			store.RemoveLockAndData(m, col, r.StartTS)
			matched, err = t.CheckAndMutate(ctx, r.Cell.Row, store.Interleave(lock), m, nil)
			done = matched
		case RepairLostRecord:
			// A prewrite or a rollback of the cell since it was read leaves one of these.
			marker := store.Chain(store.ExactColumn(format.MarkFamily, key), store.At(r.StartTS))
			matched, err = t.CheckAndMutate(ctx, r.Cell.Row, store.Interleave(store.ExactColumn(format.LockFamily, key), marker, appeared), nil, m)
			done = !matched
		case RepairRecordAbove:
			for _, family := range []string{format.WriteFamily, format.MarkFamily, format.NotifyFamily} {
				store.RemoveCell(m, family, key, r.CommitTS)
			}
			if r.StartTS > asOf {
				store.RemoveCell(m, col.Family, col.Qualifier, r.StartTS)
			}
			record := store.Chain(store.AnyOf([]bigtable.Filter{store.ExactColumn(format.WriteFamily, key), store.ExactColumn(format.MarkFamily, key)}), store.At(r.CommitTS))
			matched, err = t.CheckAndMutate(ctx, r.Cell.Row, store.Interleave(record), m, nil)
			done = matched
		case RepairOldMarker, RepairMarkerAbove:
			store.RemoveCell(m, format.MarkFamily, key, r.StartTS)
			matched, err = t.CheckAndMutate(ctx, r.Cell.Row, store.Interleave(lock), nil, m)
			done = !matched
		default:
			store.RemoveCell(m, col.Family, col.Qualifier, r.StartTS)
			matched, err = t.CheckAndMutate(ctx, r.Cell.Row, store.Interleave(lock, appeared), nil, m)
			done = !matched
		}
		if err == nil || store.Permanent(err) {
			return done && err == nil, err
		}
		// The mutation may have been applied. To send it again is harmless.
		if pause.Wait(ctx, 0) != nil {
			return false, store.Ended(ctx, "admin: repairing "+r.Cell.String(), err)
		}
		if r.Kind != RepairLostRecord {
			m = bigtable.NewMutation()
		}
	}
}

// CheckRepair reports whether [ApplyRepair] would make a repair now. It changes nothing.
func CheckRepair(ctx context.Context, client *txn.Client, r Repair) (bool, error) {
	c := access.ResolverOf(client)
	if err := c.Enter(); err != nil {
		return false, err
	}
	defer c.Leave()
	t, err := c.Table(ctx, r.Cell.Table)
	if err != nil {
		return false, err
	}
	if r.Kind == RepairLostRecord {
		_, why, err := lostRecord(ctx, c, r)
		return why == "" && err == nil, err
	}
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return false, err
	}
	return stillThere(ctx, c, t, r, now, false)
}

// stillThere reads the row again, and reports whether the repair is still possible. If apply,
// it may repair another cell first.
func stillThere(ctx context.Context, c *recovery.Resolver, t *store.Table, r Repair, now tso.Timestamp, apply bool) (bool, error) {
	d, err := describe(ctx, c, t.Name)
	if err != nil {
		return false, err
	}
	raw, err := t.ReadRow(ctx, r.Cell.Row, allVersions(t))
	if err != nil {
		return false, err
	}
	for _, again := range rowRepairs(repairHistories(t, raw), d.AdoptedTS, now, time.Hour) {
		if again.Cell != r.Cell || again.Kind != r.Kind || again.StartTS != r.StartTS || again.CommitTS != r.CommitTS {
			continue
		}
		switch r.Kind {
		case RepairOrphanData:
			return again.ofTransaction(now), nil
		case RepairRedundantLock, RepairLockAbove:
			return stillLocked(ctx, c, t, r, apply)
		case RepairMarkerAbove, RepairRecordAbove:
			return confirmAbove(ctx, c, &r)
		}
		return true, nil
	}
	return false, nil
}

// stillLocked reads the lock and its primary again. The primary lock goes first.
func stillLocked(ctx context.Context, c *recovery.Resolver, t *store.Table, r Repair, apply bool) (bool, error) {
	raw, err := t.ReadRow(ctx, r.Cell.Row, store.Interleave(store.LockAt(r.Cell.Column(), r.StartTS)))
	if err != nil || len(raw[format.LockFamily]) == 0 {
		return false, err
	}
	l, err := format.DecodeLock(r.Cell, r.StartTS, raw[format.LockFamily][0].Value)
	if err != nil {
		return false, err
	}
	if r.Kind == RepairRedundantLock {
		return confirmRedundantLock(ctx, c, &r, &evidence{locked: l})
	}
	primary, ok, err := confirmLockAbove(ctx, c, &r, l)
	if ok && apply && primary != nil {
		_, err = applyRepair(ctx, c, *primary)
	}
	return ok && err == nil, err
}
