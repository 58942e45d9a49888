package format

import (
	"fmt"
	"unicode/utf8"
)

// Bigtable's limits (design §9), checked before anything is sent: a request
// that is refused, or on the emulator applied by half, in the middle of a
// commit would cost more than an error here.
const (
	maxRowKey    = 4 << 10
	maxValue     = 100 << 20
	MaxRowBytes  = 256 << 20
	MaxMutations = 100_000
	// The predicate of marker-if-nothing-there names a column eight times, and
	// may have 20 KB.
	MaxColumnKey = 2400
	// A ReadRows request may have 512 KB; leave room for the filter.
	MaxRowListBytes = 480 << 10
)

func CheckRowKey(row string) error {
	switch {
	case row == "":
		return Invalidf("empty row key")
	case len(row) > maxRowKey:
		return Limitf("row key of %d bytes; Bigtable allows %d", len(row), maxRowKey)
	}
	return nil
}

func CheckColumn(c Column) error {
	switch {
	case c.Family == "":
		return Invalidf("empty column family in column %q", c)
	case IsMetadataFamily(c.Family):
		return Invalidf("column %q: family %s belongs to the transaction metadata", c, c.Family)
	case !utf8.ValidString(c.Family):
		return Invalidf("column family %q is not UTF-8", c.Family)
	case len(c.Key()) > MaxColumnKey:
		return Limitf("column name family:qualifier of %d bytes; transactions allow %d, because filters have to name it up to eight times within Bigtable's 20 KB", len(c.Key()), MaxColumnKey)
	}
	return nil
}

func CheckCell(c Cell) error {
	if c.Table == "" {
		return Invalidf("empty table name")
	}
	if err := CheckRowKey(c.Row); err != nil {
		return err
	}
	return CheckColumn(c.Column())
}

func CheckValue(cell Cell, value []byte) error {
	if len(value) > maxValue {
		return Limitf("value of %d bytes for %s; Bigtable allows %d", len(value), cell, maxValue)
	}
	return nil
}

func Limitf(format string, args ...any) error {
	return fmt.Errorf("txn: %w: %s", ErrLimit, fmt.Sprintf(format, args...))
}
