package rig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// The tables of a measurement: documents, and for the clustering observer an
// index from each clustering key to the cluster's first document.
const (
	documentsTable = "documents"
	clustersTable  = "clusters"
)

// Columns of documents.
const (
	bodyColumn    = "body"    // the column that the copying observer observes
	copyColumn    = "copy"    // what it writes
	keysColumn    = "keys"    // the clustering keys, which the clustering observer observes
	clusterColumn = "cluster" // what it writes: the cluster's first document
)

// clusteringKeys is how many keys a document has (paper §3.1).
const clusteringKeys = 3

// RowOf returns the row of the i-th document. Rows are spread over the table.
func RowOf(i int) string { return fmt.Sprintf("%08x", uint32(i)*2654435761) }

// SetUp makes the tables and fills them with plain data, as from before an adoption.
func SetUp(ctx context.Context, r *Run, documents int, observer RunOrder) error {
	bt, adminClient, closeAll, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	for _, name := range []string{documentsTable, clustersTable} {
		if err := admin.InitTable(ctx, adminClient, bt, "", admin.TableSpec{Name: name, Families: []string{Family}}); err != nil {
			return err
		}
	}
	// The observer registers before the load, because writers need to know of it.
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

// plainTime is the timestamp of data from before the adoption.
const plainTime = bigtable.Timestamp(1_000_000_000_000)

// fill writes documents, and clusters them if clustered is set.
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

// body is the text of a short document.
func body(i int) []byte { return fmt.Appendf(nil, "%0200d", i) }

// keysOf returns the clustering keys of a document. They are chosen at random among
// three keys for every four documents (paper §3.1: 750M keys for a billion documents).
func keysOf(i, documents int) []string {
	random := rand.New(rand.NewPCG(uint64(i), 7))
	keys := make([]string, clusteringKeys)
	for k := range keys {
		keys[k] = fmt.Sprintf("%08x", random.IntN(max(documents*3/4, 1)))
	}
	return keys
}

func indexRow(k int, key string) string { return fmt.Sprintf("%d/%s", k, key) }

// A bulk collects mutations into large requests.
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

// A LoadOrder writes documents: of Count in all, those whose number is Index modulo Of.
type LoadOrder struct {
	What      string  // touch: change existing documents; crawl: add new ones
	Documents int     // number of existing documents
	Count     int     // documents to write, by all processes together
	Rate      float64 // documents a second, of all processes together; 0: as fast as possible
	Start     int64   // when the first document is due, Unix nanoseconds
	Index, Of int
}

// Loaded says when a document was due and when it was committed.
type Loaded struct {
	Row     string
	Due, At int64 // Unix nanoseconds
}

// DueAt returns when the i-th document of a steady stream is due.
func DueAt(start int64, rate float64, i int) time.Time {
	return time.Unix(0, start).Add(time.Duration(float64(i) / rate * float64(time.Second)))
}

// Pause waits. If ctx ends first, it returns its error.
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

// clusterDocument puts a document into the cluster to which one of its keys leads, or
// begins a new cluster. Then it makes the document's other keys lead there too (paper
// §3.1, an elaboration of Figure 2).
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
