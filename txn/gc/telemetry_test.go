package gc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// TestGCOutcome: an interruption counts as one, also of a run that was waiting
// for live transactions.
func TestGCOutcome(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	blocked := &BlockedError{Locks: []format.Lock{{}}, Count: 1}
	for _, test := range []struct {
		nothing bool
		err     error
		want    string
	}{
		{false, nil, outcomeDone},
		{true, nil, outcomeNothing},
		{false, blocked, outcomeBlocked},
		{false, fmt.Errorf("run: %w", blocked), outcomeBlocked},
		{false, store.Ended(canceled, "waiting", blocked), outcomeInterrupted},
		{false, store.Ended(late, "waiting", nil), outcomeInterrupted},
		{false, &BusyError{Lost: true}, outcomeLost},
		{false, errors.New("refused"), outcomeFailed},
	} {
		if got := outcome(&Report{Nothing: test.nothing}, test.err); got != test.want {
			t.Errorf("%v: %q, want %q", test.err, got, test.want)
		}
	}
}
