package txn

import (
	"context"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// An Attempt says what one run of a transaction did: see [OnAttempt].
type Attempt struct {
	Name   string // of the transaction ([Named])
	Number int    // 1, and one more for each run of Update's function after that
	// StartTS is 0 if the oracle did not answer. CommitTS is 0 if the run did not commit, and
	// StartTS if it wrote nothing.
	StartTS, CommitTS tso.Timestamp
	// Rows, Cells and Bytes are what Commit wrote, or tried to write. Bytes are those of row
	// keys, qualifiers and values.
	Rows, Cells, Bytes int
	// Requests are the requests to Bigtable that the caller waited for, those of reads included.
	// Questions to the oracle are not among them.
	Requests int
	// LatchWait is how long the run waited for its turn behind transactions of this client
	// (Config.LatchWait). LockWait is how long it waited for locks of other clients; waits at the same
	// time add up. Duration is from before the start timestamp to the end of Commit.
	LatchWait, LockWait, Duration time.Duration
	// Err is nil if the run committed, and if the caller rolled it back.
	Err error
	// Retry says that Update runs the function again, unless its context ends before.
	Retry bool
}

// OnAttempt calls f after each run of a transaction: after Commit or Rollback, and in Update after
// each run of its function, before the pause that follows a conflict. So f notices retries when
// they happen. The caller waits until f returns. Without the option nothing is measured for it.
func OnAttempt(f func(ctx context.Context, a Attempt)) TxnOption {
	return txnOption(func(o *txnOptions) { o.onAttempt = f })
}

// add adds what the commit writes.
func (a *Attempt) add(rows []*store.RowWrites) {
	a.Rows += len(rows)
	for _, r := range rows {
		a.Cells += len(r.Writes)
		a.Bytes += len(r.Row)
		for _, w := range r.Writes {
			a.Bytes += len(w.Cell.Qualifier) + len(w.Value)
		}
	}
}

type attemptKey struct{}

// AttemptOf returns the number of the run of Update's function to which ctx belongs: 1 for the
// first one, and outside of Update.
func AttemptOf(ctx context.Context) int {
	if n, ok := ctx.Value(attemptKey{}).(int); ok {
		return n
	}
	return 1
}

// withAttempt returns the context of a run of Update's function. That of the first run costs
// nothing. An Update inside of another one's second run counts its own runs.
func withAttempt(ctx context.Context, number int) context.Context {
	if number == AttemptOf(ctx) {
		return ctx
	}
	return context.WithValue(ctx, attemptKey{}, number)
}
