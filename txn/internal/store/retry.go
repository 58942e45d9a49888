package store

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A read takes effect nowhere, so a client may try it again until its caller gives up. Only a
// caller's context ends a read that Bigtable does not answer; one request that hangs ends at
// Config.RPCTimeout, and another one follows.

// maxReads is how many reads of one client are under way at a time, those of the metadata
// table apart. Bigtable's client has ten connections of 100 requests each, so further reads
// would wait there, where no context ends them before Config.RPCTimeout. A read that waits
// for its next try has no place.
const maxReads = 1000

// attempts are the tries of one read.
type attempts struct {
	table  *Table
	pause  Waiter
	failed int
	last   error // of the last failed try
}

// again waits after a failed try. It returns nil if the caller has to try again, and otherwise
// the error of the read. That error matches the context's only if the context has ended.
func (a *attempts) again(ctx context.Context, err error) error {
	a.failed++
	if ctx.Err() == nil {
		if closed := a.table.store.CheckOpen(); closed != nil {
			return closed
		}
		if !worthRetrying(ctx, err) {
			return err
		}
		if a.last = err; a.pause.Wait(ctx, 0) == nil {
			return nil
		}
	}
	if a.last == nil {
		return err // the context ended the first try
	}
	return Ended(ctx, fmt.Sprintf("percolator: read on table %q: %d attempts failed", a.table.Name, a.failed), a.last)
}

// worthRetrying reports whether another try of a failed read may succeed.
func worthRetrying(ctx context.Context, err error) bool {
	if ctx.Err() != nil || !Transient(err) {
		return false
	}
	for _, e := range RPCErrors(err) {
		switch status.Code(e) {
		case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Internal:
			return true
		}
	}
	return false
}
