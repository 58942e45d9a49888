package tso

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// Locks returns the lock service of the servers: locks live in the memory of
// the leader, and are lost with it. Calls look for the leader as Timestamp
// does, for the configured timeout at most.
func (c *Client) Locks() Locks { return servedLocks{c} }

type servedLocks struct{ c *Client }

func (l servedLocks) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, Holder, error) {
	if err := checkLock(name, owner, ttl); err != nil {
		return false, Holder{}, err
	}
	var res *tsopb.AcquireResponse
	err := l.c.callLeader(ctx, func(ctx context.Context, s tsopb.OracleClient) (err error) {
		res, err = s.Acquire(ctx, &tsopb.AcquireRequest{FormatVersion: FormatVersion, Name: []byte(name), Owner: []byte(owner), TtlUs: max(ttl.Microseconds(), 1)})
		return err
	})
	return res.GetAcquired(), Holder{string(res.GetOwner()), time.Duration(res.GetLeftUs()) * time.Microsecond}, err
}

func (l servedLocks) Release(ctx context.Context, name, owner string) error {
	if err := checkLock(name, owner, 1); err != nil {
		return err
	}
	return l.c.callLeader(ctx, func(ctx context.Context, s tsopb.OracleClient) error {
		_, err := s.Release(ctx, &tsopb.ReleaseRequest{FormatVersion: FormatVersion, Name: []byte(name), Owner: []byte(owner)})
		return err
	})
}

func (l servedLocks) Holder(ctx context.Context, name string) (Holder, error) {
	if err := checkLock(name, name, 1); err != nil {
		return Holder{}, err
	}
	var res *tsopb.HolderResponse
	err := l.c.callLeader(ctx, func(ctx context.Context, s tsopb.OracleClient) (err error) {
		res, err = s.Holder(ctx, &tsopb.HolderRequest{FormatVersion: FormatVersion, Name: []byte(name)})
		return err
	})
	if status.Code(err) == codes.Aborted {
		err = fmt.Errorf("%w: %w", ErrLockUnknown, err)
	}
	return Holder{string(res.GetOwner()), time.Duration(res.GetLeftUs()) * time.Microsecond}, err
}

// callLeader makes one call to whichever server answers it.
func (c *Client) callLeader(ctx context.Context, call func(context.Context, tsopb.OracleClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	failed := make([]ServerError, len(c.servers))
	for i, r := range c.servers {
		failed[i].Address = r.address
	}
	start, from, pause := time.Now(), int(c.leader.Load()), roundPause
	for {
		for k := range c.servers {
			i := (from + k) % len(c.servers)
			actx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
			err := call(actx, c.servers[i].service())
			cancel()
			if err == nil || status.Code(err) == codes.Aborted {
				return err
			}
			if status.Code(err) == codes.Unavailable && status.Convert(err).Message() == ErrNotLeader.Error() {
				err = &refusal{err.Error(), ErrNotLeader} // it is there, and does not lead
			}
			failed[i].Err = err
			switch {
			case c.closed.Load():
				return ErrClosed
			case errors.Is(ctx.Err(), context.Canceled):
				return fmt.Errorf("tso: asking the lock service: %w", ctx.Err())
			case ctx.Err() != nil:
				return errors.Join(&UnavailableError{Waited: time.Since(start), Servers: failed}, ctx.Err())
			}
		}
		if err := agreed(failed); err != nil {
			return err
		}
		t := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		pause = min(2*pause, maxRoundPause)
	}
}
