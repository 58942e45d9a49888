package index

import (
	"context"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
)

// parse runs when a document is loaded. It stores its hash and its links.
func parse(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	documents, name := tx.Table(Documents), cell.Row
	row, err := read(ctx, documents, name, contentsRaw, parsedHash, parsedLinks)
	if err != nil {
		return err
	}
	raw, exists := row[contentsRaw]
	if !exists {
		update(documents, name, row, parsedHash, nil)
		update(documents, name, row, parsedLinks, nil)
		return nil
	}
	hash := Digest([]byte(raw))
	if row[parsedHash] == hash {
		return nil // loaded again without a change: nothing follows
	}
	set(documents, name, parsedHash, hash)
	set(documents, name, parsedLinks, encodeNames(Parse(name, []byte(raw))))
	return nil
}

// cluster runs when a document's hash is written. It moves the document from its old
// cluster to the one of its hash, and has both elect their canonical document. It
// writes no cell that belongs to a whole cluster, so that documents that enter the
// same cluster do not conflict.
func cluster(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	documents, dups, name := tx.Table(Documents), tx.Table(Dups), cell.Row
	row, err := read(ctx, documents, name, parsedHash, clusterHash, clusterCanonical)
	if err != nil {
		return err
	}
	hash, exists := row[parsedHash]
	old, entered := row[clusterHash]
	if entered && old != hash {
		dups.Delete(old, "member", name)
		notifyWeakly(dups, old, clusterElect)
	}
	if !exists {
		update(documents, name, row, clusterHash, nil)
		update(documents, name, row, clusterCanonical, nil)
		return nil
	}
	if old != hash {
		set(documents, name, clusterHash, hash)
		dups.Set(hash, "member", name, nil)
		notifyWeakly(dups, hash, clusterElect)
	}
	if canonical, ok := row[clusterCanonical]; ok {
		// Written again without a change, to run the inverter for the new links.
		set(documents, name, clusterCanonical, canonical)
	}
	return nil
}

// elect runs when a cluster's members have changed, or the in-links of one. It
// chooses the canonical document, and writes its name to the members.
func elect(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	documents, dups, inlinks, hash := tx.Table(Documents), tx.Table(Dups), tx.Table(Inlinks), cell.Row
	row, members, err := readCluster(ctx, dups, hash)
	if err != nil {
		return err
	}
	counts := map[string]int{}
	if len(members) > 1 {
		for r, err := range inlinks.ReadRows(ctx, bigtable.RowList(members), txn.Families("source")) {
			if err != nil {
				return err
			}
			counts[r.Key()] = len(r["source"])
		}
	}
	if len(members) == 0 {
		update(dups, hash, row, clusterCanonical, nil)
		notifyWeakly(dups, hash, clusterExport)
		return nil
	}
	canonical := slices.MinFunc(members, func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	update(dups, hash, row, clusterCanonical, &canonical)
	notifyWeakly(dups, hash, clusterExport)

	told := map[string]string{}
	for r, err := range documents.ReadRows(ctx, bigtable.RowList(members), txn.Columns(clusterCanonical)) {
		if err != nil {
			return err
		}
		told[r.Key()] = cells(r)[clusterCanonical]
	}
	for _, m := range members {
		if told[m] != canonical {
			set(documents, m, clusterCanonical, canonical)
			dups.Lock(hash, "member", m) // conflict if m leaves the cluster meanwhile
		}
	}
	return nil
}

// invert runs when the canonical document is written to a document. For every page
// that the document links to, it adds the document to the page's in-links, with the
// name of the canonical document.
func invert(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	documents, inlinks, name := tx.Table(Documents), tx.Table(Inlinks), cell.Row
	row, err := read(ctx, documents, name, parsedLinks, clusterCanonical, invertedTo, invertedAs)
	if err != nil {
		return err
	}
	var links []string
	canonical, clustered := row[clusterCanonical]
	if clustered {
		links = decodeNames(row[parsedLinks])
	}
	old := decodeNames(row[invertedTo])
	for _, to := range old {
		if !slices.Contains(links, to) {
			inlinks.Delete(to, "source", name)
			notifyWeakly(inlinks, to, pageForward)
		}
	}
	for _, to := range links {
		if canonical != row[invertedAs] || !slices.Contains(old, to) {
			inlinks.Set(to, "source", name, []byte(canonical))
			notifyWeakly(inlinks, to, pageForward)
		}
	}
	if len(links) == 0 {
		update(documents, name, row, invertedTo, nil)
		update(documents, name, row, invertedAs, nil)
		return nil
	}
	list := encodeNames(links)
	update(documents, name, row, invertedTo, &list)
	update(documents, name, row, invertedAs, &canonical)
	return nil
}

// forward runs when the in-links of a page have changed. If there is a document of
// that name, it notifies the cluster of the document. The inverter cannot do that: if
// the document changes its cluster at the same time, the inverter would notify the old
// cluster. This run reads a snapshot that has the new in-links. If the document moves
// after that, the clusterer has its new cluster elect and export.
func forward(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	hash, ok, err := tx.Table(Documents).Get(ctx, cell.Row, clusterHash.Family, clusterHash.Qualifier)
	if err != nil || !ok {
		return err
	}
	dups := tx.Table(Dups)
	_, members, err := readCluster(ctx, dups, string(hash))
	switch {
	case err != nil:
		return err
	case len(members) > 1:
		notifyWeakly(dups, string(hash), clusterElect)
	default: // the only member is canonical
		notifyWeakly(dups, string(hash), clusterExport)
	}
	return nil
}

// export runs when a cluster's canonical document, its members, or their in-links
// have changed. It writes the row that is served, and removes the one that was served
// before.
func export(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
	dups, inlinks, serving, hash := tx.Table(Dups), tx.Table(Inlinks), tx.Table(Serving), cell.Row
	cluster, members, err := readCluster(ctx, dups, hash)
	if err != nil {
		return err
	}
	canonical, elected := cluster[clusterCanonical]
	if elected && !slices.Contains(members, canonical) {
		return nil // it has left: the elector runs, and then this observer runs again
	}
	if served, ok := cluster[clusterServed]; ok && served != canonical {
		row, err := read(ctx, serving, served, docHash, docDuplicates, docInlinks)
		if err != nil {
			return err
		}
		if row[docHash] == hash { // otherwise its new cluster serves it
			for c := range row {
				update(serving, served, row, c, nil)
			}
		}
	}
	if !elected {
		update(dups, hash, cluster, clusterServed, nil)
		return nil
	}

	sources := map[string]bool{}
	for r, err := range inlinks.ReadRows(ctx, bigtable.RowList(members), txn.Families("source")) {
		if err != nil {
			return err
		}
		for _, item := range r["source"] {
			sources[string(item.Value)] = true
		}
	}
	delete(sources, canonical)
	duplicates := encodeNames(slices.DeleteFunc(members, func(m string) bool { return m == canonical }))
	links := encodeNames(slices.Sorted(maps.Keys(sources)))

	row, err := read(ctx, serving, canonical, docHash, docDuplicates, docInlinks)
	if err != nil {
		return err
	}
	update(serving, canonical, row, docHash, &hash)
	update(serving, canonical, row, docDuplicates, &duplicates)
	update(serving, canonical, row, docInlinks, &links)
	update(dups, hash, cluster, clusterServed, &canonical)
	dups.Lock(hash, "member", canonical) // conflict if it leaves: then its new cluster writes the row
	return nil
}

// readCluster reads a row of dups: its columns, and the members in order.
func readCluster(ctx context.Context, dups *txn.Table, hash string) (row map[txn.Column]string, members []string, err error) {
	r, err := dups.ReadRow(ctx, hash)
	if err != nil {
		return nil, nil, err
	}
	row = cells(r)
	for c := range row {
		if c.Family == "member" {
			members = append(members, c.Qualifier)
		}
	}
	slices.Sort(members)
	return row, members, nil
}

// read reads columns of a row; what is absent is not in the map.
func read(ctx context.Context, t *txn.Table, row string, columns ...txn.Column) (map[txn.Column]string, error) {
	r, err := t.ReadRow(ctx, row, txn.Columns(columns...))
	return cells(r), err
}

func cells(r bigtable.Row) map[txn.Column]string {
	m := map[txn.Column]string{}
	for family, items := range r {
		for _, item := range items {
			m[txn.Column{Family: family, Qualifier: item.Column[len(family)+1:]}] = string(item.Value)
		}
	}
	return m
}

func set(t *txn.Table, row string, c txn.Column, value string) {
	t.Set(row, c.Family, c.Qualifier, []byte(value))
}

// update writes a cell, or deletes it if value is nil. It skips what would not change.
func update(t *txn.Table, row string, have map[txn.Column]string, c txn.Column, value *string) {
	old, there := have[c]
	switch {
	case value == nil && there:
		t.Delete(row, c.Family, c.Qualifier)
	case value != nil && (!there || old != *value):
		set(t, row, c, *value)
	}
}

func notifyWeakly(t *txn.Table, row string, c txn.Column) { t.Notify(row, c.Family, c.Qualifier) }
