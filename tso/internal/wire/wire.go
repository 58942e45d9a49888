// Package wire holds what servers of the timestamp oracle and their clients
// have to agree on beside the messages of package tsopb: how errors travel.
package wire

import (
	"errors"

	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
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
