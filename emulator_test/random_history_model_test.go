package emulator_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// A historyTxn is a transaction that may have committed.
type historyTxn struct {
	name         string
	start        tso.Timestamp
	commit       tso.Timestamp         // 0: not committed
	ended        tso.Timestamp         // a time after the commit
	own          map[string]modelTable // by table
	locks        map[txn.Cell]bool     // besides what it has written
	serializable bool
	points       []pointRead // of a serializable transaction
	acks         map[txn.Cell]bool
	epoch        int
	job          bool          // a transaction of the job
	id           string        // the idempotency key
	settled      tso.Timestamp // known to have committed then, which the records have to say too
	never        string        // why it cannot have committed
}

// A pointRead is what a serializable transaction relies on.
type pointRead struct {
	table string
	row   string
	query query
	own   modelTable
}

func (x *historyTxn) put(table, row string, c txn.Column, v modelVersion) {
	if x.own[table] == nil {
		x.own[table] = modelTable{}
	}
	delete(x.own[table][row], c)
	x.own[table].put(row, c, v)
}

// ownOf copies what a transaction has written in a table.
func (x *historyTxn) ownOf(table string) modelTable {
	m := modelTable{}
	if x != nil {
		for row, columns := range x.own[table] {
			m[row] = maps.Clone(columns)
		}
	}
	return m
}

// An epoch is a time during which all expiries stay the same. No transaction runs between two.
type epoch struct {
	lasts map[string]time.Duration // by table/family
	ended tso.Timestamp            // when the next one began
}

// A generation is the time between two adoptions of table a. What is in the table when it leaves is
// what it begins with afterwards.
type generation struct {
	first   int                     // its first epoch
	left    tso.Timestamp           // when the table began to leave
	began   tso.Timestamp           // when it was adopted again
	plain   map[string]bigtable.Row // what was in table a, nil for the first one
	commits []*historyTxn
	checks  []func(*historyModel) error // of what clients have seen, in order of time
}

// A historyModel is the reference: versions of cells, and the rules of expiries. It is made at the end
// of a history, when all commits are known.
type historyModel struct {
	tables map[string]modelTable
	epochs []epoch
	first  int // epoch of the generation
	memo   map[string]verdict
}

// A verdict is what a read has found out about a value that had expired by an earlier expiry: whether
// garbage collection has removed it, or may, is up to the implementation. But it does not change.
type verdict struct {
	epoch int
	shown bool
}

// expired reports whether a version is hidden from a read at a timestamp, in an epoch. If unsure, it had
// expired before its expiry became longer, last in the epoch before.
func (m *historyModel) expired(table string, c txn.Column, v modelVersion, at tso.Timestamp, in int) (hidden, unsure bool, before int) {
	over := func(e int, at tso.Timestamp) bool {
		after := m.epochs[e].lasts[table+"/"+c.Family]
		return after > 0 && int64(at)-int64(v.shown) >= after.Microseconds()
	}
	if over(in, at) {
		return true, false, 0
	}
	for e := in - 1; e >= m.first; e-- {
		if over(e, m.epochs[e].ended) {
			return false, true, e
		}
	}
	return false, false, 0
}

// A model read is one evaluation of the model, beside what a client has seen.
type look struct {
	m      *historyModel
	in     int // epoch
	seen   map[string]bool
	unsure map[string]bool
}

func versionKey(table, row string, c txn.Column, shown bigtable.Timestamp) string {
	return fmt.Sprintf("%s %q %q @%d", table, row, c.Family+":"+c.Qualifier, shown)
}

// view is the state of a table: its newest versions up to a timestamp that have not expired at another
// one.
func (l *look) view(table string, upTo, at tso.Timestamp, own modelTable) modelView {
	return modelView{table: l.m.tables[table], at: upTo, own: own, hides: func(row string, c txn.Column, v modelVersion) bool {
		hidden, unsure, before := l.m.expired(table, c, v, at, l.in)
		if !unsure {
			return hidden
		}
		key := versionKey(table, row, c, v.shown)
		l.unsure[key] = true
		if f, ok := l.m.memo[key]; ok && f.epoch > before {
			return !f.shown
		}
		return !l.seen[key]
	}}
}

func (m *historyModel) look(in int) *look {
	return &look{m: m, in: in, seen: map[string]bool{}, unsure: map[string]bool{}}
}

// remember notes what a read has found out, if it was not cut off.
func (l *look) remember(whole bool) {
	for key := range l.unsure {
		if l.seen[key] || whole {
			l.m.memo[key] = verdict{l.in, l.seen[key]}
		}
	}
}

// see notes the versions in a row that was read.
func (l *look) see(table string, r bigtable.Row) {
	for family, items := range r {
		for _, item := range items {
			l.seen[versionKey(table, item.Row, txn.Column{Family: family, Qualifier: strings.TrimPrefix(item.Column, family+":")}, item.Timestamp)] = true
		}
	}
}

// rows compares rows that were read with the model. one is not "" if it is a read of one row.
func (m *historyModel) rows(what string, in int, table, one string, at tso.Timestamp, own modelTable, q query, got []bigtable.Row) error {
	l := m.look(in)
	var text []string
	for _, r := range got {
		l.see(table, r)
		text = append(text, rowText(r))
	}
	view := l.view(table, at, at, own)
	var want []string
	if one == "" {
		want = view.readRows(q)
	} else if s := view.readRow(one, q); s != "" {
		want = []string{s}
	}
	if err := compare(what, want, text); err != nil {
		return err
	}
	l.remember(q.limit == 0 && q.cellsPerRow == 0)
	return nil
}

// cell compares a cell that was read with the model.
func (m *historyModel) cell(what string, in int, cell txn.Cell, at tso.Timestamp, own modelTable, value []byte, ok bool) error {
	l := m.look(in)
	c := cell.Column()
	for _, v := range m.tables[cell.Table][cell.Row][c] {
		l.seen[versionKey(cell.Table, cell.Row, c, v.shown)] = ok
	}
	want, present := l.view(cell.Table, at, at, own).cell(cell.Row, c)
	if present != ok || ok && string(want.value) != string(value) {
		return fmt.Errorf("%s: %v is %q, %v; want %q, %v", what, cell, value, ok, want.value, present)
	}
	l.remember(true)
	return nil
}

// newest returns the newest version of a cell up to a timestamp, expired or not.
func (m *historyModel) newest(cell txn.Cell, upTo tso.Timestamp) (v modelVersion, ok bool) {
	for _, o := range m.tables[cell.Table][cell.Row][cell.Column()] {
		if o.at <= upTo {
			v, ok = o, true
		}
	}
	return v, ok
}

// keyOwners returns the rows of table a by the value of an indexed column.
func (m *historyModel) keyOwners(c txn.Column, at tso.Timestamp, own modelTable) map[string][]string {
	owners := map[string][]string{}
	view := modelView{table: m.tables["a"], at: at, own: own}
	rows := map[string]bool{}
	for _, t := range []modelTable{view.table, own} {
		for row := range t {
			rows[row] = true
		}
	}
	for _, row := range slices.Sorted(maps.Keys(rows)) {
		if v, ok := view.cell(row, c); ok {
			owners[string(v.value)] = append(owners[string(v.value)], row)
		}
	}
	return owners
}

// replay makes the model of one generation after the other, and checks what clients have seen in it.
func (h *randomHistory) replay() error {
	m := &historyModel{tables: map[string]modelTable{"a": {}, "b": {}}, epochs: h.epochs, memo: map[string]verdict{}}
	for i, g := range h.gens {
		if g.plain != nil {
			if err := m.adopt(i == 0, g); err != nil {
				return err
			}
		}
		m.first = g.first
		slices.SortFunc(g.commits, func(a, b *historyTxn) int { return cmp.Compare(a.commit, b.commit) })
		for _, x := range g.commits {
			for table, rows := range x.own {
				for row, columns := range rows {
					for c, v := range columns {
						m.tables[table].put(row, c, modelVersion{at: x.commit, shown: bigtable.Timestamp(x.commit), value: v[0].value, gone: v[0].gone})
					}
				}
			}
		}
		var failed []error
		for j, check := range g.checks {
			if err := check(m); err != nil && len(failed) < 3 {
				failed = append(failed, fmt.Errorf("adoption %d, check %d: %w", i, j, err))
			}
		}
		failed = append(failed, m.isolated(g.commits), h.observed(m, g))
		if err := errors.Join(failed...); err != nil {
			return err
		}
	}
	return nil
}

// adopt replaces what transactions have written in table a by what was there after it had left.
func (m *historyModel) adopt(first bool, g *generation) error {
	after := modelTable{}
	for key, r := range g.plain {
		for family, items := range r {
			for _, item := range items {
				c := txn.Column{Family: family, Qualifier: strings.TrimPrefix(item.Column, family+":")}
				if len(after[key][c]) == 0 { // the newest
					after.put(key, c, modelVersion{shown: item.Timestamp, value: item.Value})
				}
			}
		}
	}
	if !first {
		for row, columns := range m.tables["a"] {
			for c, versions := range columns {
				v := versions[len(versions)-1]
				hidden, unsure, _ := m.expired("a", c, v, g.left, g.first)
				// It may have expired while the table left.
				soon, _, _ := m.expired("a", c, v, g.began, g.first)
				got := after[row][c]
				switch {
				case v.gone || hidden:
					// An expired plain value is left to the policy.
					if len(got) > 0 && v.at > 0 {
						return fmt.Errorf("the plain table has %q %v, which was deleted or has expired", row, c)
					}
				case len(got) == 0 && (unsure || soon):
				case len(got) == 0 || string(got[0].value) != string(v.value) || got[0].shown != v.shown.TruncateToMilliseconds():
					return fmt.Errorf("after the table has left, %q %v is %+v; the newest value is %q @%d", row, c, got, v.value, v.shown)
				}
			}
		}
		for row, columns := range after {
			for c := range columns {
				if len(m.tables["a"][row][c]) == 0 {
					return fmt.Errorf("the plain table has %q %v, which nobody wrote", row, c)
				}
			}
		}
	}
	m.tables["a"] = after
	m.memo = map[string]verdict{}
	return nil
}

// isolated checks that no two transactions overlap that wrote or locked the same cell, and that what
// serializable transactions have read was still so at their commits.
func (m *historyModel) isolated(commits []*historyTxn) error {
	last := map[txn.Cell]*historyTxn{}
	for _, x := range commits {
		var cells []txn.Cell
		for table, rows := range x.own {
			for row, columns := range rows {
				for c := range columns {
					cells = append(cells, txn.Cell{Table: table, Row: row, Family: c.Family, Qualifier: c.Qualifier})
				}
			}
		}
		cells = slices.AppendSeq(cells, maps.Keys(x.locks))
		if len(cells) == 0 {
			continue
		}
		for _, c := range cells {
			if o := last[c]; o != nil && o != x && o.commit > x.start {
				return fmt.Errorf("%s (%d to %d) and %s (%d to %d) overlap, and both wrote or locked %v", x.name, x.start, x.commit, o.name, o.start, o.commit, c)
			}
			last[c] = x
		}
		for _, p := range x.points {
			then, now := m.look(x.epoch), m.look(x.epoch)
			a := then.view(p.table, x.start, x.start, p.own).readRow(p.row, p.query)
			b := now.view(p.table, x.commit-1, x.commit, p.own).readRow(p.row, p.query)
			if a != b && len(then.unsure)+len(now.unsure) == 0 {
				return fmt.Errorf("%s is serializable, began at %d and committed at %d; it has read\n%swhich is then\n%s(%v)", x.name, x.start, x.commit, a, b, p.query)
			}
		}
	}
	return nil
}

// observed checks that each committed run of the observer had a change that the run before had not seen,
// and that none is left.
func (h *randomHistory) observed(m *historyModel, g *generation) error {
	last := map[txn.Cell]tso.Timestamp{}
	for _, x := range g.commits {
		for cell := range x.acks {
			v, ok := m.newest(cell, x.start)
			switch changed := max(v.at, 1); {
			case !ok:
				return fmt.Errorf("%s observed %v, which never changed", x.name, cell)
			case changed <= last[cell]:
				return fmt.Errorf("%s observed the change of %v at %d once more, after a run that began at %d", x.name, cell, changed, last[cell])
			}
			last[cell] = x.start
		}
	}
	for row, columns := range m.tables["a"] {
		cell := historyCell("a", row, observedColumn)
		if v, ok := m.newest(cell, forever); ok && v.at > last[cell] && len(columns) > 0 {
			return fmt.Errorf("no run has seen the change of %v at %d; the last one began at %d", cell, v.at, last[cell])
		}
	}
	return nil
}
