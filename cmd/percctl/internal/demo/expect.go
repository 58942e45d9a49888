package demo

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// A state is the value of every cell of the tables. A document's contents are
// represented by their SHA-256.
type state map[txn.Cell]string

func (s state) set(table, row string, c txn.Column, value string) {
	s[txn.Cell{Table: table, Row: row, Family: c.Family, Qualifier: c.Qualifier}] = value
}

// A cluster is the documents with the same contents.
type cluster struct {
	Canonical string `json:"canonical"`
	Documents int    `json:"documents"`
	Bytes     int    `json:"bytes"` // of one of them
}

// compute works the tables out from the files alone, without transactions.
// clusters are those with duplicates, the largest first.
func compute(docs []document) (want state, clusters []cluster) {
	want = state{}
	byHash := map[string][]document{}
	byDir := map[string][]document{}
	for _, d := range docs {
		want.set(documentsTable, d.path, contentsDocument, d.hash)
		want.set(documentsTable, d.path, contentsHash, d.hash)
		want.set(dupsTable, d.hash, txn.Column{Family: "members", Qualifier: d.path}, "")
		byHash[d.hash] = append(byHash[d.hash], d)
		byDir[path.Dir(d.path)] = append(byDir[path.Dir(d.path)], d)
	}
	for hash, same := range byHash {
		canonical := slices.MinFunc(same, func(a, b document) int { return strings.Compare(a.path, b.path) })
		want.set(dupsTable, hash, canonicalURL, canonical.path)
		want.set(dupsTable, hash, clusterCount, strconv.Itoa(len(same)))
		want.set(dupsTable, hash, clusterBytes, strconv.Itoa(size(same)))
		if len(same) > 1 {
			clusters = append(clusters, cluster{canonical.path, len(same), canonical.size})
		}
	}
	for dir, in := range byDir {
		want.set(directoriesTable, dir, totalDocuments, strconv.Itoa(len(in)))
		want.set(directoriesTable, dir, totalBytes, strconv.Itoa(size(in)))
	}
	slices.SortFunc(clusters, func(a, b cluster) int {
		if a.Documents != b.Documents {
			return b.Documents - a.Documents
		}
		return strings.Compare(a.Canonical, b.Canonical)
	})
	return want, clusters
}

func size(docs []document) (bytes int) {
	for _, d := range docs {
		bytes += d.size
	}
	return bytes
}

// readState reads all tables at one timestamp. commits are the commit
// timestamps of the documents.
func readState(ctx context.Context, client *txn.Client) (got state, commits map[string]tso.Timestamp, err error) {
	got, commits = state{}, map[string]tso.Timestamp{}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range tables {
		for row, err := range snapshot.Table(t.Name).ReadRows(ctx, nil) {
			if err != nil {
				return nil, nil, err
			}
			for family, items := range row {
				for _, item := range items {
					column := txn.Column{Family: family, Qualifier: item.Column[len(family)+1:]}
					value := string(item.Value)
					if t.Name == documentsTable && column == contentsDocument {
						value = digest(item.Value)
						commits[row.Key()] = tso.Timestamp(item.Timestamp)
					}
					got.set(t.Name, row.Key(), column, value)
				}
			}
		}
	}
	return got, commits, nil
}

// compare lists the cells in which two states differ, in order.
func compare(got, want state) []string {
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
