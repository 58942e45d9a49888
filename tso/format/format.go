// Package format defines what the timestamp oracle stores in its row of the
// metadata table: columns, the bytes in them, their limits, and the errors for
// a row that cannot be used. docs/oracle.md describes the row.
//
// Package tso has its own names for what an application needs from here.
package format

import (
	"encoding/binary"
	"math"
	"time"

	"cloud.google.com/go/bigtable"
)

// Version is the version of the served oracle's records and requests.
const Version = 1

// DefaultRow and DefaultFamily say where the oracle's row is in the metadata
// table, unless the configuration names another place.
const (
	DefaultRow    = "oracle"
	DefaultFamily = "tso"
)

// The modes of the oracle's row.
const (
	ModeDirect = "direct"
	ModeServed = "served" // also the text in ColumnDirect, which stops direct mode
)

// The columns of the oracle's row.
const (
	// ColumnDirect holds the highest timestamp handed out in direct mode, as
	// 8 bytes, big-endian. A value of any other length is the name of another
	// mode. Bigtable refuses to increment such a value, so no process can continue
	// in direct mode.
	ColumnDirect = "direct"

	// ColumnClock receives a cell at Bigtable's own time, to be read back.
	ColumnClock = "clock"

	// ColumnLease holds the [Lease]. Every write of a leader, every change of
	// leader and every switch to direct mode is conditional on the exact bytes
	// of the lease and on the mode, and replaces the bytes by new ones that the
	// column never held before. So a write that was delayed, repeated or sent
	// by a deposed leader cannot match. In particular, it can never restore an
	// older limit.
	ColumnLease = "lease"

	// ColumnState holds a tsopb.ServedState. Each write of it also writes the
	// lease.
	ColumnState = "state"
)

const (
	// CellDirect is the cell timestamp of ColumnDirect, the only one. Bigtable
	// writes an increment at max(existing cell, server's now). With a cell in
	// the far future, increments and sets both replace this cell, so the column
	// always has one cell and needs no garbage collection. It is a multiple of
	// 1000 because the Bigtable client cuts timestamps to milliseconds.
	CellDirect bigtable.Timestamp = 9_000_000_000_000_000_000

	// CellServed is the only cell timestamp of ColumnLease and ColumnState, so
	// that a new value replaces the old one.
	CellServed bigtable.Timestamp = 0
)

// The limits of stored timestamps, in microseconds since the Unix epoch.
const (
	// MinTimestamp (March 1973) is the smallest value of an initialised row.
	// Smaller cell timestamps (below 1e17) cannot be distinguished from those
	// of plain wall-clock cells. And an increment of a missing cell starts
	// from 0, so a smaller value shows that the row was deleted or never
	// initialised.
	MinTimestamp int64 = 1e14

	// MaxTimestamp is the largest timestamp, in the year 2262.
	MaxTimestamp int64 = math.MaxInt64/1000 - 1

	// MaxLease is the longest lease, and so the longest time that a row can
	// make candidates wait.
	MaxLease = 10 * time.Minute
)

// EncodeTimestamp returns the value of ColumnDirect in direct mode.
func EncodeTimestamp(t int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(t)) }

// DecodeTimestamp returns the timestamp in a value of ColumnDirect. It reports
// false for a value of another length, which is the name of another mode.
func DecodeTimestamp(b []byte) (int64, bool) {
	if len(b) != 8 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(b)), true
}

// A Lease is the value on which all writes in served mode are conditional. It
// says who leads (Epoch, and Nonce, a random number of the process), and how
// often that leader has written (Counter). It is stored as three numbers of
// 8 bytes, big-endian.
//
// The random number protects a row that was deleted or restored, where epochs
// start over: without it, a leader of the old epoch 1 could match a lease of
// the new epoch 1. It also shows a process whether a lease is its own when the
// outcome of its write is unknown.
type Lease struct {
	Epoch, Counter, Nonce uint64
}

// Encode returns the value of ColumnLease.
func (l Lease) Encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, l.Epoch)
	b = binary.BigEndian.AppendUint64(b, l.Counter)
	return binary.BigEndian.AppendUint64(b, l.Nonce)
}

// DecodeLease reads a value of ColumnLease. It reports false for one that no
// oracle writes.
func DecodeLease(b []byte) (Lease, bool) {
	if len(b) != 24 {
		return Lease{}, false
	}
	return Lease{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}, true
}
