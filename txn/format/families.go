package format

import (
	"strings"

	"cloud.google.com/go/bigtable"
)

// Version is the format version of the records that this package writes. Only passable
// locks have another one ([Lock.Passable]).
const Version = 1

// DefaultMetadataTable is the name of the metadata table, unless Config.MetadataTable
// names another.
const DefaultMetadataTable = "percolator"

// The metadata families of a transactional table (design §3). A qualifier in them is
// family:qualifier of the user's column. In AckFamily, a slash and the observer's id
// follow.
const (
	LockFamily   = "_lock"   // locks, at start_ts
	WriteFamily  = "_write"  // write records, at commit_ts
	MarkFamily   = "_mark"   // rollback markers at start_ts, lock-only commits at commit_ts
	NotifyFamily = "_notify" // notify cells, and observers' failures
	AckFamily    = "_ack"    // acknowledgments, which are transactional values
)

// MetadataFamilies are the families that every transactional table has besides the
// user's own. An observer's transaction writes the acknowledgment family as it writes user
// data, so [IsMetadataFamily] does not count it.
var MetadataFamilies = []string{LockFamily, WriteFamily, MarkFamily, NotifyFamily, AckFamily}

// IsMetadataFamily reports whether family holds no values: it is one of [MetadataFamilies], but not
// [AckFamily].
func IsMetadataFamily(family string) bool {
	switch family {
	case LockFamily, WriteFamily, MarkFamily, NotifyFamily:
		return true
	}
	return false
}

// PlainBefore ends the range of cell timestamps that plain data has: a value at a lower
// timestamp was written without this library, mostly before the table was adopted. The
// clocks of such writers count microseconds since 1970, about 1.8e15. The smallest
// timestamp of a cell of ours is about 1.8e18 (design §2).
const PlainBefore bigtable.Timestamp = 1e17

// MetadataCell returns the user's column and cell that a cell of a metadata family
// describes. It is not for [AckFamily]; use [ObserverOf] there.
func MetadataCell(table, row string, item bigtable.ReadItem) (Column, Cell, error) {
	_, key, _ := strings.Cut(item.Column, ":")
	c, ok := SplitColumn(key)
	if !ok {
		return c, Cell{}, Corruptf(Cell{Table: table, Row: row}, "metadata column %q does not name a family:qualifier", item.Column)
	}
	return c, Cell{Table: table, Row: row, Family: c.Family, Qualifier: c.Qualifier}, nil
}
