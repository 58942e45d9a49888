package recovery

import (
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestOutcomeCache: the cache keeps the newest outcomes, whatever it has forgotten before,
// and no outcome that is not final.
func TestOutcomeCache(t *testing.T) {
	c := newOutcomeCache()
	c.Put(1, format.Status{State: format.StateLocked})
	if _, ok := c.get(1); ok {
		t.Error("it keeps a status that is not final")
	}
	const puts = 3*outcomeCacheSize + 7
	for ts := tso.Timestamp(1); ts <= puts; ts++ {
		c.Put(ts, format.Status{State: format.StateCommitted, CommitTS: ts + 1})
		c.Put(ts, format.Status{State: format.StateRolledBack}) // it knows better
	}
	for ts := tso.Timestamp(1); ts <= puts; ts++ {
		s, ok := c.get(ts)
		if want := ts > puts-outcomeCacheSize; ok != want || ok && (s.State != format.StateCommitted || s.CommitTS != ts+1) {
			t.Fatalf("%d of %d: %+v, known: %t, want %t", ts, puts, s, ok, want)
		}
	}
	if len(c.known) != outcomeCacheSize || len(c.order) != outcomeCacheSize {
		t.Errorf("%d outcomes in a ring of %d", len(c.known), len(c.order))
	}
}
