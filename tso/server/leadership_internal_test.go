package server

import (
	"errors"
	"log/slog"
	"testing"
	"time"

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
