package admin

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A Rule is an invariant of the stored state.
type Rule string

// The rules that [Check] verifies (docs/storage-format.md).
const (
	// RuleFormat: every metadata qualifier names a family:qualifier of the table.
	// Every record parses, has a kind that fits its family, and has start_ts <
	// commit_ts.
	RuleFormat Rule = "format"
	// RuleInterleaved: versions of a column never interleave. Each commit_ts is
	// below the start_ts of the next version.
	RuleInterleaved Rule = "interleaved versions"
	// RuleOneLock: a cell has at most one lock, newer than its newest commit.
	RuleOneLock Rule = "one lock"
	// RuleOneRecord: a transaction leaves at most one record (write record or mark)
	// in a cell, and no lock with it.
	RuleOneRecord Rule = "one record"
	// RuleMissingData: each write record and each lock of a put has its data cell at
	// start_ts.
	RuleMissingData Rule = "missing data"
	// RuleOrphanData: each data cell of a transaction belongs to a write record
	// or a lock.
	RuleOrphanData Rule = "orphan data"
	// RuleAtomic: the primary of a committed secondary is committed with the same
	// start_ts and commit_ts.
	RuleAtomic Rule = "half commit"
	// RulePrimary: a lock's primary is a cell of a transactional table, and a
	// lock of the same transaction there calls itself primary.
	RulePrimary Rule = "primary"
	// RuleAck: an acknowledgment names an observer, has 8 bytes, is at most the
	// start_ts of the transaction that wrote it, and never decreases.
	RuleAck Rule = "acknowledgment"
	// RuleJournal: a cell with a notification that an observer has not seen yet has a journal
	// entry. Without one nothing is lost, but the change may wait a day for a sweep.
	RuleJournal Rule = "journal entry"
	// RuleFuture: no timestamp is above the oracle's present time.
	RuleFuture Rule = "timestamp above the oracle"
)

// A Violation is a cell whose stored state contradicts a rule.
type Violation struct {
	Rule   Rule
	Cell   format.Cell
	Detail string
}

// String names the cell, the rule and the facts.
func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Cell, v.Rule, v.Detail) }

// Check compares rows of a table (nil: all rows) with every [Rule], and iterates
// over the violations. It reads page by page and changes nothing.
//
// It may run while transactions do: it reads each row atomically, and a secondary
// always before its primary. A lock is not a violation, even if its primary shows
// nothing of the transaction: a crash leaves such locks, and [Resolve] removes them.
//
// Check cannot find what leaves no trace in stored cells: a secondary that was lost
// with its lock, and plain writes ([RawWrites] finds most). At or below the safe
// point it accepts a committed secondary without its primary's record, because the
// record may have been collected.
//
// An error ends the iteration.
func Check(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet) iter.Seq2[Violation, error] {
	c := access.ResolverOf(client)
	return func(yield func(Violation, error) bool) {
		t, err := c.Table(ctx, table)
		if err == nil {
			_, err = t.Schema.Fresh(ctx)
		}
		if err != nil {
			yield(Violation{}, err)
			return
		}
		err = c.Pages(ctx, table, rs, allVersions, func(t *store.Table, page []bigtable.Row) (bool, error) {
			ck := &checker{client: c, table: t}
			if ck.safePoint, err = c.SafePoint.Current(ctx); err != nil {
				return false, err
			}
			for _, raw := range page {
				ck.row(raw)
			}
			if err := ck.primaries(ctx); err != nil {
				return false, err
			}
			if err := ck.clock(ctx); err != nil {
				return false, err
			}
			if err := ck.journal(ctx); err != nil {
				return false, err
			}
			for _, v := range ck.found {
				if !yield(v, nil) {
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			yield(Violation{}, err)
		}
	}
}

// allVersions reads all versions of a row, and data without its values.
func allVersions(t *store.Table) bigtable.Filter {
	filters := []bigtable.Filter{store.WholeFamily(format.LockFamily), store.WholeFamily(format.WriteFamily), store.WholeFamily(format.MarkFamily), store.WholeFamily(format.NotifyFamily)}
	for _, f := range t.Schema.Current().Families {
		if f == format.AckFamily {
			filters = append(filters, store.WholeFamily(f)) // timestamps, 8 bytes each
			continue
		}
		filters = append(filters, store.Chain(store.WholeFamily(f), bigtable.StripValueFilter()))
	}
	return store.Interleave(filters...)
}

// checker collects the violations of one page.
type checker struct {
	client *recovery.Resolver
	table  *store.Table
	found  []Violation
	// safePoint is at or above that of every collection that began before the page
	// was read.
	safePoint tso.Timestamp
	newest    cellTime   // the newest timestamp of the page
	locked    []cellTime // its locks
	// claims are commits and locks of secondaries, to compare with their primaries.
	claims []claim
	// pending are notifications that an observer has not seen.
	pending []cellTime
}

type cellTime struct {
	cell format.Cell
	ts   tso.Timestamp
}

func (n *cellTime) raise(cell format.Cell, ts tso.Timestamp) {
	if ts > n.ts {
		*n = cellTime{cell, ts}
	}
}

// A claim is what a secondary says about its primary.
type claim struct {
	cell, primary     format.Cell
	startTS, commitTS tso.Timestamp // commitTS is 0 for a lock
}

func (ck *checker) report(rule Rule, cell format.Cell, text string, args ...any) {
	ck.found = append(ck.found, Violation{rule, cell, fmt.Sprintf(text, args...)})
}

// history is everything that is stored in one column of a row.
type history struct {
	cell    format.Cell
	locks   []*format.Lock
	records []format.WriteRecord // writes and marks
	data    []tso.Timestamp
	notify  tso.Timestamp            // the newest notify cell
	acks    map[tso.Timestamp][]byte // values of an acknowledgment column
}

func (ck *checker) row(raw bigtable.Row) {
	columns := map[format.Column]*history{}
	get := func(cell format.Cell) *history {
		h := columns[cell.Column()]
		if h == nil {
			h = &history{cell: cell}
			columns[cell.Column()] = h
		}
		return h
	}
	for family, items := range raw {
		for _, item := range items {
			if !format.IsMetadataFamily(family) {
				if item.Timestamp >= format.PlainBefore {
					c, _ := format.SplitColumn(item.Column)
					h := get(format.Cell{Table: ck.table.Name, Row: raw.Key(), Family: c.Family, Qualifier: c.Qualifier})
					h.data = append(h.data, tso.FromCell(item.Timestamp))
					if family == format.AckFamily {
						if h.acks == nil {
							h.acks = map[tso.Timestamp][]byte{}
						}
						h.acks[tso.FromCell(item.Timestamp)] = item.Value
					}
				}
				continue
			}
			if family == format.NotifyFamily && format.IsFailure(item) {
				ck.failure(raw.Key(), item)
				continue
			}
			_, cell, err := format.MetadataCell(ck.table.Name, raw.Key(), item)
			if err != nil {
				ck.report(RuleFormat, format.Cell{Table: ck.table.Name, Row: raw.Key(), Family: family}, "%v", err)
				continue
			}
			if !ck.table.Schema.Current().HasFamily(cell.Family) {
				ck.report(RuleFormat, cell, "metadata in family %s for a family that the table does not have", family)
			}
			ts := tso.FromCell(item.Timestamp)
			ck.newest.raise(cell, ts)
			h := get(cell)
			switch family {
			case format.NotifyFamily:
				h.notify = max(h.notify, ts)
			case format.LockFamily:
				l, e := format.DecodeLock(cell, ts, item.Value)
				if err = e; e == nil {
					h.locks = append(h.locks, l)
				}
			case format.WriteFamily, format.MarkFamily:
				decode := format.DecodeWrite
				if family == format.MarkFamily {
					decode = format.DecodeMark
				}
				w, e := decode(cell, ts, item.Value)
				if err = e; e == nil {
					h.records = append(h.records, w)
				}
			}
			if err != nil {
				ck.report(RuleFormat, cell, "%v", err)
			}
		}
	}
	for _, h := range columns {
		ck.column(h)
	}
	for _, h := range columns {
		if ck.isPending(h, columns) {
			ck.pending = append(ck.pending, cellTime{h.cell, h.notify})
		}
	}
}

// isPending reports whether the newest notification of a column is that of a commit that one of
// its observers has not acknowledged. Its table has always had a journal.
func (ck *checker) isPending(h *history, columns map[format.Column]*history) bool {
	s := ck.table.Schema.Current()
	if h.notify == 0 || s.Journal != recordpb.Journal_JOURNAL_ALWAYS {
		return false
	}
	if n := len(h.records); n == 0 || h.records[n-1].CommitTS != h.notify {
		return false
	}
	r, _ := s.Registration(h.cell.Column())
	for _, id := range r.Observers {
		var acked tso.Timestamp
		if a := columns[format.AckColumn(h.cell.Column(), id)]; a != nil {
			for _, r := range a.records {
				if v := a.acks[r.StartTS]; len(v) == 8 {
					acked = max(acked, tso.Timestamp(binary.BigEndian.Uint64(v)))
				}
			}
		}
		if acked < h.notify {
			return true
		}
	}
	return false
}

// journal checks that pending notifications have journal entries. A worker may have removed
// both since the page was read.
func (ck *checker) journal(ctx context.Context) error {
	var cells []format.Cell
	for _, n := range ck.pending {
		cells = append(cells, n.cell)
	}
	entries, err := ck.client.Journal.Find(ctx, cells...)
	if err != nil {
		return err
	}
	for _, n := range ck.pending {
		if _, ok := entries[n.cell]; ok {
			continue
		}
		now, err := ck.table.ReadRow(ctx, n.cell.Row, store.Interleave(store.Chain(store.ExactColumn(format.NotifyFamily, n.cell.Column().Key()), store.At(n.ts))))
		if err != nil {
			return err
		}
		if len(now[format.NotifyFamily]) > 0 {
			ck.report(RuleJournal, n.cell, "the notification at %d is pending and has no journal entry; a sweep finds it within a day, percctl notify wait at once", n.ts)
		}
	}
	return nil
}

// failure checks the record of an observer's failure.
func (ck *checker) failure(row string, item bigtable.ReadItem) {
	cell, _, err := format.FailureCell(ck.table.Name, row, item)
	if err == nil {
		_, err = format.DecodeFailure(cell, item.Value)
	}
	if err != nil {
		ck.report(RuleFormat, cell, "%v", err)
	}
}

func (ck *checker) column(h *history) {
	ck.records(h)
	ck.locks(h)
	ck.data(h)
	if h.cell.Family == format.AckFamily {
		ck.acks(h)
	}
}

// acks checks an acknowledgment column. At most one observer transaction commits for
// each change only if the acknowledgments grow from commit to commit.
func (ck *checker) acks(h *history) {
	if _, _, ok := format.ObserverOf(h.cell.Column()); !ok {
		ck.report(RuleAck, h.cell, "the column names no observer")
		return
	}
	at := map[tso.Timestamp]tso.Timestamp{} // by start_ts
	for startTS, value := range h.acks {
		ack, err := format.DecodeAck(h.cell, value, startTS)
		if err != nil {
			ck.report(RuleAck, h.cell, "%v", err)
			return
		}
		at[startTS] = ack
	}
	var last format.WriteRecord
	for _, r := range h.records { // in order of commit_ts: records sorts them
		// A collection may keep a record without its value. If the value may not be missing, data
		// reports that.
		if _, ok := at[r.StartTS]; !ok || r.Kind != format.KindPut {
			continue
		}
		if last.CommitTS > 0 && at[r.StartTS] <= at[last.StartTS] {
			ck.report(RuleAck, h.cell, "the commit at %d acknowledges %d, after the one at %d acknowledged %d", r.CommitTS, at[r.StartTS], last.CommitTS, at[last.StartTS])
		}
		last = r
	}
}

func (ck *checker) records(h *history) {
	slices.SortFunc(h.records, func(a, b format.WriteRecord) int { return cmp.Compare(a.CommitTS, b.CommitTS) })
	seen := map[tso.Timestamp]format.WriteRecord{}
	var last format.WriteRecord
	for _, r := range h.records {
		if other, ok := seen[r.StartTS]; ok {
			ck.report(RuleOneRecord, h.cell, "the transaction that started at %d has a %v record at %d and a %v record at %d", r.StartTS, other.Kind, other.CommitTS, r.Kind, r.CommitTS)
		}
		seen[r.StartTS] = r
		if r.Kind == format.KindRollback {
			continue
		}
		if r.StartTS <= last.CommitTS {
			ck.report(RuleInterleaved, h.cell, "the version committed at %d started at %d, before the commit at %d", r.CommitTS, r.StartTS, last.CommitTS)
		}
		last = r
		if r.Primary != h.cell {
			ck.claims = append(ck.claims, claim{h.cell, r.Primary, r.StartTS, r.CommitTS})
		}
	}
	for _, l := range h.locks {
		if r, ok := seen[l.StartTS]; ok {
			ck.report(RuleOneRecord, h.cell, "the transaction that started at %d has a lock and a %v record at %d", l.StartTS, r.Kind, r.CommitTS)
		} else if l.StartTS <= last.CommitTS {
			ck.report(RuleOneLock, h.cell, "the lock at %d is older than the commit at %d", l.StartTS, last.CommitTS)
		}
	}
}

func (ck *checker) locks(h *history) {
	for _, l := range h.locks {
		ck.locked = append(ck.locked, cellTime{h.cell, l.StartTS})
		if !l.IsPrimary() {
			ck.claims = append(ck.claims, claim{h.cell, l.Primary, l.StartTS, 0})
		}
	}
	if n := len(h.locks); n > 1 {
		ck.report(RuleOneLock, h.cell, "%d locks, at %d and %d", n, h.locks[1].StartTS, h.locks[0].StartTS)
	}
}

func (ck *checker) data(h *history) {
	slices.Sort(h.data)
	owned := map[tso.Timestamp]bool{}
	need := func(startTS tso.Timestamp, kind format.Kind, what string) {
		owned[startTS] = true
		if _, ok := slices.BinarySearch(h.data, startTS); !ok && kind == format.KindPut {
			ck.report(RuleMissingData, h.cell, "%s names data at %d, which is not there", what, startTS)
		}
	}
	newest := tso.Timestamp(0) // commit at or below the safe point
	for _, r := range h.records {
		if (r.Kind == format.KindPut || r.Kind == format.KindDelete) && r.CommitTS <= ck.safePoint {
			newest = r.CommitTS
		}
	}
	for _, r := range h.records {
		switch {
		case r.Kind == format.KindPut && r.CommitTS < newest:
			// A roll-forward may have arrived after its version was collected. No read
			// can see it, and the next collection removes it.
			owned[r.StartTS] = true
		case r.Kind == format.KindPut:
			need(r.StartTS, r.Kind, fmt.Sprintf("the write record at %d", r.CommitTS))
		}
	}
	for _, l := range h.locks {
		if owned[l.StartTS] = true; l.StartTS > newest || l.IsPrimary() {
			need(l.StartTS, l.Kind, fmt.Sprintf("the lock at %d", l.StartTS))
		}
	}
	for _, ts := range h.data {
		ck.newest.raise(h.cell, ts)
		if !owned[ts] {
			ck.report(RuleOrphanData, h.cell, "data at %d belongs to no write record and no lock", ts)
		}
	}
}

// primaries compares the claims of a page with the primaries that they name. The
// secondaries were read first, so a committed secondary proves that its primary is
// committed by now.
func (ck *checker) primaries(ctx context.Context) error {
	type rowID struct{ table, row string }
	byRow := map[rowID][]claim{}
	rows := map[string][]string{}
	for _, c := range ck.claims {
		id := rowID{c.primary.Table, c.primary.Row}
		if byRow[id] == nil {
			rows[id.table] = append(rows[id.table], id.row)
		}
		byRow[id] = append(byRow[id], c)
	}
	var missing []claim
	gone := map[string]error{} // tables
	for name, keys := range rows {
		t, err := ck.client.Table(ctx, name)
		if err != nil && !errors.Is(err, format.ErrNotInitialized) && !errors.Is(err, format.ErrInvalid) {
			return err
		}
		if err != nil {
			gone[name] = err
			for _, key := range keys {
				missing = append(missing, byRow[rowID{name, key}]...)
			}
			continue
		}
		filter := func(*store.Table) bigtable.Filter {
			return store.Interleave(store.WholeFamily(format.LockFamily), store.WholeFamily(format.WriteFamily), store.WholeFamily(format.MarkFamily))
		}
		found := map[string]bool{}
		err = ck.client.Pages(ctx, name, bigtable.RowList(keys), filter, func(_ *store.Table, page []bigtable.Row) (bool, error) {
			for _, raw := range page {
				found[raw.Key()] = true
				missing = append(missing, ck.compare(t, raw, byRow[rowID{name, raw.Key()}])...)
			}
			return true, nil
		})
		if err != nil {
			return err
		}
		for _, key := range keys {
			if !found[key] {
				missing = append(missing, ck.compare(t, nil, byRow[rowID{name, key}])...)
			}
		}
	}
	// Read the safe point after the primaries, which may have been collected since
	// the page was read.
	p, err := ck.client.SafePoint.Current(ctx)
	if err != nil {
		return err
	}
	for _, c := range missing {
		if err := gone[c.primary.Table]; err != nil && (c.startTS > p || c.commitTS == 0 || errors.Is(err, format.ErrInvalid)) {
			ck.report(RulePrimary, c.cell, "its primary %s: %v", c.primary, err)
		} else if c.startTS > p && err == nil {
			ck.report(RuleAtomic, c.cell, "committed at %d by the transaction that started at %d, but its primary %s is not", c.commitTS, c.startTS, c.primary)
		}
	}
	return nil
}

// compare compares the claims about one row of primaries with what is stored in it,
// and returns those whose commit is missing.
func (ck *checker) compare(t *store.Table, raw bigtable.Row, claims []claim) (missing []claim) {
	for _, c := range claims {
		key := c.primary.Column().Key()
		for _, item := range raw[format.LockFamily] {
			if item.Column != format.LockFamily+":"+key || tso.FromCell(item.Timestamp) != c.startTS {
				continue
			}
			if l, err := format.DecodeLock(c.primary, c.startTS, item.Value); err == nil && !l.IsPrimary() {
				ck.report(RulePrimary, c.cell, "names %s as its primary, which names %s", c.primary, l.Primary)
			}
		}
		if c.commitTS == 0 {
			continue
		}
		var at []tso.Timestamp
		for _, family := range []string{format.WriteFamily, format.MarkFamily} {
			decode := format.DecodeWrite
			if family == format.MarkFamily {
				decode = format.DecodeMark
			}
			for _, item := range raw[family] {
				if item.Column != family+":"+key {
					continue
				}
				r, err := decode(c.primary, tso.FromCell(item.Timestamp), item.Value)
				if err == nil && r.StartTS == c.startTS && r.Kind != format.KindRollback {
					at = append(at, r.CommitTS)
				}
			}
		}
		switch {
		case len(at) == 0 && c.commitTS < t.Schema.Current().Adopted:
			// The table has left since, and its records with it.
		case len(at) == 0:
			missing = append(missing, c)
		case at[0] != c.commitTS:
			ck.report(RuleAtomic, c.cell, "committed at %d by the transaction that started at %d, but its primary %s at %d", c.commitTS, c.startTS, c.primary, at[0])
		}
	}
	return missing
}

// clock compares the newest timestamp of a page with the oracle's present time.
func (ck *checker) clock(ctx context.Context) error {
	if ck.newest.ts == 0 {
		return nil
	}
	now, err := ck.client.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	for _, l := range ck.locked {
		if l.ts >= now {
			ck.report(RuleFuture, l.cell, "a lock at %d, which blocks writers; the oracle is at %d", l.ts, now)
		}
	}
	if ck.newest.ts >= now && !slices.Contains(ck.locked, ck.newest) {
		ck.report(RuleFuture, ck.newest.cell, "stored timestamp %d; the oracle is at %d", ck.newest.ts, now)
	}
	return nil
}
