package format

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// A Lock is a stored lock: a transaction has prewritten one cell and may commit it. It is
// in [LockFamily] of the cell's row, at StartTS.
type Lock struct {
	// Cell is the locked cell.
	Cell Cell
	// StartTS is the start_ts of the transaction, which also names it.
	StartTS tso.Timestamp
	// Primary is the cell that decides the outcome of the transaction. In the primary
	// lock it is equal to Cell.
	Primary Cell
	// Kind says what the commit will do to the cell.
	Kind Kind
	// TTL is how long the lock lives after StartTS, in oracle time. The primary lock's
	// TTL decides for the whole transaction. Only if the primary has no lock, the TTL of
	// the lock itself counts.
	TTL time.Duration
	// Owner is the worker token of the client that wrote the lock. It may be empty.
	Owner string
	// Observed says that the commit of the cell sets its notify cell, also if another
	// client rolls the cell forward.
	Observed bool
	// TraceParent is the W3C trace context of the transaction. It may be empty.
	TraceParent string
	// Hops is how many observer runs, one causing the next, led to the transaction.
	Hops int

	// Passable says that readers may pass this primary lock (Config.PassLocks): a reader
	// raises MinCommitTS and then reads without waiting. The record of a passable lock
	// has format version 2.
	Passable bool
	// MinCommitTS is the minimum of a passable lock: the transaction commits above it, or
	// not at all.
	MinCommitTS tso.Timestamp
	// Sealed says that readers may not raise MinCommitTS any more.
	Sealed bool

	// Record is the stored record of a passable lock. A raise replaces the lock only if
	// the record is still the same.
	Record string
}

// IsPrimary reports whether the lock is the primary lock of its transaction.
func (l *Lock) IsPrimary() bool { return l.Cell == l.Primary }

// ExpiresTS returns the oracle time at which the lock expires: from then on other clients
// may roll it back.
func (l *Lock) ExpiresTS() tso.Timestamp {
	ttl := tso.Timestamp(l.TTL.Microseconds())
	return l.StartTS + min(ttl, math.MaxInt64-max(l.StartTS, 0))
}

// MaxLockTTL is the longest Config.LockTTL.
const MaxLockTTL = 24 * time.Hour

// Endless reports whether the lock has a ttl that no client writes. A ttl counts from
// start_ts, so nothing bounds that of a long commit. But each time the owner writes the lock,
// it sets the end to Config.LockTTL from then. So a lock cannot end later than MaxLockTTL
// after now; twice that is for clients whose clocks are fast. now is a time after the owner
// last wrote the lock; 0 means that it is not known.
func (l *Lock) Endless(now tso.Timestamp) bool {
	return now > 0 && l.ExpiresTS()-now > tso.Timestamp(2*MaxLockTTL.Microseconds())
}

// Expired reports whether the lock has expired at oracle time now. An endless lock counts
// as expired: rolling back a transaction that did not commit is always safe.
func (l *Lock) Expired(now tso.Timestamp) bool { return now >= l.ExpiresTS() || l.Endless(now) }

// Micros returns that many microseconds, between 0 and the longest duration: what is stored
// or computed may be any number.
func Micros(n int64) time.Duration {
	return time.Duration(min(max(n, 0), math.MaxInt64/1000)) * time.Microsecond
}

// passableVersion is the format version of a passable lock's record. Clients that know
// only version 1 refuse the record, and with it the lock.
const passableVersion = 2

// EncodeLock returns the stored record of a lock, a recordpb.Lock. It ignores l.Record.
func EncodeLock(l *Lock) []byte {
	b := make([]byte, 0, 2*recordBytes+len(l.Primary.Row)+len(l.Owner)+len(l.TraceParent))
	if l.Passable {
		b = append(b, PassableHeader(l.MinCommitTS)...)
	} else {
		b = appendNumber(b, 1, Version)
	}
	b = appendNumber(b, 2, uint64(l.Kind))
	b = appendPrimary(b, 3, l.Cell, l.Primary)
	b = appendNumber(b, 4, uint64(l.TTL.Microseconds()))
	b = appendText(b, 5, l.Owner)
	if l.Observed {
		b = appendNumber(b, 6, 1)
	}
	b = appendText(b, 7, l.TraceParent)
	b = appendNumber(b, 8, uint64(uint32(l.Hops)))
	if l.Sealed {
		b = appendNumber(b, 10, 1)
	}
	return b
}

// DecodeLock reads the stored record of the lock on cell at ts.
func DecodeLock(cell Cell, ts tso.Timestamp, value []byte) (*Lock, error) {
	var m recordpb.Lock
	if err := unmarshal(&m, cell, LockFamily, ts, value); err != nil {
		return nil, err
	}
	switch k := Kind(m.Kind); k {
	case KindPut, KindDelete, KindLock:
	default:
		return nil, Corruptf(cell, "the lock record at %d has kind %v", ts, k)
	}
	minCommit, passable, err := decodePassable(cell, ts, &m, value)
	if err != nil {
		return nil, err
	}
	primary := followRef(cell, m.Primary)
	if err := CheckStoredCell(primary); err != nil {
		return nil, Corruptf(cell, "the lock record at %d names the primary %s: %v", ts, primary, err)
	}
	record := ""
	if passable {
		record = string(value)
	}
	return &Lock{
		Record:      record,
		Passable:    passable,
		MinCommitTS: minCommit,
		Sealed:      m.Sealed,
		Cell:        cell,
		StartTS:     ts,
		Primary:     primary,
		Kind:        Kind(m.Kind),
		TTL:         Micros(m.TtlMicros),
		Owner:       m.Owner,
		Observed:    m.Observed,
		TraceParent: m.TraceParent,
		Hops:        int(m.Hops),
	}, nil
}

// PassableHeader returns the first twelve bytes of a passable lock's record: the fields
// format_version (2) and min_commit. Because the minimum is big-endian, two records
// compare by their bytes as their minima do. Predicates rely on that.
func PassableHeader(minCommit tso.Timestamp) []byte {
	return binary.BigEndian.AppendUint64([]byte{1 << 3, passableVersion, 9<<3 | 2, 8}, uint64(minCommit))
}

// decodePassable reads the minimum of a lock, and checks that only a passable lock has
// one.
func decodePassable(cell Cell, ts tso.Timestamp, m *recordpb.Lock, value []byte) (minCommit tso.Timestamp, passable bool, err error) {
	if m.FormatVersion < passableVersion {
		if len(m.MinCommit) > 0 || m.Sealed {
			return 0, false, Corruptf(cell, "the lock record at %d has format version %d, and yet a minimum commit_ts", ts, m.FormatVersion)
		}
		return 0, false, nil
	}
	if len(m.MinCommit) == 8 {
		minCommit = tso.Timestamp(binary.BigEndian.Uint64(m.MinCommit))
	}
	if minCommit < 0 || !bytes.HasPrefix(value, PassableHeader(minCommit)) || m.Primary != nil {
		return 0, false, Corruptf(cell, "the lock record at %d has format version %d, but does not begin with a minimum commit_ts, or is not the primary's", ts, m.FormatVersion)
	}
	return minCommit, true, nil
}
