package format

import (
	"fmt"
	"unicode/utf8"
)

// The limits of one write, one row and one request, mostly Bigtable's own (design §9). The
// client checks them before it sends anything. If Bigtable refused a request in the middle
// of a commit, or the emulator applied half of it, the damage would cost more than an error.
const (
	maxRowKey = 4 << 10   // bytes
	maxValue  = 100 << 20 // bytes

	// MaxRowBytes is the maximum size of a row, in bytes.
	MaxRowBytes = 256 << 20
	// MaxMutations is the maximum number of changes in one request.
	MaxMutations = 100_000
	// MaxColumnKey is the maximum size of family:qualifier, in bytes. Bigtable allows more,
	// but a predicate that rolls a transaction back names a column eight times and may have
	// 20 KB.
	MaxColumnKey = 2400
	// MaxRowListBytes is the maximum size of the row keys in one read, in bytes. Bigtable
	// allows 512 KB for the request; the rest is left for the filter.
	MaxRowListBytes = 480 << 10
	// maxObserverID is the maximum size of an observer's id, in bytes.
	maxObserverID = 100
	// maxErrorText is the maximum size of the error in a failure or dead letter, in bytes.
	maxErrorText = 2000
)

// CheckRowKey returns an error that matches [ErrInvalid] if the key is empty, and one
// that matches [ErrLimit] if Bigtable does not allow a key of that size.
func CheckRowKey(row string) error {
	switch {
	case row == "":
		return Invalidf("empty row key")
	case len(row) > maxRowKey:
		return Limitf("row key of %d bytes; Bigtable allows %d", len(row), maxRowKey)
	}
	return nil
}

// CheckColumn returns an error if an application's transaction cannot read or write the
// column. The error matches [ErrInvalid] if the family is empty, not UTF-8 or one of
// [MetadataFamilies]. It matches [ErrLimit] if the name is longer than [MaxColumnKey].
func CheckColumn(c Column) error {
	if c.Family == AckFamily {
		return Invalidf("column %q: family %s belongs to the transaction metadata", c, c.Family)
	}
	return checkStoredColumn(c)
}

// checkStoredColumn is CheckColumn for what transactions write: acknowledgments too.
func checkStoredColumn(c Column) error {
	switch {
	case c.Family == "":
		return Invalidf("empty column family in column %q", c)
	case IsMetadataFamily(c.Family):
		return Invalidf("column %q: family %s belongs to the transaction metadata", c, c.Family)
	case !utf8.ValidString(c.Family):
		return Invalidf("column family %q is not UTF-8", c.Family)
	case len(c.Family)+1+len(c.Qualifier) > MaxColumnKey:
		return Limitf("column name family:qualifier of %d bytes; transactions allow %d, because a filter may name it eight times and Bigtable allows filters of 20 KB", len(c.Key()), MaxColumnKey)
	}
	return nil
}

// CheckCell returns an error that matches [ErrInvalid] if the table's name is empty.
// Otherwise it returns the error of [CheckRowKey] or [CheckColumn].
func CheckCell(c Cell) error { return checkCell(c, CheckColumn) }

// CheckStoredCell is [CheckCell] for any cell that may have locks and records: it accepts
// [AckFamily] too.
func CheckStoredCell(c Cell) error { return checkCell(c, checkStoredColumn) }

func checkCell(c Cell, checkColumn func(Column) error) error {
	if c.Table == "" {
		return Invalidf("empty table name")
	}
	if err := CheckRowKey(c.Row); err != nil {
		return err
	}
	return checkColumn(c.Column())
}

// CheckValue returns an error that matches [ErrLimit] if Bigtable does not allow a value
// of that size.
func CheckValue(cell Cell, value []byte) error {
	if len(value) > maxValue {
		return Limitf("value of %d bytes for %s; Bigtable allows %d", len(value), cell, maxValue)
	}
	return nil
}

// Limitf returns an error that matches [ErrLimit], with the text that the arguments give
// as in fmt.Sprintf.
func Limitf(format string, args ...any) error {
	return fmt.Errorf("percolator: %w: %s", ErrLimit, fmt.Sprintf(format, args...))
}
