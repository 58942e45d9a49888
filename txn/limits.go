package txn

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
	maxRowBytes  = 256 << 20
	maxMutations = 100_000
	// The predicate of marker-if-nothing-there names a column eight times, and
	// may have 20 KB.
	maxColumnKey = 2400
	// A ReadRows request may have 512 KB; leave room for the filter.
	maxRowListBytes = 480 << 10
)

func checkRowKey(row string) error {
	switch {
	case row == "":
		return invalid("empty row key")
	case len(row) > maxRowKey:
		return limit("row key of %d bytes; Bigtable allows %d", len(row), maxRowKey)
	}
	return nil
}

func checkColumn(c Column) error {
	switch {
	case c.Family == "":
		return invalid("empty column family in column %q", c)
	case isMetadataFamily(c.Family):
		return invalid("column %q: family %s belongs to the transaction metadata", c, c.Family)
	case !utf8.ValidString(c.Family):
		return invalid("column family %q is not UTF-8", c.Family)
	case len(c.key()) > maxColumnKey:
		return limit("column name family:qualifier of %d bytes; transactions allow %d, because filters have to name it up to eight times within Bigtable's 20 KB", len(c.key()), maxColumnKey)
	}
	return nil
}

func checkCell(c Cell) error {
	if c.Table == "" {
		return invalid("empty table name")
	}
	if err := checkRowKey(c.Row); err != nil {
		return err
	}
	return checkColumn(c.Column())
}

func checkValue(cell Cell, value []byte) error {
	if len(value) > maxValue {
		return limit("value of %d bytes for %s; Bigtable allows %d", len(value), cell, maxValue)
	}
	return nil
}

func limit(format string, args ...any) error {
	return fmt.Errorf("txn: %w: %s", ErrLimit, fmt.Sprintf(format, args...))
}
