package emulator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
	lasts   [2]map[string]time.Duration  // expiries of the tables
	marks   map[txn.Cell][]tso.Timestamp // commits of lock-only writes
	touched map[string]bool              // rows of which cells or marks may be stored
	safe    tso.Timestamp
	txns    []*playedTxn
	shots   []*playedSnapshot
	lists   []*playedList
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
	hold  bool
	stale bool // it may read one timestamp below its own
}

// A reader is a transaction or a snapshot.
type reader struct {
	ts    tso.Timestamp
	table func(int) *txn.View
	txn   *playedTxn // nil for a snapshot
	stale bool       // of a snapshot
}

func (x *playedTxn) reader() reader {
	return reader{x.tx.StartTS(), func(table int) *txn.View { return &x.tx.Table(crashTables[table]).View }, x, false}
}

func (s *playedSnapshot) reader() reader {
	return reader{s.ReadTS(), func(table int) *txn.View { return s.Table(crashTables[table]) }, nil, s.stale}
}

func (m *performance) model(r reader, table int) modelView {
	v := m.state(table, r.ts)
	if r.txn != nil {
		v.own = r.txn.own[table]
	}
	return v
}

// state is a table at a timestamp.
func (m *performance) state(table int, at tso.Timestamp) modelView {
	return modelView{table: m.tables[table], at: at, own: modelTable{}, expiries: m.lasts[table]}
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
	m := &performance{plan: p, t: t, counts: counts, tables: [2]modelTable{{}, {}}, lasts: [2]map[string]time.Duration{{}, {}}, marks: map[txn.Cell][]tso.Timestamp{}, touched: map[string]bool{}, shownTo: make([]tso.Timestamp, len(p.clients))}
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
			d := workload.NewDelays(m.seed, uint64(100+i), math.MaxInt, time.Second)
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
	for _, s := range m.expiries {
		if err := m.setExpiry(s); err != nil {
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
	case "page":
		next := s
		next.client = (s.client + 1) % len(m.clients)
		return errors.Join(m.page(s), m.page(next))
	case "bulk":
		return m.bulk(s)
	case "expire":
		return m.expire(s)
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
	case "gets", "get for update", "get many":
		if len(readers) == 0 {
			return nil
		}
		if s.kind == "get many" {
			return m.getMany(readers[s.which%len(readers)], s)
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
