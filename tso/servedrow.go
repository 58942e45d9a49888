package tso

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// FormatVersion is the version of the served oracle's records and requests.
const FormatVersion = 1

// The modes of the oracle's row.
const (
	directMode = "direct"
	servedMode = "served" // also the text in directColumn, which fences direct mode
)

const (
	// leaseColumn holds the lease, see type lease. Every write of a leader, every
	// change of leader, and that of the mode to direct, is conditional on its
	// exact bytes and on the mode, and replaces them by bytes that never were
	// there before. So a write that was delayed, repeated or sent by a deposed
	// leader cannot match: in particular it can never put an older limit back.
	leaseColumn = "lease"

	// stateColumn holds a tsopb.ServedState, always written with the lease.
	stateColumn = "state"

	// servedCell is the one cell timestamp of both, so that values replace.
	servedCell bigtable.Timestamp = 0
)

// A lease is the cell on which all writes in served mode are conditional: who
// leads (epoch, and a random number of the process), and how often that leader
// has written (counter). Three numbers of 8 bytes, big-endian.
//
// The random number is there for rows that were deleted or restored, where
// epochs start over: without it, a leader of the old epoch 1 could match a
// lease of the new one. It also tells a process whether a lease is its own when
// the outcome of its write is unknown.
type lease struct {
	epoch, counter, nonce uint64
}

func (l lease) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, l.epoch)
	b = binary.BigEndian.AppendUint64(b, l.counter)
	return binary.BigEndian.AppendUint64(b, l.nonce)
}

func decodeLease(b []byte) (lease, bool) {
	if len(b) != 24 {
		return lease{}, false
	}
	return lease{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}, true
}

// servedRow is what a read of the row shows to a server.
type servedRow struct {
	mode   string    // "direct", "served", another text, or "" for a row without a value
	direct Timestamp // highest timestamp of direct mode
	clock  Timestamp // server's time at the last stamp, 0 if there is none
	lease  lease     // zero if there is none; it outlives served mode
	state  *tsopb.ServedState
}

// readServed returns the state of the row in whatever mode it is. It fails
// with *CorruptError and *FormatError where the columns of that mode cannot be
// used.
func (r *oracleRow) readServed(ctx context.Context) (servedRow, error) {
	ctx, cancel := r.begin(ctx)
	defer cancel()
	row, err := r.table.ReadRow(ctx, r.key, bigtable.RowFilter(bigtable.InterleaveFilters(
		r.newest(directColumn), r.newest(clockColumn), r.newest(leaseColumn), r.newest(stateColumn))))
	if err != nil {
		return servedRow{}, r.wrap("read", err)
	}
	cells := map[string]bigtable.ReadItem{}
	for _, item := range row[r.family] {
		cells[strings.TrimPrefix(item.Column, r.family+":")] = item
	}
	var s servedRow
	if c, ok := cells[clockColumn]; ok {
		s.clock = FromTime(c.Timestamp.Time())
	}
	value, exists := cells[directColumn]
	switch {
	case !exists:
	case len(value.Value) == 8:
		v := int64(binary.BigEndian.Uint64(value.Value))
		if err := r.validate(v); err != nil {
			return servedRow{}, err
		}
		if Timestamp(v) >= minTimestamp {
			s.mode, s.direct = directMode, Timestamp(v)
		}
	default:
		s.mode = string(value.Value)
	}
	s.lease, exists = decodeLease(cells[leaseColumn].Value)
	if s.mode != servedMode {
		return s, nil // what an earlier served mode left is of no weight
	}
	if !exists {
		return servedRow{}, r.corruptServed(leaseColumn, "is not a lease of 24 bytes, but the row is in served mode")
	}
	state := &tsopb.ServedState{}
	c, ok := cells[stateColumn]
	if !ok {
		return servedRow{}, r.corruptServed(stateColumn, "is missing, but the row is in served mode")
	}
	if err := proto.Unmarshal(c.Value, state); err != nil {
		return servedRow{}, r.corruptServed(stateColumn, "is not a record: "+err.Error())
	}
	if state.FormatVersion != FormatVersion {
		return servedRow{}, &FormatError{Where: fmt.Sprintf("oracle row %q, column %q,", r.key, stateColumn), Found: state.FormatVersion, Want: FormatVersion}
	}
	switch limit := Timestamp(state.Limit); {
	case limit < minTimestamp:
		return servedRow{}, r.corruptServed(stateColumn, fmt.Sprintf("says that %d is the highest timestamp, which is below the smallest possible one, %d,", limit, minTimestamp))
	case limit > Max:
		return servedRow{}, r.corruptServed(stateColumn, fmt.Sprintf("says that %d is the highest timestamp, which is above the largest possible one, %d,", limit, Max))
	case state.LeaseUs < 0 || state.LeaseUs == 0 && !state.Released || state.LeaseUs > maxLease.Microseconds():
		return servedRow{}, r.corruptServed(stateColumn, fmt.Sprintf("names a lease of %d µs", state.LeaseUs))
	}
	s.state = state
	return s, nil
}

// swap replaces the lease old by next, and the state with it, if the row is in
// served mode and the lease is old, and reports whether it did. After an error
// it may have happened, or happen later.
func (r *oracleRow) swap(ctx context.Context, old, next lease, state *tsopb.ServedState) (bool, error) {
	set, err := r.setServed(next, state)
	if err != nil {
		return false, err
	}
	return r.checkAndMutate(ctx, "write lease of", r.servedWith(old), set, nil)
}

// toServed replaces direct mode's value, if it is between old and the limit of
// the state, by the name of the other mode. A row without a value is taken when
// old is 0.
func (r *oracleRow) toServed(ctx context.Context, old Timestamp, next lease, state *tsopb.ServedState) (bool, error) {
	set, err := r.setServed(next, state)
	if err != nil {
		return false, err
	}
	if old == 0 {
		set.DeleteCellsInColumn(r.family, directColumn) // see initialize
	}
	set.Set(r.family, directColumn, directCell, []byte(servedMode))
	if old != 0 {
		within := bigtable.ChainFilters(r.newest(directColumn),
			bigtable.ValueRangeFilter(encode(old), append(encode(Timestamp(state.Limit)), 0)))
		return r.checkAndMutate(ctx, "switch", within, set, nil)
	}
	present := bigtable.ChainFilters(r.newest(directColumn), bigtable.ValueRangeFilter(encode(minTimestamp), nil))
	matched, err := r.checkAndMutate(ctx, "switch", present, nil, set)
	return err == nil && !matched, err
}

// toDirect ends served mode if the lease is old: direct mode goes on from v.
func (r *oracleRow) toDirect(ctx context.Context, old, next lease, state *tsopb.ServedState, v Timestamp) (bool, error) {
	set, err := r.setServed(next, state)
	if err != nil {
		return false, err
	}
	set.Set(r.family, directColumn, directCell, encode(v))
	return r.checkAndMutate(ctx, "switch", r.servedWith(old), set, nil)
}

func (r *oracleRow) setServed(l lease, state *tsopb.ServedState) (*bigtable.Mutation, error) {
	state.FormatVersion = FormatVersion
	b, err := proto.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("tso: encoding the state of oracle row %q: %w", r.key, err)
	}
	m := bigtable.NewMutation()
	m.Set(r.family, leaseColumn, servedCell, l.encode())
	m.Set(r.family, stateColumn, servedCell, b)
	return m, nil
}

// servedWith matches a row that is in served mode and has this lease. The mode
// is part of it because the row may be put into direct mode by hand, which
// leaves the lease as it is.
func (r *oracleRow) servedWith(l lease) bigtable.Filter {
	return bigtable.ChainFilters(
		bigtable.InterleaveFilters(r.equals(directColumn, []byte(servedMode)), r.equals(leaseColumn, l.encode())),
		bigtable.CellsPerRowOffsetFilter(1)) // a cell is left over only where both match
}

// equals matches a row whose newest cell of a column has exactly this value.
func (r *oracleRow) equals(column string, v []byte) bigtable.Filter {
	end := append(append([]byte(nil), v...), 0) // [v, v+"\x00") holds v alone
	return bigtable.ChainFilters(r.newest(column), bigtable.ValueRangeFilter(v, end))
}

func (r *oracleRow) corruptServed(column, reason string) error {
	return &CorruptError{Row: r.key, Column: column, Reason: reason}
}
