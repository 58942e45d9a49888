// Package wire holds what servers of the timestamp oracle and their clients
// have to agree on beside the messages of package tsopb: how errors and hints
// travel, and how long a subscription may be silent.
package wire

import (
	"errors"
	"time"

	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/hint"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// HintBeat is how often a server sends an empty message to a subscriber for
// whom there are no hints. HintSilence is how long a subscriber waits for a
// message before it looks for another server: one that was stopped (SIGSTOP,
// power loss) sends nothing, while the next leader receives the hints.
const (
	HintBeat    = 2 * time.Second
	HintSilence = 3 * HintBeat
)

// troubles are the errors that waiting does not end.
var troubles = map[error]tsopb.Trouble{
	format.ErrMode:           tsopb.Trouble_TROUBLE_MODE,
	format.ErrCorrupt:        tsopb.Trouble_TROUBLE_CORRUPT,
	format.ErrNotInitialized: tsopb.Trouble_TROUBLE_NOT_INITIALIZED,
	format.ErrExhausted:      tsopb.Trouble_TROUBLE_EXHAUSTED,
	format.ErrFormat:         tsopb.Trouble_TROUBLE_FORMAT,
}

// Trouble returns the trouble that an error stands for, TROUBLE_NONE for an
// error that waiting may end.
func Trouble(err error) tsopb.Trouble {
	for sentinel, t := range troubles {
		if errors.Is(err, sentinel) {
			return t
		}
	}
	return tsopb.Trouble_TROUBLE_NONE
}

// TroubleError returns the error that a trouble stands for, nil for none.
func TroubleError(t tsopb.Trouble) error {
	for sentinel, known := range troubles {
		if t == known {
			return sentinel
		}
	}
	return nil
}

// FromHints returns the messages for hints.
func FromHints(hints []hint.Hint) []*tsopb.Hint {
	out := make([]*tsopb.Hint, len(hints))
	for i, h := range hints {
		out[i] = &tsopb.Hint{Topic: []byte(h.Topic), Key: []byte(h.Key)}
	}
	return out
}

// ToHints returns the hints in messages.
func ToHints(hints []*tsopb.Hint) []hint.Hint {
	out := make([]hint.Hint, len(hints))
	for i, h := range hints {
		out[i] = hint.Hint{Topic: string(h.Topic), Key: string(h.Key)}
	}
	return out
}
