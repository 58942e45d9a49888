package tso

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"
)

const (
	lockRowPrefix = "lock/"
	lockColumn    = "lock"

	// A lock's cell is this byte, the oracle time at which it runs out (8
	// bytes, big-endian), and the owner. The layout is fixed, so that a change
	// can be conditional on the bytes.
	lockFormat = 1
)

// RowLocksConfig configures [RowLocks].
type RowLocksConfig struct {
	// Oracle tells the time by which locks run out.
	// Defaults to none: it is required.
	Oracle Oracle

	// Family is the column family of the metadata table that locks live in.
	// Defaults to "tso".
	Family string

	// RPCTimeout bounds each single RPC.
	// Defaults to 10 seconds.
	RPCTimeout time.Duration
}

// RowLocks are locks in the metadata table, one row for each, for deployments
// without a server. Taking one costs a timestamp, a read and a
// CheckAndMutateRow. They survive every process; the rows of locks that nobody
// released stay until the lock is taken again or [RowLocks.Sweep].
type RowLocks struct {
	table  bigtable.TableAPI
	cfg    RowLocksConfig
	family string
}

var _ Locks = (*RowLocks)(nil)

// NewRowLocks returns locks over the metadata table. It does no I/O. It fails
// without an oracle.
func NewRowLocks(table bigtable.TableAPI, cfg RowLocksConfig) (*RowLocks, error) {
	if cfg.Oracle == nil {
		return nil, errors.New("tso: RowLocksConfig.Oracle is missing")
	}
	cfg.RPCTimeout = cmp.Or(max(cfg.RPCTimeout, 0), 10*time.Second)
	return &RowLocks{table, cfg, cmp.Or(cfg.Family, "tso")}, nil
}

func (l *RowLocks) row(name string) *oracleRow {
	return &oracleRow{table: l.table, key: lockRowPrefix + name, family: l.family, timeout: l.cfg.RPCTimeout}
}

// rowLock is a lock's cell.
type rowLock struct {
	value   []byte // nil if there is none
	owner   string
	expires Timestamp
}

func (k rowLock) heldAt(now Timestamp) bool { return k.value != nil && now < k.expires }

func (k rowLock) holder(now Timestamp) Holder {
	return Holder{k.owner, time.Duration(k.expires-now) * time.Microsecond}
}

func (r *oracleRow) readLock(ctx context.Context) (rowLock, error) {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	row, err := r.table.ReadRow(ctx, r.key, bigtable.RowFilter(bigtable.InterleaveFilters(
		r.newest(lockColumn), bigtable.BlockAllFilter())))
	if err != nil || len(row[r.family]) == 0 {
		return rowLock{}, r.wrap("read", err)
	}
	return decodeLock(row[r.family][0].Value), nil
}

// decodeLock takes what it does not know for a lock that has run out: an
// advisory lock must not be in the way for ever.
func decodeLock(v []byte) rowLock {
	if len(v) < 9 || v[0] != lockFormat {
		return rowLock{value: append([]byte{}, v...)}
	}
	return rowLock{v, string(v[9:]), Timestamp(binary.BigEndian.Uint64(v[1:]))}
}

// replace sets the lock's cell, or removes the row, if it is still old.
func (r *oracleRow) replaceLock(ctx context.Context, old, value []byte) (bool, error) {
	m := bigtable.NewMutation()
	if value == nil {
		m.DeleteRow()
	} else {
		m.Set(r.family, lockColumn, servedCell, value)
	}
	if old != nil {
		return r.checkAndMutate(ctx, "change lock in", r.equals(lockColumn, old), m, nil)
	}
	matched, err := r.checkAndMutate(ctx, "take lock in", r.newest(lockColumn), nil, m)
	return err == nil && !matched, err
}

// Acquire implements [Locks].
func (l *RowLocks) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, Holder, error) {
	if err := checkLock(name, owner, ttl); err != nil {
		return false, Holder{}, err
	}
	row := l.row(name)
	now, err := l.cfg.Oracle.Timestamp(ctx)
	if err != nil {
		return false, Holder{}, err
	}
	value := binary.BigEndian.AppendUint64([]byte{lockFormat}, uint64(now)+uint64(ttl.Microseconds()))
	value = append(value, owner...)
	var failed error
	for range renewals {
		k, err := row.readLock(ctx)
		switch {
		case err != nil:
			return false, Holder{}, errors.Join(failed, err)
		case bytes.Equal(k.value, value): // an attempt whose outcome was unknown
			return true, Holder{owner, ttl}, nil
		case k.heldAt(now) && k.owner != owner:
			return false, k.holder(now), nil
		}
		ok, err := row.replaceLock(ctx, k.value, value)
		switch {
		case ok && err == nil:
			return true, Holder{owner, ttl}, nil
		case err != nil && (ctx.Err() != nil || !retryable(err)):
			return false, Holder{}, err
		}
		failed = err
	}
	return false, Holder{}, cmp.Or(failed, fmt.Errorf("tso: lock %q changes too often", name))
}

// Release implements [Locks].
func (l *RowLocks) Release(ctx context.Context, name, owner string) error {
	if err := checkLock(name, owner, 1); err != nil {
		return err
	}
	row := l.row(name)
	k, err := row.readLock(ctx)
	if err != nil || k.value == nil || k.owner != owner {
		return err
	}
	_, err = row.replaceLock(ctx, k.value, nil)
	return err
}

// Holder implements [Locks].
func (l *RowLocks) Holder(ctx context.Context, name string) (Holder, error) {
	if err := checkLock(name, name, 1); err != nil {
		return Holder{}, err
	}
	k, err := l.row(name).readLock(ctx)
	if err != nil || k.value == nil {
		return Holder{}, err
	}
	now, err := l.cfg.Oracle.Timestamp(ctx)
	if err != nil || !k.heldAt(now) {
		return Holder{}, err
	}
	return k.holder(now), nil
}

// Sweep removes the rows of locks that ran out at least age ago, and returns
// how many. What it did before an error stays done.
func (l *RowLocks) Sweep(ctx context.Context, age time.Duration) (int, error) {
	now, err := l.cfg.Oracle.Timestamp(ctx)
	if err != nil {
		return 0, err
	}
	type stale struct {
		row   *oracleRow
		value []byte
	}
	var found []stale
	any := l.row("")
	rctx, cancel := any.begin(ctx)
	defer cancel()
	err = l.table.ReadRows(rctx, bigtable.PrefixRange(lockRowPrefix), func(r bigtable.Row) bool {
		if items := r[l.family]; len(items) > 0 {
			k := decodeLock(items[0].Value)
			if !k.heldAt(now - Timestamp(age.Microseconds())) {
				row := l.row(r.Key()[len(lockRowPrefix):])
				found = append(found, stale{row, k.value})
			}
		}
		return true
	}, bigtable.RowFilter(bigtable.InterleaveFilters(any.newest(lockColumn), bigtable.BlockAllFilter())))
	if err != nil {
		return 0, any.wrap("sweep", err)
	}
	n := 0
	for _, s := range found {
		ok, err := s.row.replaceLock(ctx, s.value, nil)
		if err != nil {
			return n, err
		}
		if ok {
			n++
		}
	}
	return n, nil
}
