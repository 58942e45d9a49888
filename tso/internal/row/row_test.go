package row

import (
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// TestNameThatCannotBeStored: a state that has no encoding is not sent; here nothing could be.
func TestNameThatCannotBeStored(t *testing.T) {
	r := Open(aRow{}, "", "", 0)
	state := &tsopb.ServedState{Limit: 1e15, Leader: "\xff"}
	for name, call := range map[string]func() (bool, error){
		"swap":      func() (bool, error) { return r.Swap(t.Context(), format.Lease{}, format.Lease{Epoch: 1}, state) },
		"to served": func() (bool, error) { return r.ToServed(t.Context(), 1, format.Lease{}, format.Lease{Epoch: 1}, state) },
		"to direct": func() (bool, error) {
			return r.ToDirect(t.Context(), format.Lease{}, format.Lease{Epoch: 1}, state, 1e15)
		},
	} {
		if ok, err := call(); ok || err == nil || !strings.Contains(err.Error(), "encoding the state") {
			t.Errorf("%s: %t, %v", name, ok, err)
		}
	}
}

// TestStatesOfRow: what each content of the row means, and which is refused.
func TestStatesOfRow(t *testing.T) {
	const limit = 1_800_000_000_000_000
	lease := format.Lease{Epoch: 3, Counter: 2, Nonce: 1 << 40}
	direct := func(v int64) bigtable.ReadItem {
		return bigtable.ReadItem{Column: "tso:direct", Value: format.EncodeTimestamp(v)}
	}
	clock := func(ts int64) bigtable.ReadItem {
		return bigtable.ReadItem{Column: "tso:clock", Timestamp: bigtable.Timestamp(ts)}
	}
	leased := bigtable.ReadItem{Column: "tso:lease", Value: lease.Encode()}
	stateOf := func(s *tsopb.ServedState) bigtable.ReadItem {
		b, err := proto.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return bigtable.ReadItem{Column: "tso:state", Value: b}
	}
	served := func(change func(s *tsopb.ServedState)) (row []bigtable.ReadItem, s *tsopb.ServedState) {
		s = &tsopb.ServedState{FormatVersion: format.Version, Limit: limit, LeaseUs: 1}
		change(s)
		return []bigtable.ReadItem{{Column: "tso:direct", Value: []byte("served")}, clock(7), leased, stateOf(s)}, s
	}
	refused := func(column string, v int64, reason string) error {
		return &format.CorruptError{Row: "oracle", Column: column, Value: v, Reason: reason}
	}
	type test struct {
		name   string
		row    []bigtable.ReadItem
		state  State
		err    error
		direct DirectState
		mode   string // that direct mode refuses
	}
	tests := []test{
		{name: "no row"},
		{name: "least", row: []bigtable.ReadItem{direct(format.MinTimestamp), clock(1)}, state: State{Mode: "direct", Direct: format.MinTimestamp, Clock: 1}, direct: DirectState{format.MinTimestamp, 1}},
		{name: "most", row: []bigtable.ReadItem{direct(format.MaxTimestamp), clock(math.MaxInt64)}, state: State{Mode: "direct", Direct: format.MaxTimestamp, Clock: format.MaxTimestamp}, direct: DirectState{format.MaxTimestamp, format.MaxTimestamp}},
		{name: "not initialized", row: []bigtable.ReadItem{direct(format.MinTimestamp - 1), clock(0)}},
		{name: "zero", row: []bigtable.ReadItem{direct(0), clock(-1)}},
		{name: "negative", row: []bigtable.ReadItem{direct(-1)}, err: refused("", -1, "is negative")},
		{name: "above", row: []bigtable.ReadItem{direct(format.MaxTimestamp + 1)}, err: refused("", format.MaxTimestamp+1, "is above the largest timestamp, 9223372036854774")},
		{name: "left by served mode", row: []bigtable.ReadItem{direct(limit), leased, {Column: "tso:state", Value: []byte{1}}}, state: State{Mode: "direct", Direct: limit, Lease: lease}, direct: DirectState{Value: limit}},
		{name: "another mode", row: []bigtable.ReadItem{{Column: "tso:direct", Value: []byte("other")}, leased}, state: State{Mode: "other", Lease: lease}, mode: "other"},
		{name: "served without a lease", row: []bigtable.ReadItem{{Column: "tso:direct", Value: []byte("served")}}, mode: "served", err: refused("lease", 0, "is not a lease of 24 bytes, but the row is in served mode")},
		{name: "served with half a lease", row: []bigtable.ReadItem{{Column: "tso:direct", Value: []byte("served")}, {Column: "tso:lease", Value: make([]byte, 25)}}, mode: "served", err: refused("lease", 0, "is not a lease of 24 bytes, but the row is in served mode")},
		{name: "served without a state", row: []bigtable.ReadItem{{Column: "tso:direct", Value: []byte("served")}, leased}, mode: "served", err: refused("state", 0, "is missing, but the row is in served mode")},
		{name: "served with damage", row: []bigtable.ReadItem{{Column: "tso:direct", Value: []byte("served")}, leased, {Column: "tso:state", Value: []byte{1}}}, mode: "served", err: refused("state", 0, "is not a record: ")},
	}
	for _, tt := range []struct {
		name   string
		change func(s *tsopb.ServedState)
		err    error
	}{
		{"served", func(*tsopb.ServedState) {}, nil},
		{"a later version", func(s *tsopb.ServedState) { s.FormatVersion++ }, &format.FormatError{Where: `oracle row "oracle", column "state",`, Found: 2, Want: 1}},
		{"least limit", func(s *tsopb.ServedState) { s.Limit = format.MinTimestamp }, nil},
		{"too low", func(s *tsopb.ServedState) { s.Limit = format.MinTimestamp - 1 }, refused("state", 0, "says that 99999999999999 is the highest timestamp, which is below")},
		{"highest limit", func(s *tsopb.ServedState) { s.Limit = format.MaxTimestamp }, nil},
		{"too high", func(s *tsopb.ServedState) { s.Limit = format.MaxTimestamp + 1 }, refused("state", 0, "says that 9223372036854775 is the highest timestamp, which is above")},
		{"released", func(s *tsopb.ServedState) { s.LeaseUs, s.Released = 0, true }, nil},
		{"no lease", func(s *tsopb.ServedState) { s.LeaseUs = 0 }, refused("state", 0, "names a lease of 0 µs")},
		{"negative lease", func(s *tsopb.ServedState) { s.LeaseUs, s.Released = -1, true }, refused("state", 0, "names a lease of -1 µs")},
		{"longest lease", func(s *tsopb.ServedState) { s.LeaseUs = 600e6 }, nil},
		{"too long", func(s *tsopb.ServedState) { s.LeaseUs = 600e6 + 1 }, refused("state", 0, "names a lease of 600000001 µs")},
	} {
		row, s := served(tt.change)
		tests = append(tests, test{name: tt.name, row: row, state: State{Mode: "served", Clock: 7, Lease: lease, Served: s}, err: tt.err, mode: "served"})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Open(aRow{row: bigtable.Row{"tso": tt.row}}, "", "", 0)
			got, err := r.Read(t.Context())
			same(t, err, tt.err)
			want := tt.state
			if tt.err != nil {
				want = State{}
			}
			if !proto.Equal(got.Served, want.Served) {
				t.Errorf("served state %v, want %v", got.Served, want.Served)
			}
			if got.Served, want.Served = nil, nil; got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			wantErr := tt.err
			if tt.mode != "" {
				wantErr = &format.ModeError{Row: "oracle", Mode: tt.mode}
			}
			value, err := r.ReadDirect(t.Context())
			same(t, err, wantErr)
			if value != tt.direct {
				t.Errorf("%+v, want %+v", value, tt.direct)
			}
			if r.RPCs() != 2 || r.Writes() != 0 {
				t.Errorf("%d requests, %d writes", r.RPCs(), r.Writes())
			}
		})
	}
	if v, ok := format.DecodeTimestamp([]byte("served")); v != 0 || ok {
		t.Errorf("a name is timestamp %d, %t", v, ok)
	}
	r := Open(aRow{err: io.ErrUnexpectedEOF}, "", "", 0)
	if s, err := r.Read(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) || s != (State{}) {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := r.ReadDirect(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) || s != (DirectState{}) {
		t.Errorf("%+v, %v", s, err)
	}
}

// same checks that an error is of the type of want and says the same, at least up to its reason's end.
func same(t *testing.T, err, want error) {
	t.Helper()
	var corrupt *format.CorruptError
	if w, ok := want.(*format.CorruptError); ok && errors.As(err, &corrupt) {
		got := *corrupt
		if strings.HasPrefix(got.Reason, w.Reason) {
			got.Reason = w.Reason
		}
		err = &got
	}
	if !reflect.DeepEqual(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
	for _, kind := range []error{format.ErrCorrupt, format.ErrMode, format.ErrFormat} {
		if errors.Is(err, kind) != errors.Is(want, kind) {
			t.Errorf("%v is %q: %t", err, kind, errors.Is(err, kind))
		}
	}
	var typed interface{ ErrorType() string }
	if errors.As(want, &typed) {
		kinds := map[string]error{"corrupt": format.ErrCorrupt, "mode": format.ErrMode, "format": format.ErrFormat}
		for name, kind := range kinds {
			if (typed.ErrorType() == name) != errors.Is(want, kind) {
				t.Errorf("%v of type %s is %q: %t", want, typed.ErrorType(), kind, errors.Is(want, kind))
			}
		}
	}
}

// TestAnswersToIncrement: only one number of 8 bytes is a sum.
func TestAnswersToIncrement(t *testing.T) {
	sum := bigtable.ReadItem{Value: format.EncodeTimestamp(7)}
	for _, tt := range []struct {
		items []bigtable.ReadItem
		want  int64
	}{
		{[]bigtable.ReadItem{sum}, 7}, {nil, 0}, {[]bigtable.ReadItem{sum, sum}, 0}, {[]bigtable.ReadItem{{Value: sum.Value[1:]}}, 0},
	} {
		got, err := Open(aRow{row: bigtable.Row{"tso": tt.items}}, "", "", 0).Add(t.Context(), 1)
		if got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("%v: %d, %v; want %d", tt.items, got, err, tt.want)
		}
	}
}

// TestRowWithoutCells: a service may answer with a row that has no cell of the column.
func TestRowWithoutCells(t *testing.T) {
	r, got := Open(aRow{row: bigtable.Row{"tso": {{Row: "lock/a", Value: []byte("x")}}}}, "", "", 0), ""
	if err := r.ReadPrefix(t.Context(), "lock/", "c", func(key string, value []byte) { got += key + "=" + string(value) }); err != nil || got != "lock/a=x" {
		t.Errorf("%q, %v", got, err)
	}
}
