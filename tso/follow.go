package tso

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A Follower is an [Oracle] that follows the mode of the oracle's row: it asks the row while
// that is in direct mode, and servers while it is in served mode. A change of the mode delays
// its callers, and fails no transaction. Make it with [Follow].
//
// It may use both oracles because the row fences the one whose mode it is not in: at every
// moment at most one of them hands out timestamps, in all processes, and they continue above
// those of the other.
type Follower struct {
	direct *Direct
	client *Client
	served atomic.Bool // the mode that it saw last
}

var (
	_ Oracle = (*Follower)(nil)
)

// Follow returns an oracle that uses direct or client. Both must use the same row. The caller
// closes them.
func Follow(direct *Direct, client *Client) *Follower {
	return &Follower{direct: direct, client: client}
}

// Timestamp implements [Oracle]. After a change to served mode, it waits for a server to lead, for
// the client's configured timeout at most. After a change to direct mode it may first wait for the
// servers, which were stopped: for twice that timeout at most.
func (f *Follower) Timestamp(ctx context.Context) (Timestamp, error) {
	var refused time.Time // since when both refuse
	for pause := roundPause; ; {
		served := f.served.Load()
		ts, err := f.ask(ctx, served)
		if errors.Is(err, ErrUnavailable) { // of the servers
			// Nobody can say that the mode has changed if the servers were stopped for good.
			if ts, directErr := f.ask(ctx, false); directErr == nil {
				f.served.Store(false)
				return ts, nil
			}
			return 0, err
		}
		if !errors.Is(err, ErrMode) {
			return ts, err
		}
		f.served.CompareAndSwap(served, !served)
		switch now := time.Now(); {
		case refused.IsZero():
			refused = now
			continue // the other one answers
		case now.Sub(refused) > f.client.servers.timeout:
			return 0, err
		}
		rest(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, maxRoundPause)
	}
}

func (f *Follower) ask(ctx context.Context, served bool) (Timestamp, error) {
	if served {
		return f.client.Timestamp(ctx)
	}
	return f.direct.Timestamp(ctx)
}
