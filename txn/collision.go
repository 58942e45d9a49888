package txn

import (
	"context"
	"errors"
	"log/slog"
)

// logConflict logs, at the debug level, that a transaction failed because of another one, and
// on which cell.
func logConflict(ctx context.Context, log *slog.Logger, name string, err error) {
	var e *ConflictError
	if !errors.As(err, &e) || !log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	log.DebugContext(ctx, "collision", "transaction", name, "cell", e.Cell, "reason", e.Reason, "start_ts", e.StartTS, "conflict_ts", e.ConflictTS)
}
