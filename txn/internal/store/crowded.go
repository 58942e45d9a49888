package store

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// Crowded remembers rows in which transactions write different columns at the same time. The
// first prewrite of such a row names its columns exactly: it would find the cells of the
// others otherwise, and need two more requests.
type Crowded struct {
	seed  maphash.Seed
	until [1024]atomic.Int64 // by the hash of the row, in nanoseconds since 1970
}

// crowdedFor is how long a row counts as crowded after a prewrite found cells of other columns.
const crowdedFor = 10 * time.Second

// NewCrowded returns a Crowded that knows no row.
func NewCrowded() *Crowded { return &Crowded{seed: maphash.MakeSeed()} }

func (c *Crowded) slot(row *RowWrites) *atomic.Int64 {
	h := maphash.String(c.seed, row.Row) ^ maphash.String(c.seed, row.Table.Name)
	return &c.until[h%uint64(len(c.until))]
}

// Note remembers a row.
func (c *Crowded) Note(row *RowWrites) {
	c.slot(row).Store(time.Now().Add(crowdedFor).UnixNano())
}

// Has reports whether the row is crowded.
func (c *Crowded) Has(row *RowWrites) bool {
	until := c.slot(row).Load()
	return until > 0 && time.Now().UnixNano() < until
}
