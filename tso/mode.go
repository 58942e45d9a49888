package tso

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// A Mode says whose the oracle's row is.
type Mode string

// The modes. A row that was never used has none, "", and becomes one in direct
// mode with the first timestamp.
const (
	ModeDirect Mode = directMode
	ModeServed Mode = servedMode
)

// switchSlack is how far above a value that keeps changing the switch to served
// mode may start, per attempt, in µs of oracle time: what a busy direct mode
// gets through in some hundred round trips.
const switchSlack = 100_000

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

func (c RowConfig) open(table bigtable.TableAPI) *oracleRow {
	return &oracleRow{
		table:   table,
		key:     cmp.Or(c.Row, "oracle"),
		family:  cmp.Or(c.Family, "tso"),
		timeout: cmp.Or(max(c.RPCTimeout, 0), 10*time.Second),
	}
}

// RowState is what the oracle's row says.
type RowState struct {
	Mode  Mode
	Limit Timestamp // no timestamp above it was handed out

	// In served mode:

	Epoch    uint64        // how often leadership changed
	Released bool          // nobody leads, and any server may at once
	Leader   string        // name of the leader, or of the last one
	Address  string        // where it serves
	Lease    time.Duration // how long it may be silent

	lease lease
}

// ReadRow reads the oracle's row, and changes nothing. It fails with
// [*CorruptError], [*FormatError], and [*ModeError] for a mode that this
// program does not know.
func ReadRow(ctx context.Context, table bigtable.TableAPI, cfg RowConfig) (RowState, error) {
	return readState(ctx, cfg.open(table))
}

func readState(ctx context.Context, row *oracleRow) (RowState, error) {
	r, err := row.readServed(ctx)
	if err != nil {
		return RowState{}, err
	}
	s := RowState{Mode: Mode(r.mode), Limit: r.direct, Epoch: r.lease.epoch, lease: r.lease}
	switch s.Mode {
	case "", ModeDirect:
	case ModeServed:
		s.Limit = Timestamp(r.state.Limit)
		s.Released = r.state.Released
		s.Leader, s.Address = r.state.Leader, r.state.Address
		s.Lease = time.Duration(r.state.LeaseUs) * time.Microsecond
	default:
		return s, &ModeError{Row: row.key, Mode: r.mode, Want: "any known"}
	}
	return s, nil
}

// A LeaderError says that the mode could not be changed because a server
// leads. Nothing was changed.
type LeaderError struct {
	Row     string
	Leader  string
	Address string
}

func (e *LeaderError) Error() string {
	return fmt.Sprintf("tso: oracle row %q is led by server %q at %s, which renews its lease: stop every `percctl tso serve` first, then change the mode", e.Row, e.Leader, e.Address)
}

// SetMode hands the oracle's row over to another mode; timestamps go on above
// the highest one of the old mode. It reports whether it changed anything: a
// row that is in the mode already stays as it is.
//
// To ModeServed: processes in direct mode fail with [*ModeError] from then on,
// at their next request. To ModeDirect: it watches the row for one lease, or
// less if a graceful stop released it, and fails with [*LeaderError] when
// somebody renews. After an error whose errors.Is says Unavailable or deadline
// the change may have happened: [ReadRow] tells.
func SetMode(ctx context.Context, table bigtable.TableAPI, cfg RowConfig, mode Mode) (changed bool, err error) {
	row := cfg.open(table)
	s, err := readState(ctx, row)
	if err != nil {
		return false, err
	}
	next := lease{s.lease.epoch + 1, 0, rand.Uint64()}
	switch {
	case mode != ModeDirect && mode != ModeServed:
		return false, fmt.Errorf("tso: there is no mode %q; the modes are %q and %q", mode, ModeDirect, ModeServed)
	case s.Mode == mode:
		return false, nil
	case mode == ModeServed:
		for tries := range 10 {
			// Direct mode refuses to count below minTimestamp; so do servers.
			// A row in heavy use has another value by the time it is compared,
			// so after a while everything up to a little above it will do.
			state := &tsopb.ServedState{Limit: int64(max(s.Limit, minTimestamp)), Released: true}
			if tries > 2 && s.Limit > 0 {
				state.Limit = min(state.Limit+int64(tries)*switchSlack, int64(Max))
			}
			next.epoch = s.lease.epoch + 1
			if changed, err = row.toServed(ctx, s.Limit, next, state); changed || err != nil {
				break
			}
			if s, err = readState(ctx, row); err != nil || s.Mode == mode {
				break
			}
		}
	case s.Mode == "":
		d := NewDirect(table, DirectConfig{Row: cfg.Row, Family: cfg.Family, RPCTimeout: cfg.RPCTimeout})
		defer func() { _ = d.Close() }()
		_, err = d.Timestamp(ctx)
		return err == nil, err
	default:
		if !s.Released {
			if err := watch(ctx, row, s); err != nil {
				return false, err
			}
		}
		if s.Limit >= Max {
			return false, ErrExhausted
		}
		// One more than the limit, so that no value of direct mode ever comes
		// back: a late request to switch to served mode compares with it.
		state := &tsopb.ServedState{Limit: int64(s.Limit), Released: true}
		changed, err = row.toDirect(ctx, s.lease, next, state, s.Limit+1)
	}
	if err != nil || !changed {
		return settleMode(ctx, row, mode, next, err)
	}
	return true, nil
}

// watch waits for the length of a lease and fails if the lease changes. The
// switch itself is conditional on the lease, so the end proves the whole.
func watch(ctx context.Context, row *oracleRow, s RowState) error {
	received := time.Now()
	for {
		left := s.Lease - time.Since(received)
		if left <= 0 {
			return nil
		}
		pause := time.NewTimer(min(left, max(s.Lease/renewals, minLook)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("tso: watching the lease of oracle row %q: %w", row.key, ctx.Err())
		}
		now, err := readState(ctx, row)
		switch {
		case err != nil && retryable(err):
		case err != nil:
			return err
		case now.lease != s.lease:
			return &LeaderError{Row: row.key, Leader: now.Leader, Address: now.Address}
		}
	}
}

// settleMode finds out what became of a change that did not match, or whose
// outcome is unknown.
func settleMode(ctx context.Context, row *oracleRow, mode Mode, next lease, err error) (bool, error) {
	s, readErr := readState(ctx, row)
	switch {
	case readErr != nil:
		return false, errors.Join(err, readErr)
	case s.Mode == mode:
		return s.lease == next || err != nil, nil
	case err != nil:
		return false, err
	case s.Mode == ModeServed:
		return false, &LeaderError{Row: row.key, Leader: s.Leader, Address: s.Address}
	}
	return false, fmt.Errorf("tso: the mode of oracle row %q was not changed: others changed the row at the same time, try again", row.key)
}

func discard(l *slog.Logger) *slog.Logger { return cmp.Or(l, slog.New(slog.DiscardHandler)) }
