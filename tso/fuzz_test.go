package tso

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"cloud.google.com/go/bigtable"
)

// aRow is a metadata table whose every read returns one row.
type aRow struct {
	bigtable.TableAPI
	row bigtable.Row
}

func (a aRow) ReadRow(context.Context, string, ...bigtable.ReadOption) (bigtable.Row, error) {
	return a.row, nil
}

// FuzzOracleRow reads rows of the oracle as nobody ever wrote them: what is
// accepted is within bounds, and what is not is an error that says so.
func FuzzOracleRow(f *testing.F) {
	f.Add(binary.BigEndian.AppendUint64(nil, 1_700_000_000_000_000), []byte{}, []byte{})
	f.Add([]byte(servedMode), lease{3, 2, 1}.encode(), []byte("\x08\x01\x10\x80\x80\xe9\xfe\xd7\xc1\x82\x03\x20\x80\x89\x7a"))
	f.Fuzz(func(t *testing.T, value, leaseBytes, state []byte) {
		row := bigtable.Row{"tso": {
			{Column: "tso:" + directColumn, Value: value},
			{Column: "tso:" + leaseColumn, Value: leaseBytes},
			{Column: "tso:" + stateColumn, Value: state},
		}}
		r := RowConfig{}.open(aRow{row: row})
		typed := func(err error) {
			if !errors.Is(err, ErrMode) && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormat) {
				t.Errorf("error %v of no kind of ours", err)
			}
		}
		if s, err := r.read(context.Background()); err != nil {
			typed(err)
		} else if s.value != 0 && (s.value < minTimestamp || s.value > Max) {
			t.Errorf("value %d", s.value)
		}
		s, err := r.readServed(context.Background())
		switch {
		case err != nil:
			typed(err)
		case s.mode == servedMode && (Timestamp(s.state.Limit) < minTimestamp || Timestamp(s.state.Limit) > Max || s.state.LeaseUs > maxLease.Microseconds()):
			t.Errorf("state %v", s.state)
		case s.mode == directMode && s.direct > Max:
			t.Errorf("value %d", s.direct)
		}
		if l, ok := decodeLease(leaseBytes); ok && string(l.encode()) != string(leaseBytes) {
			t.Errorf("lease %x is written %x", leaseBytes, l.encode())
		}
		decodeLock(state)
	})
}

func FuzzTimestamp(f *testing.F) {
	f.Add("1700000000000000")
	f.Add("2026-11-20T10:00:00Z")
	f.Fuzz(func(t *testing.T, s string) {
		ts, err := ParseTimestamp(s)
		if err != nil {
			return
		}
		again, err := ParseTimestamp(ts.String())
		if err != nil || again != ts {
			t.Errorf("%q is %d, which is %d, %v", s, ts, again, err)
		}
		if ts >= 0 && ts <= Max && FromCell(ts.Cell()) != ts {
			t.Errorf("%d as a cell's timestamp is %d", ts, FromCell(ts.Cell()))
		}
	})
}
