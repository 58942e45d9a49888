package tso

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// A Mode says which oracle may use the row: [Direct] or servers.
type Mode string

// The modes. A row that was never used has none, "", and becomes one in direct
// mode with the first timestamp.
const (
	ModeDirect Mode = format.ModeDirect
	ModeServed Mode = format.ModeServed
)

const (
	// switchTries bounds the attempts to switch to served mode while the row
	// changes.
	switchTries = 10

	// switchSlack is how far above the value read served mode may start, per
	// attempt, in µs of oracle time: about as much as a busy direct mode uses in
	// a hundred round trips.
	switchSlack = 100_000

	// A lease is watched by several reads, at least minWatch apart.
	watchReads = 3
	minWatch   = 10 * time.Millisecond
)

// RowConfig says where the oracle's row is. The zero value is ready to use.
type RowConfig struct {
	// Row is the oracle's row key in the metadata table.
	// Defaults to "oracle".
	Row string

	// Family is the oracle's column family in the metadata table.
	// Defaults to "tso".
	Family string

	// RPCTimeout bounds each single RPC.
	// Defaults to 10 seconds.
	RPCTimeout time.Duration
}

func (c RowConfig) open(table bigtable.TableAPI) *row.Row {
	return row.Open(table, c.Row, c.Family, c.RPCTimeout)
}

// RowState is the content of the oracle's row.
type RowState struct {
	Mode  Mode
	Limit Timestamp // no timestamp above it was handed out

	// In served mode:

	Epoch    uint64        // how often leadership changed
	Released bool          // no server leads, and any server may lead at once
	Leader   string        // name of the leader, or of the last one
	Address  string        // where it serves
	Lease    time.Duration // how long it may lead without renewing

	lease format.Lease
}

// ReadRow reads the oracle's row, and changes nothing. It fails with
// [*CorruptError], [*FormatError], and [*ModeError] for a mode that this
// program does not know.
func ReadRow(ctx context.Context, table bigtable.TableAPI, cfg RowConfig) (RowState, error) {
	return readState(ctx, cfg.open(table))
}

func readState(ctx context.Context, r *row.Row) (RowState, error) {
	read, err := r.Read(ctx)
	if err != nil {
		return RowState{}, err
	}
	s := RowState{Mode: Mode(read.Mode), Limit: Timestamp(read.Direct), Epoch: read.Lease.Epoch, lease: read.Lease}
	switch s.Mode {
	case "", ModeDirect:
	case ModeServed:
		s.Limit = Timestamp(read.Served.Limit)
		s.Released = read.Served.Released
		s.Leader, s.Address = read.Served.Leader, read.Served.Address
		s.Lease = time.Duration(read.Served.LeaseUs) * time.Microsecond
	default:
		return s, &ModeError{Row: r.Key, Mode: read.Mode, Want: "any known"}
	}
	return s, nil
}

// SetMode changes the mode of the oracle's row. Timestamps continue above
// the highest one of the old mode. It reports whether it changed anything: a row
// that is in the mode already stays as it is.
//
// To ModeServed: processes in direct mode fail with [*ModeError] from their next
// request on. To ModeDirect: SetMode watches the row for one lease, or not at
// all if a graceful stop released the lease, and fails with [*LeaderError] when
// a server renews it. After an unavailable or deadline error the change may
// have happened: call [ReadRow] to find out.
func SetMode(ctx context.Context, table bigtable.TableAPI, cfg RowConfig, mode Mode) (changed bool, err error) {
	r := cfg.open(table)
	s, err := readState(ctx, r)
	if err != nil {
		return false, err
	}
	next := nextLease(s)
	switch {
	case mode != ModeDirect && mode != ModeServed:
		return false, fmt.Errorf("tso: there is no mode %q; the modes are %q and %q", mode, ModeDirect, ModeServed)
	case s.Mode == mode:
		return false, nil
	case mode == ModeServed:
		for tries := range switchTries {
			// Direct mode and servers refuse to count below Min.
			// A row in heavy use has another value by the time it is compared.
			// So after three attempts any value up to a little above matches,
			// together with the lease of the last served mode. Such a request may
			// be late, and take effect after other changes of the mode: the value may
			// match then, but the lease does not, because each served mode
			// begins with another one, and no bytes of a lease come back. A row
			// that was never served gets a lease of no meaning for that. The value
			// alone is enough for the first attempts, because direct mode
			// continues above it.
			state := &tsopb.ServedState{Limit: int64(max(s.Limit, Min)), Released: true}
			var lease format.Lease
			if tries > 2 {
				if lease = s.lease; lease != (format.Lease{}) {
					state.Limit = min(state.Limit+int64(tries)*switchSlack, int64(Max))
				} else if err = r.Seed(ctx, format.Lease{Nonce: rand.Uint64()}); err != nil {
					break
				}
			}
			next.Epoch = s.lease.Epoch + 1
			if changed, err = r.ToServed(ctx, int64(s.Limit), lease, next, state); changed || err != nil {
				break
			}
			if s, err = readState(ctx, r); err != nil || s.Mode == mode {
				break
			}
		}
	case s.Mode == "":
		d := NewDirect(table, DirectConfig{Row: cfg.Row, Family: cfg.Family, RPCTimeout: cfg.RPCTimeout})
		_, err = d.Timestamp(ctx)
		return err == nil, err
	default:
		if !s.Released {
			if err := watch(ctx, r, s); err != nil {
				return false, err
			}
		}
		if s.Limit >= Max {
			return false, ErrExhausted
		}
		// One more than the limit, so that no value of direct mode ever comes
		// back: a late request to switch to served mode compares with it.
		state := &tsopb.ServedState{Limit: int64(s.Limit), Released: true}
		changed, err = r.ToDirect(ctx, s.lease, next, state, int64(s.Limit+1))
	}
	if !changed {
		return settleMode(ctx, r, mode, next, err)
	}
	return true, nil
}

// nextLease is the lease of a switch: of no server, and with bytes that were
// never in the row.
func nextLease(s RowState) format.Lease {
	return format.Lease{Epoch: s.lease.Epoch + 1, Nonce: rand.Uint64()}
}

// watch waits for the length of a lease and fails if the lease changes. The
// write after it is conditional on the lease, which proves that the lease was
// the same all the time.
func watch(ctx context.Context, r *row.Row, s RowState) error {
	received := time.Now()
	for {
		left := s.Lease - time.Since(received)
		if left <= 0 {
			return nil
		}
		pause := time.NewTimer(min(left, max(s.Lease/watchReads, minWatch)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("tso: watching the lease of oracle row %q: %w", r.Key, ctx.Err())
		}
		now, err := readState(ctx, r)
		switch {
		case err != nil && row.Retryable(err):
		case err != nil:
			return err
		case now.lease != s.lease:
			return &LeaderError{Row: r.Key, Leader: now.Leader, Address: now.Address}
		}
	}
}

// settleMode settles a change that did not match, or whose outcome is unknown.
func settleMode(ctx context.Context, r *row.Row, mode Mode, next format.Lease, err error) (bool, error) {
	s, readErr := readState(ctx, r)
	switch {
	case readErr != nil:
		return false, errors.Join(err, readErr)
	case s.Mode == mode:
		return s.lease == next || err != nil, nil
	case err != nil:
		return false, err
	case s.Mode == ModeServed:
		return false, &LeaderError{Row: r.Key, Leader: s.Leader, Address: s.Address}
	}
	return false, fmt.Errorf("tso: the mode of oracle row %q was not changed: another client changed the row at the same time; try again", r.Key)
}
