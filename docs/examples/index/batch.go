package index

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/txn"
)

// A State is the value of every cell of the tables. A document's contents are
// represented by their SHA-256.
type State map[txn.Cell]string

func (s State) set(table, row string, c txn.Column, value string) {
	s[txn.Cell{Table: table, Row: row, Family: c.Family, Qualifier: c.Qualifier}] = value
}

// A Cluster is a group of documents with the same contents.
type Cluster struct {
	Canonical string `json:"canonical"` // name of the canonical document
	Documents int    `json:"documents"` // number of documents
	Bytes     int    `json:"bytes"`     // size of each of them
}

// A Result is what [Compute] works out.
type Result struct {
	State     State
	Clusters  []Cluster // the largest first
	Documents int
	Bytes     int
	Links     int // in all documents
}

// Compute works the tables out from the documents in one go, in memory, as a
// batch program would. It shares nothing with the observers but [Parse] and
// [Digest].
func Compute(documents iter.Seq2[Document, error]) (*Result, error) {
	type page struct {
		hash, canonical string
		links           []string
	}
	pages := map[string]*page{}
	clusters := map[string][]string{} // names by hash
	size := map[string]int{}          // by hash
	res := &Result{State: State{}}
	for d, err := range documents {
		if err != nil {
			return nil, err
		}
		p := &page{hash: Digest(d.Contents), links: Parse(d.Name, d.Contents)}
		pages[d.Name] = p
		clusters[p.hash] = append(clusters[p.hash], d.Name)
		size[p.hash] = len(d.Contents)
		res.Documents, res.Bytes, res.Links = res.Documents+1, res.Bytes+len(d.Contents), res.Links+len(p.links)
	}
	// Links of all, inverted.
	inlinks := map[string][]string{}
	for name, p := range pages {
		for _, to := range p.links {
			inlinks[to] = append(inlinks[to], name)
		}
	}
	// The canonical document of each cluster.
	for _, names := range clusters {
		slices.SortFunc(names, func(a, b string) int {
			if by := len(inlinks[b]) - len(inlinks[a]); by != 0 {
				return by
			}
			return strings.Compare(a, b)
		})
		for _, name := range names {
			pages[name].canonical = names[0]
		}
	}

	s := res.State
	for name, p := range pages {
		s.set(Documents, name, contentsRaw, p.hash)
		s.set(Documents, name, parsedHash, p.hash)
		s.set(Documents, name, parsedLinks, encodeNames(p.links))
		s.set(Documents, name, clusterHash, p.hash)
		s.set(Documents, name, clusterCanonical, p.canonical)
		if len(p.links) > 0 {
			s.set(Documents, name, invertedTo, encodeNames(p.links))
			s.set(Documents, name, invertedAs, p.canonical)
		}
		s.set(Dups, p.hash, txn.Column{Family: "member", Qualifier: name}, "")
	}
	for to, from := range inlinks {
		for _, name := range from {
			s.set(Inlinks, to, txn.Column{Family: "source", Qualifier: name}, pages[name].canonical)
		}
	}
	for hash, names := range clusters {
		canonical := names[0]
		var links []string
		for _, name := range names {
			for _, from := range inlinks[name] {
				if by := pages[from].canonical; by != canonical {
					links = append(links, by)
				}
			}
		}
		slices.Sort(links)
		duplicates := slices.Sorted(slices.Values(names[1:]))
		s.set(Dups, hash, clusterCanonical, canonical)
		s.set(Dups, hash, clusterServed, canonical)
		s.set(Serving, canonical, docHash, hash)
		s.set(Serving, canonical, docDuplicates, encodeNames(duplicates))
		s.set(Serving, canonical, docInlinks, encodeNames(slices.Compact(links)))
		res.Clusters = append(res.Clusters, Cluster{canonical, len(names), size[hash]})
	}
	slices.SortFunc(res.Clusters, func(a, b Cluster) int {
		if a.Documents != b.Documents {
			return b.Documents - a.Documents
		}
		return strings.Compare(a.Canonical, b.Canonical)
	})
	return res, nil
}

// Read reads all tables as a snapshot shows them.
func Read(ctx context.Context, snapshot *txn.Snapshot) (State, error) {
	got := State{}
	for _, t := range Tables {
		for row, err := range snapshot.Table(t.Name).ReadRows(ctx, nil) {
			if err != nil {
				return nil, err
			}
			for c, value := range cells(row) {
				if t.Name == Documents && c == contentsRaw {
					value = Digest([]byte(value))
				}
				got.set(t.Name, row.Key(), c, value)
			}
		}
	}
	return got, nil
}

// Compare lists the cells in which two states differ, in order.
func Compare(got, want State) []string {
	var mismatches []string
	for cell, w := range want {
		if g, ok := got[cell]; !ok {
			mismatches = append(mismatches, fmt.Sprintf("%s: missing, want %q", cell, w))
		} else if g != w {
			mismatches = append(mismatches, fmt.Sprintf("%s: %q, want %q", cell, g, w))
		}
	}
	for cell, g := range got {
		if _, ok := want[cell]; !ok {
			mismatches = append(mismatches, fmt.Sprintf("%s: %q, want nothing", cell, g))
		}
	}
	slices.Sort(mismatches)
	return mismatches
}
