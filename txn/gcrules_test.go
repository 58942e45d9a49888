package txn

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/tso"
)

// What goes of one column, with the safe point at 100 and the retention such
// that newest deletes up to 50 may go.
func TestGarbageOfAColumn(t *testing.T) {
	put := func(start, commit tso.Timestamp) gcWrite {
		return gcWrite{writeRecord{commitTS: commit, startTS: start, kind: KindPut}, 1}
	}
	del := func(start, commit tso.Timestamp) gcWrite {
		return gcWrite{writeRecord{commitTS: commit, startTS: start, kind: KindDelete}, 1}
	}
	at := func(all ...tso.Timestamp) (cells []stored) {
		for _, ts := range all {
			cells = append(cells, stored{ts, 1})
		}
		return cells
	}
	for _, tt := range []struct {
		name  string
		plain bool
		has   gcColumn
		goes  gcColumnGarbage
		cells int64
	}{
		{"nothing", false, gcColumn{}, gcColumnGarbage{}, 0},
		{"one version", false, gcColumn{writes: []gcWrite{put(10, 20)}, data: at(10)}, gcColumnGarbage{}, 0},
		{"older versions", false, gcColumn{writes: []gcWrite{put(10, 20), put(30, 40), put(50, 60)}, data: at(10, 30, 50)},
			gcColumnGarbage{writesBelow: 60, dataBelow: 50}, 4},
		{"the newest at the safe point", false, gcColumn{writes: []gcWrite{put(10, 20), put(90, 100)}, data: at(10, 90)},
			gcColumnGarbage{writesBelow: 100, dataBelow: 90}, 2},
		{"the newest just above the safe point", false, gcColumn{writes: []gcWrite{put(10, 20), put(90, 101)}, data: at(10, 90)}, gcColumnGarbage{}, 0},
		{"a version that began before the safe point and was committed after", false,
			gcColumn{writes: []gcWrite{put(10, 20), put(30, 40), put(50, 160)}, data: at(10, 30, 50)},
			gcColumnGarbage{writesBelow: 40, dataBelow: 30}, 2},
		{"data that nothing names", false, gcColumn{writes: []gcWrite{put(10, 20)}, data: at(10, 30, 40)}, gcColumnGarbage{orphans: []tso.Timestamp{30, 40}}, 2},
		{"data that a lock names", false, gcColumn{writes: []gcWrite{put(10, 20)}, data: at(10, 30), locked: []tso.Timestamp{30}}, gcColumnGarbage{}, 0},
		{"data of nobody's column", false, gcColumn{data: at(10)}, gcColumnGarbage{}, 0},
		{"a young delete", false, gcColumn{writes: []gcWrite{put(10, 20), del(50, 51)}, data: at(10)}, gcColumnGarbage{writesBelow: 51, dataBelow: 51}, 2},
		{"an old delete", false, gcColumn{writes: []gcWrite{put(10, 20), del(49, 50)}, data: at(10)}, gcColumnGarbage{writesBelow: 50, dataBelow: 50, newest: 50}, 3},
		{"an old delete below a later version", false, gcColumn{writes: []gcWrite{del(49, 50), put(110, 120)}}, gcColumnGarbage{newest: 50}, 1},
		{"an old delete with a notify cell", false, gcColumn{writes: []gcWrite{del(49, 50)}, noticed: true}, gcColumnGarbage{}, 0},
		{"an old delete over plain data", false, gcColumn{writes: []gcWrite{del(49, 50)}, plain: at(1)}, gcColumnGarbage{}, 0},
		{"an old delete with its plain data", true, gcColumn{writes: []gcWrite{del(49, 50)}, plain: at(1)}, gcColumnGarbage{newest: 50, plain: true}, 2},
		{"plain data below a version", false, gcColumn{writes: []gcWrite{put(10, 20)}, data: at(10), plain: at(1, 2)}, gcColumnGarbage{}, 0},
		{"plain data below a version, to be removed", true, gcColumn{writes: []gcWrite{put(10, 20)}, data: at(10), plain: at(1, 2)}, gcColumnGarbage{plain: true}, 2},
		{"plain data below a version above the safe point", true, gcColumn{writes: []gcWrite{put(101, 102)}, plain: at(1)}, gcColumnGarbage{}, 0},
		{"marks", false, gcColumn{marks: at(10, 20)}, gcColumnGarbage{marks: true}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, n := gcRules{safePoint: 100, deletesUpTo: 50, plain: tt.plain}.column(&tt.has)
			if d := cmp.Diff(tt.goes, got, cmp.AllowUnexported(gcColumnGarbage{})); d != "" {
				t.Errorf("garbage (-want +got):\n%s", d)
			}
			if n.Cells != tt.cells || n.Bytes != tt.cells || n.Cells != n.Versions+n.Data+n.Plain+n.Marks {
				t.Errorf("%+v, want %d cells", n, tt.cells)
			}
		})
	}
}
