package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

const (
	// maxSenders is how many requests with entries a client has under way. Entries that wait
	// share the next one.
	maxSenders = 4
	// maxBatch is how many entries a request has at most.
	maxBatch = 5000
	// firstTry bounds the shared request, so that one row that does not answer does not hold
	// up other transactions for long. After it each transaction sends its own entries again.
	firstTry = 2 * time.Second
	// pageEntries is how many entries a page has at most.
	pageEntries = 1000
)

// A Journal writes, reads and removes a client's entries.
type Journal struct {
	store *store.Store
	// Examined remembers entries that could not be removed yet.
	Examined Examined

	commits, notifications written

	mu      sync.Mutex
	next    *batch // nil: nothing waits
	senders int
}

// A batch is the content of one request.
type batch struct {
	muts   []store.RowMutation
	done   chan struct{} // closed when failed is set
	failed map[*bigtable.Mutation]error
}

// errNotSent says that the background could not send an entry.
var errNotSent = errors.New("percolator: not sent")

// New returns the journal of a client.
func New(s *store.Store) *Journal { return &Journal{store: s} }

// A Pending is the write of a commit's entries.
type Pending struct {
	journal   *Journal
	startTS   tso.Timestamp
	done      chan struct{} // closed when err is set
	err       error
	entries   []pendingEntry
	withdrawn atomic.Bool
	removed   sync.Once
}

// A pendingEntry is an entry at startTS, and the one that it replaced; 0: none.
type pendingEntry struct {
	cell  format.Cell
	older tso.Timestamp
}

// Begin begins to write the entries of a transaction, and returns nil if it needs none. The
// caller must not send the commit before Wait has returned nil.
func (j *Journal) Begin(ctx context.Context, rows []*store.RowWrites, startTS tso.Timestamp) *Pending {
	var muts []store.RowMutation
	var p *Pending // without observed cells it stays nil
	for _, row := range rows {
		if !row.Table.Schema.Journaled() {
			continue
		}
		for _, c := range row.Observed() {
			if p == nil {
				p = &Pending{journal: j, startTS: startTS, done: make(chan struct{})}
			}
			older := j.commits.next(RowKey(c), startTS)
			muts = append(muts, set(txnQualifier, c, startTS, older))
			p.entries = append(p.entries, pendingEntry{c, older})
		}
	}
	if p == nil {
		return nil
	}
	go func() {
		b := j.join(muts)
		<-b.done // also if ctx has ended: a removal must not overtake the request
		p.err = j.again(ctx, b, muts)
		close(p.done)
		if p.withdrawn.Load() {
			p.removed.Do(p.remove)
		}
	}()
	return p
}

// lateAfter is how long after its timestamp an entry is written once more. A scan removes one that
// it has examined for twice as long without a lock or a notification (changes.Pending).
const lateAfter = 30 * time.Minute

// Late reports whether a scan may have removed an entry at ts by now, although it was written
// before its cell. Then the caller writes it once more after the cell.
func (j *Journal) Late(ts tso.Timestamp) bool {
	now := j.store.Clock.Now() // 0: not known
	return now == 0 || now-ts > tso.Timestamp(lateAfter.Microseconds())
}

// Wait returns when all entries are stored, or with an error. The caller has prewritten all cells.
func (p *Pending) Wait(ctx context.Context) error {
	if p == nil {
		return nil
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return store.Ended(ctx, "percolator: writing journal entries", nil)
	}
	if p.err != nil || !p.journal.Late(p.startTS) {
		return p.err
	}
	var muts []store.RowMutation
	for _, e := range p.entries {
		muts = append(muts, set(txnQualifier, e.cell, p.startTS, 0))
	}
	return p.journal.write(ctx, muts)
}

// Withdraw removes the entries of a transaction that can never commit, in the background, once the
// write of them has ended. If it fails, they stay until a scan finds that nothing needs them.
func (j *Journal) Withdraw(p *Pending) {
	if p == nil {
		return
	}
	p.withdrawn.Store(true) // before the look at done, so one of the two goroutines removes them
	select {
	case <-p.done:
		p.removed.Do(p.remove)
	default:
	}
}

// remove removes the entries, and brings back those that they replaced.
func (p *Pending) remove() {
	var muts []store.RowMutation
	for _, e := range p.entries {
		m, _ := Removal{Cell: e.cell, From: p.startTS, StartTS: p.startTS}.mutation()
		if e.older != 0 {
			m = set(txnQualifier, e.cell, e.older, p.startTS)
		}
		p.journal.commits.back(m.Row, p.startTS, e.older)
		muts = append(muts, m)
	}
	p.journal.store.Background.Add(p.journal.store.Metadata, muts)
}

// Notify sets the notify cells of cells at ts, and writes their entries at the same time. Until
// it returns nil, the notification may be missing.
func (j *Journal) Notify(ctx context.Context, cells []format.Cell, ts tso.Timestamp, value []byte) error {
	done := make(chan error, 1)
	go func() { done <- j.Enter(ctx, Entry{NotifyTS: ts}, cells...) }()
	err := store.WriteNotifications(ctx, j.store, cells, ts, value)
	return errors.Join(err, <-done)
}

// Enter writes entries of cells whose tables have a journal, at the timestamps of e.
func (j *Journal) Enter(ctx context.Context, e Entry, cells ...format.Cell) error {
	var muts []store.RowMutation
	for _, c := range cells {
		t, err := j.store.Table(ctx, c.Table)
		if err != nil {
			return err
		}
		if !t.Schema.Journaled() {
			continue
		}
		switch {
		case e.StartTS != 0:
			muts = append(muts, set(txnQualifier, c, e.StartTS, 0))
		case e.NotifyTS != 0:
			muts = append(muts, set(notifyQualifier, c, e.NotifyTS, j.notifications.next(RowKey(c), e.NotifyTS)))
		default:
			muts = append(muts, set(failureQualifier, c, e.FailureTS, 0))
		}
	}
	return j.write(ctx, muts)
}

// write stores entries. Calls at the same time share requests.
func (j *Journal) write(ctx context.Context, muts []store.RowMutation) error {
	if len(muts) == 0 {
		return nil
	}
	b := j.join(muts)
	select {
	case <-b.done:
		return j.again(ctx, b, muts)
	case <-ctx.Done():
		return store.Ended(ctx, "percolator: writing journal entries", nil)
	}
}

// again sends those of muts that failed in b.
func (j *Journal) again(ctx context.Context, b *batch, muts []store.RowMutation) error {
	muts = slices.DeleteFunc(slices.Clone(muts), func(m store.RowMutation) bool { return b.failed[m.Mut] == nil })
	if len(muts) == 0 {
		return nil
	}
	if err := b.failed[muts[0].Mut]; store.Permanent(err) {
		return fmt.Errorf("percolator: writing journal entries: %w", err)
	}
	if _, err := j.store.Metadata.Apply(ctx, muts); err != nil {
		return fmt.Errorf("percolator: writing journal entries: %w", err)
	}
	return nil
}

// join adds mutations to the next batch, and sends it unless enough requests are under way.
func (j *Journal) join(muts []store.RowMutation) *batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.next == nil {
		j.next = &batch{done: make(chan struct{})}
	}
	b := j.next
	b.muts = append(b.muts, muts...)
	if j.senders < maxSenders {
		j.senders++
		j.next = nil
		j.start(b)
	}
	return b
}

// start sends b, and the batches that have come up by then. j.mu is held.
func (j *Journal) start(b *batch) {
	send := func(ctx context.Context) {
		for b := b; b != nil; {
			b.failed = j.send(ctx, b.muts)
			close(b.done)
			j.mu.Lock()
			if b, j.next = j.next, nil; b == nil {
				j.senders--
			}
			j.mu.Unlock()
		}
	}
	if j.store.Background.Run(send) {
		return
	}
	// The background is full or closed: each caller sends its own.
	b.failed = map[*bigtable.Mutation]error{}
	for _, m := range b.muts {
		b.failed[m.Mut] = errNotSent
	}
	j.senders--
	close(b.done)
}

func (j *Journal) send(ctx context.Context, muts []store.RowMutation) (failed map[*bigtable.Mutation]error) {
	for part := range slices.Chunk(muts, maxBatch) {
		rctx, cancel := context.WithTimeout(ctx, firstTry)
		rest, _ := j.store.Metadata.Apply(rctx, part) // the callers send again what failed
		cancel()
		for _, m := range rest {
			if failed == nil {
				failed = map[*bigtable.Mutation]error{}
			}
			failed[m.Mut] = m.Err
		}
	}
	return failed
}

// Remove removes entries.
func (j *Journal) Remove(ctx context.Context, removals ...Removal) error {
	var muts []store.RowMutation
	for _, r := range removals {
		if m, ok := r.mutation(); ok {
			muts = append(muts, m)
		}
	}
	if len(muts) == 0 {
		return nil
	}
	_, err := j.store.Metadata.Apply(ctx, muts)
	return err
}

// ErrLate says that entries are left out, because their tablets did not answer in time.
var ErrLate = errors.New("percolator: a tablet of the journal of pending work did not answer in time")

// maxTablets is how many tablets Read reads at the same time while one is late.
const maxTablets = 16

// A Part says which part of the journal to read, and for how long to wait for it.
type Part struct {
	// N is the number of the part, from 0, and Of how many there are.
	N, Of int
	// Patience is how long a page may take; 0: until the context ends. If one takes longer, the tablets
	// of what is left are read apart, at the same time. What is later than that again is left out.
	Patience time.Duration
	// Apart reads the tablets apart from the beginning.
	Apart bool
}

// Read calls fn with the entries of a part of the journal of tables, page by page, until fn returns
// false. It leaves out what it cannot parse. If it leaves out a tablet, the error matches ErrLate, after
// the entries of the others.
func (j *Journal) Read(ctx context.Context, tables []string, p Part, fn func([]Entry) (goOn bool)) error {
	var rs bigtable.RowRangeList
	for _, t := range tables {
		rs = append(rs, rangeOf(t, p.N, p.Of))
	}
	if len(rs) == 0 {
		return nil // no range would be all rows
	}
	if err := j.store.CheckOpen(); err != nil {
		return err
	}
	rest, err := store.NewRowSet(rs)
	if err != nil {
		return err
	}
	if !p.Apart {
		if rest, err = j.read(ctx, rest, p.Patience, fn); !errors.Is(err, ErrLate) {
			return err
		}
	}
	return j.readApart(ctx, rest, p.Patience, fn)
}

// readApart reads each tablet of rest by itself, several at the same time.
func (j *Journal) readApart(ctx context.Context, rest store.RowSet, patience time.Duration, fn func([]Entry) (goOn bool)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan []Entry)
	failed := make(chan error, 1)
	go func() {
		defer close(found)
		var mu sync.Mutex
		var errs []error
		var g errgroup.Group
		g.SetLimit(maxTablets)
		for _, tablet := range j.tablets(ctx, rest, patience) {
			g.Go(func() error {
				_, err := j.read(ctx, tablet, patience, func(page []Entry) bool {
					select {
					case found <- page:
						return true
					case <-ctx.Done():
						return false
					}
				})
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				return nil
			})
		}
		_ = g.Wait()
		failed <- errors.Join(errs...)
	}()
	for page := range found { // by this goroutine alone
		if !fn(page) {
			cancel()
			for range found { // until nothing is under way
			}
			return nil
		}
	}
	return <-failed
}

// tablets divides rows into those of each tablet. It waits for Bigtable to say where tablets end, for
// that long.
func (j *Journal) tablets(ctx context.Context, rest store.RowSet, patience time.Duration) (parts []store.RowSet) {
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	all := []store.KeyRange{{}}
	for _, tablet := range j.store.Metadata.Tablets(ctx, store.RowSet{Ranges: all}) {
		part := store.RowSet{Ranges: store.Without(rest.Ranges, store.Without(all, tablet.Ranges))}
		if !part.Empty() {
			parts = append(parts, part)
		}
	}
	return parts
}

// Find returns the entries of cells, by cell.
func (j *Journal) Find(ctx context.Context, cells ...format.Cell) (map[format.Cell]Entry, error) {
	var rows []string
	for _, c := range cells {
		rows = append(rows, RowKey(c))
	}
	found := map[format.Cell]Entry{}
	if len(rows) == 0 {
		return found, nil
	}
	slices.Sort(rows)
	_, err := j.read(ctx, store.RowSet{Keys: slices.Compact(rows)}, 0, func(page []Entry) bool {
		for _, e := range page {
			found[e.Cell] = e
		}
		return true
	})
	return found, err
}

// read reads rows, page by page. If a page takes longer than patience (0: no bound), it returns ErrLate
// and the rows that are left.
func (j *Journal) read(ctx context.Context, rest store.RowSet, patience time.Duration, fn func([]Entry) (goOn bool)) (left store.RowSet, err error) {
	newest := store.Interleave(
		store.Chain(store.ExactColumn(store.DeployFamily, txnQualifier), store.Latest),
		store.Chain(store.ExactColumn(store.DeployFamily, notifyQualifier), store.Latest),
		store.Chain(store.ExactColumn(store.DeployFamily, failureQualifier), store.Latest),
	)
	var pieces store.Pieces
	for !rest.Empty() {
		var page []Entry
		rctx, cancel := ctx, context.CancelFunc(func() {})
		if patience > 0 {
			rctx, cancel = context.WithTimeout(ctx, patience)
		}
		left, err = j.store.Metadata.ReadPage(rctx, &pieces, rest, pageEntries, newest, func(raw bigtable.Row) bool {
			if e, err := decode(raw); err == nil {
				page = append(page, e)
			} else {
				j.store.Log.WarnContext(ctx, "an entry of the journal is damaged; a sweep finds what it stands for", "row", raw.Key(), "error", err)
			}
			return true
		})
		late := rctx.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err != nil && late:
			return rest, fmt.Errorf("%w: %w", ErrLate, err)
		case err != nil:
			return rest, err
		case len(page) > 0 && !fn(page):
			return rest, nil
		}
		rest = left
	}
	return rest, nil
}

// Forget removes everything about a table that no client uses any more.
func Forget(ctx context.Context, metadata *store.Table, table string) error {
	m := bigtable.NewMutation()
	m.DeleteRow()
	muts := []store.RowMutation{{Row: SweepRow(table), Mut: m, Ops: 1}}
	err := metadata.ReadRows(ctx, rangeOf(table, 0, 1), func(raw bigtable.Row) bool {
		if e, err := decode(raw); err == nil && e.Cell.Table == table {
			muts = append(muts, store.RowMutation{Row: raw.Key(), Mut: m, Ops: 1})
		}
		return true
	}, bigtable.RowFilter(store.Interleave(store.Chain(store.WholeFamily(store.DeployFamily), store.Latest))))
	if err != nil {
		return err
	}
	_, err = metadata.Apply(ctx, muts)
	return err
}

// rangeOf returns the rows of part n of so many parts of a table's entries.
func rangeOf(table string, n, of int) bigtable.RowRange {
	prefix := tablePrefix(table)
	bound := func(i int) string {
		if i == of {
			return prefix[:len(prefix)-1] + "0" // after the slash
		}
		return prefix + fmt.Sprintf("%08x", uint64(i)<<32/uint64(of))
	}
	return bigtable.NewRange(bound(n), bound(n+1))
}
