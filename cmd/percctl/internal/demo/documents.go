package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strconv"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// The tables, their families and columns:
//
//	documents    row: path                 contents:document       the bytes of the file
//	                                       contents:hash           their SHA-256
//	dups         row: SHA-256              canonical-url:dups      the smallest path with these bytes
//	                                       cluster:count, :bytes   how many there are, and how large
//	                                       members:<path>          one empty cell for each
//	directories  row: directory            total:documents, :bytes what lies directly in it
const (
	documentsTable   = "documents"
	dupsTable        = "dups"
	directoriesTable = "directories"
)

var tables = []txn.TableSpec{
	{Name: documentsTable, Families: []string{"contents"}},
	{Name: dupsTable, Families: []string{"canonical-url", "cluster", "members"}},
	{Name: directoriesTable, Families: []string{"total"}},
}

var (
	contentsDocument = txn.Column{Family: "contents", Qualifier: "document"}
	contentsHash     = txn.Column{Family: "contents", Qualifier: "hash"}
	canonicalURL     = txn.Column{Family: "canonical-url", Qualifier: "dups"}
	clusterCount     = txn.Column{Family: "cluster", Qualifier: "count"}
	clusterBytes     = txn.Column{Family: "cluster", Qualifier: "bytes"}
	totalDocuments   = txn.Column{Family: "total", Qualifier: "documents"}
	totalBytes       = txn.Column{Family: "total", Qualifier: "bytes"}
)

// updateDocument is the transaction of the paper's Figure 2: it stores a
// document and enters it into its cluster of duplicates, whose canonical
// document is the one with the smallest path. It also keeps the totals of the
// document's directory, so that transactions conflict for more reasons than
// duplicates.
//
// A document that is there already is left alone, and the commit timestamp is
// 0 then: a client that was killed may have committed it without living to say
// so.
func updateDocument(ctx context.Context, client *txn.Client, name string, contents []byte) (tso.Timestamp, error) {
	hash := digest(contents)
	known := false
	commitTS, err := client.Update(ctx, func(ctx context.Context, tx *txn.Txn) (err error) {
		documents, dups, directories := tx.Table(documentsTable), tx.Table(dupsTable), tx.Table(directoriesTable)
		if _, known, err = documents.Get(ctx, name, contentsHash.Family, contentsHash.Qualifier); known || err != nil {
			return err
		}
		documents.Set(name, contentsDocument.Family, contentsDocument.Qualifier, contents)
		documents.Set(name, contentsHash.Family, contentsHash.Qualifier, []byte(hash))

		canonical, ok, err := dups.Get(ctx, hash, canonicalURL.Family, canonicalURL.Qualifier)
		if err != nil {
			return err
		}
		if !ok || name < string(canonical) {
			dups.Set(hash, canonicalURL.Family, canonicalURL.Qualifier, []byte(name))
		}
		dups.Set(hash, "members", name, nil)
		if err := add(ctx, dups, hash, clusterCount, 1, clusterBytes, len(contents)); err != nil {
			return err
		}
		return add(ctx, directories, path.Dir(name), totalDocuments, 1, totalBytes, len(contents))
	}, txn.WithName("document"))
	if known || err != nil {
		return 0, err
	}
	return commitTS, nil
}

// add adds n and m to two counters of a row, read in one request. Counters
// that are absent are 0.
func add(ctx context.Context, t *txn.Table, row string, a txn.Column, n int, b txn.Column, m int) error {
	r, err := t.ReadRow(ctx, row, txn.Columns(a, b))
	if err != nil {
		return err
	}
	sums := map[txn.Column]int{a: n, b: m}
	for family, items := range r {
		for _, item := range items {
			column := txn.Column{Family: family, Qualifier: item.Column[len(family)+1:]}
			value, err := strconv.Atoi(string(item.Value))
			if err != nil {
				return fmt.Errorf("counter %s of row %q: %w", column, row, err)
			}
			sums[column] += value
		}
	}
	for column, sum := range sums {
		t.Set(row, column.Family, column.Qualifier, strconv.AppendInt(nil, int64(sum), 10))
	}
	return nil
}

// digest is the SHA-256 of contents, in hexadecimal.
func digest(contents []byte) string {
	sum := sha256.Sum256(contents)
	return hex.EncodeToString(sum[:])
}
