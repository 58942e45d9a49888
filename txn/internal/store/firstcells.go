package store

import (
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// A read of the first cells of each row cannot leave the counting to Bigtable: a deleted column
// has a record but no value, and an uncommitted column has a value but no record. So a request
// returns the first columns of a range that have a lock, the first that have a record, and the
// first that have data, a few more than wanted of each. If one of the three lists was cut, only
// the columns up to its last one are known. They are evaluated as usual. If they show too few
// cells, the client reads the rest of the row's range.

const (
	// columnsAhead is how many columns more than wanted the first request for a row returns,
	// in case that some of them are deleted. Each further request returns four times as many.
	columnsAhead = 16
	// maxColumnsAhead bounds that.
	maxColumnsAhead = 1 << 14
)

// columnsPerRequest returns how many columns of each kind one request returns of a row, and 0
// if it returns all. It can only cut a single range, because Bigtable does not promise an order
// of families.
func columnsPerRequest(s Selection) int {
	if s.First == 0 || len(s.Ranges) != 1 || len(s.Columns) > 0 {
		return 0
	}
	return min(s.First, maxColumnsAhead) + max(s.ahead, columnsAhead)
}

// Known divides a selection by an answer to its request: into the columns that the answer
// decides, and the rest, which has to be read if the row has too few cells. rest is nil if there
// is none.
func Known(s Selection, raw bigtable.Row) (known Selection, rest *Selection) {
	n := columnsPerRequest(s)
	if n == 0 {
		return s, nil
	}
	r, last, cut := s.Ranges[0], "", false
	for _, family := range []string{format.LockFamily, format.WriteFamily, r.Family} {
		items := raw[family]
		if len(items) < n {
			continue
		}
		_, q, _ := strings.Cut(items[len(items)-1].Column, ":")
		if family != r.Family {
			_, q, _ = strings.Cut(q, ":")
		}
		if !cut || q < last {
			last, cut = q, true
		}
	}
	if !cut {
		return s, nil
	}
	known = s
	known.Ranges = []QualifierRange{{r.Family, r.Start, last + "\x00"}}
	if r.End == "" || last+"\x00" < r.End {
		rest = &Selection{Ranges: []QualifierRange{{r.Family, last + "\x00", r.End}}, KeysOnly: s.KeysOnly, First: s.First, ahead: min(4*max(s.ahead, columnsAhead), maxColumnsAhead)}
	}
	return known, rest
}

// CountCells returns how many cells a row has.
func CountCells(row bigtable.Row) (n int) {
	for _, items := range row {
		n += len(items)
	}
	return n
}

// FirstCells returns the first n cells of a row, in the order of their columns; 0 is all.
func FirstCells(row bigtable.Row, n int) bigtable.Row {
	if n == 0 || CountCells(row) <= n {
		return row
	}
	first := bigtable.Row{}
	var families []string
	for family := range row {
		families = append(families, family)
	}
	slices.Sort(families)
	for _, family := range families {
		if items := row[family]; n > 0 {
			first[family] = items[:min(n, len(items))]
			n -= len(first[family])
		}
	}
	return first
}
