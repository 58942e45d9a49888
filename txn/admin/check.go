package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn"
	txnformat "github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A Rule is one invariant of the stored state.
type Rule string

// The rules that Check verifies.
const (
	// RuleFormat: every metadata qualifier names a family:qualifier of the
	// table and every record parses, is of a kind that fits its family, and has
	// start_ts < commit_ts.
	RuleFormat Rule = "format"
	// RuleInterleaved: versions of a column never interleave; each commit is
	// before the start of the next.
	RuleInterleaved Rule = "interleaved versions"
	// RuleOneLock: a cell has at most one lock, newer than its newest commit.
	RuleOneLock Rule = "one lock"
	// RuleOneRecord: a transaction leaves at most one record (write, lock-only
	// mark or rollback marker) in a cell, and no lock beside it.
	RuleOneRecord Rule = "one record"
	// RuleMissingData: each put's write record and each put's lock has its data
	// cell at start_ts.
	RuleMissingData Rule = "missing data"
	// RuleOrphanData: each data cell of a transaction belongs to a write record
	// or a lock.
	RuleOrphanData Rule = "orphan data"
	// RuleAtomic: a committed secondary's primary is committed with the same
	// start_ts and commit_ts.
	RuleAtomic Rule = "half commit"
	// RulePrimary: a lock's primary is a cell of a transactional table, and a
	// lock of the same transaction there calls itself primary.
	RulePrimary Rule = "primary"
	// RuleAck: an acknowledgment names an observer, is 8 bytes, is not above the
	// start_ts of the transaction that wrote it, and never goes back.
	RuleAck Rule = "acknowledgment"
	// RuleFuture: no timestamp is above what the oracle hands out now.
	RuleFuture Rule = "timestamp above the oracle"
)

// A Violation is a place where the stored state contradicts the protocol.
type Violation struct {
	Rule   Rule
	Cell   txnformat.Cell
	Detail string
}

// String names the cell, the rule and the facts.
func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Cell, v.Rule, v.Detail) }

// Check verifies the stored state of rows of a table (nil: all rows) against
// the invariants named by the Rules, and iterates over what contradicts them.
// It reads in pages, changes nothing, and may run beside live transactions:
// rows are read atomically, and a secondary always before its primary. A lock
// is no violation, not even one whose primary holds no trace of its
// transaction: that is what a crash leaves, and what Resolve ends; see Locks.
// What no stored byte tells it cannot see: a secondary that was lost with its
// lock, plain writes, and what garbage collection has taken: a committed
// secondary at or below the safe point may have outlived its primary's record.
func Check(ctx context.Context, client *txn.Client, tableName string, rs bigtable.RowSet) iter.Seq2[Violation, error] {
	c := access.Resolver(client)
	return func(yield func(Violation, error) bool) {
		t, err := c.Table(ctx, tableName)
		if err == nil {
			_, err = t.Schema.Fresh(ctx)
		}
		if err != nil {
			yield(Violation{}, err)
			return
		}
		err = c.Pages(ctx, tableName, rs, allVersions, func(t *store.Table, page []bigtable.Row) (bool, error) {
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

// allVersions reads all versions of a row, data without its values.
func allVersions(t *store.Table) bigtable.Filter {
	filters := []bigtable.Filter{store.WholeFamily(txnformat.LockFamily), store.WholeFamily(txnformat.WriteFamily), store.WholeFamily(txnformat.MarkFamily), store.WholeFamily(txnformat.NotifyFamily)}
	for _, f := range t.Schema.Current().Families {
		if f == txnformat.AckFamily {
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
	// safePoint is one that every collection that began before the page was read
	// is at or below.
	safePoint tso.Timestamp
	newest    tso.Timestamp
	at        txnformat.Cell // where newest is
	// claims are commits and locks of secondaries, to be held against their
	// primaries.
	claims []claim
}

type claim struct {
	cell, primary     txnformat.Cell
	startTS, commitTS tso.Timestamp // commitTS is 0 for a lock
}

func (ck *checker) report(rule Rule, cell txnformat.Cell, format string, args ...any) {
	ck.found = append(ck.found, Violation{rule, cell, fmt.Sprintf(format, args...)})
}

func (ck *checker) note(cell txnformat.Cell, ts tso.Timestamp) {
	if ts > ck.newest {
		ck.newest, ck.at = ts, cell
	}
}

// history is everything stored of one column of one row.
type history struct {
	cell    txnformat.Cell
	locks   []*txnformat.Lock
	records []txnformat.WriteRecord // writes and marks
	data    []tso.Timestamp
	acks    map[tso.Timestamp][]byte // values of an acknowledgment column
}

func (ck *checker) row(raw bigtable.Row) {
	columns := map[txnformat.Column]*history{}
	get := func(cell txnformat.Cell) *history {
		h := columns[cell.Column()]
		if h == nil {
			h = &history{cell: cell}
			columns[cell.Column()] = h
		}
		return h
	}
	for family, items := range raw {
		for _, item := range items {
			if !txnformat.IsMetadataFamily(family) {
				if item.Timestamp >= txnformat.PrePercolator {
					c, _ := txnformat.SplitColumn(item.Column)
					h := get(txnformat.Cell{Table: ck.table.Name, Row: raw.Key(), Family: c.Family, Qualifier: c.Qualifier})
					h.data = append(h.data, tso.FromCell(item.Timestamp))
					if family == txnformat.AckFamily {
						if h.acks == nil {
							h.acks = map[tso.Timestamp][]byte{}
						}
						h.acks[tso.FromCell(item.Timestamp)] = item.Value
					}
				}
				continue
			}
			if family == txnformat.NotifyFamily && txnformat.IsFailure(item) {
				ck.failure(raw.Key(), item)
				continue
			}
			_, cell, err := txnformat.MetadataCell(ck.table.Name, raw.Key(), item)
			if err != nil {
				ck.report(RuleFormat, txnformat.Cell{Table: ck.table.Name, Row: raw.Key(), Family: family}, "%v", err)
				continue
			}
			if !ck.table.Schema.Current().HasFamily(cell.Family) {
				ck.report(RuleFormat, cell, "metadata in family %s for a family that the table does not have", family)
			}
			ts := tso.FromCell(item.Timestamp)
			ck.note(cell, ts)
			h := get(cell)
			switch family {
			case txnformat.LockFamily:
				l, e := txnformat.DecodeLock(cell, ts, item.Value)
				if err = e; e == nil {
					h.locks = append(h.locks, l)
				}
			case txnformat.WriteFamily, txnformat.MarkFamily:
				decode := txnformat.DecodeWrite
				if family == txnformat.MarkFamily {
					decode = txnformat.DecodeMark
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
}

// failure checks the record of an observer's failure.
func (ck *checker) failure(row string, item bigtable.ReadItem) {
	cell, _, err := txnformat.FailureCell(ck.table.Name, row, item)
	if err == nil {
		_, err = txnformat.DecodeFailure(cell, item.Value)
	}
	if err != nil {
		ck.report(RuleFormat, cell, "%v", err)
	}
}

func (ck *checker) column(h *history) {
	ck.records(h)
	ck.locks(h)
	ck.data(h)
	if h.cell.Family == txnformat.AckFamily {
		ck.acks(h)
	}
}

// acks checks an acknowledgment column: at most one observer transaction commits
// for each change only as long as its values grow with its commits.
func (ck *checker) acks(h *history) {
	_, observer, ok := txnformat.ObserverOf(h.cell.Column())
	if !ok {
		ck.report(RuleAck, h.cell, "the column names no observer")
		return
	}
	at := map[tso.Timestamp]tso.Timestamp{} // by start_ts
	for startTS, value := range h.acks {
		ack, err := txnformat.DecodeAck(h.cell, observer, value)
		switch {
		case err != nil:
			ck.report(RuleAck, h.cell, "%v", err)
			return
		case ack > startTS:
			ck.report(RuleAck, h.cell, "acknowledges %d, by a transaction that started at %d", ack, startTS)
		}
		at[startTS] = ack
	}
	var last txnformat.WriteRecord
	for _, r := range h.records { // in order of commit_ts, see records
		if r.Kind != txnformat.KindPut {
			continue
		}
		if last.CommitTS > 0 && at[r.StartTS] <= at[last.StartTS] {
			ck.report(RuleAck, h.cell, "the commit at %d acknowledges %d, after the one at %d acknowledged %d", r.CommitTS, at[r.StartTS], last.CommitTS, at[last.StartTS])
		}
		last = r
	}
}

func (ck *checker) records(h *history) {
	slices.SortFunc(h.records, func(a, b txnformat.WriteRecord) int { return cmp.Compare(a.CommitTS, b.CommitTS) })
	seen := map[tso.Timestamp]txnformat.WriteRecord{}
	var last txnformat.WriteRecord
	for _, r := range h.records {
		if other, ok := seen[r.StartTS]; ok {
			ck.report(RuleOneRecord, h.cell, "the transaction that started at %d has a %v record at %d and a %v record at %d", r.StartTS, other.Kind, other.CommitTS, r.Kind, r.CommitTS)
		}
		seen[r.StartTS] = r
		if r.Kind == txnformat.KindRollback {
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
			ck.report(RuleOneRecord, h.cell, "the transaction that started at %d has a lock beside its %v record at %d", l.StartTS, r.Kind, r.CommitTS)
		} else if l.StartTS <= last.CommitTS {
			ck.report(RuleOneLock, h.cell, "the lock at %d is older than the commit at %d", l.StartTS, last.CommitTS)
		}
	}
}

func (ck *checker) locks(h *history) {
	if len(h.locks) > 1 {
		ck.report(RuleOneLock, h.cell, "%d locks, at %d and %d", len(h.locks), h.locks[0].StartTS, h.locks[1].StartTS)
	}
	for _, l := range h.locks {
		if !l.IsPrimary() {
			ck.claims = append(ck.claims, claim{h.cell, l.Primary, l.StartTS, 0})
		}
	}
}

func (ck *checker) data(h *history) {
	slices.Sort(h.data)
	owned := map[tso.Timestamp]bool{}
	need := func(startTS tso.Timestamp, kind txnformat.Kind, what string) {
		owned[startTS] = true
		if _, ok := slices.BinarySearch(h.data, startTS); !ok && kind == txnformat.KindPut {
			ck.report(RuleMissingData, h.cell, "%s names data at %d, which is not there", what, startTS)
		}
	}
	newest := tso.Timestamp(0) // commit at or below the safe point
	for _, r := range h.records {
		if (r.Kind == txnformat.KindPut || r.Kind == txnformat.KindDelete) && r.CommitTS <= ck.safePoint {
			newest = r.CommitTS
		}
	}
	for _, r := range h.records {
		switch {
		case r.Kind == txnformat.KindPut && r.CommitTS < newest:
			// A roll-forward may have come after its version was collected. Nobody
			// reads it, and the next collection takes it away.
			owned[r.StartTS] = true
		case r.Kind == txnformat.KindPut:
			need(r.StartTS, r.Kind, fmt.Sprintf("the write record at %d", r.CommitTS))
		}
	}
	for _, l := range h.locks {
		need(l.StartTS, l.Kind, fmt.Sprintf("the lock at %d", l.StartTS))
	}
	for _, ts := range h.data {
		ck.note(h.cell, ts)
		if !owned[ts] {
			ck.report(RuleOrphanData, h.cell, "data at %d belongs to no write record and no lock", ts)
		}
	}
}

// primaries holds the claims of a page against the primaries they name. The
// secondaries were read before: a committed one proves that its primary is
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
	for name, keys := range rows {
		t, err := ck.client.Table(ctx, name)
		if err != nil && !errors.Is(err, txnformat.ErrNotInitialized) && !errors.Is(err, txnformat.ErrInvalid) {
			return err
		}
		if err != nil {
			for _, key := range keys {
				for _, c := range byRow[rowID{name, key}] {
					ck.report(RulePrimary, c.cell, "its primary %s: %v", c.primary, err)
				}
			}
			continue
		}
		filter := func(*store.Table) bigtable.Filter {
			return store.Interleave(store.WholeFamily(txnformat.LockFamily), store.WholeFamily(txnformat.WriteFamily), store.WholeFamily(txnformat.MarkFamily))
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
	// Only now: the primaries may have been collected since the page was read.
	p, err := ck.client.SafePoint.Current(ctx)
	if err != nil {
		return err
	}
	for _, c := range missing {
		if c.startTS > p {
			ck.report(RuleAtomic, c.cell, "committed at %d by the transaction that started at %d, but its primary %s is not", c.commitTS, c.startTS, c.primary)
		}
	}
	return nil
}

// compare compares the claims on one primary row with what is stored in it, and
// returns those whose commit is not there.
func (ck *checker) compare(t *store.Table, raw bigtable.Row, claims []claim) (missing []claim) {
	for _, c := range claims {
		key := c.primary.Column().Key()
		for _, item := range raw[txnformat.LockFamily] {
			if item.Column != txnformat.LockFamily+":"+key || tso.FromCell(item.Timestamp) != c.startTS {
				continue
			}
			if l, err := txnformat.DecodeLock(c.primary, c.startTS, item.Value); err == nil && !l.IsPrimary() {
				ck.report(RulePrimary, c.cell, "names %s as its primary, which names %s", c.primary, l.Primary)
			}
		}
		if c.commitTS == 0 {
			continue
		}
		var at []tso.Timestamp
		for _, family := range []string{txnformat.WriteFamily, txnformat.MarkFamily} {
			decode := txnformat.DecodeWrite
			if family == txnformat.MarkFamily {
				decode = txnformat.DecodeMark
			}
			for _, item := range raw[family] {
				if item.Column != family+":"+key {
					continue
				}
				r, err := decode(c.primary, tso.FromCell(item.Timestamp), item.Value)
				if err == nil && r.StartTS == c.startTS && r.Kind != txnformat.KindRollback {
					at = append(at, r.CommitTS)
				}
			}
		}
		switch {
		case len(at) == 0:
			missing = append(missing, c)
		case at[0] != c.commitTS:
			ck.report(RuleAtomic, c.cell, "committed at %d by the transaction that started at %d, but its primary %s at %d", c.commitTS, c.startTS, c.primary, at[0])
		}
	}
	return missing
}

// clock compares the newest timestamp of a page with the oracle's present.
func (ck *checker) clock(ctx context.Context) error {
	if ck.newest == 0 {
		return nil
	}
	now, err := ck.client.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	if ck.newest >= now {
		ck.report(RuleFuture, ck.at, "stored timestamp %d; the oracle is at %d", ck.newest, now)
	}
	return nil
}
