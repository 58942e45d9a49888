package store

import (
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"
)

// FindColumn returns the cell of a column, given as family:qualifier. items is one
// family of a row, with at most one cell for each column. ok is false if the column has
// no cell.
func FindColumn(items []bigtable.ReadItem, column string) (item bigtable.ReadItem, ok bool) {
	if i, ok := ColumnIndex(items, column); ok {
		return items[i], true
	}
	return bigtable.ReadItem{}, false
}

// ColumnIndex returns the index of a column, given as family:qualifier. items is one
// family of a row, in the order in which Bigtable returns its columns.
func ColumnIndex(items []bigtable.ReadItem, column string) (i int, ok bool) {
	return slices.BinarySearchFunc(items, column, func(it bigtable.ReadItem, c string) int {
		return strings.Compare(it.Column, c)
	})
}

// RowBytes returns how many bytes the values and column names of a row have.
func RowBytes(row bigtable.Row) (n int) {
	for _, items := range row {
		for _, it := range items {
			n += len(it.Value) + len(it.Column)
		}
	}
	return n
}
