package session

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// Families are those of a row, in order.
func Families(r bigtable.Row) []string { return slices.Sorted(maps.Keys(r)) }

// waitNotice is how long a read is silent before it says what it may wait for.
const waitNotice = 3 * time.Second

// NoteWaiting says on standard error that a read may be waiting for a lock,
// unless it is stopped before.
func NoteWaiting(s *cli.Streams, table string) *time.Timer {
	return time.AfterFunc(waitNotice, func() {
		fmt.Fprintf(s.Err, "still reading table %s; it may be waiting for the lock of a live transaction: see percctl lock list %s\n", table, table)
	})
}
