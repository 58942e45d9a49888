package tso

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso/internal/row"
)

const (
	lockRowPrefix = "lock/"
	lockColumn    = "lock"

	// A lock's cell is this byte, the oracle time at which it expires (8 bytes,
	// big-endian), and the owner. The layout is fixed, so that a change can be
	// conditional on the bytes.
	lockFormat = 1

	// lockTries bounds the attempts of Acquire while other clients change the
	// lock.
	lockTries = 3

	// maxLockName bounds names and owners, in bytes: row keys may have 4 KiB, and
	// prefix and escapes need some of that.
	maxLockName = 2 << 10

	// maxLockTTL bounds how long a lock can exclude other owners when its owner does
	// not release it.
	maxLockTTL = 10 * time.Minute
)

// Holder says who holds a lock.
type Holder struct {
	Owner string        // empty if the lock is free
	Left  time.Duration // until it expires, unless the owner renews it
}

// checkLock says what is wrong with a request for a lock.
func checkLock(name, owner string, ttl time.Duration) error {
	switch {
	case name == "" || len(name) > maxLockName:
		return fmt.Errorf("tso: lock name of %d bytes; it has to be 1 to %d", len(name), maxLockName)
	case owner == "" || len(owner) > maxLockName:
		return fmt.Errorf("tso: lock owner of %d bytes; it has to be 1 to %d", len(owner), maxLockName)
	case ttl <= 0 || ttl > maxLockTTL:
		return fmt.Errorf("tso: lock ttl of %s; it has to be positive and at most %s", ttl, maxLockTTL)
	}
	return nil
}

// RowLocksConfig configures [RowLocks]. The zero value is ready to use.
type RowLocksConfig struct {
	// Family is the column family of locks in the metadata table.
	// Defaults to "tso".
	Family string

	// RPCTimeout bounds each single RPC.
	// Defaults to 10 seconds.
	RPCTimeout time.Duration
}

// RowLocks are the paper's lightweight lock service (§2.4): named, advisory locks
// that expire by themselves, in the metadata table, one row for each. A lock may
// be lost, or two owners may hold it at the same time. That must only cost
// unnecessary work: no guarantee may depend on a lock.
//
// Taking one costs a timestamp, a read and a CheckAndMutateRow. The row of a lock
// that its owner did not release stays until a client takes the lock again, or
// [RowLocks.Sweep].
type RowLocks struct {
	table  bigtable.TableAPI
	oracle Oracle
	cfg    RowLocksConfig
}

// NewRowLocks returns locks over the metadata table. They expire by the oracle's time.
// It does no I/O.
func NewRowLocks(table bigtable.TableAPI, oracle Oracle, cfg RowLocksConfig) *RowLocks {
	return &RowLocks{table, oracle, cfg}
}

func (l *RowLocks) row(name string) *row.Row {
	return row.Open(l.table, lockRowPrefix+name, l.cfg.Family, l.cfg.RPCTimeout)
}

// rowLock is a lock's cell.
type rowLock struct {
	value   []byte // nil if there is none
	owner   string
	expires Timestamp
}

func (k rowLock) heldAt(now Timestamp) bool { return now < k.expires }

func (k rowLock) holder(now Timestamp) Holder {
	return Holder{k.owner, k.expires.Sub(now)}
}

func readLock(ctx context.Context, r *row.Row) (rowLock, error) {
	value, err := r.ReadColumn(ctx, lockColumn)
	if err != nil || value == nil {
		return rowLock{}, err
	}
	return decodeLock(value), nil
}

// decodeLock treats a value of an unknown format as an expired lock: an advisory
// lock must not exclude other owners without end.
func decodeLock(v []byte) rowLock {
	if len(v) < 9 || v[0] != lockFormat {
		return rowLock{value: append([]byte{}, v...)}
	}
	return rowLock{v, string(v[9:]), Timestamp(binary.BigEndian.Uint64(v[1:]))}
}

// Acquire takes the lock for owner until ttl ends, or renews it if owner holds it.
// If another owner holds it, acquired is false and by says who holds it and for
// how much longer. After an error owner may hold it.
func (l *RowLocks) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (acquired bool, by Holder, err error) {
	if err := checkLock(name, owner, ttl); err != nil {
		return false, Holder{}, err
	}
	r := l.row(name)
	now, err := l.oracle.Timestamp(ctx)
	if err != nil {
		return false, Holder{}, err
	}
	value := binary.BigEndian.AppendUint64([]byte{lockFormat}, uint64(now)+uint64(ttl.Microseconds()))
	value = append(value, owner...)
	var failed error
	for range lockTries {
		k, err := readLock(ctx, r)
		switch {
		case err != nil:
			return false, Holder{}, errors.Join(failed, err)
		case k.heldAt(now) && k.owner != owner:
			return false, k.holder(now), nil
		}
		ok, err := r.ReplaceColumn(ctx, lockColumn, k.value, value)
		switch {
		case ok:
			return true, Holder{owner, ttl}, nil
		case err != nil && !row.Retryable(err):
			return false, Holder{}, err
		}
		failed = err
	}
	return false, Holder{}, cmp.Or(failed, fmt.Errorf("tso: lock %q was not taken: other clients changed it during each of %d attempts; try again", name, lockTries))
}

// Release removes the lock if owner holds it.
func (l *RowLocks) Release(ctx context.Context, name, owner string) error {
	if err := checkLock(name, owner, 1); err != nil {
		return err
	}
	r := l.row(name)
	k, err := readLock(ctx, r)
	if err != nil || k.owner != owner {
		return err
	}
	_, err = r.ReplaceColumn(ctx, lockColumn, k.value, nil)
	return err
}

// Holder says who holds the lock; the zero Holder means that it is free.
func (l *RowLocks) Holder(ctx context.Context, name string) (Holder, error) {
	if err := checkLock(name, name, 1); err != nil {
		return Holder{}, err
	}
	k, err := readLock(ctx, l.row(name))
	if err != nil || k.value == nil {
		return Holder{}, err
	}
	now, err := l.oracle.Timestamp(ctx)
	if err != nil || !k.heldAt(now) {
		return Holder{}, err
	}
	return k.holder(now), nil
}

// Sweep removes the rows of locks that expired at least age ago, and returns how
// many. After an error, the rows that it removed before stay removed.
func (l *RowLocks) Sweep(ctx context.Context, age time.Duration) (int, error) {
	now, err := l.oracle.Timestamp(ctx)
	if err != nil {
		return 0, err
	}
	type stale struct {
		row   *row.Row
		value []byte
	}
	var found []stale
	err = l.row("").ReadPrefix(ctx, lockRowPrefix, lockColumn, func(key string, value []byte) {
		if k := decodeLock(value); !k.heldAt(now - Timestamp(age.Microseconds())) {
			found = append(found, stale{l.row(key[len(lockRowPrefix):]), k.value})
		}
	})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, s := range found {
		ok, err := s.row.ReplaceColumn(ctx, lockColumn, s.value, nil)
		if err != nil {
			return n, err
		}
		if ok {
			n++
		}
	}
	return n, nil
}
