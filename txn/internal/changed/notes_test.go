package changed

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// TestNotes: a note has at most 8,192 rows, and ends with the row with which it reaches a megabyte. Its
// key says the newest commit.
func TestNotes(t *testing.T) {
	const at tso.Timestamp = 1_800_000_000_000_000
	for _, s := range []struct{ rows, bytes, notes int }{{1, 10, 1}, {maxRows, 10, 1}, {maxRows + 1, 10, 2}, {2*maxRows + 1, 10, 3}, {4, maxBytes / 4, 1}, {5, maxBytes / 4, 2}, {2, maxBytes - 1, 1}, {3, maxBytes - 1, 2}} {
		var changes []change
		for i := range s.rows {
			row := fmt.Sprintf("%08d", i)
			changes = append(changes, change{"t", row + strings.Repeat("x", s.bytes-len(row))})
		}
		muts := notes(changes, at)
		if len(muts) != s.notes {
			t.Errorf("%d rows of %d bytes need %d notes, want %d", s.rows, s.bytes, len(muts), s.notes)
		}
		keys := map[string]bool{}
		for _, m := range muts {
			keys[m.Row] = true
			if NotedAt(m.Row) != at || m.Ops != 1 {
				t.Errorf("the note %q with %d changes is of %d", m.Row, m.Ops, NotedAt(m.Row))
			}
			for ts, want := range map[tso.Timestamp]bool{at - 1: false, at: true} {
				if UpTo(ts).Contains(m.Row) != want {
					t.Errorf("%q is among the notes up to %d: %v", m.Row, ts, !want)
				}
			}
		}
		if len(keys) != len(muts) {
			t.Errorf("%d notes have %d rows", len(muts), len(keys))
		}
	}
}

// TestDecode: the rows of a note, by table; nothing of one that another release wrote, or that is damaged.
func TestDecode(t *testing.T) {
	record := func(version uint32) []byte {
		return format.Marshal(&recordpb.ChangedRows{FormatVersion: version, Tables: []*recordpb.ChangedRows_Table{
			{Name: "a", Rows: [][]byte{[]byte("1"), []byte("2")}}, {Name: "b", Rows: [][]byte{[]byte("3")}}}})
	}
	for i, s := range []struct {
		value []byte
		n     int
	}{{nil, 0}, {[]byte("damaged"), 0}, {record(format.Version + 1), 0}, {record(format.Version), 3}} {
		rows := map[string][]string{"a": {"0"}}
		var raw bigtable.Row
		if s.value != nil {
			raw = bigtable.Row{store.DeployFamily: {{Value: s.value}}}
		}
		if n := Decode(raw, rows); n != s.n || n == 0 && len(rows) != 1 {
			t.Errorf("note %d has %d rows: %v", i, n, rows)
		}
		if s.n > 0 && (!slices.Equal(rows["a"], []string{"0", "1", "2"}) || !slices.Equal(rows["b"], []string{"3"})) {
			t.Errorf("note %d has the rows %v", i, rows)
		}
	}
	if NotedAt("other") != 0 {
		t.Error("a key of no note says a commit")
	}
}

// TestOrderOfChanges: by table, then by row.
func TestOrderOfChanges(t *testing.T) {
	sorted := []change{{"a", "1"}, {"a", "2"}, {"b", "0"}, {"b", "1"}}
	for i, x := range sorted {
		for j, y := range sorted {
			if got := x.compare(y); got > 0 != (i > j) || got < 0 != (i < j) {
				t.Errorf("%v and %v: %d", x, y, got)
			}
		}
	}
}
