package txn

import (
	"context"
	"errors"
	"log/slog"
)

// conflicted records a transaction that failed because of another one: the
// metric, and the collision log, which names the cells.
func (c *Client) conflicted(ctx context.Context, name string, err error) {
	c.measure.conflict(ctx, err)
	var e *ConflictError
	if !errors.As(err, &e) || !c.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	c.Log.DebugContext(ctx, "collision", "transaction", name, "cell", e.Cell, "reason", e.Reason, "start_ts", e.StartTS, "conflict_ts", e.ConflictTS)
}
