package txn

import "context"

// admit waits for one of Config.MaxCommits places. Without a bound, more commits
// than Bigtable gets done within their ttl take each other's time away: all of
// them hold locks that have to be kept alive by heartbeats, which are requests
// too, and none gets through. Whoever waits here holds no locks, so nobody waits
// for it, and its locks' ttl is counted from when they are written.
func (c *Client) admit(ctx context.Context) (leave func(), err error) {
	select {
	case c.admitted <- struct{}{}:
		return func() { <-c.admitted }, nil
	case <-ctx.Done():
		return nil, ended(ctx, "waiting for other commits of this client to end", nil)
	}
}
