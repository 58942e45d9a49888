// Package row sends the requests that the timestamp oracle makes to its row in
// the metadata table, one method per request. Direct mode, servers, changes of
// the mode and advisory locks use it; package format describes what is stored.
package row

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// A Row is one row of the metadata table. Each request ends within the timeout
// of the Row. [Retryable] classifies the errors.
type Row struct {
	Key string // row key in the metadata table

	table   bigtable.TableAPI
	family  string
	timeout time.Duration
	rpcs    atomic.Uint64
	writes  atomic.Uint64
}

// Open returns a row of the table. Empty strings and a timeout that is not
// positive stand for the defaults: the oracle's row and family, 10 seconds.
func Open(table bigtable.TableAPI, key, family string, timeout time.Duration) *Row {
	return &Row{
		table:   table,
		Key:     cmp.Or(key, format.DefaultRow),
		family:  cmp.Or(family, format.DefaultFamily),
		timeout: cmp.Or(max(timeout, 0), 10*time.Second),
	}
}

// RPCs returns the number of requests sent, reads and writes.
func (r *Row) RPCs() uint64 { return r.rpcs.Load() }

// Writes returns the number of writes sent.
func (r *Row) Writes() uint64 { return r.writes.Load() }

// DirectState is the part of the row that direct mode reads, in microseconds
// since the Unix epoch.
type DirectState struct {
	Value int64 // highest timestamp handed out; 0 if the row is not initialised
	Clock int64 // server's time at the last stamp, 0 if there is none
}

// ReadDirect returns the row's state in direct mode. It fails with *ModeError
// and *CorruptError for values that direct mode must not change.
func (r *Row) ReadDirect(ctx context.Context) (DirectState, error) {
	cells, err := r.read(ctx, format.ColumnDirect, format.ColumnClock)
	if err != nil {
		return DirectState{}, err
	}
	s := DirectState{Clock: stampOf(cells)}
	if c, ok := cells[format.ColumnDirect]; ok {
		v, ok := format.DecodeTimestamp(c.Value)
		if !ok {
			return DirectState{}, &format.ModeError{Row: r.Key, Mode: string(c.Value)}
		}
		if err := r.Validate(v); err != nil {
			return DirectState{}, err
		}
		if v >= format.MinTimestamp {
			s.Value = v
		}
	}
	return s, nil
}

// State is the whole row, in any mode.
type State struct {
	Mode   string             // "direct", "served", another text, or "" for a row without a value
	Direct int64              // highest timestamp of direct mode
	Clock  int64              // server's time at the last stamp, 0 if there is none
	Lease  format.Lease       // zero if there is none; it stays when served mode ends
	Served *tsopb.ServedState // nil unless the mode is "served"
}

// Read returns the state of the row in any mode. It fails with *CorruptError
// and *FormatError if the columns of that mode cannot be used.
func (r *Row) Read(ctx context.Context) (State, error) {
	cells, err := r.read(ctx, format.ColumnDirect, format.ColumnClock, format.ColumnLease, format.ColumnState)
	if err != nil {
		return State{}, err
	}
	s := State{Clock: stampOf(cells)}
	value := cells[format.ColumnDirect].Value
	if v, ok := format.DecodeTimestamp(value); !ok {
		s.Mode = string(value) // "" without one
	} else if err := r.Validate(v); err != nil {
		return State{}, err
	} else if v >= format.MinTimestamp {
		s.Mode, s.Direct = format.ModeDirect, v
	}
	lease, ok := format.DecodeLease(cells[format.ColumnLease].Value)
	s.Lease = lease
	if s.Mode != format.ModeServed {
		return s, nil // columns that an earlier served mode left do not matter
	}
	if !ok {
		return State{}, r.CorruptColumn(format.ColumnLease, "is not a lease of 24 bytes, but the row is in served mode")
	}
	s.Served, err = r.decodeState(cells)
	if err != nil {
		return State{}, err
	}
	return s, nil
}

// decodeState returns the content of column "state".
func (r *Row) decodeState(cells map[string]bigtable.ReadItem) (*tsopb.ServedState, error) {
	c, ok := cells[format.ColumnState]
	if !ok {
		return nil, r.CorruptColumn(format.ColumnState, "is missing, but the row is in served mode")
	}
	state := &tsopb.ServedState{}
	if err := proto.Unmarshal(c.Value, state); err != nil {
		return nil, r.CorruptColumn(format.ColumnState, "is not a record: "+err.Error())
	}
	if state.FormatVersion != format.Version {
		return nil, &format.FormatError{Where: fmt.Sprintf("oracle row %q, column %q,", r.Key, format.ColumnState), Found: state.FormatVersion, Want: format.Version}
	}
	switch limit := state.Limit; {
	case limit < format.MinTimestamp:
		return nil, r.CorruptColumn(format.ColumnState, fmt.Sprintf("says that %d is the highest timestamp, which is below the smallest possible one, %d,", limit, format.MinTimestamp))
	case limit > format.MaxTimestamp:
		return nil, r.CorruptColumn(format.ColumnState, fmt.Sprintf("says that %d is the highest timestamp, which is above the largest possible one, %d,", limit, format.MaxTimestamp))
	case state.LeaseUs < 0 || state.LeaseUs == 0 && !state.Released || state.LeaseUs > format.MaxLease.Microseconds():
		return nil, r.CorruptColumn(format.ColumnState, fmt.Sprintf("names a lease of %d µs", state.LeaseUs))
	}
	return state, nil
}

// Initialize sets the value of direct mode to v unless the row has an
// initialised value, or anything else that direct mode must not replace. It
// reports whether v was set.
func (r *Row) Initialize(ctx context.Context, v int64) (bool, error) {
	// The small number that an increment leaves in a row that was deleted is
	// at the server's time, not at CellDirect, hence the delete before the set.
	set := bigtable.NewMutation()
	set.DeleteCellsInColumn(r.family, format.ColumnDirect)
	set.Set(r.family, format.ColumnDirect, format.CellDirect, format.EncodeTimestamp(v))
	matched, err := r.checkAndMutate(ctx, "initialise", r.initialized(), nil, set)
	return err == nil && !matched, err
}

// initialized matches a row with a value of at least MinTimestamp, compared as
// bytes. That includes negative values and the names of modes, which must stay.
// It excludes a missing cell and a number too small to be a timestamp.
func (r *Row) initialized() bigtable.Filter {
	return bigtable.ChainFilters(r.newest(format.ColumnDirect), bigtable.ValueRangeFilter(format.EncodeTimestamp(format.MinTimestamp), nil))
}

// Advance replaces direct mode's value by v if it is between least and most, and reports
// whether it did. The Bigtable client never retries this request. After an error the
// change may have happened, or may happen later.
func (r *Row) Advance(ctx context.Context, least, most, v int64) (bool, error) {
	set := bigtable.NewMutation()
	set.Set(r.family, format.ColumnDirect, format.CellDirect, format.EncodeTimestamp(v))
	return r.checkAndMutate(ctx, "advance", r.between(least, most), set, nil)
}

// between matches a row whose value of direct mode is between least and most.
func (r *Row) between(least, most int64) bigtable.Filter {
	return bigtable.ChainFilters(r.newest(format.ColumnDirect),
		bigtable.ValueRangeFilter(format.EncodeTimestamp(least), append(format.EncodeTimestamp(most), 0)))
}

// Add increments direct mode's value by n and returns the sum. A missing cell
// counts as 0. After an error the increment may have happened.
func (r *Row) Add(ctx context.Context, n int64) (int64, error) {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	r.writes.Add(1)
	m := bigtable.NewReadModifyWrite()
	m.Increment(r.family, format.ColumnDirect, n)
	row, err := r.table.ApplyReadModifyWrite(ctx, r.Key, m)
	if err != nil {
		return 0, r.wrap("increment", err)
	}
	items := row[r.family]
	if len(items) != 1 || len(items[0].Value) != 8 {
		return 0, fmt.Errorf("tso: incrementing oracle row %q: unexpected answer %v", r.Key, row)
	}
	return int64(binary.BigEndian.Uint64(items[0].Value)), nil
}

// Stamp writes one cell at Bigtable's own time and deletes the older ones, so
// that the column never grows.
func (r *Row) Stamp(ctx context.Context) error {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	r.writes.Add(1)
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn(r.family, format.ColumnClock)
	m.Set(r.family, format.ColumnClock, bigtable.ServerTime, nil)
	return r.wrap("stamp", r.table.Apply(ctx, r.Key, m))
}

// Swap replaces the lease old by next, and the state with it, if the row is in
// served mode and the lease is old. It reports whether it did. After an error
// the change may have happened, or may happen later.
func (r *Row) Swap(ctx context.Context, old, next format.Lease, state *tsopb.ServedState) (bool, error) {
	set, err := r.setServed(next, state)
	if err != nil {
		return false, err
	}
	return r.checkAndMutate(ctx, "write lease of", r.servedWith(old), set, nil)
}

// Seed writes a lease if the row has none.
func (r *Row) Seed(ctx context.Context, l format.Lease) error {
	set := bigtable.NewMutation()
	set.Set(r.family, format.ColumnLease, format.CellServed, l.Encode())
	_, err := r.checkAndMutate(ctx, "write lease of", r.newest(format.ColumnLease), nil, set)
	return err
}

// ToServed puts the row into served mode if direct mode's value is between old
// and the limit of the state, and if the lease is as given, unless that is zero.
// If old is 0, the row must have no value.
func (r *Row) ToServed(ctx context.Context, old int64, lease, next format.Lease, state *tsopb.ServedState) (bool, error) {
	set, err := r.setServed(next, state)
	if err != nil {
		return false, err
	}
	set.DeleteCellsInColumn(r.family, format.ColumnDirect) // see Initialize
	set.Set(r.family, format.ColumnDirect, format.CellDirect, []byte(format.ModeServed))
	if old != 0 {
		within := r.between(old, state.Limit)
		if lease != (format.Lease{}) {
			within = both(within, r.equals(format.ColumnLease, lease.Encode()))
		}
		return r.checkAndMutate(ctx, "switch", within, set, nil)
	}
	matched, err := r.checkAndMutate(ctx, "switch", r.initialized(), nil, set)
	return err == nil && !matched, err
}

// ToDirect ends served mode if the lease is old. Direct mode continues from v.
func (r *Row) ToDirect(ctx context.Context, old, next format.Lease, state *tsopb.ServedState, v int64) (bool, error) {
	set, err := r.setServed(next, state)
	if err != nil {
		return false, err
	}
	set.Set(r.family, format.ColumnDirect, format.CellDirect, format.EncodeTimestamp(v))
	return r.checkAndMutate(ctx, "switch", r.servedWith(old), set, nil)
}

func (r *Row) setServed(l format.Lease, state *tsopb.ServedState) (*bigtable.Mutation, error) {
	state.FormatVersion = format.Version
	b, err := proto.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("tso: encoding the state of oracle row %q: %w", r.Key, err)
	}
	m := bigtable.NewMutation()
	m.Set(r.family, format.ColumnLease, format.CellServed, l.Encode())
	m.Set(r.family, format.ColumnState, format.CellServed, b)
	return m, nil
}

// servedWith matches a row that is in served mode and has this lease. It also
// checks the mode, because an operator who puts the row into direct mode by
// hand leaves the lease as it is.
func (r *Row) servedWith(l format.Lease) bigtable.Filter {
	return both(r.equals(format.ColumnDirect, []byte(format.ModeServed)), r.equals(format.ColumnLease, l.Encode()))
}

// both matches a row that has a cell for each of two filters with at most one.
func both(a, b bigtable.Filter) bigtable.Filter {
	return bigtable.ChainFilters(bigtable.InterleaveFilters(a, b), bigtable.CellsPerRowOffsetFilter(1)) // a cell remains only if both match
}

// ReadColumn returns the newest value of one column, nil if there is none.
func (r *Row) ReadColumn(ctx context.Context, column string) ([]byte, error) {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	row, err := r.table.ReadRow(ctx, r.Key, bigtable.RowFilter(r.alone(column)))
	if len(row[r.family]) == 0 { // or it failed
		return nil, r.wrap("read", err)
	}
	return append([]byte{}, row[r.family][0].Value...), nil // not nil, even if empty
}

// ReadPrefix calls f with the key of each row that begins with the prefix and
// with the newest value of one column in it. r's own key does not matter.
func (r *Row) ReadPrefix(ctx context.Context, prefix, column string, f func(key string, value []byte)) error {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	return r.wrap("sweep", r.table.ReadRows(ctx, bigtable.PrefixRange(prefix), func(row bigtable.Row) bool {
		if items := row[r.family]; len(items) > 0 { // whatever the service answers
			f(row.Key(), items[0].Value)
		}
		return true
	}, bigtable.RowFilter(r.alone(column))))
}

// ReplaceColumn sets one column of the row to value, or deletes the row if value
// is nil. It does so if the newest value of the column is old, or if there is
// none and old is nil. It reports whether it did.
func (r *Row) ReplaceColumn(ctx context.Context, column string, old, value []byte) (bool, error) {
	m := bigtable.NewMutation()
	if value == nil {
		m.DeleteRow()
	} else {
		m.Set(r.family, column, format.CellServed, value)
	}
	if old != nil {
		return r.checkAndMutate(ctx, "change lock in", r.equals(column, old), m, nil)
	}
	matched, err := r.checkAndMutate(ctx, "take lock in", r.newest(column), nil, m)
	return err == nil && !matched, err
}

// Validate fails with *CorruptError for a value of direct mode that is not a
// timestamp.
func (r *Row) Validate(v int64) error {
	switch {
	case v < 0:
		return r.CorruptValue(v, "is negative")
	case v > format.MaxTimestamp:
		return r.CorruptValue(v, fmt.Sprintf("is above the largest timestamp, %d", format.MaxTimestamp))
	}
	return nil
}

// CorruptValue is the error for a value of direct mode that cannot be used.
func (r *Row) CorruptValue(v int64, reason string) error {
	return &format.CorruptError{Row: r.Key, Value: v, Reason: reason}
}

// CorruptColumn is the error for another column that cannot be used.
func (r *Row) CorruptColumn(column, reason string) error {
	return &format.CorruptError{Row: r.Key, Column: column, Reason: reason}
}

// checkAndMutate sends a conditional write; the verb is for its error. After an
// error the write may have happened, or may happen later.
func (r *Row) checkAndMutate(ctx context.Context, verb string, predicate bigtable.Filter, ifTrue, ifFalse *bigtable.Mutation) (matched bool, err error) {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	r.writes.Add(1)
	err = r.table.Apply(ctx, r.Key, bigtable.NewCondMutation(predicate, ifTrue, ifFalse),
		bigtable.GetCondMutationResult(&matched))
	return matched, r.wrap(verb, err)
}

// newest returns the newest cell of exactly one column.
func (r *Row) newest(column string) bigtable.Filter {
	return bigtable.ChainFilters(
		bigtable.ColumnRangeFilter(r.family, column, column+"\x00"), bigtable.LatestNFilter(1))
}

// equals matches a row whose newest cell of a column has exactly this value.
func (r *Row) equals(column string, v []byte) bigtable.Filter {
	end := append(append([]byte(nil), v...), 0) // [v, v+"\x00") holds v alone
	return bigtable.ChainFilters(r.newest(column), bigtable.ValueRangeFilter(v, end))
}

// read returns the newest cells of the columns.
func (r *Row) read(ctx context.Context, columns ...string) (map[string]bigtable.ReadItem, error) {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	// An interleave as the outermost filter is the only shape of read that
	// concurrent writers of the row cannot tear on the emulator.
	var filters []bigtable.Filter
	for _, c := range columns {
		filters = append(filters, r.newest(c))
	}
	row, err := r.table.ReadRow(ctx, r.Key, bigtable.RowFilter(bigtable.InterleaveFilters(filters...)))
	if err != nil {
		return nil, r.wrap("read", err)
	}
	cells := map[string]bigtable.ReadItem{}
	for _, item := range row[r.family] {
		cells[strings.TrimPrefix(item.Column, r.family+":")] = item
	}
	return cells, nil
}

// alone is newest as an interleave, see read.
func (r *Row) alone(column string) bigtable.Filter {
	return bigtable.InterleaveFilters(r.newest(column), bigtable.BlockAllFilter())
}

func (r *Row) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	r.rpcs.Add(1)
	return context.WithTimeout(ctx, r.timeout)
}

// wrap adds the row to the error, and says what to do if the table or the
// family is missing. Bigtable answers NotFound for both; the emulator reports a
// missing family as code Unknown.
func (r *Row) wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	if status.Code(err) == codes.NotFound || strings.Contains(err.Error(), "unknown family") {
		return fmt.Errorf("%w: no table, or no family %q in it, for the oracle's row: run `percctl table init`, or call admin.InitTable: %w",
			format.ErrNotInitialized, r.family, err)
	}
	return fmt.Errorf("tso: %s oracle row %q: %w", verb, r.Key, err)
}

// stampOf returns the server's time at the last stamp.
func stampOf(cells map[string]bigtable.ReadItem) int64 {
	// A cell timestamp is in microseconds; Bigtable's clock has milliseconds.
	return min(max(int64(cells[format.ColumnClock].Timestamp), 0), format.MaxTimestamp)
}
