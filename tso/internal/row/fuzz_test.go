package row

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso/format"
)

// aRow is a metadata table that answers every read, and every increment, with one row or an error.
type aRow struct {
	bigtable.TableAPI
	row bigtable.Row
	err error
}

func (a aRow) ReadRow(context.Context, string, ...bigtable.ReadOption) (bigtable.Row, error) {
	return a.row, a.err
}

// ReadRows answers with a row without cells, and then with the row.
func (a aRow) ReadRows(_ context.Context, _ bigtable.RowSet, f func(bigtable.Row) bool, _ ...bigtable.ReadOption) error {
	if f(bigtable.Row{}) {
		f(a.row)
	}
	return a.err
}

func (a aRow) ApplyReadModifyWrite(context.Context, string, *bigtable.ReadModifyWrite) (bigtable.Row, error) {
	return a.row, a.err
}

// FuzzRow reads rows of the oracle with bytes that no oracle wrote: what is
// accepted is within bounds, and what is not is an error that says so.
func FuzzRow(f *testing.F) {
	f.Add(binary.BigEndian.AppendUint64(nil, 1_700_000_000_000_000), []byte{}, []byte{})
	f.Add([]byte(format.ModeServed), format.Lease{Epoch: 3, Counter: 2, Nonce: 1}.Encode(), []byte("\x08\x01\x10\x80\x80\xe9\xfe\xd7\xc1\x82\x03\x20\x80\x89\x7a"))
	f.Fuzz(func(t *testing.T, value, leaseBytes, state []byte) {
		cells := bigtable.Row{"tso": {
			{Column: "tso:" + format.ColumnDirect, Value: value},
			{Column: "tso:" + format.ColumnLease, Value: leaseBytes},
			{Column: "tso:" + format.ColumnState, Value: state},
		}}
		r := Open(aRow{row: cells}, "", "", 0)
		typed := func(err error) {
			if !errors.Is(err, format.ErrMode) && !errors.Is(err, format.ErrCorrupt) && !errors.Is(err, format.ErrFormat) {
				t.Errorf("error %v of no kind of ours", err)
			}
		}
		if s, err := r.ReadDirect(context.Background()); err != nil {
			typed(err)
		} else if s.Value != 0 && (s.Value < format.MinTimestamp || s.Value > format.MaxTimestamp) {
			t.Errorf("value %d", s.Value)
		}
		s, err := r.Read(context.Background())
		switch {
		case err != nil:
			typed(err)
		case s.Mode == format.ModeServed && (s.Served.Limit < format.MinTimestamp || s.Served.Limit > format.MaxTimestamp || s.Served.LeaseUs > format.MaxLease.Microseconds()):
			t.Errorf("state %v", s.Served)
		case s.Mode == format.ModeDirect && s.Direct > format.MaxTimestamp:
			t.Errorf("value %d", s.Direct)
		}
		if l, ok := format.DecodeLease(leaseBytes); ok && string(l.Encode()) != string(leaseBytes) {
			t.Errorf("lease %x is written %x", leaseBytes, l.Encode())
		}
	})
}
