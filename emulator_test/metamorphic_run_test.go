package emulator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A performance runs a plan with real clients, and on a model of snapshot isolation. Both
// use the timestamps that the clients report; that these follow real time is checked, too.
type performance struct {
	*plan
	t       *testing.T
	ctx     context.Context
	env     *txntest.Env
	clients []*txn.Client
	counts  *tally

	tables  [2]modelTable
	marks   map[txn.Cell][]tso.Timestamp // commits of lock-only writes
	touched map[string]bool              // rows of which cells or marks may be stored
	safe    tso.Timestamp
	txns    []*playedTxn
	shots   []*playedSnapshot
	commits []playedCommit
	newest  tso.Timestamp          // of all timestamps that were returned so far
	shownTo []tso.Timestamp        // the newest that each client has seen
	giveUp  atomic.Pointer[func()] // called when a commit is sent; then the answer is lost
}

// A tally counts what happened. It may be used concurrently.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *tally) add(what string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n[what] += n
}

// A playedCommit is a commit that was acknowledged.
type playedCommit struct {
	ts     tso.Timestamp
	client int // -1: a bulk load
	at     time.Time
}

// A playedTxn is an open transaction and its model.
type playedTxn struct {
	txnChoice
	tx       *txn.Txn
	client   int
	begun    time.Time
	own      [2]modelTable
	locks    map[txn.Cell]bool
	reads    map[txn.Cell]bool // that Serializable validates
	notified bool
}

type playedSnapshot struct {
	*txn.Snapshot
	hold bool
}

// A reader is a transaction or a snapshot.
type reader struct {
	ts    tso.Timestamp
	table func(int) *txn.View
	txn   *playedTxn // nil for a snapshot
}

func (x *playedTxn) reader() reader {
	return reader{x.tx.StartTS(), func(table int) *txn.View { return &x.tx.Table(crashTables[table]).View }, x}
}

func (s *playedSnapshot) reader() reader {
	return reader{s.ReadTS(), func(table int) *txn.View { return s.Table(crashTables[table]) }, nil}
}

func (m *performance) model(r reader, table int) modelView {
	v := modelView{table: m.tables[table], at: r.ts, own: modelTable{}}
	if r.txn != nil {
		v.own = r.txn.own[table]
	}
	return v
}

func cellAt(table int, row string, c txn.Column) txn.Cell {
	return txn.Cell{Table: crashTables[table], Row: row, Family: c.Family, Qualifier: c.Qualifier}
}

// writes are the cells that a commit writes or validates.
func (x *playedTxn) writes() (cells []txn.Cell) {
	for table := range x.own {
		for row, columns := range x.own[table] {
			for c := range columns {
				cells = append(cells, cellAt(table, row, c))
			}
		}
	}
	for c := range x.locks {
		cells = append(cells, c)
	}
	if len(cells) > 0 {
		for c := range x.reads {
			cells = append(cells, c)
		}
	}
	return cells
}

// between reports whether one of the cells was committed in (after, before).
func (m *performance) between(cells []txn.Cell, after, before tso.Timestamp) bool {
	for _, c := range cells {
		in := func(ts tso.Timestamp) bool { return ts > after && ts < before }
		if slices.ContainsFunc(m.marks[c], in) || slices.ContainsFunc(m.tables[slices.Index(crashTables, c.Table)][c.Row][c.Column()], func(v modelVersion) bool { return in(v.at) }) {
			return true
		}
	}
	return false
}

func (m *performance) note(client int, ts tso.Timestamp) {
	m.newest = max(m.newest, ts)
	if client >= 0 {
		m.shownTo[client] = max(m.shownTo[client], ts)
	}
}

// committed applies a transaction to the model.
func (m *performance) committed(x *playedTxn, ts tso.Timestamp) {
	for table := range x.own {
		for row, columns := range x.own[table] {
			for c, v := range columns {
				v[0].at, v[0].shown = ts, bigtable.Timestamp(ts)
				m.tables[table].put(row, c, v[0])
			}
		}
	}
	for _, c := range x.writes() {
		m.marks[c] = append(m.marks[c], ts)
	}
	m.commits = append(m.commits, playedCommit{ts, x.client, time.Now()})
	m.note(x.client, ts)
	m.counts.add("commits", 1)
}

const forever = tso.Timestamp(1 << 62)

// run runs the plan in a bubble of virtual time. It returns the first difference.
func (p *plan) run(t *testing.T, counts *tally) (err error) {
	m := &performance{plan: p, t: t, counts: counts, tables: [2]modelTable{{}, {}}, marks: map[txn.Cell][]tso.Timestamp{}, touched: map[string]bool{}, shownTo: make([]tso.Timestamp, len(p.clients))}
	var cancel context.CancelFunc
	m.ctx, cancel = context.WithTimeout(t.Context(), 24*time.Hour)
	defer cancel()
	own := &lateOracle{}
	cfg := txn.Config{MetadataTable: p.metadata, TokenTTL: -1}
	if p.oracle != "direct" {
		cfg.Oracle = own
	}
	if p.oracle == "local" {
		own.Oracle = tso.NewLocal(tso.LocalConfig{})
	}
	m.env = txntest.New(t, txntest.WithoutTransport(), txntest.WithoutCheck(), txntest.WithConfig(cfg)) // the check runs below
	oracle := func() tso.Oracle { return own.Oracle }
	if p.oracle == "served" {
		oracle = servedOracle(t, m.env.Bigtable.Open(cmp.Or(p.metadata, format.DefaultMetadataTable)))
		own.Oracle = oracle()
	}
	late := m.connect(oracle)
	defer m.settle(late)
	if err = m.setUp(); err != nil {
		return err
	}
	for i, s := range p.steps {
		if err = m.step(s); err != nil {
			return fmt.Errorf("step %d of %d: %#v: %w", i+1, len(p.steps), s, err)
		}
	}
	m.settle(late)
	if err := m.resolve(); err != nil {
		return fmt.Errorf("resolving the locks that are left: %w", err)
	}
	for table := range crashTables {
		if err := m.step(planStep{kind: "agree", table: table}); err != nil {
			return fmt.Errorf("at the end: %w", err)
		}
	}
	m.count()
	if m.env.Check(); t.Failed() {
		return errors.New("the consistency check failed")
	}
	return nil
}

// connect makes the clients, and returns the faults of their connections.
func (m *performance) connect(oracle func() tso.Oracle) (late []*txntest.Faults) {
	for i := range m.plan.clients {
		rnd := rand.New(rand.NewPCG(m.seed, uint64(i)))
		f := txntest.ChooseFaults(func(c txntest.Call) (txntest.Action, time.Duration, bool) {
			step := txntest.Classify(c.Method, c.Request).Step
			if step == txntest.StepCommit {
				if f := m.giveUp.Swap(nil); f != nil {
					(*f)()
					return []txntest.Action{txntest.DropRequest, txntest.DropResponse}[rnd.IntN(2)], 0, true
				}
			}
			switch {
			case step == txntest.StepRead, strings.HasPrefix(c.Method, "Read"):
			case step == txntest.StepSecondaries && rnd.IntN(100) < m.late:
				m.counts.add("secondaries kept", 1)
				return txntest.Hold, time.Duration(rnd.Int64N(int64(2 * time.Second))), true
			case rnd.IntN(500) < m.late && strings.Contains("prewrite commit secondaries heartbeat raise roll back cell abort collect row", string(step)):
				m.counts.add("late copies", 1)
				return txntest.Echo, time.Duration(rnd.Int64N(int64(time.Minute))), true
			}
			return 0, 0, false
		})
		late = append(late, f)
		opts := f.DialOptions()
		if m.slow {
			d := workload.NewDelays(m.seed, uint64(100+i), 1<<40, time.Second)
			opts = append(opts, d.DialOptions()...)
		}
		bt, a := m.env.Open(opts...)
		c, err := txn.NewClient(m.ctx, bt, m.config(i, oracle(), a))
		if err != nil {
			m.t.Fatal(err)
		}
		if i%2 == 1 {
			// Transactions that write and are slow conflict with their own bound.
			c.BeforeCommit(func(_ context.Context, tx *txn.Txn) error {
				for range tx.Writes() {
					if tx.Client() == c {
						tx.CommitBefore(tx.StartTS() + 10e6)
					}
				}
				return nil
			})
		}
		m.clients = append(m.clients, c)
		m.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := c.Close(ctx); err != nil {
				m.t.Errorf("closing client %d: %v", i, err)
			}
		})
	}
	return late
}

var weakColumn = txn.Column{Family: "g", Qualifier: "weak"}

// setUp makes the tables: one with plain data from before its adoption, one with observed
// columns.
func (m *performance) setUp() error {
	for i, table := range crashTables {
		spec := admin.TableSpec{Name: table, Families: modelFamilies}
		if i == 0 {
			spec.Observed = m.columns[:min(m.observed, len(m.columns))]
		}
		m.env.InitTable(spec)
	}
	for i, c := range append([]txn.Column{weakColumn}, m.columns[:min(m.observed, len(m.columns))]...) {
		if err := changes.RegisterObserver(m.ctx, m.env.Client, crashTables[0], c, fmt.Sprint("observer", i), i == 0); err != nil {
			return err
		}
	}
	for _, s := range m.plain {
		for _, c := range s.columns {
			mut := bigtable.NewMutation()
			v := modelVersion{shown: bigtable.Now().TruncateToMilliseconds(), value: []byte(s.value)}
			mut.Set(c.Family, c.Qualifier, v.shown, v.value)
			if err := m.env.Bigtable.Open(crashTables[s.table]).Apply(m.ctx, s.row, mut); err != nil {
				return err
			}
			delete(m.tables[s.table][s.row], c)
			m.tables[s.table].put(s.row, c, v)
			m.touch(s.table, s.row)
		}
	}
	for _, c := range m.clients {
		for _, table := range crashTables {
			if err := c.CheckTable(m.ctx, table); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *performance) touch(table int, row string) { m.touched[crashTables[table]+row] = true }

// settle ends all open transactions, and waits until nothing is under way.
func (m *performance) settle(late []*txntest.Faults) {
	for _, x := range m.txns {
		x.tx.Rollback()
	}
	m.txns = nil
	for _, f := range late {
		f.Wait()
	}
	<-time.After(2 * time.Minute)
	synctest.Wait()
}

// count adds up what the clients did.
func (m *performance) count() {
	m.counts.add("histories", 1)
	for _, c := range m.clients {
		s := c.Stats()
		m.counts.add("cells from the cache", int(s.PrefetchUsed))
		m.counts.add("timestamps reused", int(s.ReusedTimestamps))
		m.counts.add("timestamps asked ahead", int(s.AheadTimestamps))
		m.counts.add("reads in batches", int(s.BatchedReads))
		m.counts.add("locks passed", int(s.Raises))
		m.counts.add("locks found", int(s.LocksMet))
		m.counts.add("reruns", int(s.Retries))
	}
}

func (m *performance) step(s planStep) error {
	s.client %= len(m.clients)
	c := m.clients[s.client]
	var x *playedTxn
	if len(m.txns) > 0 {
		x = m.txns[s.which%len(m.txns)]
	}
	readers := m.readers()
	switch s.kind {
	case "begin":
		return m.begin(s)
	case "snapshot":
		return m.snapshot(s)
	case "release":
		if len(m.shots) > 0 {
			i := s.which % len(m.shots)
			m.shots[i].Release()
			m.shots = slices.Delete(m.shots, i, i+1)
		}
		return nil
	case "update":
		for range 2 { // WriteOnly asks ahead for transactions that follow each other
			if err := m.together(s, nil, nil); err != nil {
				return err
			}
		}
		return m.together(s, nil, nil)
	case "together":
		var commits []*playedTxn
		for i := range min(3, len(m.txns)) {
			commits = append(commits, m.txns[(s.which+i)%len(m.txns)])
		}
		return m.together(s, commits, readers)
	case "agree":
		ts, err := c.Timestamp(m.ctx)
		if err != nil {
			return err
		}
		m.note(-1, ts)
		return m.agree(ts, s.table, m.clients)
	case "latest":
		return m.latest(s)
	case "bulk":
		return m.bulk(s)
	case "collect":
		return m.collect(s)
	case "pass time":
		<-time.After(s.passes)
		return nil
	case "read row", "query":
		if len(readers) == 0 {
			return nil
		}
		return m.query(readers[s.which%len(readers)], s)
	case "gets", "get for update":
		if len(readers) == 0 {
			return nil
		}
		return m.gets(readers[s.which%len(readers)], s)
	}
	if x == nil {
		return nil
	}
	tbl := x.tx.Table(crashTables[s.table])
	set := func(row string, c txn.Column, v modelVersion) {
		delete(x.own[s.table][row], c)
		x.own[s.table].put(row, c, v)
		delete(x.locks, cellAt(s.table, row, c))
	}
	switch s.kind {
	case "set", "delete", "lock":
		for _, row := range append(s.more, s.row) {
			for _, c := range s.columns {
				switch s.kind {
				case "set":
					set(row, c, modelVersion{value: []byte(s.value)})
					tbl.Set(row, c.Family, c.Qualifier, []byte(s.value))
				case "delete":
					set(row, c, modelVersion{gone: true})
					tbl.Delete(row, c.Family, c.Qualifier)
				case "lock":
					m.lock(x, cellAt(s.table, row, c))
					tbl.Lock(row, c.Family, c.Qualifier)
				}
			}
		}
	case "delete row":
		view := m.model(x.reader(), s.table)
		err := tbl.DeleteRow(m.ctx, s.row)
		if ok, err := m.readable(x.reader(), false, err); !ok {
			return err
		}
		for _, c := range view.columns(s.row) {
			if _, ok := view.cell(s.row, c); ok {
				set(s.row, c, modelVersion{gone: true})
			}
		}
	case "notify":
		x.tx.Table(crashTables[0]).Notify(s.row, weakColumn.Family, weakColumn.Qualifier)
		x.notified = true
	case "rollback":
		m.drop(x)
		x.tx.Rollback()
	case "observe":
		if m.observed == 0 {
			return nil
		}
		s.table, s.columns = 0, m.columns[:min(m.observed, len(m.columns))]
		if err := m.gets(x.reader(), s); err != nil || s.which%2 == 0 {
			return err
		}
		return m.together(planStep{kind: "update", client: s.client, row: s.row, columns: s.columns, value: s.value}, nil, nil)
	case "commit":
		if err := m.commit(m.ctx, x); err != nil || s.which%2 == 0 {
			return err
		}
		ts, err := c.Timestamp(m.ctx) // secondaries may be late
		if err != nil {
			return err
		}
		m.note(-1, ts)
		return m.agree(ts, s.table, m.clients[s.client:s.client+1])
	case "commit with deadline":
		return m.commitWithDeadline(x, s.passes)
	}
	return nil
}

func (m *performance) readers() (all []reader) {
	for _, x := range m.txns {
		all = append(all, x.reader())
	}
	for _, s := range m.shots {
		all = append(all, s.reader())
	}
	return all
}

func (m *performance) lock(x *playedTxn, c txn.Cell) {
	if len(x.own[slices.Index(crashTables, c.Table)][c.Row][c.Column()]) == 0 {
		x.locks[c] = true
	}
}

func (m *performance) drop(x *playedTxn) {
	m.txns = slices.DeleteFunc(m.txns, func(o *playedTxn) bool { return o == x })
}

// fresh checks a new timestamp of a client: it is above every earlier one, except that
// WriteOnly and MaxStaleness allow it to be below commits of other clients within the age.
func (m *performance) fresh(client int, ts tso.Timestamp, age time.Duration, own tso.Timestamp) error {
	if age == 0 && ts <= m.newest {
		return fmt.Errorf("the timestamp %d is not above %d, which was returned before", ts, m.newest)
	}
	if ts < own {
		return fmt.Errorf("the timestamp %d is below %d, which this client has seen", ts, own)
	}
	for _, c := range m.commits {
		if ts < c.ts && (c.client == client || time.Since(c.at) >= age) {
			return fmt.Errorf("the timestamp %d is below the commit at %d of client %d, %v ago", ts, c.ts, c.client, time.Since(c.at))
		}
	}
	return nil
}

func newPlayedTxn(choice txnChoice, tx *txn.Txn, client int) *playedTxn {
	return &playedTxn{txnChoice: choice, tx: tx, client: client, begun: time.Now(), own: [2]modelTable{{}, {}}, locks: map[txn.Cell]bool{}, reads: map[txn.Cell]bool{}}
}

func (m *performance) begin(s planStep) error {
	if len(m.txns) == 5 {
		return nil
	}
	tx, err := m.clients[s.client].Begin(m.ctx, s.txn.options()...)
	if err != nil {
		return err
	}
	x := newPlayedTxn(s.txn, tx, s.client)
	m.txns = append(m.txns, x)
	age := time.Duration(0)
	if s.txn.WriteOnly {
		age = 100 * time.Millisecond
	}
	err = m.fresh(s.client, tx.StartTS(), age, 0)
	m.note(s.client, tx.StartTS())
	return err
}

func (m *performance) snapshot(s planStep) error {
	if len(m.shots) == 4 {
		return nil
	}
	var at tso.Timestamp
	if s.snap.At > 0 && len(m.commits) > 0 {
		at = m.commits[max(0, len(m.commits)-s.snap.At)].ts - tso.Timestamp(s.which%2)
	}
	shot, err := m.clients[s.client].Snapshot(m.ctx, s.snap.options(at)...)
	switch noToken := s.snap.Hold && m.plan.clients[s.client].TokenTTL < 0; {
	case noToken:
		if !errors.Is(err, txn.ErrInvalid) {
			return fmt.Errorf("Hold without a token: %w", err)
		}
		m.counts.add("invalid", 1)
		return nil
	case at != 0 && at < m.safe:
		if !errors.Is(err, txn.ErrTooOld) {
			return fmt.Errorf("a snapshot at %d, below the safe point %d: %w", at, m.safe, err)
		}
		m.counts.add("too old", 1)
		return nil
	case err != nil:
		return err
	}
	m.shots = append(m.shots, &playedSnapshot{shot, s.snap.Hold})
	ts := shot.ReadTS()
	switch {
	case at != 0:
		if ts != at {
			return fmt.Errorf("a snapshot at %d reads at %d", at, ts)
		}
		return nil
	case s.snap.MaxStaleness > 0:
		err = m.fresh(s.client, ts, s.snap.MaxStaleness, m.shownTo[s.client]-1)
	default:
		err = m.fresh(s.client, ts, 0, 0)
	}
	m.note(s.client, ts)
	return err
}

// readable reports whether a read should have succeeded, and checks its error.
func (m *performance) readable(r reader, point bool, err error) (bool, error) {
	want, name := error(nil), ""
	switch {
	case r.txn != nil && r.txn.WriteOnly:
		want, name = txn.ErrInvalid, "invalid"
	case r.txn != nil && r.txn.Serializable && !point:
		want, name = txn.ErrSerializableScan, "refused"
	case r.ts < m.safe:
		want, name = txn.ErrTooOld, "too old"
	}
	if want == nil && err == nil {
		return true, nil
	}
	if !errors.Is(err, want) || err == nil {
		return false, fmt.Errorf("a read at %d (safe point %d) ended with %w; want %v", r.ts, m.safe, err, want)
	}
	m.counts.add(name, 1)
	return false, nil
}

// isEmpty reports whether a query has no rows, which needs no request and never fails.
func (q query) isEmpty() bool { return !slices.ContainsFunc(planRows, q.contains) }

func textOfRows(rows iter.Seq2[bigtable.Row, error]) (text []string, err error) {
	for row, err := range rows {
		if err != nil {
			return nil, err
		}
		text = append(text, rowText(row))
	}
	return text, nil
}

func compare(what string, want, got []string) error {
	if !slices.Equal(want, got) {
		return fmt.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
	return nil
}

// query reads rows, or one row.
func (m *performance) query(r reader, s planStep) error {
	view, q := m.model(r, s.table), s.query
	list, isList := q.rows.(bigtable.RowList)
	point := q.isPoint()
	if s.kind == "read row" {
		row, err := r.table(s.table).ReadRow(m.ctx, s.row, q.selection()...)
		if ok, err := m.readable(r, point, err); !ok {
			return err
		}
		if point {
			m.validate(r, s.table, []string{s.row}, q.columns)
		}
		return compare(fmt.Sprintf("row %q at %d, %v", s.row, r.ts, q), []string{view.readRow(s.row, q)}, []string{rowText(row)})
	}
	got, err := textOfRows(r.table(s.table).ReadRows(m.ctx, q.rows, q.options()...))
	if err == nil && q.isEmpty() {
		return compare(q.String(), nil, got)
	}
	if ok, err := m.readable(r, point && isList, err); !ok {
		return err
	}
	if point && isList {
		m.validate(r, s.table, list, q.columns)
	}
	return compare(fmt.Sprintf("%v at %d", q, r.ts), view.readRows(q), got)
}

// latest reads a row at its present, whole and cell by cell. Then a stale snapshot of the client
// shows it again.
func (m *performance) latest(s planStep) error {
	c := m.clients[s.client]
	view, table := modelView{table: m.tables[s.table], at: forever, own: modelTable{}}, c.Latest(crashTables[s.table])
	row, err := table.ReadRow(m.ctx, s.row, s.query.selection()...)
	if err == nil {
		err = compare(fmt.Sprintf("the latest state of row %q, %v", s.row, s.query), []string{view.readRow(s.row, s.query)}, []string{rowText(row)})
	}
	if err != nil {
		return err
	}
	for _, column := range s.columns[:min(4, len(s.columns))] {
		v, ok, err := table.Get(m.ctx, s.row, column.Family, column.Qualifier)
		want, present := view.cell(s.row, column)
		if err != nil || ok != present || ok && string(v) != string(want.value) {
			return fmt.Errorf("the latest state of %v is %q, %v, error %w; want %q, %v", cellAt(s.table, s.row, column), v, ok, err, want.value, present)
		}
	}
	m.counts.add("reads of the latest state", 1)
	before := c.Stats().ReusedTimestamps
	shot, err := c.Snapshot(m.ctx, txn.MaxStaleness(time.Hour))
	if err != nil {
		return err
	}
	if c.Stats().ReusedTimestamps > before {
		m.counts.add("stale snapshots behind them", 1)
	}
	m.note(s.client, shot.ReadTS())
	if shot.ReadTS() < m.safe {
		return nil
	}
	row, err = shot.Table(crashTables[s.table]).ReadRow(m.ctx, s.row, s.query.selection()...)
	if err == nil {
		err = compare(fmt.Sprintf("row %q in a stale snapshot at %d, %v", s.row, shot.ReadTS(), s.query), []string{view.readRow(s.row, s.query)}, []string{rowText(row)})
	}
	return err
}

// validate notes what a serializable transaction has read.
func (m *performance) validate(r reader, table int, rows []string, columns []txn.Column) {
	if r.txn == nil || !r.txn.Serializable {
		return
	}
	for _, row := range rows {
		for _, c := range columns {
			if len(r.txn.own[table][row][c]) == 0 {
				r.txn.reads[cellAt(table, row, c)] = true
			}
		}
	}
}

// gets reads cells one by one. A second Get of the same order uses the cache.
func (m *performance) gets(r reader, s planStep) error {
	view := m.model(r, s.table)
	for _, c := range s.columns[:min(4, len(s.columns))] {
		if s.kind == "observe" {
			_, err := changes.Observe(m.ctx, r.txn.tx, cellAt(0, s.row, c))
			if ok, err := m.readable(r, true, err); !ok {
				return err
			}
			m.counts.add("observed", 1)
		}
		var v []byte
		var ok bool
		var err error
		if s.kind == "get for update" && r.txn != nil {
			v, ok, err = r.txn.tx.Table(crashTables[s.table]).GetForUpdate(m.ctx, s.row, c.Family, c.Qualifier)
		} else {
			v, ok, err = r.table(s.table).Get(m.ctx, s.row, c.Family, c.Qualifier)
		}
		if err != nil || r.ts >= m.safe { // a value in memory may be shown below the safe point
			if ok, err := m.readable(r, true, err); !ok {
				return err
			}
		}
		if s.kind == "get for update" && r.txn != nil {
			m.lock(r.txn, cellAt(s.table, s.row, c))
		}
		m.validate(r, s.table, []string{s.row}, []txn.Column{c})
		want, present := view.cell(s.row, c)
		if ok != present || ok && string(v) != string(want.value) {
			return fmt.Errorf("%v at %d is %q, %v; want %q, %v", cellAt(s.table, s.row, c), r.ts, v, ok, want.value, present)
		}
	}
	return nil
}

// agree reads the same cells at one timestamp in every way, from several clients at once.
func (m *performance) agree(ts tso.Timestamp, table int, clients []*txn.Client) error {
	model := modelView{table: m.tables[table], at: ts, own: modelTable{}}
	everything := query{contains: func(string) bool { return true }}
	all := model.readRows(everything)
	backward := model.readRows(query{contains: everything.contains, reverse: true})
	var mu sync.Mutex
	var found []error
	var reading sync.WaitGroup
	way := func(name string, read func() ([]string, error), want []string) {
		reading.Go(func() {
			got, err := read()
			if err == nil {
				err = compare(fmt.Sprintf("%s of table %s at %d", name, crashTables[table], ts), want, got)
			} else {
				err = fmt.Errorf("%s of table %s at %d: %w", name, crashTables[table], ts, err)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, err)
			}
		})
	}
	for i, c := range clients {
		shot, err := c.Snapshot(m.ctx, txn.At(ts))
		if err != nil {
			return err
		}
		named, err := c.Snapshot(m.ctx, txn.At(ts), txn.Named("agree"))
		if err != nil {
			return err
		}
		view := shot.Table(crashTables[table])
		scan := func(rows bigtable.RowSet, opts ...txn.ReadOption) func() ([]string, error) {
			return func() ([]string, error) { return textOfRows(view.ReadRows(m.ctx, rows, opts...)) }
		}
		rowByRow := func(opts ...txn.ReadOption) func() ([]string, error) {
			return func() (text []string, err error) {
				for _, key := range slices.Sorted(slices.Values(planRows)) {
					row, err := view.ReadRow(m.ctx, key, opts...)
					if err != nil {
						return nil, err
					}
					if len(row) > 0 {
						text = append(text, rowText(row))
					}
				}
				return text, nil
			}
		}
		way("scan", scan(nil), all)
		way("scan backward", scan(nil, txn.Reverse()), backward)
		way("batch", scan(bigtable.RowList(planRows)), all)
		way("batch of columns", scan(bigtable.RowList(planRows), txn.Columns(m.columns...)), all)
		way("rows", rowByRow(), all)
		way("families", rowByRow(txn.Families(modelFamilies...)), all)
		way("columns", rowByRow(txn.Columns(m.columns...)), all)
		keysOnly := model.readRows(query{contains: everything.contains, keysOnly: true})
		way("keys only", scan(nil, txn.KeysOnly()), keysOnly)
		way("keys of columns", rowByRow(txn.Columns(m.columns...), txn.KeysOnly()), keysOnly)
		first := query{contains: everything.contains, families: modelFamilies[:1], cellsPerRow: 2}
		firstCells := model.readRows(first)
		way("first cells", scan(nil, first.selection()...), firstCells)
		way("first cells, row by row", rowByRow(first.selection()...), firstCells)
		q := txn.Qualifiers(modelFamilies[0], "q", "")
		before := txn.Qualifiers(modelFamilies[0], "", "q")
		way("ranges of qualifiers", scan(bigtable.RowList(planRows), before, q, txn.Families(modelFamilies[1:]...)), all)
		way("family by family", func() ([]string, error) {
			var text []string
			for _, key := range slices.Sorted(slices.Values(planRows)) {
				row := ""
				for _, family := range modelFamilies {
					r, err := view.ReadRow(m.ctx, key, txn.Families(family))
					if err != nil {
						return nil, err
					}
					row += rowText(r)
				}
				if row != "" {
					text = append(text, row)
				}
			}
			return text, nil
		}, all)
		// Single cells: at the same time, which may batch them, and one after the other
		// under a name, which may read them ahead.
		columns := m.columns[:min(6, len(m.columns))]
		for _, key := range planRows {
			get := func(s *txn.Snapshot, c txn.Column) (string, error) {
				v, ok, err := s.Table(crashTables[table]).Get(m.ctx, key, c.Family, c.Qualifier)
				return fmt.Sprintf("%q %v", v, ok), err
			}
			var want []string
			for _, c := range columns {
				v, ok := model.cell(key, c)
				want = append(want, fmt.Sprintf("%q %v", v.value, ok))
				way(fmt.Sprintf("row %q, cell %q", key, c), func() ([]string, error) {
					text, err := get(shot, c)
					return []string{text}, err
				}, want[len(want)-1:])
			}
			way(fmt.Sprintf("client %d, row %q, cells under a name", i, key), func() (text []string, err error) {
				for _, c := range columns {
					t, err := get(named, c)
					if err != nil {
						return nil, err
					}
					text = append(text, t)
				}
				return text, nil
			}, want)
		}
	}
	reading.Wait()
	return errors.Join(found[:min(3, len(found))]...)
}

// ended checks the outcome of a commit of a transaction in a group of concurrent ones, and
// applies it to the model. Commits must be passed in the order of their timestamps.
func (m *performance) ended(x *playedTxn, ts tso.Timestamp, err error, mayConflict bool) error {
	writes, start := x.writes(), x.tx.StartTS()
	for _, c := range writes {
		m.touch(slices.Index(crashTables, c.Table), c.Row)
	}
	conflict := m.between(writes, start, forever)
	var why *txn.ConflictError
	switch {
	case errors.As(err, &why):
		m.counts.add("conflicts", 1)
		// A late copy of a request may have left a lock. A bound is a reason of its own.
		if !conflict && !mayConflict && why.Reason != format.ConflictBound && !(m.late > 0 && why.Reason == format.ConflictLock) {
			return fmt.Errorf("the transaction that began at %d wrote %q and failed without a reason: %w", start, writes, err)
		}
	case errors.Is(err, txn.ErrTooOld) && start <= m.safe && len(writes) > 0:
		m.counts.add("too old", 1)
	case err != nil:
		return fmt.Errorf("the transaction that began at %d (safe point %d): %w", start, m.safe, err)
	case len(writes) == 0:
		if !x.notified && ts != start {
			return fmt.Errorf("the transaction that began at %d wrote nothing, and its commit returned %d", start, ts)
		}
	case start <= m.safe:
		return fmt.Errorf("the transaction that began at %d committed at %d, behind the safe point %d", start, ts, m.safe)
	case m.between(writes, start, ts):
		return fmt.Errorf("the transaction that began at %d committed at %d, although another one wrote one of %q in between", start, ts, writes)
	default:
		m.committed(x, ts)
	}
	return nil
}

func (m *performance) commit(ctx context.Context, x *playedTxn) error {
	m.drop(x)
	before := m.newest
	ts, err := x.tx.Commit(ctx)
	if err == nil && len(x.writes()) > 0 && ts <= before {
		return fmt.Errorf("commit at %d, not above %d, which was returned before", ts, before)
	}
	return m.ended(x, ts, err, false)
}

// commitWithDeadline commits with little time, or gives up when the commit is sent, and
// settles an unknown outcome.
func (m *performance) commitWithDeadline(x *playedTxn, d time.Duration) error {
	m.drop(x)
	ctx, cancel := context.WithTimeout(m.ctx, cmp.Or(d, time.Hour))
	defer cancel()
	if d == 0 {
		m.giveUp.Store((*func())(&cancel))
	}
	ts, err := x.tx.Commit(ctx)
	m.giveUp.Store(nil)
	var unknown *txn.UndeterminedError
	switch {
	case errors.As(err, &unknown):
		status, e := m.clients[x.client].Settle(m.ctx, unknown)
		switch {
		case e != nil:
			if x.tx.StartTS() <= m.safe {
				return errors.New("an unknown outcome below the safe point: the commit was sent")
			}
			return e
		case status.State == txn.StateCommitted:
			ts, err = status.CommitTS, nil
		default:
			ts, err = 0, nil
		}
		m.counts.add("settled", 1)
		if ts == 0 {
			return m.resolve()
		}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		m.counts.add("given up", 1)
		for _, c := range x.writes() {
			m.touch(slices.Index(crashTables, c.Table), c.Row)
		}
		return m.resolve()
	}
	return m.ended(x, ts, err, false)
}

// resolve waits until the locks of a transaction that was given up are gone. It writes nothing
// that the model does not know.
func (m *performance) resolve() error {
	for _, table := range crashTables {
		for left := true; left; {
			left = false
			for l, err := range admin.Locks(m.ctx, m.env.Client, table, nil) {
				if err == nil {
					left = true
					_, err = admin.Resolve(m.ctx, m.env.Client, l)
				}
				if err != nil {
					return err
				}
			}
			<-time.After(time.Second)
		}
	}
	return nil
}

// together commits transactions, runs an Update in every client, and reads, all at the same
// time.
func (m *performance) together(s planStep, commits []*playedTxn, readers []reader) error {
	type end struct {
		x   *playedTxn
		ts  tso.Timestamp
		err error
	}
	type seen struct {
		ts   tso.Timestamp
		text []string
	}
	var mu sync.Mutex
	var ends []end
	var shown []seen
	var found []error
	add := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
	before := m.newest
	var working sync.WaitGroup
	for _, x := range commits {
		m.drop(x)
		working.Go(func() {
			ts, err := x.tx.Commit(m.ctx)
			add(func() { ends = append(ends, end{x, ts, err}) })
		})
	}
	for _, r := range readers {
		if r.txn != nil && (slices.Contains(commits, r.txn) || r.txn.Serializable || r.txn.WriteOnly) {
			continue
		}
		model := m.model(r, s.table).readRows(s.query) // commits of this step are later
		working.Go(func() {
			got, err := textOfRows(r.table(s.table).ReadRows(m.ctx, s.query.rows, s.query.options()...))
			if err == nil && s.query.isEmpty() {
				return
			}
			add(func() {
				ok, err := m.readable(r, false, err)
				if ok {
					err = compare(fmt.Sprintf("beside commits: %v at %d", s.query, r.ts), model, got)
				}
				found = append(found, err)
			})
		})
	}
	updaters := m.clients
	if s.kind == "update" {
		updaters = m.clients[s.client : s.client+1]
	}
	for i, c := range updaters {
		if s.kind == "update" {
			i = s.client
		}
		working.Go(func() {
			cell := cellAt(s.table, s.row, s.columns[0])
			var last *playedTxn
			var read modelVersion
			var present bool
			ts, err := c.Update(m.ctx, func(ctx context.Context, tx *txn.Txn) (err error) {
				last = newPlayedTxn(s.txn, tx, i)
				if !s.txn.WriteOnly {
					if tx.StartTS() <= before {
						add(func() {
							found = append(found, fmt.Errorf("Update began at %d, %d had been returned before", tx.StartTS(), before))
						})
					}
					if read.value, present, err = tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier); err != nil {
						return err
					}
				}
				v := []byte(fmt.Sprint(s.value, i))
				last.own[s.table].put(cell.Row, cell.Column(), modelVersion{value: v})
				tx.Table(cell.Table).Set(cell.Row, cell.Family, cell.Qualifier, v)
				return nil
			}, s.txn.options()...)
			add(func() { ends = append(ends, end{last, ts, err}) })
			if !s.txn.WriteOnly && last != nil {
				add(func() {
					text := fmt.Sprintf("%q %v", read.value, present)
					shown = append(shown, seen{last.tx.StartTS(), []string{text}})
				})
			}
		})
		if s.kind == "update" {
			continue
		}
		working.Go(func() {
			shot, err := c.Snapshot(m.ctx)
			if err == nil {
				var v []byte
				var ok bool
				if v, ok, err = shot.Table(crashTables[s.table]).Get(m.ctx, s.row, s.columns[0].Family, s.columns[0].Qualifier); err == nil {
					add(func() { shown = append(shown, seen{shot.ReadTS(), []string{fmt.Sprintf("%q %v", v, ok)}}) })
				}
			}
			if err != nil {
				add(func() { found = append(found, err) })
			}
		})
	}
	working.Wait()
	if err := errors.Join(found...); err != nil {
		return err
	}
	slices.SortFunc(ends, func(a, b end) int { return cmp.Compare(a.ts, b.ts) })
	slices.SortStableFunc(ends, func(a, b end) int { // failures last, when the model has all commits
		switch {
		case (a.err == nil) == (b.err == nil):
			return 0
		case a.err == nil:
			return -1
		}
		return 1
	})
	for _, e := range ends {
		shared := false
		for _, o := range ends {
			shared = shared || o.x != e.x && slices.ContainsFunc(o.x.writes(), func(c txn.Cell) bool { return slices.Contains(e.x.writes(), c) })
		}
		short := m.plan.clients[e.x.client].LockTTL < time.Second
		if err := m.ended(e.x, e.ts, e.err, (shared || short) && len(ends) > 1); err != nil {
			return err
		}
		m.note(e.x.client, e.x.tx.StartTS())
	}
	for _, r := range shown {
		m.note(-1, r.ts)
		v, ok := modelView{table: m.tables[s.table], at: r.ts, own: modelTable{}}.cell(s.row, s.columns[0])
		if err := compare(fmt.Sprintf("row %q, column %q beside commits, at %d", s.row, s.columns[0], r.ts), []string{fmt.Sprintf("%q %v", v.value, ok)}, r.text); err != nil {
			return err
		}
	}
	return nil
}

// bulk loads one row, perhaps twice.
func (m *performance) bulk(s planStep) error {
	if err := m.resolve(); err != nil {
		return err
	}
	row := admin.BulkRow{Row: s.row}
	for _, c := range s.columns {
		row.Cells = append(row.Cells, admin.BulkCell{Family: c.Family, Qualifier: c.Qualifier, Value: []byte(s.value)})
	}
	rows := func(yield func(admin.BulkRow, error) bool) { yield(row, nil) }
	r, err := admin.BulkLoad(m.ctx, m.clients[s.client], crashTables[s.table], rows, s.bulk)
	touched := m.touched[crashTables[s.table]+s.row]
	if errors.Is(err, admin.ErrNotIdle) && (touched && !s.bulk.Idle || m.late > 0) {
		m.counts.add("bulk loads refused", 1)
		return nil
	}
	if err != nil {
		return err
	}
	now := modelView{table: m.tables[s.table], at: r.StartTS, own: modelTable{}}
	if !s.bulk.Idle && now.readRow(s.row, query{}) != "" {
		return errors.New("a bulk load of a row with data did not fail")
	}
	if s.again {
		again := s.bulk
		again.StartTS, again.CommitTS = r.StartTS, r.CommitTS
		if _, err := admin.BulkLoad(m.ctx, m.clients[s.client], crashTables[s.table], rows, again); err != nil {
			return fmt.Errorf("repeating the load: %w", err)
		}
	}
	for _, c := range s.columns {
		m.tables[s.table].put(s.row, c, modelVersion{at: r.CommitTS, shown: bigtable.Timestamp(r.CommitTS), value: []byte(s.value)})
	}
	m.touch(s.table, s.row)
	m.commits = append(m.commits, playedCommit{r.CommitTS, -1, time.Now()})
	m.note(-1, r.CommitTS)
	m.counts.add("bulk loads", 1)
	return nil
}

// collect collects garbage. Open transactions and held snapshots of clients with tokens keep
// the safe point below them.
func (m *performance) collect(s planStep) error {
	<-time.After(s.passes)
	oldest := forever
	for _, x := range m.txns {
		if m.plan.clients[x.client].TokenTTL >= 0 && time.Since(x.begun) > time.Minute {
			oldest = min(oldest, x.tx.StartTS())
		}
	}
	for _, shot := range m.shots {
		if shot.hold {
			oldest = min(oldest, shot.ReadTS())
		}
	}
	report, err := gc.Run(m.ctx, m.clients[s.client], s.gc)
	if err != nil {
		return err
	}
	m.safe = max(m.safe, report.SafePoint)
	if m.safe >= oldest {
		return fmt.Errorf("the safe point %d is not below %d, which a client holds", m.safe, oldest)
	}
	if len(report.HeldBy) > 0 {
		m.counts.add("collections held back", 1)
	}
	m.counts.add("collections", 1)
	m.counts.add("versions collected", int(report.Total.Versions))
	return nil
}
