package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/families"
	"github.com/percolator-bigtable/percolator/txn/internal/pace"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// ErrNotLeavable means that [Leave] refuses a table. The error says why.
var ErrNotLeavable = errors.New("table cannot leave")

// A LeaveConfig says which table leaves, and how.
type LeaveConfig struct {
	// Table is the name of the table.
	Table string

	// MetadataTable is the metadata table of the deployment.
	// Defaults to "percolator".
	MetadataTable string

	// ClientsStopped is the promise that no client uses the table any more, although
	// worker tokens of the deployment are fresh.
	// Defaults to false: the table is refused while a client is alive.
	ClientsStopped bool

	// Wait is how long Leave waits for clients after it has removed the schema record, as in
	// [UndoAdoption].
	// Defaults to DefaultUndoWait.
	Wait time.Duration

	// RestoreOldPolicies gives the families exactly the garbage-collection policies that they had
	// before the adoption. If the expiry of a family was removed or became longer since, Bigtable
	// then deletes values that transactions read now ([FamilyPolicy.DeletesVisible]).
	// Defaults to false: values last as long as they do now.
	RestoreOldPolicies bool

	// Progress, when set, is called with the number of rows read so far.
	// Defaults to nil.
	Progress func(rows int)
}

// A LeaveReport says what [Leave] did in this call.
type LeaveReport struct {
	Rows    int // rows read
	Changed int // rows in which transactions had written
	Cells   int // values written as plain cells
	Locks   int // locks of dead clients that were resolved
}

// CheckLeave returns the reason why [Leave] would refuse a table, and otherwise the policies that
// its families would get. It changes nothing.
func CheckLeave(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, client *txn.Client, cfg LeaveConfig) ([]FamilyPolicy, error) {
	l, err := newLeaver(admin, bt, client, cfg)
	if err != nil {
		return nil, err
	}
	record, _, err := l.check(ctx)
	if err != nil {
		return nil, err
	}
	return l.plainPolicies(ctx, record)
}

// Leave makes a transactional table a plain one: it undoes [Adopt] also where transactions have
// written. In each column that a transaction wrote, the newest committed value stays, as a
// plain cell at its commit's time in milliseconds; older versions go. Deleted and expired
// values, and all records go. Columns that no transaction wrote stay as they are. Afterwards,
// Leave drops the metadata families and restores the policies that the adoption cleared.
// Expiries ([SetExpiry]) become maximum ages: they replace those of the old policies, which
// might delete values that transactions read ([LeaveConfig.RestoreOldPolicies]).
//
// Stop all clients of the table first, and settle unknown outcomes: Leave fails with
// [ErrNotLeavable] while the worker token of any client is fresh, and if the table has indexes or
// observers. No collection of garbage runs meanwhile. Leave works in these steps:
//
//  1. It removes the schema record, so that no client opens the table, and waits as
//     [UndoAdoption] does.
//  2. It resolves the locks in the table, and the locks in other tables whose primary is in it.
//  3. It rewrites the rows, in parallel, by one mutation for each row, reads each of them again,
//     and compares. It stores how far it has come.
//  4. It searches the whole table for cells of transactions. Then it drops the families.
//
// After an error, or if its process dies, call it again: it continues with the rows that are left,
// and searches the whole table. Until it succeeds, nobody else may use the table.
func Leave(ctx context.Context, admin *bigtable.AdminClient, bt *bigtable.Client, client *txn.Client, cfg LeaveConfig) (LeaveReport, error) {
	l, err := newLeaver(admin, bt, client, cfg)
	if err != nil {
		return LeaveReport{}, err
	}
	err = l.leave(ctx)
	return l.report, err
}

// A leaver makes a table a plain one.
type leaver struct {
	*adoption
	config LeaveConfig
	client *txn.Client
	c      *recovery.Resolver
	pacer  *pace.Pacer

	mu     sync.Mutex
	report LeaveReport
}

func newLeaver(admin *bigtable.AdminClient, bt *bigtable.Client, client *txn.Client, cfg LeaveConfig) (*leaver, error) {
	if cfg.Wait < 0 {
		return nil, invalidf("wait of %v; it must not be negative", cfg.Wait)
	}
	if cfg.Wait == 0 {
		cfg.Wait = DefaultUndoWait
	}
	a, err := newAdoption(admin, bt, &AdoptConfig{Table: cfg.Table, MetadataTable: cfg.MetadataTable, RestoreOldPolicies: cfg.RestoreOldPolicies})
	if err != nil {
		return nil, err
	}
	c := access.ResolverOf(client)
	return &leaver{adoption: a, config: cfg, client: client, c: c, pacer: pace.New(c.Store.Config.Parallelism)}, nil
}

func (l *leaver) refuse(text string, args ...any) error {
	return fmt.Errorf("admin: table %q: %w: %w", l.cfg.Table, ErrNotLeavable, fmt.Errorf(text, args...))
}

// check returns the schema record, and the stored state.
func (l *leaver) check(ctx context.Context) (*recordpb.TableSchema, *adoptionState, error) {
	state, err := l.state(ctx)
	if err != nil {
		return nil, nil, err
	}
	record := state.schema
	if record == nil {
		record = state.leaving
	}
	switch {
	case state.adopting != nil || state.undoing != nil:
		return nil, nil, l.refuse("its adoption, or the undo of it, was interrupted; complete that first (percctl table adopt, percctl table unadopt)")
	case record == nil:
		return nil, nil, fmt.Errorf("admin: table %q: %w: it has no schema record in metadata table %q", l.cfg.Table, format.ErrNotInitialized, l.cfg.MetadataTable)
	case len(record.Indexes) > 0:
		return nil, nil, l.refuse("index %s is on it; drop the index first (percctl index drop)", record.Indexes[0].Name)
	}
	index, err := indexWith(ctx, l.meta, func(entries string) bool { return strings.HasPrefix(entries, l.cfg.Table+"/") })
	switch {
	case err != nil:
		return nil, nil, err
	case index != "":
		return nil, nil, l.refuse("the entries of index %s are in it; drop the index first (percctl index drop)", index)
	}
	for _, o := range record.Observed {
		if len(o.Observers) > 0 {
			return nil, nil, l.refuse("observer %s is registered for column %s; remove it first (percctl observer remove)", o.Observers[0], store.ColumnOf(o))
		}
	}
	if l.config.ClientsStopped {
		return record, state, nil
	}
	workers, err := Workers(ctx, l.client)
	if err != nil {
		return nil, nil, err
	}
	for _, w := range workers {
		if w.State == OwnerFresh && w.Owner != Owner(l.client) {
			return nil, nil, l.refuse("a client of the deployment is alive, process %d on %s; stop the clients, or promise that none of them uses the table (LeaveConfig.ClientsStopped, percctl table leave --clients-stopped)", w.PID, w.Host)
		}
	}
	return record, state, nil
}

func (l *leaver) leave(ctx context.Context) error {
	record, state, err := l.check(ctx)
	if err != nil {
		return err
	}
	if !state.dropping {
		if err := l.rewrite(ctx, record, state); err != nil {
			return err
		}
	}
	if err := families.DropMetadata(ctx, l.admin, l.cfg.Table); err != nil {
		return err
	}
	if err := l.restorePolicies(ctx, record); err != nil {
		return err
	}
	return l.end(ctx)
}

// rewrite does everything up to the drop of the families.
func (l *leaver) rewrite(ctx context.Context, record *recordpb.TableSchema, state *adoptionState) error {
	// A collector may have decided what to remove before a row is rewritten. The wait below is
	// longer than its requests may take.
	ctx, release, err := gc.Exclude(ctx, l.client)
	if err != nil {
		return err
	}
	defer release()
	if err := l.putState(ctx, leavingQualifier, record); err != nil {
		return err
	}
	stored := state.schemaBytes
	if state.schema == nil {
		// An earlier run has removed the record. The locks below need it.
		if err := l.putSchema(ctx, record); err != nil {
			return err
		}
		stored = format.Marshal(record)
	}
	t, err := l.c.Table(ctx, l.cfg.Table)
	if err != nil {
		return err
	}
	if err := l.removeSchema(ctx, stored); err != nil {
		return err
	}
	if err := store.Sleep(ctx, l.config.Wait); err != nil {
		return store.Ended(ctx, fmt.Sprintf("admin: waiting until no client uses table %q any more", l.cfg.Table), nil)
	}
	if err := l.resolve(ctx); err != nil {
		return err
	}
	now, err := l.c.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(l.c.Store.Config.Parallelism)
	for _, part := range store.Without(split(ctx, t), state.left) {
		g.Go(func() error { return l.part(gctx, t, part, now, store.ExpiriesOf(record)) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	u := &undoer{l.adoption}
	u.cfg.Progress = l.config.Progress
	found, err := u.written(ctx)
	if err == nil && found != nil {
		m := bigtable.NewMutation() // the next call has to rewrite the row
		m.DeleteCellsInFamily(store.DeployFamily)
		m.Set(store.DeployFamily, leavingQualifier, 0, format.Marshal(record))
		_, err = l.meta.Apply(ctx, []store.RowMutation{{Row: adoptionRowPrefix + l.cfg.Table, Mut: m, Ops: 2}})
		err = errors.Join(fmt.Errorf("admin: table %q: %s was written while the table left; stop the clients, and leave again", l.cfg.Table, found.Cell), err)
	}
	if err != nil {
		return err
	}
	return l.putState(ctx, droppingQualifier, record)
}

// resolve resolves the locks of the table, and those of other tables whose transactions have
// their primary in it.
func (l *leaver) resolve(ctx context.Context) error {
	tables, err := l.c.TableNames(ctx)
	if err != nil {
		return err
	}
	for _, name := range append(tables, l.cfg.Table) {
		var locks []format.Lock
		for lock, err := range Locks(ctx, l.client, name, nil) {
			if err != nil {
				return err
			}
			if name == l.cfg.Table || lock.Primary.Table == l.cfg.Table {
				locks = append(locks, lock)
			}
		}
		var failed error
		err := ResolveLocks(ctx, l.client, locks, func(i int, s format.Status, err error) {
			l.report.Locks++
			if err == nil && !s.Final() {
				err = l.refuse("%s is locked by the transaction that started at %d, which may be alive; leave again later", locks[i].Cell, locks[i].StartTS)
			}
			failed = errors.Join(failed, err)
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
	}
	return nil
}

// saveInterval is how often a part stores how far it has come.
const saveInterval = time.Second

// leaveRows is how many rows a request rewrites: requests of other clients wait for it.
const leaveRows = 200

// part rewrites a part of the table, and stores how far it has come.
func (l *leaver) part(ctx context.Context, t *store.Table, part store.KeyRange, now tso.Timestamp, expiries store.Expiries) error {
	left := func(end string) error {
		m := bigtable.NewMutation()
		m.Set(store.DeployFamily, leftPrefix+part.Start, 0, []byte(end))
		_, err := l.meta.Apply(ctx, []store.RowMutation{{Row: adoptionRowPrefix + l.cfg.Table, Mut: m, Ops: 1}})
		return err
	}
	everything := func(*store.Table) bigtable.Filter { return store.Interleave(bigtable.PassAllFilter()) }
	saved := time.Now()
	err := l.c.Pages(ctx, t.Name, bigtable.NewRange(part.Start, part.End), everything, func(t *store.Table, page []bigtable.Row) (bool, error) {
		for rows := range slices.Chunk(page, leaveRows) {
			if err := l.page(ctx, t, rows, now, expiries); err != nil {
				return false, err
			}
		}
		var err error
		if len(page) > 0 && time.Since(saved) >= saveInterval {
			saved = time.Now()
			err = left(page[len(page)-1].Key() + "\x00")
		}
		return true, err
	})
	if err != nil {
		return err
	}
	return left(part.End)
}

// page rewrites rows, and compares what is stored then.
func (l *leaver) page(ctx context.Context, t *store.Table, page []bigtable.Row, now tso.Timestamp, expiries store.Expiries) error {
	var muts []store.RowMutation
	var keys bigtable.RowList
	want := map[string]*plainRow{}
	cells := 0
	for _, raw := range page {
		p, err := newPlainRow(t.Name, raw, now, expiries)
		if err != nil {
			return err
		}
		if p.touched {
			keys, want[raw.Key()] = append(keys, raw.Key()), p
			muts = append(muts, p.mutations...)
			cells += len(p.values)
		}
	}
	rewrite := func() error {
		if _, err := t.Apply(ctx, muts); err != nil {
			return err
		}
		var differs error
		err := t.ReadRows(ctx, keys, func(raw bigtable.Row) bool {
			differs = want[raw.Key()].compare(t.Name, raw)
			delete(want, raw.Key())
			return differs == nil
		}, bigtable.RowFilter(store.Interleave(bigtable.PassAllFilter())))
		if err := errors.Join(err, differs); err != nil {
			return err
		}
		for _, p := range want { // nothing is left of these rows
			if err := p.compare(t.Name, nil); err != nil {
				return err
			}
		}
		return nil
	}
	if len(muts) > 0 {
		if err := l.pacer.Do(ctx, len(muts), rewrite); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Rows += len(page)
	l.report.Changed += len(keys)
	l.report.Cells += cells
	if l.config.Progress != nil {
		l.config.Progress(l.report.Rows)
	}
	return nil
}

// A plainRow is a row without the cells of transactions.
type plainRow struct {
	key       string
	touched   bool                         // it has cells of transactions
	values    map[string]bigtable.ReadItem // of the columns that transactions wrote, by family:qualifier
	written   map[string]bool              // these columns
	mutations []store.RowMutation          // the last one completes the row
}

// newPlainRow makes the plain row from all cells of a row.
func newPlainRow(table string, raw bigtable.Row, now tso.Timestamp, expiries store.Expiries) (*plainRow, error) {
	p := &plainRow{key: raw.Key(), values: map[string]bigtable.ReadItem{}, written: map[string]bool{}}
	newest := map[format.Column]format.WriteRecord{}
	var columns []format.Column
	for _, family := range format.MetadataFamilies {
		for _, item := range raw[family] {
			p.touched = true
			c, cell, err := format.MetadataCell(table, p.key, item)
			if family == format.NotifyFamily || family == format.AckFamily || family == format.MarkFamily || err == nil && c.Family == format.AckFamily {
				continue
			}
			if err != nil {
				return nil, err
			}
			if family == format.LockFamily {
				return nil, fmt.Errorf("admin: %s was locked while table %q left; stop the clients, and leave again", cell, table)
			}
			w, err := format.DecodeWrite(cell, tso.FromCell(item.Timestamp), item.Value)
			if err != nil {
				return nil, err
			}
			if old, ok := newest[c]; !ok {
				columns = append(columns, c)
				newest[c] = w
			} else if w.CommitTS > old.CommitTS {
				newest[c] = w
			}
		}
	}
	m, ops := bigtable.NewMutation(), 0
	next := func(more int) {
		if ops+more > format.MaxMutations/10 && ops > 0 {
			p.mutations = append(p.mutations, store.RowMutation{Row: p.key, Mut: m, Ops: ops})
			m, ops = bigtable.NewMutation(), 0
		}
		ops += more
	}
	slices.SortFunc(columns, func(a, b format.Column) int { return strings.Compare(a.Key(), b.Key()) })
	for _, c := range columns {
		w := newest[c]
		p.written[c.Key()] = true
		// A column is changed by one mutation, so that a rewrite that dies in between can be
		// repeated.
		next(3)
		m.DeleteCellsInColumn(c.Family, c.Qualifier)
		m.DeleteCellsInColumn(format.WriteFamily, c.Key())
		if w.Kind != format.KindPut || expiries.Expired(c.Family, w.CommitTS, now) {
			continue
		}
		items := raw[c.Family]
		i := slices.IndexFunc(items, func(item bigtable.ReadItem) bool {
			return item.Column == c.Key() && item.Timestamp == w.StartTS.Cell()
		})
		if i < 0 {
			return nil, format.Corruptf(format.Cell{Table: table, Row: p.key, Family: c.Family, Qualifier: c.Qualifier}, "the write record at %d names data at %d, which is not there", w.CommitTS, w.StartTS)
		}
		item := items[i]
		item.Timestamp = bigtable.Timestamp(w.CommitTS).TruncateToMilliseconds()
		p.values[c.Key()] = item
		m.Set(c.Family, c.Qualifier, item.Timestamp, item.Value)
	}
	for family, items := range raw {
		for _, item := range items {
			if c, ok := format.SplitColumn(item.Column); ok && !format.IsMetadataFamily(family) && family != format.AckFamily && item.Timestamp >= format.PlainBefore && !p.written[item.Column] {
				// Data that no record names.
				p.touched = true
				next(1)
				m.DeleteTimestampRange(c.Family, c.Qualifier, format.PlainBefore, 0)
			}
		}
	}
	if !p.touched {
		return p, nil
	}
	next(len(format.MetadataFamilies))
	for _, family := range format.MetadataFamilies {
		m.DeleteCellsInFamily(family)
	}
	p.mutations = append(p.mutations, store.RowMutation{Row: p.key, Mut: m, Ops: ops})
	return p, nil
}

// compare returns an error if a row is not stored as it has to be.
func (p *plainRow) compare(table string, raw bigtable.Row) error {
	found := 0
	for family, items := range raw {
		for _, item := range items {
			want, ok := p.values[item.Column]
			switch {
			case slices.Contains(format.MetadataFamilies, family) || item.Timestamp >= format.PlainBefore,
				p.written[item.Column] && (!ok || item.Timestamp != want.Timestamp || !bytes.Equal(item.Value, want.Value)):
				return fmt.Errorf("admin: table %q, row %q: %s has another cell, at %d, after it was rewritten; stop the clients, and leave again", table, p.key, item.Column, item.Timestamp)
			case ok:
				found++
			}
		}
	}
	if found != len(p.values) {
		return fmt.Errorf("admin: table %q, row %q: %d of %d values are there after it was rewritten; stop the clients, and leave again", table, p.key, found, len(p.values))
	}
	return nil
}
