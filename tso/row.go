package tso

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// directColumn holds the highest timestamp handed out in direct mode, as
	// 8 bytes, big-endian. Any other length is the name of another mode: the
	// server then refuses to increment it, which is what fences direct mode.
	directColumn = "direct"

	// directCell is the one cell timestamp of directColumn. Bigtable writes an
	// increment at max(existing cell, server's now): from a cell in the far
	// future, increments and sets both replace this very cell, so the column
	// has one cell for ever and needs no garbage collection. A multiple of
	// 1000, or the client would cut it to another number.
	directCell bigtable.Timestamp = 9_000_000_000_000_000_000

	// clockColumn receives a cell at Bigtable's own time, to be read back.
	clockColumn = "clock"

	// minTimestamp (March 1973) is the smallest value an initialised row can
	// hold. It is where cell timestamps stop being distinguishable from those
	// of plain wall-clock cells (1e17); and since an increment of a missing
	// cell starts from 0, it tells a row that was never initialised, or was
	// deleted, from one that counts.
	minTimestamp Timestamp = 1e14
)

// oracleRow is the oracle's row in the metadata table: one method per RPC.
// Each RPC ends within the timeout; its errors are classified by retryable.
type oracleRow struct {
	table   bigtable.TableAPI
	key     string
	family  string
	timeout time.Duration
	rpcs    atomic.Uint64
	writes  atomic.Uint64 // of these
}

// rowState is what a read of the row shows.
type rowState struct {
	value Timestamp // 0 if the column is missing or was never initialised
	clock Timestamp // server's time at the last stamp, 0 if there is none
}

// read returns the state of the row. It fails with *ModeError and
// *CorruptError for values that direct mode must not touch.
func (r *oracleRow) read(ctx context.Context) (rowState, error) {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	// The top-level interleave is for the emulator, where it is the only shape
	// of read that concurrent writers of the row cannot tear.
	row, err := r.table.ReadRow(ctx, r.key, bigtable.RowFilter(bigtable.InterleaveFilters(
		r.newest(directColumn), r.newest(clockColumn))))
	if err != nil {
		return rowState{}, r.wrap("read", err)
	}
	var s rowState
	for _, item := range row[r.family] {
		switch strings.TrimPrefix(item.Column, r.family+":") {
		case directColumn:
			if s.value, err = r.decode(item.Value); err != nil {
				return rowState{}, err
			}
		case clockColumn:
			s.clock = max(s.clock, FromTime(item.Timestamp.Time()))
		}
	}
	if s.value < minTimestamp {
		s.value = 0
	}
	return s, nil
}

// initialize sets the value to v unless the row has an initialised value, or
// anything else that is not ours to replace. It reports whether v was set.
func (r *oracleRow) initialize(ctx context.Context, v Timestamp) (bool, error) {
	// Inverted: "there is a value of at least minTimestamp" as bytes. That
	// includes negative values and the names of modes, which stay; it leaves
	// out a missing cell, and the small number which an increment leaves in a
	// row that was deleted. Such a cell was written at the server's present
	// time, hence the delete before the set.
	present := bigtable.ChainFilters(r.newest(directColumn), bigtable.ValueRangeFilter(encode(minTimestamp), nil))
	set := bigtable.NewMutation()
	set.DeleteCellsInColumn(r.family, directColumn)
	set.Set(r.family, directColumn, directCell, encode(v))
	matched, err := r.checkAndMutate(ctx, "initialise", present, nil, set)
	return err == nil && !matched, err
}

// compareAndSet replaces the value old by v and reports whether it did. The
// Bigtable client never retries it; after an error it may still have happened,
// or happen later.
func (r *oracleRow) compareAndSet(ctx context.Context, old, v Timestamp) (bool, error) {
	was := encode(old)
	unchanged := bigtable.ChainFilters(r.newest(directColumn),
		bigtable.ValueRangeFilter(was, append(encode(old), 0))) // [was, was+"\x00") holds was alone
	set := bigtable.NewMutation()
	set.Set(r.family, directColumn, directCell, encode(v))
	return r.checkAndMutate(ctx, "advance", unchanged, set, nil)
}

// add increments the value by n and returns it. A missing cell counts as 0.
// After an error it may have happened.
func (r *oracleRow) add(ctx context.Context, n int64) (int64, error) {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	r.writes.Add(1)
	m := bigtable.NewReadModifyWrite()
	m.Increment(r.family, directColumn, n)
	row, err := r.table.ApplyReadModifyWrite(ctx, r.key, m)
	if err != nil {
		return 0, r.wrap("increment", err)
	}
	items := row[r.family]
	if len(items) != 1 || len(items[0].Value) != 8 {
		return 0, fmt.Errorf("tso: incrementing oracle row %q: unexpected answer %v", r.key, row)
	}
	return int64(binary.BigEndian.Uint64(items[0].Value)), nil
}

// stamp writes one cell at Bigtable's own time and drops the older ones, so
// that the column never grows.
func (r *oracleRow) stamp(ctx context.Context) error {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	r.writes.Add(1)
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn(r.family, clockColumn)
	m.Set(r.family, clockColumn, bigtable.ServerTime, nil)
	return r.wrap("stamp", r.table.Apply(ctx, r.key, m))
}

func (r *oracleRow) checkAndMutate(ctx context.Context, verb string, predicate bigtable.Filter, ifTrue, ifFalse *bigtable.Mutation) (matched bool, err error) {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	r.writes.Add(1)
	err = r.table.Apply(ctx, r.key, bigtable.NewCondMutation(predicate, ifTrue, ifFalse),
		bigtable.GetCondMutationResult(&matched))
	return matched, r.wrap(verb, err)
}

// newest is the newest cell of exactly one column.
func (r *oracleRow) newest(column string) bigtable.Filter {
	return bigtable.ChainFilters(
		bigtable.ColumnRangeFilter(r.family, column, column+"\x00"), bigtable.LatestNFilter(1))
}

func (r *oracleRow) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	r.rpcs.Add(1)
	return context.WithTimeout(ctx, r.timeout)
}

func (r *oracleRow) decode(v []byte) (Timestamp, error) {
	if len(v) != 8 {
		return 0, &ModeError{Row: r.key, Mode: string(v)}
	}
	n := int64(binary.BigEndian.Uint64(v))
	return Timestamp(n), r.validate(n)
}

func (r *oracleRow) validate(v int64) error {
	switch {
	case v < 0:
		return r.corrupt(v, "is negative")
	case Timestamp(v) > Max:
		return r.corrupt(v, fmt.Sprintf("is above the largest timestamp, %d", Max))
	}
	return nil
}

func (r *oracleRow) corrupt(v int64, reason string) error {
	return &CorruptError{Row: r.key, Value: v, Reason: reason}
}

func encode(t Timestamp) []byte { return binary.BigEndian.AppendUint64(nil, uint64(t)) }

// wrap names the row, and says what to do where table or family are missing.
// Bigtable answers NotFound for both; the emulator reports a missing family as
// code Unknown.
func (r *oracleRow) wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	if status.Code(err) == codes.NotFound || strings.Contains(err.Error(), "unknown family") {
		return fmt.Errorf("%w: no table, or no family %q in it, for the oracle's row: run `percctl table init`, or call txn.InitTable: %w",
			ErrNotInitialized, r.family, err)
	}
	return fmt.Errorf("tso: %s oracle row %q: %w", verb, r.key, err)
}
