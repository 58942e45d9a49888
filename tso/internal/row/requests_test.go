package row_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
)

// content returns the cells of a row, such as "direct@9000000000000000000=100000000000005".
func content(e *tsotest.Emulator, key string) string {
	e.T.Helper()
	cells, err := e.Table("percolator").ReadRow(context.Background(), key)
	if err != nil {
		e.T.Fatal(err)
	}
	var all []string
	for _, c := range cells["tso"] {
		column, value := strings.TrimPrefix(c.Column, "tso:"), fmt.Sprintf("%q", c.Value)
		if v, ok := format.DecodeTimestamp(c.Value); ok {
			value = fmt.Sprint(v)
		} else if l, ok := format.DecodeLease(c.Value); ok {
			value = fmt.Sprint(l)
		} else if s := (&tsopb.ServedState{}); column == "state" && proto.Unmarshal(c.Value, s) == nil {
			value = fmt.Sprintf("{%d %d %t}", s.FormatVersion, s.Limit, s.Released)
		}
		switch ts := c.Timestamp; {
		case ts == format.CellDirect && column == "direct", ts == 0 && column != "direct":
		default:
			column += fmt.Sprintf("@%d", ts)
		}
		all = append(all, column+"="+value)
	}
	return strings.Join(all, " ")
}

// TestRequests: what each request leaves in the row, on each condition, and what it returns.
func TestRequests(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		const v int64 = 1_800_000_000_000_000
		r := row.Open(e.Table("percolator"), "", "", 0)
		ctx := t.Context()
		now := fmt.Sprint(time.Now().UnixMilli() * 1000)
		step := func(name string, call func() (any, error), want any, cells string) {
			t.Helper()
			got, err := call()
			if err != nil || got != want {
				t.Errorf("%s: %v, %v; want %v", name, got, err, want)
			}
			if got := content(e, "oracle"); got != cells {
				t.Errorf("%s: the row is %s; want %s", name, got, cells)
			}
		}
		initialize := func(v int64) func() (any, error) {
			return func() (any, error) { return r.Initialize(ctx, v) }
		}
		advance := func(least, most, v int64) func() (any, error) {
			return func() (any, error) { return r.Advance(ctx, least, most, v) }
		}
		add := func(n int64) func() (any, error) { return func() (any, error) { return r.Add(ctx, n) } }
		seed := func(l format.Lease) func() (any, error) {
			return func() (any, error) { return nil, r.Seed(ctx, l) }
		}
		stamp := func() (any, error) { return nil, r.Stamp(ctx) }
		state := func(limit int64) *tsopb.ServedState { return &tsopb.ServedState{Limit: limit, Released: true} }
		const inState = "state={1 1800000000000000 true}"
		toServed := func(old int64, lease, next format.Lease, limit int64) func() (any, error) {
			return func() (any, error) { return r.ToServed(ctx, old, lease, next, state(limit)) }
		}
		swap := func(old, next format.Lease) func() (any, error) {
			return func() (any, error) { return r.Swap(ctx, old, next, state(v)) }
		}
		toDirect := func(old, next format.Lease, v int64) func() (any, error) {
			return func() (any, error) { return r.ToDirect(ctx, old, next, state(v), v) }
		}
		one, two, three := format.Lease{Epoch: 1, Counter: 5, Nonce: 9}, format.Lease{Epoch: 1, Counter: 6, Nonce: 9}, format.Lease{Epoch: 2, Nonce: 8}

		step("add to nothing", add(3), int64(3), "direct@"+now+"=3")
		step("initialize a small number", initialize(v), true, fmt.Sprintf("direct=%d", v))
		step("initialize again", initialize(v+9), false, fmt.Sprintf("direct=%d", v))
		step("add", add(3), v+3, fmt.Sprintf("direct=%d", v+3))
		step("advance below", advance(v, v+2, v+5), false, fmt.Sprintf("direct=%d", v+3))
		step("advance above", advance(v+4, v+9, v+5), false, fmt.Sprintf("direct=%d", v+3))
		step("advance at the most", advance(v, v+3, v+5), true, fmt.Sprintf("direct=%d", v+5))
		step("advance at the least", advance(v+5, v+9, v+6), true, fmt.Sprintf("direct=%d", v+6))
		e.Put(append(format.EncodeTimestamp(v+6), 0))
		step("advance another mode", advance(v+6, v+6, v+7), false, fmt.Sprintf("direct=%q", append(format.EncodeTimestamp(v+6), 0)))
		step("initialize another mode", initialize(v), false, fmt.Sprintf("direct=%q", append(format.EncodeTimestamp(v+6), 0)))
		e.PutInt(-1)
		step("initialize a negative value", initialize(v), false, "direct=-1")
		e.PutInt(v)
		step("stamp", stamp, nil, "clock@"+now+`="" direct=`+fmt.Sprint(v))
		tsotest.Advance(2 * time.Millisecond)
		now = fmt.Sprint(time.Now().UnixMilli() * 1000)
		step("stamp again", stamp, nil, "clock@"+now+`="" direct=`+fmt.Sprint(v))
		if s, err := r.ReadDirect(ctx); err != nil || s.Value != v || fmt.Sprint(s.Clock) != now {
			t.Errorf("%+v, %v; stamped at %s", s, err, now)
		}
		e.DeleteRow()
		step("to served without a value", toServed(0, one, two, v), true, "direct=\"served\" lease={1 6 9} "+inState)
		step("swap another lease", swap(one, three), false, "direct=\"served\" lease={1 6 9} "+inState)
		step("swap", swap(two, three), true, "direct=\"served\" lease={2 0 8} "+inState)
		step("to direct with another lease", toDirect(two, one, v), false, "direct=\"served\" lease={2 0 8} "+inState)
		step("to direct", toDirect(three, one, v), true, fmt.Sprintf("direct=%d lease={1 5 9} ", v)+inState)
		step("swap in direct mode", swap(one, two), false, fmt.Sprintf("direct=%d lease={1 5 9} ", v)+inState)
		step("to served, there is a value", toServed(0, format.Lease{}, two, v), false, fmt.Sprintf("direct=%d lease={1 5 9} ", v)+inState)
		step("to served, above the value", toServed(v+1, format.Lease{}, two, v+1), false, fmt.Sprintf("direct=%d lease={1 5 9} ", v)+inState)
		step("to served, another lease", toServed(v, two, three, v), false, fmt.Sprintf("direct=%d lease={1 5 9} ", v)+inState)
		step("to served, the lease", toServed(v, one, three, v), true, "direct=\"served\" lease={2 0 8} "+inState)
		step("back", toDirect(three, two, v), true, fmt.Sprintf("direct=%d lease={1 6 9} ", v)+inState)
		step("to served, whatever the lease", toServed(v, format.Lease{}, three, v), true, "direct=\"served\" lease={2 0 8} "+inState)
		e.DeleteRow()
		if _, err := r.Add(ctx, 3); err != nil {
			t.Error(err)
		}
		step("to served, a small number", toServed(0, format.Lease{}, one, v), true, "direct=\"served\" lease={1 5 9} "+inState)
		e.DeleteRow()
		step("seed", seed(one), nil, "lease={1 5 9}")
		step("seed again", seed(two), nil, "lease={1 5 9}")
		if rpcs, writes := r.RPCs(), r.Writes(); rpcs != 30 || writes != 29 {
			t.Errorf("%d requests, %d writes", rpcs, writes)
		}
		m := bigtable.NewMutation() // an older cell does not count
		m.Set("tso", "direct", format.CellDirect, format.EncodeTimestamp(v+1))
		m.Set("tso", "direct", format.CellDirect-1000, format.EncodeTimestamp(v))
		e.Apply(m)
		if s, err := r.Read(ctx); err != nil || s != (row.State{Mode: "direct", Direct: v + 1, Lease: one}) {
			t.Errorf("%+v, %v", s, err)
		}
		step("advance an older cell", advance(v, v, v+2), false, fmt.Sprintf("direct=%d direct@%d=%d lease={1 5 9}", v+1, format.CellDirect-1000, v))
	})
}

// TestColumns: a column is set, replaced and removed with its row, on the condition of exactly its value.
func TestColumns(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		ctx := t.Context()
		r, empty := row.Open(e.Table("percolator"), "lock/a", "", 0), row.Open(e.Table("percolator"), "lock/b", "", 0)
		if b, err := r.ReadColumn(ctx, "c"); b != nil || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		for _, tt := range []struct {
			name       string
			old, value []byte
			want       bool
			cells      string
		}{
			{"replace nothing", []byte("x"), []byte("y"), false, ""},
			{"set", nil, []byte("x\x00"), true, `c="x\x00"`},
			{"set again", nil, []byte("y"), false, `c="x\x00"`},
			{"replace less", []byte("x"), []byte("y"), false, `c="x\x00"`},
			{"replace", []byte("x\x00"), []byte("y"), true, `c="y"`},
			{"remove another", []byte("x"), nil, false, `c="y"`},
			{"remove if there is none", nil, nil, false, `c="y"`},
		} {
			ok, err := r.ReplaceColumn(ctx, "c", tt.old, tt.value)
			if got := content(e, "lock/a"); ok != tt.want || err != nil || got != tt.cells {
				t.Errorf("%s: %t, %v, %s; want %t, %s", tt.name, ok, err, got, tt.want, tt.cells)
			}
		}
		if ok, err := empty.ReplaceColumn(ctx, "c", nil, []byte{}); !ok || err != nil {
			t.Error(ok, err)
		}
		if b, err := empty.ReadColumn(ctx, "c"); b == nil || len(b) != 0 || err != nil {
			t.Errorf("%v, %v", b, err)
		}
		if ok, err := row.Open(e.Table("percolator"), "lock/c", "", 0).ReplaceColumn(ctx, "other", nil, []byte("z")); !ok || err != nil {
			t.Error(ok, err)
		}
		var got []string
		if err := r.ReadPrefix(ctx, "lock/", "c", func(key string, value []byte) { got = append(got, key+"="+string(value)) }); err != nil || fmt.Sprint(got) != "[lock/a=y lock/b=]" {
			t.Errorf("%q, %v", got, err)
		}
		if ok, err := r.ReplaceColumn(ctx, "c", []byte("y"), nil); !ok || err != nil || content(e, "lock/a") != "" {
			t.Errorf("removed: %t, %v", ok, err)
		}
	})
}

// TestFailedRequests: each request that fails says so, does not report a change, and names the row. A table
// or a family that is missing has an error of its own.
func TestFailedRequests(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		r := row.Open(e.Table("percolator"), "", "", 0)
		state := &tsopb.ServedState{Limit: 1_800_000_000_000_000, Released: true}
		zero := format.Lease{}
		for _, tt := range []struct {
			verb string
			call func(ctx context.Context) (any, error)
		}{
			{"read", func(ctx context.Context) (any, error) { return r.ReadDirect(ctx) }},
			{"read", func(ctx context.Context) (any, error) { return r.Read(ctx) }},
			{"read", func(ctx context.Context) (any, error) {
				b, err := r.ReadColumn(ctx, "c")
				return len(b), err
			}},
			{"sweep", func(ctx context.Context) (any, error) { return nil, r.ReadPrefix(ctx, "", "c", nil) }},
			{"increment", func(ctx context.Context) (any, error) { return r.Add(ctx, 1) }},
			{"stamp", func(ctx context.Context) (any, error) { return nil, r.Stamp(ctx) }},
			{"initialise", func(ctx context.Context) (any, error) { return r.Initialize(ctx, 1) }},
			{"advance", func(ctx context.Context) (any, error) { return r.Advance(ctx, 1, 2, 3) }},
			{"write lease of", func(ctx context.Context) (any, error) { return nil, r.Seed(ctx, zero) }},
			{"write lease of", func(ctx context.Context) (any, error) { return r.Swap(ctx, zero, zero, state) }},
			{"switch", func(ctx context.Context) (any, error) { return r.ToServed(ctx, 0, zero, zero, state) }},
			{"switch", func(ctx context.Context) (any, error) { return r.ToServed(ctx, 1, zero, zero, state) }},
			{"switch", func(ctx context.Context) (any, error) { return r.ToDirect(ctx, zero, zero, state, 1) }},
			{"change lock in", func(ctx context.Context) (any, error) { return r.ReplaceColumn(ctx, "c", []byte{}, nil) }},
			{"take lock in", func(ctx context.Context) (any, error) { return r.ReplaceColumn(ctx, "c", nil, []byte{}) }},
		} {
			for _, fail := range []struct {
				err     error
				missing bool
			}{
				{status.Error(codes.PermissionDenied, "injected"), false},
				{status.Error(codes.NotFound, "injected"), true},
				{status.Error(codes.Unknown, `unknown family "tso"`), true},
			} {
				rpcs, fired := r.RPCs(), 0
				e.On(func(context.Context, string, func() (any, error)) (any, error) {
					fired++
					return nil, fail.err
				})
				got, err := tt.call(t.Context())
				e.On(nil)
				if fired != 1 || r.RPCs() != rpcs+1 {
					t.Errorf("%s: %d requests, %d counted", tt.verb, fired, r.RPCs()-rpcs)
				}
				says := fmt.Sprintf("tso: %s oracle row %q: ", tt.verb, "oracle")
				if fail.missing {
					says = `no table, or no family "tso" in it`
				}
				if status.Code(err) != status.Code(fail.err) || errors.Is(err, format.ErrNotInitialized) != fail.missing || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %v; want %s", tt.verb, err, says)
				}
				switch got {
				case nil, false, 0, int64(0), row.DirectState{}, row.State{}:
				default:
					t.Errorf("%s: %v beside an error", tt.verb, got)
				}
			}
		}
	})
}

// TestTimeoutOfRequests: a request ends within the timeout, and by default after 10 seconds.
func TestTimeoutOfRequests(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{time.Second: time.Second, 0: 10 * time.Second, -time.Second: 10 * time.Second} {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			g := tsotest.NewGate(tsotest.CheckAndMutate, false)
			e.On(g.Hook)
			began := time.Now()
			ok, err := row.Open(e.Table("percolator"), "", "", timeout).Advance(t.Context(), 1, 2, 3)
			if took := time.Since(began); ok || !row.Retryable(err) || took != want || len(g.Held) == 0 {
				t.Errorf("timeout %v: %t, %v after %v", timeout, ok, err, took)
			}
			e.On(nil)
		})
	}
}
