package changed

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// The place of notes in the metadata table: rows whose keys begin with a commit_ts, and a column of
// store.DeployFamily.
const (
	RowPrefix = "changed/"
	Qualifier = "rows"
)

const (
	// maxRows and maxBytes limit what a client gathers until it writes a note. A client that
	// changes 10,000 rows a second writes about one request a second.
	maxRows  = 8192
	maxBytes = 1 << 20
	// maxKept is how many times that a client keeps while it cannot write. It drops the rest.
	maxKept = 4
	// flushTimeout bounds the last note of a client that closes.
	flushTimeout = 5 * time.Second
)

// Rows are the rows that a client has changed and not noted yet. What is lost of them costs space
// until a collection of all rows.
type Rows struct {
	store *store.Store

	mu      sync.Mutex
	changed []change
	bytes   int
	newest  tso.Timestamp // the largest commit_ts
	sending bool
}

// A change is the name of a row that was changed.
type change struct{ table, row string }

func (c change) compare(o change) int {
	return cmp.Or(cmp.Compare(c.table, o.table), cmp.Compare(c.row, o.row))
}

// New returns what a client notes. It sends nothing before a collector asks for notes.
func New(s *store.Store) *Rows { return &Rows{store: s} }

// Note remembers the rows of a commit that change a value. It sends nothing itself.
func (c *Rows) Note(rows []*store.RowWrites, commitTS tso.Timestamp) {
	if !c.store.SafePoint.NotesChanges() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range rows {
		if len(c.changed) >= maxKept*maxRows || c.bytes >= maxKept*maxBytes {
			return
		}
		if slices.ContainsFunc(r.Writes, func(w *store.Write) bool { return w.Kind != format.KindLock }) {
			c.changed = append(c.changed, change{r.Table.Name, r.Row})
			c.bytes += len(r.Row)
			c.newest = max(c.newest, commitTS)
		}
	}
	if len(c.changed) >= maxRows || c.bytes >= maxBytes {
		c.flushSoon()
	}
}

// FlushSoon writes in the background what was gathered.
func (c *Rows) FlushSoon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushSoon()
}

// flushSoon is FlushSoon. c.mu is held.
func (c *Rows) flushSoon() {
	if !c.sending && len(c.changed) > 0 {
		c.sending = c.store.Background.Run(func(ctx context.Context) {
			c.Flush(ctx)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.sending = false
		})
	}
}

// Flush writes what was gathered. If that fails, it is kept for the next time.
func (c *Rows) Flush(ctx context.Context) {
	c.mu.Lock()
	changes, newest := c.changed, c.newest
	c.changed, c.bytes, c.newest = nil, 0, 0
	c.mu.Unlock()
	if len(changes) == 0 {
		return
	}
	slices.SortFunc(changes, change.compare)
	changes = slices.Compact(changes)
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if _, err := c.store.Metadata.Apply(ctx, notes(changes, newest)); err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = append(c.changed, changes...)
	for _, ch := range changes {
		c.bytes += len(ch.row)
	}
	c.newest = max(c.newest, newest)
}

// notes returns the mutations that note changes, which are sorted.
func notes(changes []change, newest tso.Timestamp) (muts []store.RowMutation) {
	for len(changes) > 0 {
		record := &recordpb.ChangedRows{FormatVersion: format.Version}
		n, bytes := 0, 0
		for n < len(changes) && n < maxRows && bytes < maxBytes {
			ch := changes[n]
			if n == 0 || ch.table != changes[n-1].table {
				record.Tables = append(record.Tables, &recordpb.ChangedRows_Table{Name: ch.table})
			}
			t := record.Tables[len(record.Tables)-1]
			t.Rows = append(t.Rows, []byte(ch.row))
			bytes += len(ch.row)
			n++
		}
		m := bigtable.NewMutation()
		m.Set(store.DeployFamily, Qualifier, 0, format.Marshal(record))
		muts = append(muts, store.RowMutation{Row: KeyAt(newest) + "/" + rand.Text()[:8], Mut: m, Ops: 1})
		changes = changes[n:]
	}
	return muts
}

// KeyAt is where the keys of notes begin whose last commit is at ts or later.
func KeyAt(ts tso.Timestamp) string { return fmt.Sprintf("%s%016x", RowPrefix, int64(ts)) }

// NotedAt returns the last commit of a note; 0 if its key does not say it.
func NotedAt(key string) (ts tso.Timestamp) {
	_, _ = fmt.Sscanf(key, RowPrefix+"%016x", &ts)
	return ts
}

// UpTo returns the keys of the notes whose commits are all at or below ts.
func UpTo(ts tso.Timestamp) store.RowSet {
	return store.RowSet{Ranges: []store.KeyRange{{Start: RowPrefix, End: KeyAt(ts + 1)}}}
}

// Decode adds the rows of a note to rows, by table. A note that it cannot read adds nothing.
func Decode(raw bigtable.Row, rows map[string][]string) (n int) {
	var record recordpb.ChangedRows
	items := raw[store.DeployFamily]
	if len(items) == 0 || proto.Unmarshal(items[0].Value, &record) != nil || record.FormatVersion != format.Version {
		return 0
	}
	for _, t := range record.Tables {
		for _, row := range t.Rows {
			rows[t.Name] = append(rows[t.Name], string(row))
			n++
		}
	}
	return n
}
