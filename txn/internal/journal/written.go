package journal

import (
	"sync"

	"github.com/percolator-bigtable/percolator/tso"
)

// maxWritten bounds the memory of a client for cells that it writes again and again. Beyond it all
// are forgotten, and each cell keeps one entry more.
const maxWritten = 4096

// written remembers the newest entry that this client wrote in a column of the journal, by row. The
// next one replaces it. Otherwise the row of a cell that is written again and again, and that no
// worker handles, grew with each commit.
type written struct {
	mu     sync.Mutex
	newest map[string]tso.Timestamp
}

// next notes an entry, and returns the one that it replaces: an older one of this client. What that
// one stands for the new one stands for, too: whatever proof lets a newer entry go lets the older
// one go. Only a withdrawal has no such proof, so it brings the older entry back. 0: none.
func (w *written) next(row string, ts tso.Timestamp) (older tso.Timestamp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	older = w.newest[row]
	if older >= ts {
		return 0
	}
	if w.newest == nil || len(w.newest) >= maxWritten {
		w.newest = map[string]tso.Timestamp{}
	}
	w.newest[row] = ts
	return older
}

// back says that an entry was withdrawn, and that the older one is there again.
func (w *written) back(row string, ts, older tso.Timestamp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newest[row] == ts {
		w.newest[row] = older
	}
}
