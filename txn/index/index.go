package index

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/jobs"
)

// Errors to match with errors.Is.
var (
	// ErrUnique: another row has the key. See [UniqueError].
	ErrUnique = errors.New("another row has the key")
	// ErrState: the index does not exist, is not built yet, or is being dropped.
	ErrState = errors.New("the index cannot be used now")
	// ErrDefinition: the recorded definition of the index is another one, or it has a function
	// that this process does not have.
	ErrDefinition = errors.New("this process does not know the index as it is recorded")
)

// A UniqueError says which row already has a key of a unique index.
type UniqueError struct {
	Index string
	Key   Key
	// Row was to get the key, and Other has it.
	Row, Other string
}

// Error names the index, the key and both rows.
func (e *UniqueError) Error() string {
	return fmt.Sprintf("index: %s: row %q with key %q: %v: row %q", e.Index, e.Row, []string(e.Key), ErrUnique, e.Other)
}

// Is makes errors.Is(err, ErrUnique) true.
func (e *UniqueError) Is(target error) bool { return target == ErrUnique }

// lease bounds how old the states may be that a commit relies on.
const lease = 10 * time.Second

// Indexes are the indexes of a process. It is safe for concurrent use.
type Indexes struct {
	table, family string
	byName        map[string]*Index

	loading chan struct{} // holds one element while one goroutine reads the states
	states  atomic.Pointer[states]
}

// New declares indexes, whose entries are in a family of a transactional table of their own.
// It reads nothing: an index is maintained once [Indexes.Create] has recorded it.
func New(table, family string, indexes ...Index) (*Indexes, error) {
	x := &Indexes{table: table, family: family, byName: map[string]*Index{}, loading: make(chan struct{}, 1)}
	if table == "" {
		return nil, fmt.Errorf("index: %w: empty name of the table of entries", txn.ErrInvalid)
	}
	if err := format.CheckColumn(x.rowColumn()); err != nil {
		return nil, err
	}
	for _, i := range indexes {
		fail := func(text string) (*Indexes, error) {
			return nil, fmt.Errorf("index: %q: %w: %s", i.Name, txn.ErrInvalid, text)
		}
		switch {
		case !nameForm.MatchString(i.Name):
			return fail("a name has 1 to 64 letters, digits, '-' and '_'")
		case x.byName[i.Name] != nil:
			return fail("two indexes have the name")
		case i.Table == "" || i.Table == table:
			return fail("Table has to name a table, and not that of the entries")
		case len(i.Columns) == 0:
			return fail("without Columns")
		}
		i.Columns = slices.Clone(i.Columns)
		for n, c := range i.Columns {
			if err := format.CheckColumn(c); err != nil {
				return nil, fmt.Errorf("index: %q: %w", i.Name, err)
			}
			if slices.Contains(i.Columns[:n], c) {
				return fail("column " + c.String() + " is named twice")
			}
		}
		x.byName[i.Name] = &i
	}
	return x, nil
}

// Keep makes the commits of a client maintain the indexes. Call it before the client's first
// transaction.
func (x *Indexes) Keep(client *txn.Client) {
	client.BeforeCommit(func(ctx context.Context, tx *txn.Txn) error { return maintain(ctx, x, tx) })
	access.Keep(client, x.place())
}

// Progress says how far Create or Drop has come with the rows. It is zero before they begin, and
// after they have ended.
func (x *Indexes) Progress(ctx context.Context, client *txn.Client, name string) (jobs.Status, error) {
	i, err := x.find(name)
	if err != nil {
		return jobs.Status{}, err
	}
	return (&build{x, client, i}).progress(ctx)
}

// At reads indexes in a snapshot.
func (x *Indexes) At(s *txn.Snapshot) Reader { return Reader{x: x, view: s.Table(x.table)} }

// In reads indexes in a transaction. Its own writes show in indexes only after its commit.
func (x *Indexes) In(tx *txn.Txn) Reader {
	r := Reader{x: x, view: tx.Table(x.table)}
	if tx.Serializable() {
		r.tx = tx
	}
	return r
}

// Page reads at most size entries of a range, and returns the token of the next page: none after
// the last entry. Without a token it reads the first page. All pages show the state of the first
// one, in any process, as long as garbage collection keeps it: then the error is txn.ErrTooOld.
// The Limit of the query does not count.
//
// A token that is damaged, or of another range, fails with txn.ErrInvalid. Tokens are not signed:
// a client of your service that changes one can read the same range from another entry on, or at
// an older timestamp.
func (x *Indexes) Page(ctx context.Context, client *txn.Client, name string, q Query, size int, token string) (entries []Entry, next string, err error) {
	return readPage(ctx, x, client, name, q, size, token)
}

// Create builds an index: see the package comment. It may be called again after an error or a
// crash, and then continues. report, if not nil, gets the progress of the rows. If two rows
// have the same key of a unique index, the error is a [UniqueError]: change one of them and
// call Create again, or drop the index. Create of an index that is ready does nothing.
func (x *Indexes) Create(ctx context.Context, client *txn.Client, name string, report func(jobs.Status)) error {
	i, err := x.find(name)
	if err != nil {
		return err
	}
	return (&build{x, client, i}).create(ctx, report)
}

// Drop removes an index and its entries. Like Create, it may be called again to continue. It
// needs only the name, so it also drops an index that New does not know. Drop of an index
// that does not exist does nothing.
func (x *Indexes) Drop(ctx context.Context, client *txn.Client, name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("index: %q: %w: not the name of an index", name, txn.ErrInvalid)
	}
	return (&build{x, client, &Index{Name: name}}).drop(ctx)
}

// Verify compares an index that is ready with its table, at one timestamp. It calls report for
// each difference, never concurrently. Repair an index by Drop and Create. Garbage collection
// waits for it, unless Config.TokenTTL of the client is negative.
func (x *Indexes) Verify(ctx context.Context, client *txn.Client, name string, report func(Problem)) error {
	return verify(ctx, x, client, name, report)
}

func (x *Indexes) find(name string) (*Index, error) {
	if i := x.byName[name]; i != nil {
		return i, nil
	}
	return nil, fmt.Errorf("index: %q: %w: no such index was given to New", name, txn.ErrInvalid)
}

// place is where the entries are.
func (x *Indexes) place() string { return x.table + "/" + x.family }

// rowColumn is the column of an entry: the key of the indexed row.
func (x *Indexes) rowColumn() txn.Column { return txn.Column{Family: x.family, Qualifier: "row"} }

func (x *Indexes) stateColumn() txn.Column {
	return txn.Column{Family: x.family, Qualifier: "state"}
}

// states are the records as of ts.
type states struct {
	ts   tso.Timestamp
	read time.Time
	by   map[string]record
}

// current returns states that a commit of tx may rely on.
func (x *Indexes) current(ctx context.Context, tx *txn.Txn) (*states, error) {
	fresh := func() *states {
		s := x.states.Load()
		if s == nil || time.Since(s.read) > lease/2 || tx.StartTS() > s.ts+half {
			return nil
		}
		return s
	}
	if s := fresh(); s != nil {
		return s, nil
	}
	select {
	case x.loading <- struct{}{}:
		defer func() { <-x.loading }()
	case <-ctx.Done():
		return nil, fmt.Errorf("index: waiting for the states of indexes: %w", context.Cause(ctx))
	}
	if s := fresh(); s != nil {
		return s, nil
	}
	s, err := x.load(ctx, tx.Client())
	if err == nil {
		x.states.Store(s)
	}
	return s, err
}

// whole and half are lease and half of it as differences of timestamps.
const (
	whole = tso.Timestamp(lease / time.Microsecond)
	half  = whole / 2
)

// load reads the states.
func (x *Indexes) load(ctx context.Context, client *txn.Client) (*states, error) {
	read := time.Now()
	snapshot, err := client.Snapshot(ctx, txn.MaxStaleness(lease/4))
	if err != nil {
		return nil, err
	}
	s := &states{ts: snapshot.ReadTS(), read: read, by: map[string]record{}}
	for row, err := range snapshot.Table(x.table).ReadRows(ctx, prefix(statePrefix), txn.Columns(x.stateColumn())) {
		if err != nil {
			return nil, err
		}
		name, item := row.Key()[len(statePrefix):], row[x.family][0]
		if s.by[name], err = decodeRecord(name, item.Value, tso.Timestamp(item.Timestamp)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// State returns the state of an index.
func (x *Indexes) State(ctx context.Context, client *txn.Client, name string) (State, error) {
	r, err := x.readRecord(ctx, client, name)
	return r.State, err
}

func (x *Indexes) readRecord(ctx context.Context, client *txn.Client, name string) (record, error) {
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return record{}, err
	}
	return x.recordIn(ctx, snapshot.Table(x.table), name)
}

// recordIn reads a record; without one, the index is Absent.
func (x *Indexes) recordIn(ctx context.Context, view txn.Reader, name string) (record, error) {
	row, err := view.ReadRow(ctx, statePrefix+name, txn.Columns(x.stateColumn()))
	if err != nil || len(row) == 0 {
		return record{}, err
	}
	item := row[x.family][0]
	return decodeRecord(name, item.Value, tso.Timestamp(item.Timestamp))
}

// recorded returns the index of a record: as it was declared, or else from the record.
func (x *Indexes) recorded(name string, r record) (*Index, error) {
	if i := x.byName[name]; i != nil {
		return i, i.check(r)
	}
	if r.Keys {
		return nil, fmt.Errorf("index: %s: %w: its keys come from a function, and New does not name it", name, ErrDefinition)
	}
	return r.index(name)
}

// ready checks a record. row is not a record if there is none.
func (x *Indexes) ready(i *Index, row bigtable.Row) (bool, error) {
	if len(row) == 0 || row.Key() != statePrefix+i.Name {
		return false, notReady(i, Absent)
	}
	item := row[x.family][0]
	r, err := decodeRecord(i.Name, item.Value, tso.Timestamp(item.Timestamp))
	switch {
	case err != nil:
		return false, err
	case r.State != Ready:
		return false, notReady(i, r.State)
	}
	return true, i.check(r)
}
