package recovery

import (
	"context"
	"errors"
	"testing"

	"cloud.google.com/go/bigtable"

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

// TestReadStatus: what the stored cells of a primary show of the transaction that started at 7.
// Records of other transactions may be among them. A commit counts more than a rollback marker, and a
// marker more than a lock.
func TestReadStatus(t *testing.T) {
	other := errors.New("no answer")
	record := func(kind format.Kind, start, commit tso.Timestamp) bigtable.ReadItem {
		family, value := format.WriteRecord{StartTS: start, Kind: kind, Primary: inBob("q")}.Encode(inBob("q"))
		return stored(family, "q", commit, value)
	}
	marker := func(ts tso.Timestamp) bigtable.ReadItem {
		return stored(format.MarkFamily, "q", ts, format.EncodeRollback(ts))
	}
	damaged := func(family string) bigtable.ReadItem { return stored(family, "q", 7, []byte{0xff}) }
	for _, tt := range []struct {
		name                 string
		locks, marks, writes []bigtable.ReadItem
		state                format.State
		commit               tso.Timestamp
		locked               bool
		err                  error
	}{
		{name: "nothing", state: format.StateUnknown},
		{name: "lock", locks: []bigtable.ReadItem{lockAt("q", 7)}, state: format.StateLocked, locked: true},
		{name: "marker", marks: []bigtable.ReadItem{marker(7)}, state: format.StateRolledBack},
		{name: "marker and lock", locks: []bigtable.ReadItem{lockAt("q", 7)}, marks: []bigtable.ReadItem{marker(7)}, state: format.StateRolledBack, locked: true},
		{name: "marker of another", locks: []bigtable.ReadItem{lockAt("q", 7)}, marks: []bigtable.ReadItem{marker(8)}, state: format.StateLocked, locked: true},
		{name: "lock-only commit", marks: []bigtable.ReadItem{marker(9), record(format.KindLock, 7, 8)}, state: format.StateCommitted, commit: 8},
		{name: "lock-only commit of another", marks: []bigtable.ReadItem{record(format.KindLock, 6, 8)}, state: format.StateUnknown},
		{name: "commit", writes: []bigtable.ReadItem{record(format.KindPut, 10, 11), record(format.KindPut, 7, 9)}, state: format.StateCommitted, commit: 9},
		{name: "commit and lock", locks: []bigtable.ReadItem{lockAt("q", 7)}, writes: []bigtable.ReadItem{record(format.KindDelete, 7, 9)}, state: format.StateCommitted, commit: 9, locked: true},
		{name: "commit and marker", marks: []bigtable.ReadItem{marker(7)}, writes: []bigtable.ReadItem{record(format.KindPut, 7, 9)}, state: format.StateCommitted, commit: 9},
		{name: "commit of another", writes: []bigtable.ReadItem{record(format.KindPut, 6, 9)}, state: format.StateUnknown},
		{name: "damaged lock", locks: []bigtable.ReadItem{damaged(format.LockFamily)}, err: format.ErrCorrupt},
		{name: "damaged mark", locks: []bigtable.ReadItem{lockAt("q", 7)}, marks: []bigtable.ReadItem{damaged(format.MarkFamily)}, err: format.ErrCorrupt},
		{name: "damaged write", marks: []bigtable.ReadItem{marker(7)}, writes: []bigtable.ReadItem{damaged(format.WriteFamily)}, err: format.ErrCorrupt},
		{name: "no answer", err: other},
	} {
		row := bigtable.Row{format.LockFamily: tt.locks, format.MarkFamily: tt.marks, format.WriteFamily: tt.writes}
		s, locked, err := readStatus(t.Context(), func(_ context.Context, row2 string, _ bigtable.Filter) (bigtable.Row, error) {
			if row2 != "bob" {
				t.Errorf("%s: it reads %q", tt.name, row2)
			}
			if tt.err == other {
				return nil, other
			}
			return row, nil
		}, inBob("q"), 7)
		if s.State != tt.state || s.CommitTS != tt.commit || locked != tt.locked || !errors.Is(err, tt.err) || tt.err == nil && err != nil {
			t.Errorf("%s: %v at %d, locked: %t, %v; want %v at %d, %t, %v", tt.name, s.State, s.CommitTS, locked, err, tt.state, tt.commit, tt.locked, tt.err)
		}
		if (s.Lock != nil) != (s.State == format.StateLocked) {
			t.Errorf("%s: the lock is %v", tt.name, s.Lock)
		}
	}
}

// TestActionName: the action of a lock, for telemetry and reports.
func TestActionName(t *testing.T) {
	committed := Outcome{Status: format.Status{State: format.StateCommitted, CommitTS: 9}}
	for _, tt := range []struct {
		o      Outcome
		readTS tso.Timestamp
		want   string
	}{
		{Outcome{LockGone: true}, 5, "gone"}, {committed, 8, "walked past"}, {committed, 9, "rolled forward"}, {committed, 0, "rolled forward"},
		{Outcome{Status: format.Status{State: format.StateRolledBack}}, 5, "rolled back"},
		{Outcome{Status: format.Status{State: format.StateLocked}}, 5, "left"}, {Outcome{}, 5, "left"},
	} {
		if got := ActionName(tt.o, tt.readTS); got != tt.want {
			t.Errorf("%+v for a read at %d: %s, want %s", tt.o, tt.readTS, got, tt.want)
		}
	}
}
