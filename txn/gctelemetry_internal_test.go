package txn

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestGCOutcome: an interruption counts as one, also of a run that was waiting
// for live transactions.
func TestGCOutcome(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	blocked := &GCBlockedError{Locks: []Lock{{}}, Count: 1}
	for _, test := range []struct {
		nothing bool
		err     error
		want    string
	}{
		{false, nil, gcOutcomeDone},
		{true, nil, gcOutcomeNothing},
		{false, blocked, gcOutcomeBlocked},
		{false, fmt.Errorf("run: %w", blocked), gcOutcomeBlocked},
		{false, ended(canceled, "waiting", blocked), gcOutcomeInterrupted},
		{false, ended(late, "waiting", nil), gcOutcomeInterrupted},
		{false, &GCBusyError{Lost: true}, gcOutcomeLost},
		{false, errors.New("refused"), outcomeFailed},
	} {
		if got := gcOutcome(&GCReport{Nothing: test.nothing}, test.err); got != test.want {
			t.Errorf("%v: %q, want %q", test.err, got, test.want)
		}
	}
}
