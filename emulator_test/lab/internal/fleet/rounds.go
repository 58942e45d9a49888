package fleet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/txn"
)

const (
	roundsEvery  = 2 * time.Second // from the end of one round to the start of the next
	compareEvery = time.Minute
	// changed is how many documents a round changes.
	changed = 4
)

// The critic is an observer that fails on documents with this prefix.
const (
	criticID  = "critic"
	malformed = "malformed"
)

func criticColumn() (table string, column txn.Column) {
	o := index.Observers()[0]
	return o.Table, o.Column
}

func criticize(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	_, there, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
	if err == nil && there && strings.HasPrefix(cell.Row, malformed) {
		return errors.New("lab fleet made this document malformed")
	}
	return err
}

// documents are pages that link to each other, some of them with equal contents.
type documents struct {
	rnd *rand.Rand
	now []index.Document // by number; the last is malformed, once there is one
}

func newDocuments(o *options) *documents {
	d := &documents{rnd: rand.New(rand.NewPCG(o.seed, 1))}
	for i := range o.documents {
		d.now = append(d.now, page(i, i))
	}
	return d
}

func page(number, version int) index.Document {
	return index.Document{Name: fmt.Sprintf("%d.html", number), Contents: fmt.Appendf(nil, "contents %d <a href=%q>", version%17, fmt.Sprintf("/%d.html", version%11))}
}

// change changes, deletes or adds again some documents, replaces the malformed one,
// and returns what to load.
func (d *documents) change(round int) []index.Document {
	pages := slices.DeleteFunc(slices.Clone(d.now), func(doc index.Document) bool { return strings.HasPrefix(doc.Name, malformed) })
	var load []index.Document
	for _, doc := range d.now[len(pages):] {
		load = append(load, index.Document{Name: doc.Name, Deleted: true})
	}
	for _, n := range d.rnd.Perm(len(pages))[:min(changed, len(pages))] {
		if deleted := pages[n].Deleted; !deleted && d.rnd.IntN(2) == 0 {
			pages[n] = index.Document{Name: pages[n].Name, Deleted: true}
		} else {
			pages[n] = page(n, d.rnd.Int())
		}
		load = append(load, pages[n])
	}
	name := fmt.Sprintf("%s%d", malformed, round)
	bad := index.Document{Name: name, Contents: []byte(name)}
	d.now = append(pages, bad)
	return append(load, bad)
}

// all are the documents that there are.
func (d *documents) all() []index.Document {
	return slices.DeleteFunc(slices.Clone(d.now), func(doc index.Document) bool { return doc.Deleted })
}

func sequence(docs []index.Document) iter.Seq2[index.Document, error] {
	return func(yield func(index.Document, error) bool) {
		for _, d := range docs {
			if !yield(d, nil) {
				return
			}
		}
	}
}
