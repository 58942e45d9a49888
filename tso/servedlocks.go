package tso

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// servedLocks is the lock service of the servers.
type servedLocks struct{ servers *servers }

func (l servedLocks) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, Holder, error) {
	if err := checkLock(name, owner, ttl); err != nil {
		return false, Holder{}, err
	}
	var res *tsopb.AcquireResponse
	err := l.servers.callLeader(ctx, func(ctx context.Context, s tsopb.OracleClient) (err error) {
		res, err = s.Acquire(ctx, &tsopb.AcquireRequest{FormatVersion: FormatVersion, Name: []byte(name), Owner: []byte(owner), TtlUs: max(ttl.Microseconds(), 1)})
		return err
	})
	return res.GetAcquired(), Holder{string(res.GetOwner()), time.Duration(res.GetLeftUs()) * time.Microsecond}, err
}

func (l servedLocks) Release(ctx context.Context, name, owner string) error {
	if err := checkLock(name, owner, 1); err != nil {
		return err
	}
	return l.servers.callLeader(ctx, func(ctx context.Context, s tsopb.OracleClient) error {
		_, err := s.Release(ctx, &tsopb.ReleaseRequest{FormatVersion: FormatVersion, Name: []byte(name), Owner: []byte(owner)})
		return err
	})
}

func (l servedLocks) Holder(ctx context.Context, name string) (Holder, error) {
	if err := checkLock(name, name, 1); err != nil {
		return Holder{}, err
	}
	var res *tsopb.HolderResponse
	err := l.servers.callLeader(ctx, func(ctx context.Context, s tsopb.OracleClient) (err error) {
		res, err = s.Holder(ctx, &tsopb.HolderRequest{FormatVersion: FormatVersion, Name: []byte(name)})
		return err
	})
	if status.Code(err) == codes.Aborted {
		err = fmt.Errorf("%w: %w", ErrLockUnknown, err)
	}
	return Holder{string(res.GetOwner()), time.Duration(res.GetLeftUs()) * time.Microsecond}, err
}
