package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/internal/combination"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/idempotency"
	"github.com/percolator-bigtable/percolator/txn/index"
)

var (
	observedColumn = txn.Column{Family: "f", Qualifier: "observed"}
	uniqueColumn   = txn.Column{Family: "g", Qualifier: "unique"}
	cityColumn     = txn.Column{Family: "g", Qualifier: "city"}
	jobColumn      = txn.Column{Family: "z", Qualifier: "job"}

	historyColumns = []txn.Column{{Family: "f", Qualifier: "q"}, observedColumn, {Family: "f", Qualifier: "r"}, {Family: "g", Qualifier: "q"}, uniqueColumn, cityColumn}
	historyRows    = []string{"r00", "r01", "r02", "r03", "r04", "r05", "r06", "r07", "r08", "r09"}
)

// historyKeys is how many keys the unique index has.
const historyKeys = 6

func historyCell(table, row string, c txn.Column) txn.Cell {
	return txn.Cell{Table: table, Row: row, Family: c.Family, Qualifier: c.Qualifier}
}

// A historySession is what one client does in a minute: a transaction, and reads beside it.
type historySession struct {
	*randomHistory
	name   string
	client int
	p      *historyProcess
	rnd    *rand.Rand
	plan   combination.Session
	used   combination.Set
	ends   []tso.Timestamp // when values expire that it has read
	x      *historyTxn     // the transaction's attempt
	tx     *txn.Txn
	gaveUp bool // the commit
}

// maybe reports whether a read or the transaction has an option: the first that can, and most others.
func (s *historySession) maybe(option string) bool {
	return s.plan.Options.Has(option) && (!s.used.Has(option) || s.rnd.IntN(4) > 0)
}

func (s *historySession) use(feature string) { s.used |= combination.Of(feature) }

func (s *historySession) row() string { return historyRows[s.rnd.IntN(1+s.rnd.IntN(len(historyRows)))] }

func (s *historySession) column() txn.Column { return historyColumns[s.rnd.IntN(len(historyColumns))] }

func (s *historySession) pause(chance int, longest time.Duration) {
	if s.rnd.IntN(chance) == 0 {
		<-time.After(time.Duration(s.rnd.Int64N(int64(longest))))
	}
}

// query draws what a read chooses.
func (s *historySession) query() query {
	q := query{}
	if s.maybe("Columns") || s.x != nil && s.x.serializable && s.rnd.IntN(8) > 0 {
		s.use("Columns")
		for range 1 + s.rnd.IntN(3) {
			q.columns = append(q.columns, s.column())
		}
	}
	scans := !s.x.isSerializable() || s.rnd.IntN(8) == 0
	if s.maybe("Families") && (scans || !s.used.Has("Families")) {
		s.use("Families")
		q.families = []string{[]string{"f", "g", "z"}[s.rnd.IntN(3)]}
	}
	if s.maybe("Qualifiers") && (scans || !s.used.Has("Qualifiers")) {
		s.use("Qualifiers")
		q.qualifiersOf, q.start, q.end = []string{"f", "g"}[s.rnd.IntN(2)], "", "r"
		if s.rnd.IntN(2) == 0 {
			q.start, q.end = "q", ""
		}
	}
	if s.maybe("KeysOnly") {
		s.use("KeysOnly")
		q.keysOnly = true
	}
	if s.maybe("CellsPerRow") {
		s.use("CellsPerRow")
		q.cellsPerRow = 1 + s.rnd.IntN(2)
	}
	return q
}

func (x *historyTxn) isSerializable() bool { return x != nil && x.serializable }

// rowSet completes a query of rows.
func (s *historySession) rowSet(q query) query {
	switch s.rnd.IntN(3) {
	case 0:
		q.rows, q.contains, q.text = nil, func(string) bool { return true }, "all rows"
	case 1:
		from, to := s.row(), s.row()
		from, to = min(from, to), max(from, to)
		q.rows, q.contains, q.text = bigtable.NewClosedRange(from, to), func(k string) bool { return from <= k && k <= to }, from+" to "+to
	}
	if q.text == "" || s.x.isSerializable() && s.rnd.IntN(8) > 0 {
		list := bigtable.RowList{s.row(), s.row(), s.row()}
		q.rows, q.contains, q.text = list, func(k string) bool { return slices.Contains(list, k) }, fmt.Sprintf("list %q", list)
	}
	if s.maybe("Limit") {
		s.use("Limit")
		q.limit = 1 + s.rnd.IntN(3)
	}
	if s.maybe("Reverse") {
		s.use("Reverse")
		q.reverse = true
	}
	return q
}

// refused reports whether a read of a serializable transaction may be refused, and was.
func (s *historySession) refused(point bool, err error) (bool, error) {
	switch is := errors.Is(err, txn.ErrSerializableScan); {
	case s.x.isSerializable() && !point && !is:
		return false, fmt.Errorf("a serializable transaction may scan: %w", err)
	case is && (point || !s.x.isSerializable()):
		return false, err
	default:
		return is, nil
	}
}

func (s *historySession) saw(what string, table, one string, at tso.Timestamp, own modelTable, q query, rows []bigtable.Row) {
	what = fmt.Sprintf("%s: %s of %s at %d, %v", s.name, what, table, at, q)
	in := s.epochNow()
	s.check(func(m *historyModel) error { return m.rows(what, in, table, one, at, own, q, rows) })
	for _, r := range rows {
		for _, item := range r["f"] {
			s.expires(table, at, item.Timestamp)
		}
	}
}

// expires notes when a value of family f expires that the transaction has read.
func (s *historySession) expires(table string, at tso.Timestamp, shown bigtable.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lasts := s.epochs[len(s.epochs)-1].lasts[table+"/f"]; lasts > 0 && s.x != nil && at == s.x.start && shown > 0 {
		s.ends = append(s.ends, tso.Timestamp(int64(shown)+lasts.Microseconds()))
	}
}

// outlive waits until the first value has expired that the serializable transaction has read: it must not
// commit any more.
func (s *historySession) outlive(ctx context.Context) error {
	now := s.now()
	ends := slices.DeleteFunc(s.ends, func(end tso.Timestamp) bool { return end <= now })
	if !s.x.serializable || len(ends) == 0 || s.rnd.IntN(4) == 0 {
		return nil
	}
	if left := -s.age(slices.Min(ends)); left < 6*time.Minute {
		<-time.After(left + time.Millisecond)
	}
	return historyOperations["Set in b"](s, ctx)
}

// begin begins an attempt of the session's transaction.
func (s *historySession) begin(tx *txn.Txn) {
	s.tx, s.ends = tx, nil
	s.x = &historyTxn{
		name: s.name, start: tx.StartTS(), own: map[string]modelTable{}, locks: map[txn.Cell]bool{}, acks: map[txn.Cell]bool{},
		serializable: s.plan.Options.Has("Serializable"), epoch: s.epochNow(),
	}
}

// A historyOracle answers its next request late, with a timestamp of that time.
type historyOracle struct {
	tso.Oracle
	late atomic.Int64
}

func (o *historyOracle) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if late := time.Duration(o.late.Swap(0)); late > 0 {
		<-time.After(late)
	}
	return o.Oracle.Timestamp(ctx)
}

// rival makes the session begin late. Meanwhile another client changes a cell, and the observed one of its
// row. The session calls end.
func (s *historySession) rival(cell txn.Cell) (end func()) {
	r := &historySession{randomHistory: s.randomHistory, name: "the rival of " + s.name, client: (s.client + 1) % combination.Clients, rnd: rand.New(rand.NewPCG(s.rnd.Uint64(), 0))}
	s.p.late.late.Store(int64(5 * time.Second))
	r.p = s.process(r.client)
	var rival sync.WaitGroup
	rival.Go(func() {
		<-time.After(200 * time.Millisecond)
		tx, err := r.p.Begin(r.p.ctx)
		if err != nil {
			if !r.p.net.isDead() {
				r.t.Errorf("%s: %v", r.name, err)
			}
			return
		}
		r.begin(tx)
		r.set(cell.Row, cell.Column())
		r.set(cell.Row, observedColumn)
		ts, err := tx.Commit(r.p.ctx)
		if err := r.committed(ts, err); err != nil {
			r.t.Errorf("%s: %v", r.name, err)
		}
	})
	return rival.Wait
}

// validate notes what a serializable transaction relies on, and locks.
func (s *historySession) validate(table string, rows []string, q query) {
	if !s.x.serializable {
		return
	}
	for _, row := range rows {
		s.x.points = append(s.x.points, pointRead{table, row, q, s.x.ownOf(table)})
		for _, c := range q.columns {
			s.x.locks[historyCell(table, row, c)] = true
		}
	}
}

// get reads a cell in the transaction.
func (s *historySession) get(ctx context.Context, cell txn.Cell, forUpdate bool) error {
	t := s.tx.Table(cell.Table)
	read := t.Get
	if forUpdate {
		s.use("GetForUpdate")
		read = t.GetForUpdate
	}
	s.use("Get")
	own := s.x.ownOf(cell.Table)
	v, ok, err := read(ctx, cell.Row, cell.Family, cell.Qualifier)
	if err != nil {
		return err
	}
	what, in, at := fmt.Sprintf("%s: Get at %d (for update: %v)", s.name, s.x.start, forUpdate), s.epochNow(), s.x.start
	s.check(func(m *historyModel) error { return m.cell(what, in, cell, at, own, v, ok) })
	s.validate(cell.Table, []string{cell.Row}, query{columns: []txn.Column{cell.Column()}})
	if forUpdate {
		s.x.locks[cell] = true
	}
	return nil
}

// historyOperations are what a transaction, or its session, can do. Each feature of a name is one.
var historyOperations = map[string]func(s *historySession, ctx context.Context) error{
	"Get": func(s *historySession, ctx context.Context) error {
		return s.get(ctx, historyCell("a", s.row(), s.column()), false)
	},
	"GetForUpdate": func(s *historySession, ctx context.Context) error {
		return s.get(ctx, historyCell("a", s.row(), s.column()), true)
	},
	"ReadRow": func(s *historySession, ctx context.Context) error {
		row, q := s.row(), s.query()
		own := s.x.ownOf("a")
		r, err := s.tx.Table("a").ReadRow(ctx, row, q.selection()...)
		s.use("ReadRow")
		if no, wrong := s.refused(q.isPoint(), err); no || wrong != nil {
			return wrong
		}
		if err == nil {
			s.validate("a", []string{row}, q)
			s.saw("ReadRow "+row, "a", row, s.x.start, own, q, some(r))
		}
		return err
	},
	"ReadRows": func(s *historySession, ctx context.Context) error {
		q := s.rowSet(s.query())
		own := s.x.ownOf("a")
		rows, err := collectRows(s.tx.Table("a").ReadRows(ctx, q.rows, q.options()...))
		s.use("ReadRows")
		list, isList := q.rows.(bigtable.RowList)
		if no, wrong := s.refused(q.isPoint() && isList, err); no || wrong != nil {
			return wrong
		}
		if err == nil {
			s.saw("ReadRows", "a", "", s.x.start, own, q, rows)
			if q.limit == 0 {
				one := q
				one.rows, one.contains = nil, nil
				s.validate("a", list, one)
			} else if s.x.serializable {
				for _, row := range list {
					for _, c := range q.columns {
						s.x.locks[historyCell("a", row, c)] = true
					}
				}
			}
		}
		return err
	},
	"several tables": func(s *historySession, ctx context.Context) error {
		s.use("several tables")
		cells := []txn.Cell{historyCell("a", s.row(), s.column()), historyCell("b", s.row(), historyColumns[0]), historyCell("a", s.row(), s.column())}
		a, b := s.x.ownOf("a"), s.x.ownOf("b")
		got, err := readTables(ctx, s.tx.Table, cells)
		if err != nil {
			return err
		}
		in, at, what := s.epochNow(), s.x.start, s.name+": several tables"
		for _, c := range cells {
			v, ok := got[c]
			own := map[string]modelTable{"a": a, "b": b}[c.Table]
			s.check(func(m *historyModel) error { return m.cell(what, in, c, at, own, v, ok) })
		}
		for _, c := range cells { // each row is read in all columns of its table
			for _, o := range cells {
				if o.Table == c.Table {
					s.validate(c.Table, []string{c.Row}, query{columns: []txn.Column{o.Column()}})
				}
			}
		}
		return nil
	},
	"Observe": func(s *historySession, ctx context.Context) error {
		cell := historyCell("a", s.row(), observedColumn)
		if !s.observing {
			return nil
		}
		s.use("Observe")
		o, err := changes.Observe(ctx, s.tx, cell)
		if err != nil {
			return err
		}
		s.expires("a", s.x.start, bigtable.Timestamp(o.ChangeTS))
		what, at, in := s.name+": Observe", s.x.start, s.epochNow()
		s.check(func(m *historyModel) error {
			v, ok := m.newest(cell, at)
			want := v.at
			if ok {
				want = max(v.at, 1)
			}
			hidden, unsure, _ := m.expired("a", observedColumn, v, at, in)
			if o.ChangeTS != want && !(o.ChangeTS == 0 && (v.gone || hidden || unsure)) {
				return fmt.Errorf("%s: the newest change of %v at %d is %d, want %d", what, cell, at, o.ChangeTS, want)
			}
			return nil
		})
		if s.rnd.IntN(2) == 0 && o.Pending("observer") {
			changes.Acknowledge(s.tx, o, "observer")
			s.x.acks[cell] = true
		}
		return s.get(ctx, cell, false)
	},
	"index read": func(s *historySession, ctx context.Context) error {
		key := fmt.Sprint("k", s.rnd.IntN(historyKeys))
		s.use("index read")
		ready, at := s.indexReady(), s.x.start
		row, ok, err := s.unique.In(s.tx).Get(ctx, "n", key)
		if errors.Is(err, index.ErrState) && (ready == 0 || at <= ready) || s.x.serializable && errors.Is(err, txn.ErrSerializableScan) {
			return nil
		}
		if err != nil {
			return err
		}
		what := fmt.Sprintf("%s: the row with key %s at %d", s.name, key, at)
		s.check(func(m *historyModel) error {
			owners := m.keyOwners(uniqueColumn, at, nil)[key]
			if len(owners) > 1 || ok != (len(owners) == 1) || ok && row != owners[0] {
				return fmt.Errorf("%s is %q, %v; want %q", what, row, ok, owners)
			}
			return nil
		})
		return nil
	},
	"Snapshot": func(s *historySession, ctx context.Context) error {
		shot, err := s.p.Snapshot(ctx)
		if err != nil {
			return err
		}
		s.use("Snapshot")
		return s.readSnapshot(ctx, shot)
	},
	"Latest": func(s *historySession, ctx context.Context) error {
		s.use("Latest")
		tx, x := s.tx, s.x
		s.tx, s.x = nil, nil
		q, row := s.query(), s.row()
		s.tx, s.x = tx, x
		from, err := s.oracle.Timestamp(ctx)
		if err != nil {
			return err
		}
		from -= tso.Timestamp(time.Second.Microseconds()) // the client estimates the oracle's time
		r, err := s.p.Latest("a").ReadRow(ctx, row, q.selection()...)
		if err != nil {
			return err
		}
		to, err := s.oracle.Timestamp(ctx)
		if err != nil {
			return err
		}
		g, in, what := s.generation(), s.epochNow(), fmt.Sprintf("%s: the latest state of %s, %v", s.name, row, q)
		s.check(func(m *historyModel) error {
			var failed error
			since := from
			for _, o := range g.commits { // it may not have been committed, although it had its timestamp
				if o.ended > from {
					since = min(since, o.commit-1)
				}
			}
			for _, at := range m.moments("a", row, since, to, in) {
				if failed = m.rows(what, in, "a", row, at, nil, q, some(r)); failed == nil {
					return nil
				}
			}
			return failed
		})
		return nil
	},
	"page": func(s *historySession, ctx context.Context) error {
		s.use("page")
		tx, x := s.tx, s.x
		s.tx, s.x = nil, nil
		q := s.query()
		s.tx, s.x = tx, x
		q.reverse, q.contains, q.text = s.rnd.IntN(2) == 0, func(string) bool { return true }, "pages"
		list := rowList{table: "a", reverse: q.reverse, options: q.selection()}
		var rows []bigtable.Row
		for more := true; more; {
			var page []bigtable.Row
			var err error
			if page, more, err = list.page(ctx, s.p.Client, 1+s.rnd.IntN(5)); err != nil {
				return err
			}
			rows = append(rows, page...)
		}
		s.saw("pages", "a", "", list.at, nil, q, rows)
		return nil
	},
	"Lock": func(s *historySession, _ context.Context) error {
		s.use("Lock")
		c := historyCell("a", s.row(), s.column())
		if len(s.x.own["a"][c.Row][c.Column()]) == 0 {
			s.x.locks[c] = true
			s.tx.Table("a").Lock(c.Row, c.Family, c.Qualifier)
		}
		return nil
	},
	"Delete": func(s *historySession, _ context.Context) error {
		s.use("Delete")
		s.remove(s.row(), s.column())
		return nil
	},
	"DeleteRow": func(s *historySession, ctx context.Context) error {
		s.use("DeleteRow")
		if s.x.serializable {
			_, wrong := s.refused(false, s.tx.Table("a").DeleteRow(ctx, s.row()))
			return wrong
		}
		// What the transaction sees is not known yet. So it reads the row, and deletes that.
		row := s.row()
		own := s.x.ownOf("a")
		r, err := s.tx.Table("a").ReadRow(ctx, row)
		if err != nil {
			return err
		}
		s.saw("ReadRow "+row, "a", row, s.x.start, own, query{}, some(r))
		if err := s.tx.Table("a").DeleteRow(ctx, row); err != nil {
			return err
		}
		for family, items := range r {
			for _, item := range items {
				s.x.put("a", row, txn.Column{Family: family, Qualifier: item.Column[len(family)+1:]}, modelVersion{gone: true})
			}
		}
		return nil
	},
	"indexed write": func(s *historySession, _ context.Context) error {
		s.use("indexed write")
		for range 1 + s.rnd.IntN(2) {
			s.set(s.row(), uniqueColumn)
		}
		if s.rnd.IntN(2) == 0 {
			s.set(s.row(), cityColumn)
		}
		return nil
	},
	"many rows": func(s *historySession, _ context.Context) error {
		s.use("many rows")
		c := s.column()
		for _, i := range s.rnd.Perm(len(historyRows))[:4] {
			if c == uniqueColumn {
				c = cityColumn
			}
			s.set(historyRows[i], c)
		}
		return nil
	},
	"Set": func(s *historySession, _ context.Context) error {
		s.set(s.row(), s.column())
		return nil
	},
	"Set in b": func(s *historySession, _ context.Context) error {
		v := s.value()
		row := s.row()
		s.x.put("b", row, historyColumns[0], modelVersion{value: []byte(v)})
		s.tx.Table("b").Set(row, historyColumns[0].Family, historyColumns[0].Qualifier, []byte(v))
		return nil
	},
}

func (s *historySession) set(row string, c txn.Column) {
	v := s.value()
	switch c {
	case uniqueColumn:
		s.use("indexed write")
		v = fmt.Sprint("k", s.rnd.IntN(historyKeys))
	case cityColumn:
		s.use("indexed write")
		v = fmt.Sprint("c", s.rnd.IntN(3))
	}
	s.x.put("a", row, c, modelVersion{value: []byte(v)})
	s.tx.Table("a").Set(row, c.Family, c.Qualifier, []byte(v))
}

func (s *historySession) remove(row string, c txn.Column) {
	s.x.put("a", row, c, modelVersion{gone: true})
	s.tx.Table("a").Delete(row, c.Family, c.Qualifier)
}

func (s *historySession) readSnapshot(ctx context.Context, shot *txn.Snapshot) error {
	tx, x := s.tx, s.x
	s.tx, s.x = nil, nil
	defer func() { s.tx, s.x = tx, x }()
	for range 1 + s.rnd.IntN(2) {
		q := s.rowSet(s.query())
		rows, err := collectRows(shot.Table("a").ReadRows(ctx, q.rows, q.options()...))
		switch {
		case errors.Is(err, txn.ErrTooOld) && s.age(shot.ReadTS()) >= retention:
			return nil
		case err != nil:
			return err
		}
		s.saw("snapshot", "a", "", shot.ReadTS(), nil, q, rows)
	}
	if s.rnd.IntN(3) == 0 {
		s.keep(shot, s.p)
	}
	return nil
}

// run runs the session: a transaction, perhaps with an idempotency key.
func (s *historySession) run(ctx context.Context) error {
	defer func() { s.sessionEnded(s.used) }()
	var opts []txn.TxnOption
	if s.maybe("Serializable") {
		s.use("Serializable")
		opts = append(opts, txn.Serializable())
	}
	if s.maybe("Named") {
		s.use("Named")
		opts = append(opts, txn.Named("session"))
	}
	if s.rnd.IntN(6) == 0 {
		defer s.rival(historyCell("a", s.row(), historyColumns[s.rnd.IntN(4)]))()
	}
	whole := false
	body := func(ctx context.Context, tx *txn.Txn) error {
		s.begin(tx)
		for _, op := range s.plan.Ops {
			s.pause(6, 15*time.Second)
			if err := historyOperations[op](s, ctx); err != nil {
				return fmt.Errorf("%s: %w", op, err)
			}
		}
		s.pause(2, 20*time.Second)
		whole = true
		return s.outlive(ctx)
	}
	var ts tso.Timestamp
	var err error
	if s.maybe("idempotency") {
		s.use("idempotency")
		id := fmt.Sprint("id", s.rnd.IntN(4))
		var o idempotency.Outcome
		o, err = s.p.keys.Update(ctx, idempotency.Key{ID: id}, func(ctx context.Context, tx *txn.Txn) ([]byte, error) {
			return []byte(s.name), body(ctx, tx)
		}, append(opts, txn.MaxAttempts(3))...)
		if err == nil {
			s.outcome(id, o)
		} else if s.x != nil {
			s.x.id = id
		}
		if ts = o.CommitTS; o.Repeated {
			return nil
		}
	} else {
		var tx *txn.Txn
		if tx, err = s.p.Begin(ctx, opts...); err == nil {
			if err = body(ctx, tx); err == nil {
				commit, cancel := context.WithCancel(ctx)
				s.p.net.giveUpAt(cancel)
				ts, err = tx.Commit(commit)
				s.p.net.giveUpAt(nil)
				s.gaveUp = commit.Err() != nil
				cancel()
			}
			tx.Rollback()
		}
	}
	if missing := s.plan.Uses &^ s.used; whole && missing != 0 {
		return fmt.Errorf("it has not used %v", missing)
	}
	return s.committed(ts, err)
}

// committed notes the outcome of the transaction.
func (s *historySession) committed(ts tso.Timestamp, err error) error {
	var twice *index.UniqueError
	var unknown *txn.UndeterminedError
	switch x := s.x; {
	case errors.As(err, &twice):
		s.counts.add("unique keys", 1)
		own := x.ownOf("a")
		s.check(func(m *historyModel) error {
			for _, rows := range m.keyOwners(uniqueColumn, x.start, own) {
				if len(rows) > 1 {
					return nil
				}
			}
			return fmt.Errorf("%s was refused, although no two rows had one key: %w", x.name, err)
		})
	case errors.As(err, &unknown):
		if x.start == unknown.StartTS {
		}
		return s.settle(s.process(s.rnd.IntN(combination.Clients)), x, unknown)
	case errors.Is(err, txn.ErrConflict):
		s.counts.add("conflicts", 1)
		if s.rnd.IntN(3) == 0 {
			s.unsettled(x, fmt.Sprintf("it got %q", err))
		}
	case err != nil && s.p.net.isDead():
		if x != nil {
			s.unsettled(x, "")
		}
	case s.gaveUp && errors.Is(err, context.Canceled):
		s.unsettled(x, fmt.Sprintf("it got %q", err))
	case err != nil:
		return err
	default:
		s.counts.add("commits", 1)
		if ts == x.start { // it wrote nothing
			return nil
		}
		x.commit, x.ended = ts, s.now()
		s.commit(x)
	}
	return nil
}

func some(r bigtable.Row) []bigtable.Row {
	if r == nil {
		return nil
	}
	return []bigtable.Row{r}
}

func collectRows(seq func(func(bigtable.Row, error) bool)) (rows []bigtable.Row, err error) {
	for r, err := range seq {
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}
