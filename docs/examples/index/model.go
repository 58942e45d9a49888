// Package index is the application of the Percolator paper in miniature: it
// keeps an index of documents that link to each other, free of duplicates and
// with links inverted, up to date while documents change (paper §1, §2.4). It is an
// example to read and to copy, not a library with a stable API: docs/tutorial.md walks
// through it, and percctl demo runs it.
//
// What is to be in the tables, once nothing is left to run:
//
//   - A document's links are the names of other documents, see [Parse].
//   - Its in-link count is how many documents link to its name.
//   - A cluster is the documents with equal contents. Its canonical document is
//     the one with the highest in-link count, among equals the one with the
//     smallest name.
//   - The in-links that are served for a canonical document are those of all
//     members of its cluster, each linking document being replaced by its own
//     canonical document, each once, and without the document itself.
//
// A loader transaction ([Load]) writes a document's contents and nothing else;
// six observers ([Observers]) do the rest. Each works out what it writes from
// the state that it reads, and not from what has changed, so that it does not
// matter how often and in which order they run. [Compute] works the same tables
// out from the documents in one go.
package index

import (
	"context"
	"strings"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// The tables.
const (
	Documents = "documents" // row: a document's name
	Dups      = "dups"      // row: SHA-256 of contents, in hexadecimal
	Inlinks   = "inlinks"   // row: name of a document that is linked to, whether there is one or not
	Serving   = "serving"   // row: name of a canonical document
)

// Tables have these families.
var Tables = []admin.TableSpec{
	{Name: Documents, Families: []string{"contents", "parsed", "cluster", "inverted"}},
	{Name: Dups, Families: []string{"member", "cluster"}},
	{Name: Inlinks, Families: []string{"source", "page"}},
	{Name: Serving, Families: []string{"doc"}},
}

// The columns. Two families have one column for each document: member:NAME in
// dups, empty, for each document of the cluster; and source:NAME in inlinks, for
// each document that links here, with the name of its canonical document.
var (
	contentsRaw = txn.Column{Family: "contents", Qualifier: "raw"}

	parsedHash  = txn.Column{Family: "parsed", Qualifier: "hash"}  // SHA-256 of the contents
	parsedLinks = txn.Column{Family: "parsed", Qualifier: "links"} // a list of names

	clusterHash      = txn.Column{Family: "cluster", Qualifier: "hash"}      // in documents: the row of dups that it is a member in
	clusterCanonical = txn.Column{Family: "cluster", Qualifier: "canonical"} // in documents and in dups
	clusterServed    = txn.Column{Family: "cluster", Qualifier: "served"}    // in dups: the row of serving

	invertedTo = txn.Column{Family: "inverted", Qualifier: "to"} // the rows of inlinks that have the document
	invertedAs = txn.Column{Family: "inverted", Qualifier: "as"} // and the canonical document they have for it

	docHash       = txn.Column{Family: "doc", Qualifier: "hash"}
	docDuplicates = txn.Column{Family: "doc", Qualifier: "duplicates"} // a list of names
	docInlinks    = txn.Column{Family: "doc", Qualifier: "inlinks"}    // a list of names
)

// The columns for weak notifications hold nothing. The paper's advice for hot
// spots: many documents of one cluster, or many links to one document, would
// conflict if they wrote what makes the observer run.
var (
	clusterElect  = txn.Column{Family: "cluster", Qualifier: "elect"}
	clusterExport = txn.Column{Family: "cluster", Qualifier: "export"}
	pageForward   = txn.Column{Family: "page", Qualifier: "forward"}
)

// An Observer is one stage of the index.
type Observer struct {
	ID      string // in the store
	Table   string
	Column  txn.Column
	Weak    bool
	Observe notify.ObserverFunc
}

// Observers returns the stages, in the order in which a new document passes
// through them.
func Observers() []Observer {
	return []Observer{
		{"parser", Documents, contentsRaw, false, parse},
		{"clusterer", Documents, parsedHash, false, cluster},
		{"elector", Dups, clusterElect, true, elect},
		{"inverter", Documents, clusterCanonical, false, invert},
		{"forwarder", Inlinks, pageForward, true, forward},
		{"exporter", Dups, clusterExport, true, export},
	}
}

// Handle gives a worker all the observers.
func Handle(w *notify.Worker, opts ...notify.HandleOption) error {
	for _, o := range Observers() {
		opts := opts
		if o.Weak {
			opts = append([]notify.HandleOption{notify.Weak()}, opts...)
		}
		if err := w.Handle(o.ID, o.Table, o.Column, o.Observe, opts...); err != nil {
			return err
		}
	}
	return nil
}

// Register writes the observers into the registry, as each worker does when it
// starts. Before the first document is loaded it has to be done once, or else
// nobody would notice the document.
func Register(ctx context.Context, client *txn.Client) error {
	for _, o := range Observers() {
		if err := changes.RegisterObserver(ctx, client, o.Table, o.Column, o.ID, o.Weak); err != nil {
			return err
		}
	}
	return nil
}

// A Document is what a loader stores.
type Document struct {
	Name     string
	Contents []byte
	Deleted  bool
}

// Load is the loader transaction (see notify.Load): it stores one document, or
// deletes it.
func Load(_ context.Context, tx *txn.Txn, d Document) error {
	documents := tx.Table(Documents)
	if d.Deleted {
		documents.Delete(d.Name, contentsRaw.Family, contentsRaw.Qualifier)
		return nil
	}
	documents.Set(d.Name, contentsRaw.Family, contentsRaw.Qualifier, d.Contents)
	return nil
}

// A list of names is stored with one name on each line.
var (
	escapeName   = strings.NewReplacer("%", "%25", "\n", "%0A")
	unescapeName = strings.NewReplacer("%25", "%", "%0A", "\n")
)

func encodeNames(names []string) string {
	var b strings.Builder
	for _, n := range names {
		b.WriteString(escapeName.Replace(n))
		b.WriteByte('\n')
	}
	return b.String()
}

func decodeNames(list string) (names []string) {
	for line := range strings.Lines(list) {
		names = append(names, unescapeName.Replace(strings.TrimSuffix(line, "\n")))
	}
	return names
}
