package recovery

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// conflictRow is the row "bob" of table "a", whose prewrite failed.
var conflictRow = &store.RowWrites{Table: &store.Table{Name: "a"}, Row: "bob"}

// inBob is a cell of the row.
func inBob(qualifier string) format.Cell {
	return format.Cell{Table: "a", Row: "bob", Family: "f", Qualifier: qualifier}
}

// stored is a stored record of a cell of the row.
func stored(family, qualifier string, ts tso.Timestamp, value []byte) bigtable.ReadItem {
	return bigtable.ReadItem{Row: "bob", Column: family + ":f:" + qualifier, Timestamp: ts.Cell(), Value: value}
}

// lockAt is a stored lock of the transaction that started at ts.
func lockAt(qualifier string, ts tso.Timestamp) bigtable.ReadItem {
	return stored(format.LockFamily, qualifier, ts, format.EncodeLock(&format.Lock{Cell: inBob(qualifier), StartTS: ts, Kind: format.KindPut, Primary: inBob("p"), TTL: 1000}))
}

// TestLocksIn: a prewrite found locks. Its own show that it was applied, and it resolves the others.
func TestLocksIn(t *testing.T) {
	damaged := lockAt("q", 5)
	damaged.Value = []byte{0xff}
	noColumn := lockAt("q", 5)
	noColumn.Column = format.LockFamily + ":f"
	for _, tt := range []struct {
		name   string
		locks  []bigtable.ReadItem
		own    int
		others string
		err    error
	}{
		{"none", nil, 0, "[]", nil},
		{"own", []bigtable.ReadItem{lockAt("q", 7)}, 1, "[]", nil},
		{"another", []bigtable.ReadItem{lockAt("q", 5)}, 0, "[q@5]", nil},
		{"two columns at one time", []bigtable.ReadItem{lockAt("p", 5), lockAt("q", 5)}, 0, "[p@5 q@5]", nil},
		{"own of two columns", []bigtable.ReadItem{lockAt("p", 7), lockAt("q", 8), lockAt("q", 7)}, 2, "[q@8]", nil},
		{"damaged", []bigtable.ReadItem{lockAt("p", 7), damaged}, 0, "[]", format.ErrCorrupt},
		{"of no column", []bigtable.ReadItem{noColumn}, 0, "[]", format.ErrCorrupt},
	} {
		var others []*format.Lock
		own, err := LocksIn(conflictRow, bigtable.Row{format.LockFamily: tt.locks}, 7, &others)
		says := []string{}
		for _, l := range others {
			if l.Cell != inBob(l.Cell.Qualifier) {
				t.Errorf("%s: a lock of %v", tt.name, l.Cell)
			}
			says = append(says, fmt.Sprintf("%s@%d", l.Cell.Qualifier, l.StartTS))
		}
		if tt.name == "of no column" && !strings.Contains(err.Error(), "does not name a family") {
			t.Errorf("%s: %v", tt.name, err)
		}
		if own != tt.own || fmt.Sprint(says) != tt.others || !errors.Is(err, tt.err) || tt.err == nil && err != nil {
			t.Errorf("%s: %d own, %v, %v; want %d, %s, %v", tt.name, own, says, err, tt.own, tt.others, tt.err)
		}
	}
}

// TestFindConflict: the error names the first record that blocks the transaction. A record at the start
// timestamp of the transaction itself is a rollback of it, and comes before all others.
func TestFindConflict(t *testing.T) {
	write := func(qualifier string, ts tso.Timestamp) bigtable.ReadItem {
		family, value := format.WriteRecord{StartTS: ts - 1, Kind: format.KindPut}.Encode(inBob(qualifier))
		return stored(family, qualifier, ts, value)
	}
	locked := func(qualifier string, ts tso.Timestamp) bigtable.ReadItem {
		family, value := format.WriteRecord{StartTS: ts - 1, Kind: format.KindLock}.Encode(inBob(qualifier))
		return stored(family, qualifier, ts, value)
	}
	rollback := func(qualifier string, ts tso.Timestamp) bigtable.ReadItem {
		return stored(format.MarkFamily, qualifier, ts, format.EncodeRollback(ts))
	}
	noColumn := write("q", 9)
	noColumn.Column = format.WriteFamily + ":f"
	conflict := func(qualifier string, ts tso.Timestamp, reason format.ConflictReason) *format.ConflictError {
		return &format.ConflictError{Cell: inBob(qualifier), StartTS: 7, ConflictTS: ts, Reason: reason}
	}
	for _, tt := range []struct {
		name          string
		writes, marks []bigtable.ReadItem
		want          *format.ConflictError
		err           error
	}{
		{"none", nil, nil, nil, nil},
		{"a write", []bigtable.ReadItem{write("q", 9)}, nil, conflict("q", 9, format.ConflictWrite), nil},
		{"two writes", []bigtable.ReadItem{write("p", 8), write("q", 9)}, nil, conflict("p", 8, format.ConflictWrite), nil},
		{"a lock-only write", nil, []bigtable.ReadItem{locked("q", 9)}, conflict("q", 9, format.ConflictWrite), nil},
		{"a marker", nil, []bigtable.ReadItem{rollback("q", 9)}, conflict("q", 9, format.ConflictMarker), nil},
		{"a damaged mark", nil, []bigtable.ReadItem{stored(format.MarkFamily, "q", 9, []byte{0xff})}, conflict("q", 9, format.ConflictWrite), nil},
		{"a marker at another time", nil, []bigtable.ReadItem{stored(format.MarkFamily, "q", 9, format.EncodeRollback(8))}, conflict("q", 9, format.ConflictWrite), nil},
		{"a write and a marker", []bigtable.ReadItem{write("q", 9)}, []bigtable.ReadItem{rollback("q", 8)}, conflict("q", 9, format.ConflictWrite), nil},
		{"its own rollback", nil, []bigtable.ReadItem{rollback("q", 7)}, conflict("q", 0, format.ConflictRolledBack), nil},
		{"a write, and its own rollback", []bigtable.ReadItem{write("q", 9)}, []bigtable.ReadItem{rollback("q", 7)}, conflict("q", 0, format.ConflictRolledBack), nil},
		{"of no column", []bigtable.ReadItem{noColumn}, nil, nil, format.ErrCorrupt},
	} {
		err := FindConflict(conflictRow, bigtable.Row{format.WriteFamily: tt.writes, format.MarkFamily: tt.marks}, 7)
		var got *format.ConflictError
		switch {
		case tt.err != nil:
			if !errors.Is(err, tt.err) {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.err)
			}
		case tt.want == nil:
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		case !errors.As(err, &got) || *got != *tt.want:
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}
