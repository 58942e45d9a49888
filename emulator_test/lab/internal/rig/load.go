package rig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"

	txnadmin "github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// The tables of a measurement: documents, and for the clustering observer an
// index from each clustering key to the cluster's first document.
const (
	documentsTable = "documents"
	clustersTable  = "clusters"
	Family         = "f"
)

// Columns of documents.
const (
	bodyColumn    = "body"    // what the copying observer watches
	copyColumn    = "copy"    // what it writes
	keysColumn    = "keys"    // what the clustering observer watches: the clustering keys
	clusterColumn = "cluster" // what it writes: the cluster's first document
)

// clusteringKeys is how many keys a document has (paper §3.1).
const clusteringKeys = 3

// RowOf spreads documents over the table.
func RowOf(i int) string { return fmt.Sprintf("%08x", uint32(i)*2654435761) }

// SetUp makes the tables and fills them with documents as they were before the
// table was adopted: rows of plain data.
func SetUp(ctx context.Context, r *Run, documents int, observer RunOrder) error {
	bt, admin, closeAll, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	for _, name := range []string{documentsTable, clustersTable} {
		if err := txnadmin.InitTable(ctx, admin, bt, "", txnadmin.TableSpec{Name: name, Families: []string{Family}}); err != nil {
			return err
		}
	}
	// Registered before anything is loaded: writers have to know.
	client, err := txn.NewClient(ctx, bt, txn.Config{TokenTTL: -1})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }()
	column, id, _ := observerOf(observer)
	if err := changes.RegisterObserver(ctx, client, documentsTable, column, id, false); err != nil {
		return err
	}
	return fill(ctx, bt, documents, observer.Observer == "cluster")
}

// plainTime is that of data from before the adoption.
const plainTime = bigtable.Timestamp(1_000_000_000_000)

// fill writes documents, and clusters them.
func fill(ctx context.Context, bt *bigtable.Client, documents int, clustered bool) error {
	out := &bulk{table: bt.Open(documentsTable)}
	index := &bulk{table: bt.Open(clustersTable)}
	first := map[string]string{}
	for i := range documents {
		row := RowOf(i)
		m := bigtable.NewMutation()
		if clustered {
			keys := keysOf(i, documents)
			cluster := row
			for k, key := range keys {
				if known, ok := first[indexRow(k, key)]; ok {
					cluster = known
					break
				}
			}
			for k, key := range keys {
				if _, ok := first[indexRow(k, key)]; !ok {
					first[indexRow(k, key)] = cluster
					entry := bigtable.NewMutation()
					entry.Set(Family, clusterColumn, plainTime, []byte(cluster))
					if err := index.add(ctx, indexRow(k, key), entry); err != nil {
						return err
					}
				}
			}
			m.Set(Family, keysColumn, plainTime, []byte(strings.Join(keys, " ")))
			m.Set(Family, clusterColumn, plainTime, []byte(cluster))
		} else {
			m.Set(Family, bodyColumn, plainTime, body(i))
			m.Set(Family, copyColumn, plainTime, body(i))
		}
		if err := out.add(ctx, row, m); err != nil {
			return err
		}
	}
	return errors.Join(out.flush(ctx), index.flush(ctx))
}

// body is a short document.
func body(i int) []byte { return fmt.Appendf(nil, "%0200d", i) }

// keysOf are the clustering keys of a document, chosen at random from three
// quarters as many as there are documents (paper §3.1: 750M keys for a billion
// documents).
func keysOf(i, documents int) []string {
	random := rand.New(rand.NewPCG(uint64(i), 7))
	keys := make([]string, clusteringKeys)
	for k := range keys {
		keys[k] = fmt.Sprintf("%08x", random.IntN(max(documents*3/4, 1)))
	}
	return keys
}

func indexRow(k int, key string) string { return fmt.Sprintf("%d/%s", k, key) }

// A bulk collects mutations for large requests.
type bulk struct {
	table *bigtable.Table
	rows  []string
	muts  []*bigtable.Mutation
}

const bulkRows = 2000

func (b *bulk) add(ctx context.Context, row string, m *bigtable.Mutation) error {
	b.rows, b.muts = append(b.rows, row), append(b.muts, m)
	if len(b.rows) < bulkRows {
		return nil
	}
	return b.flush(ctx)
}

func (b *bulk) flush(ctx context.Context) error {
	if len(b.rows) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	errs, err := b.table.ApplyBulk(ctx, b.rows, b.muts)
	b.rows, b.muts = nil, nil
	return errors.Join(append(errs, err)...)
}

// A LoadOrder writes documents: every Of-th from the Index-th on of Count in
// all.
type LoadOrder struct {
	What      string  // touch: change documents that are there; crawl: add new ones
	Documents int     // that are there
	Count     int     // to write, by all processes together
	Rate      float64 // a second, of all processes together; 0: as fast as can be
	Start     int64   // when the first is due, Unix nanoseconds
	Index, Of int
}

// Loaded says when a document was due and when it was committed.
type Loaded struct {
	Row     string
	Due, At int64 // Unix nanoseconds
}

// loadCallers bounds the transactions of one process's load.
const loadCallers = 32

// load writes documents when they are due. One that is late is written at once:
// what delays it counts.
func (w *worker) load(ctx context.Context, o LoadOrder) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, loadCallers)
	for range loadCallers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)-1)*o.Of + o.Index
				if i >= o.Count {
					return
				}
				if err := w.loadOne(ctx, o, i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

func (w *worker) loadOne(ctx context.Context, o LoadOrder, i int) error {
	due := time.Now()
	if o.Rate > 0 {
		due = DueAt(o.Start, o.Rate, i)
		if err := Pause(ctx, time.Until(due)); err != nil {
			return err
		}
	}
	row, column, value := RowOf(o.Documents+i), keysColumn, []byte(nil)
	if o.What == "touch" {
		row, column, value = RowOf(i%o.Documents), bodyColumn, body(i)
	} else {
		value = []byte(strings.Join(keysOf(o.Documents+i, o.Documents), " "))
	}
	_, err := w.client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table(documentsTable).Set(row, Family, column, value)
		return nil
	})
	if err != nil {
		return fmt.Errorf("loading document %d: %w", i, err)
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer.Loads = append(w.answer.Loads, Loaded{row, due.UnixNano(), now.UnixNano()})
	return nil
}

// DueAt is when the i-th of a steady stream is due.
func DueAt(start int64, rate float64, i int) time.Time {
	return time.Unix(0, start).Add(time.Duration(float64(i) / rate * float64(time.Second)))
}

// Pause waits, or returns the error of a context that ends before.
func Pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// observerOf returns the observer that an order names, and its column of
// documentsTable.
func observerOf(o RunOrder) (column txn.Column, id string, observer notify.Observer) {
	column = txn.Column{Family: Family, Qualifier: bodyColumn}
	if o.Observer == "cluster" {
		column.Qualifier = keysColumn
		return column, "cluster", notify.ObserverFunc(clusterDocument)
	}
	return column, "copy", notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		value, _, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
		if err != nil {
			return err
		}
		tx.Table(cell.Table).Set(cell.Row, Family, copyColumn, value)
		return Pause(ctx, o.Work)
	})
}

// clusterDocument puts a document into the cluster that one of its keys leads
// to, or begins one, and has its other keys lead there (paper §3.1, an
// elaboration of Figure 2).
func clusterDocument(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	value, ok, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
	if err != nil || !ok {
		return err
	}
	index := tx.Table(clustersTable)
	cluster := ""
	var without []string
	for k, key := range strings.Fields(string(value)) {
		row := indexRow(k, key)
		found, ok, err := index.Get(ctx, row, Family, clusterColumn)
		switch {
		case err != nil:
			return err
		case !ok:
			without = append(without, row)
		case cluster == "":
			cluster = string(found)
		}
	}
	if cluster == "" {
		cluster = cell.Row
	}
	for _, row := range without {
		index.Set(row, Family, clusterColumn, []byte(cluster))
	}
	tx.Table(cell.Table).Set(cell.Row, Family, clusterColumn, []byte(cluster))
	return nil
}
