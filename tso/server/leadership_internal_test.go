package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// TestContradictions: a server refuses a row that says less than the server knows: of the lease that it
// has seen last, of timestamps that were handed out, and of a released lease.
func TestContradictions(t *testing.T) {
	const high = tso.Timestamp(1_800_000_000_000_000)
	seen := format.Lease{Epoch: 5, Counter: 7, Nonce: 1}
	served := func(epoch, counter uint64, limit tso.Timestamp) row.State {
		return row.State{Mode: format.ModeServed, Lease: format.Lease{Epoch: epoch, Counter: counter, Nonce: 2}, Served: &tsopb.ServedState{Limit: int64(limit)}}
	}
	released := func(s row.State) row.State {
		s.Served.Released = true
		return s
	}
	for _, tt := range []struct {
		name       string
		seen       format.Lease
		floor      tso.Timestamp
		found      row.State
		column     string // that contradicts
		after      format.Lease
		floorAfter tso.Timestamp
	}{
		{"new row", format.Lease{}, 0, row.State{}, "", format.Lease{}, 0},
		{"row is gone", seen, 3, row.State{}, format.ColumnLease, seen, 3},
		{"direct mode", seen, 3, row.State{Mode: format.ModeDirect}, "", seen, 3},
		{"another mode", format.Lease{}, 0, row.State{Mode: "other"}, "", format.Lease{}, 0},
		{"same lease", seen, 0, served(5, 7, high), "", format.Lease{Epoch: 5, Counter: 7, Nonce: 2}, 0},
		{"next write", seen, 0, served(5, 8, high+1), "", format.Lease{Epoch: 5, Counter: 8, Nonce: 2}, 0},
		{"write before", seen, 0, served(5, 6, high), format.ColumnLease, seen, 0},
		{"next epoch", seen, 0, served(6, 0, high), "", format.Lease{Epoch: 6, Nonce: 2}, 0},
		{"epoch before", seen, 0, served(4, 9, high), format.ColumnLease, seen, 0},
		{"limit too low", seen, 0, served(5, 8, high-1), format.ColumnState, seen, 0},
		{"limit of a release", seen, high + 5, served(6, 0, high+5), "", format.Lease{Epoch: 6, Nonce: 2}, high + 5},
		{"limit below a release", seen, high + 5, served(6, 0, high+4), format.ColumnState, seen, high + 5},
		{"released", seen, 0, released(served(6, 0, high+4)), "", format.Lease{Epoch: 6, Nonce: 2}, high + 4},
		{"released again", seen, high + 2, released(served(6, 0, high+2)), "", format.Lease{Epoch: 6, Nonce: 2}, high + 2},
	} {
		a := testAllocator()
		a.next = high + 1
		l := &leadership{cfg: a.cfg, log: slog.New(slog.DiscardHandler), row: row.Open(nil, "", "", time.Second), alloc: a, seen: tt.seen, floor: tt.floor}
		err := l.check(tt.found)
		var corrupt *tso.CorruptError
		if errors.As(err, &corrupt) != (tt.column != "") || corrupt != nil && corrupt.Column != tt.column || corrupt == nil && err != nil {
			t.Errorf("%s: %v; want column %q", tt.name, err, tt.column)
		}
		if l.seen != tt.after || l.floor != tt.floorAfter {
			t.Errorf("%s: seen %v, floor %d; want %v, %d", tt.name, l.seen, l.floor, tt.after, tt.floorAfter)
		}
	}
}

// answers is a table that answers a write with an error or without a match, and a read with a row or an
// error.
type answers struct {
	bigtable.TableAPI
	write, read error
	row         bigtable.Row
}

func (a answers) Apply(context.Context, string, *bigtable.Mutation, ...bigtable.ApplyOption) error {
	return a.write
}

func (a answers) ReadRow(context.Context, string, ...bigtable.ReadOption) (bigtable.Row, error) {
	return a.row, a.read
}

// TestOutcomesOfWrite: what a server knows after a write that did not match, or whose answer was lost.
func TestOutcomesOfWrite(t *testing.T) {
	const high = tso.Timestamp(1_800_000_000_000_000)
	from, to := format.Lease{Epoch: 5, Counter: 7, Nonce: 1}, format.Lease{Epoch: 5, Counter: 8, Nonce: 1}
	other := format.Lease{Epoch: 6, Nonce: 2}
	rowOf := func(mode string, l format.Lease, limit tso.Timestamp) bigtable.Row {
		b, err := proto.Marshal(&tsopb.ServedState{FormatVersion: format.Version, Limit: int64(limit), LeaseUs: 1})
		if err != nil {
			t.Fatal(err)
		}
		return bigtable.Row{"tso": {{Column: "tso:direct", Value: []byte(mode)}, {Column: "tso:lease", Value: l.Encode()}, {Column: "tso:state", Value: b}}}
	}
	first := time.Now().Add(-time.Second)
	lost, refused := status.Error(codes.Unavailable, "lost"), status.Error(codes.PermissionDenied, "refused")
	for _, tt := range []struct {
		name    string
		table   answers
		pending format.Lease // that was sent first
		stopped bool
		want    writeOutcome
		errs    []error
	}{
		{"took effect", answers{write: lost, row: rowOf("served", to, high)}, from, false, writeDone, nil},
		{"took effect at first", answers{row: rowOf("served", to, high)}, to, false, writeDone, nil},
		{"not yet", answers{write: lost, row: rowOf("served", from, high)}, from, false, writeUnknown, []error{lost}},
		{"another leads", answers{row: rowOf("served", other, high)}, from, false, writeLost, nil},
		{"direct mode", answers{row: rowOf("other", to, high)}, from, false, writeLost, nil},
		{"read fails", answers{write: lost, read: lost}, from, false, writeUnknown, []error{lost}},
		{"read is refused", answers{write: lost, read: refused}, from, false, writeLost, []error{refused}},
		{"stopped", answers{write: context.Canceled, read: context.Canceled}, from, true, writeUnknown, []error{context.Canceled}},
		{"stopped, took effect", answers{write: context.Canceled, row: rowOf("served", to, high)}, from, true, writeUnknown, []error{context.Canceled}},
		{"the state contradicts", answers{row: rowOf("served", from, high-1)}, from, false, writeLost, []error{tso.ErrCorrupt}},
	} {
		a := testAllocator()
		a.next = high + 1
		l := &leadership{cfg: a.cfg, log: slog.New(slog.DiscardHandler), row: row.Open(tt.table, "", "", time.Second), alloc: a, seen: from}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if tt.stopped {
			cancel()
		}
		l.pending.to, l.pending.sent, l.pending.wall = tt.pending, first, first
		began := time.Now()
		h, got, err := l.write(ctx, from, to, &tsopb.ServedState{Limit: int64(high)})
		if again := l.pending.sent == first; again != (tt.pending == to) || !again && (l.pending.sent.Before(began) || l.pending.wall.Equal(first)) || l.pending.to != to || got == writeDone && (h.sent != l.pending.sent || h.wall != l.pending.wall) {
			t.Errorf("%s: %+v, sent first %+v", tt.name, h, l.pending)
		}
		if got != tt.want || (err == nil) != (tt.errs == nil) || (h.lease == to) != (got == writeDone) {
			t.Errorf("%s: %v, %d, %v; want %d, %v", tt.name, h, got, err, tt.want, tt.errs)
		}
		for _, want := range tt.errs {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", tt.name, err, want)
			}
		}
	}
}
