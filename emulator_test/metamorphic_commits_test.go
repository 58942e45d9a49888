package emulator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// fresh checks a new timestamp of a client: it is above every earlier one, except that
// MaxStaleness allows it to be below commits of other clients within the age.
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
	if tx.Serializable() != s.txn.Serializable {
		return fmt.Errorf("a transaction says that it is serializable: %v", tx.Serializable())
	}
	x := newPlayedTxn(s.txn, tx, s.client)
	m.txns = append(m.txns, x)
	err = m.fresh(s.client, tx.StartTS(), 0, 0)
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
	m.shots = append(m.shots, &playedSnapshot{shot, s.snap.Hold, s.snap.MaxStaleness > 0})
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
		if r.txn != nil && (slices.Contains(commits, r.txn) || r.txn.Serializable) {
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
				if tx.StartTS() <= before {
					add(func() {
						found = append(found, fmt.Errorf("Update began at %d, %d had been returned before", tx.StartTS(), before))
					})
				}
				if read.value, present, err = tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier); err != nil {
					return err
				}
				v := []byte(fmt.Sprint(s.value, i))
				last.own[s.table].put(cell.Row, cell.Column(), modelVersion{value: v})
				tx.Table(cell.Table).Set(cell.Row, cell.Family, cell.Qualifier, v)
				return nil
			}, s.txn.options()...)
			add(func() { ends = append(ends, end{last, ts, err}) })
			if last != nil {
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
		v, ok := m.state(s.table, r.ts).cell(s.row, s.columns[0])
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
	now := m.state(s.table, r.StartTS)
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

// setExpiry sets how long the values of a family last, from then on.
func (m *performance) setExpiry(s planStep) error {
	m.lasts[s.table][s.columns[0].Family] = s.passes
	return admin.SetExpiry(m.ctx, m.env.Client, crashTables[s.table], s.columns[0].Family, s.passes)
}

// expire makes the values of a family expire sooner, and waits until every client knows that.
// Before, and in what is open, clients may differ.
func (m *performance) expire(s planStep) error {
	if last, ok := m.lasts[s.table][s.columns[0].Family]; ok && last <= s.passes {
		return nil // values that were collected would come back in the model
	}
	for _, x := range m.txns {
		x.tx.Rollback()
	}
	for _, shot := range m.shots {
		shot.Release()
	}
	m.txns, m.shots, m.lists = nil, nil, nil
	if err := m.setExpiry(s); err != nil {
		return err
	}
	<-time.After(61 * time.Second) // Config.SchemaMaxAge
	m.counts.add("expiries set", 1)
	return nil
}
