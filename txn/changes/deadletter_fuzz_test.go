package changes

import (
	"errors"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// FuzzDeadLetter: a letter that does not parse is an error of the right kind.
func FuzzDeadLetter(f *testing.F) {
	f.Add([]byte("\x08\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decodeDeadLetter("percolator", "dead/x", b); err != nil && !errors.Is(err, format.ErrCorrupt) && !errors.Is(err, format.ErrFormatVersion) {
			t.Errorf("error %v is neither ErrCorrupt nor ErrFormatVersion", err)
		}
	})
}
