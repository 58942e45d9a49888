package gc

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// What goes of one column, with the safe point at 100, and with newest deletes and
// rollback markers up to 50.
func TestGarbageOfAColumn(t *testing.T) {
	put := func(start, commit tso.Timestamp) columnWrite {
		return columnWrite{format.WriteRecord{CommitTS: commit, StartTS: start, Kind: format.KindPut}, 1, false}
	}
	del := func(start, commit tso.Timestamp) columnWrite {
		return columnWrite{format.WriteRecord{CommitTS: commit, StartTS: start, Kind: format.KindDelete}, 1, false}
	}
	at := func(all ...tso.Timestamp) (cells []storedCell) {
		for _, ts := range all {
			cells = append(cells, storedCell{ts, 1})
		}
		return cells
	}
	for _, tt := range []struct {
		name  string
		plain bool
		has   columnCells
		goes  columnGarbage
		cells int64
	}{
		{"nothing", false, columnCells{}, columnGarbage{}, 0},
		{"one version", false, columnCells{writes: []columnWrite{put(10, 20)}, data: at(10)}, columnGarbage{}, 0},
		{"older versions", false, columnCells{writes: []columnWrite{put(10, 20), put(30, 40), put(50, 60)}, data: at(10, 30, 50)},
			columnGarbage{writesBelow: 60, dataBelow: 50}, 4},
		{"the newest at the safe point", false, columnCells{writes: []columnWrite{put(10, 20), put(90, 100)}, data: at(10, 90)},
			columnGarbage{writesBelow: 100, dataBelow: 90}, 2},
		{"the newest just above the safe point", false, columnCells{writes: []columnWrite{put(10, 20), put(90, 101)}, data: at(10, 90)}, columnGarbage{}, 0},
		{"a version that began before the safe point and was committed after", false,
			columnCells{writes: []columnWrite{put(10, 20), put(30, 40), put(50, 160)}, data: at(10, 30, 50)},
			columnGarbage{writesBelow: 40, dataBelow: 30}, 2},
		{"data that nothing names", false, columnCells{writes: []columnWrite{put(10, 20)}, data: at(10, 30, 40)}, columnGarbage{unnamed: 40}, 0},
		{"data that a lock names", false, columnCells{writes: []columnWrite{put(10, 20)}, data: at(10, 30), locked: []tso.Timestamp{30}}, columnGarbage{}, 0},
		{"data above the safe point", false, columnCells{writes: []columnWrite{put(10, 20)}, data: at(10, 100, 101)}, columnGarbage{unnamed: 100}, 0},
		{"data that starts where a delete was committed", false, columnCells{writes: []columnWrite{del(50, 60)}, data: at(59, 60)}, columnGarbage{dataBelow: 60, unnamed: 60}, 1},
		{"data of nobody's column", false, columnCells{data: at(10)}, columnGarbage{}, 0},
		{"a young delete", false, columnCells{writes: []columnWrite{put(10, 20), del(50, 51)}, data: at(10)}, columnGarbage{writesBelow: 51, dataBelow: 51}, 2},
		{"an old delete", false, columnCells{writes: []columnWrite{put(10, 20), del(49, 50)}, data: at(10)}, columnGarbage{writesBelow: 50, dataBelow: 50, newest: 50}, 3},
		{"an old delete below a later version", false, columnCells{writes: []columnWrite{del(49, 50), put(110, 120)}}, columnGarbage{newest: 50}, 1},
		{"an old delete with a notify cell", false, columnCells{writes: []columnWrite{del(49, 50)}, notified: true}, columnGarbage{}, 0},
		{"an old delete that an observer has not seen", false, columnCells{writes: []columnWrite{put(10, 20), del(48, 50)}, data: at(10), seen: 49}, columnGarbage{writesBelow: 50, dataBelow: 50}, 2},
		{"an old delete that every observer has seen", false, columnCells{writes: []columnWrite{del(49, 50)}, seen: 51}, columnGarbage{newest: 50}, 1},
		{"an old delete that an observer's run at its timestamp has seen", false, columnCells{writes: []columnWrite{del(49, 50)}, seen: 50}, columnGarbage{newest: 50}, 1},
		{"records that locks may need", false, columnCells{writes: []columnWrite{put(50, 60), {put(30, 40).WriteRecord, 1, true}, put(1, 2), {put(10, 20).WriteRecord, 1, true}, {put(5, 6).WriteRecord, 1, true}}},
			columnGarbage{writesBelow: 60, kept: []span{{6, 40}}}, 1},
		{"an old delete over plain data", false, columnCells{writes: []columnWrite{del(49, 50)}, plain: at(1)}, columnGarbage{}, 0},
		{"an old delete with its plain data", true, columnCells{writes: []columnWrite{del(49, 50)}, plain: at(1)}, columnGarbage{newest: 50, plainBelow: format.PlainBefore}, 2},
		{"plain data below a version", false, columnCells{writes: []columnWrite{put(10, 20)}, data: at(10), plain: at(1, 2)}, columnGarbage{}, 0},
		{"plain data below a version, to be removed", true, columnCells{writes: []columnWrite{put(10, 20)}, data: at(10), plain: at(1, 2)}, columnGarbage{plainBelow: format.PlainBefore}, 2},
		{"plain data below a version above the safe point", true, columnCells{writes: []columnWrite{put(101, 102)}, plain: at(1)}, columnGarbage{}, 0},
		{"marks", false, columnCells{marks: at(10, 20)}, columnGarbage{marks: true}, 2},
		{"rollback markers alone", false, columnCells{markers: []tso.Timestamp{60}}, columnGarbage{}, 0},
		{"rollback markers among marks", false, columnCells{marks: at(10, 70), markers: []tso.Timestamp{80, 60}}, columnGarbage{marks: true, markers: []span{{60, 60}, {80, 80}}}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, n := rules{safePoint: 100, drained: 50, plain: tt.plain}.column(&tt.has, 0)
			if d := cmp.Diff(tt.goes, got, cmp.AllowUnexported(columnGarbage{}, span{})); d != "" {
				t.Errorf("garbage (-want +got):\n%s", d)
			}
			if n.Cells != tt.cells || n.Bytes != tt.cells || n.Cells != n.Versions+n.Data+n.Plain+n.Marks || (n.Deletes == 1) != (tt.goes.newest != 0) {
				t.Errorf("%+v, want %d cells", n, tt.cells)
			}
		})
	}
}

// What goes of a column whose values expire after 1,000, with the safe point at 10,000, and with
// expired values up to a safe point of 5,000.
func TestGarbageOfAnExpiringColumn(t *testing.T) {
	version := func(kind format.Kind, start, commit tso.Timestamp) columnWrite {
		return columnWrite{format.WriteRecord{CommitTS: commit, StartTS: start, Kind: kind}, 1, false}
	}
	at := func(all ...tso.Timestamp) (cells []storedCell) {
		for _, ts := range all {
			cells = append(cells, storedCell{ts, 1})
		}
		return cells
	}
	one := []columnWrite{version(format.KindPut, 3990, 4000)}
	known := store.Expiry{After: 1000, Since: 5000}
	for _, tt := range []struct {
		name   string
		expiry store.Expiry
		plain  bool
		has    columnCells
		goes   columnGarbage
		cells  int64
	}{
		{"expired in time", known, false, columnCells{writes: one, data: at(3990)}, columnGarbage{newest: 4000, dataBelow: 4000}, 2},
		{"gone by an earlier expiry", store.Expiry{After: 2000, Since: 5000, Gone: 4000, GoneSince: 5000}, false, columnCells{writes: one, data: at(3990)}, columnGarbage{newest: 4000, dataBelow: 4000}, 2},
		{"gone, not known for long", store.Expiry{Gone: 4000, GoneSince: 5001}, false, columnCells{writes: one, data: at(3990)}, columnGarbage{}, 0},
		{"expired later", known, false, columnCells{writes: []columnWrite{version(format.KindPut, 3990, 4001)}, data: at(3990)}, columnGarbage{}, 0},
		{"set later", store.Expiry{After: 1000, Since: 5001}, false, columnCells{writes: one, data: at(3990)}, columnGarbage{}, 0},
		{"never", store.Expiry{}, false, columnCells{writes: one, data: at(3990)}, columnGarbage{}, 0},
		{"longer than time", store.Expiry{After: 1 << 60, Since: 1}, false, columnCells{writes: one, data: at(3990), plain: at(1)}, columnGarbage{}, 0},
		{"the shortest expiry", store.Expiry{After: 1, Since: 5000}, false, columnCells{writes: []columnWrite{version(format.KindPut, 3990, 4999)}, data: at(3990)}, columnGarbage{newest: 4999, dataBelow: 4999}, 2},
		{"with older versions", known, false, columnCells{writes: append([]columnWrite{version(format.KindPut, 10, 20)}, one...), data: at(10, 3990)}, columnGarbage{newest: 4000, writesBelow: 4000, dataBelow: 4000}, 4},
		{"below a version that stays", known, false, columnCells{writes: append([]columnWrite{version(format.KindPut, 9000, 9001)}, one...), data: at(3990, 9000)}, columnGarbage{writesBelow: 9001, dataBelow: 9000}, 2},
		{"with a notify cell", known, false, columnCells{writes: one, data: at(3990), notified: true}, columnGarbage{}, 0},
		{"over plain data that has not expired", known, false, columnCells{writes: one, data: at(3990), plain: at(6000)}, columnGarbage{}, 0},
		{"over plain data, to be removed", known, true, columnCells{writes: one, data: at(3990), plain: at(6000)}, columnGarbage{newest: 4000, dataBelow: 4000, plainBelow: format.PlainBefore}, 3},
		{"plain data", known, false, columnCells{plain: at(3999, 4000, 6000)}, columnGarbage{plainBelow: 4000}, 1},
		{"expired plain data below a delete", known, false, columnCells{writes: []columnWrite{version(format.KindDelete, 4900, 5000)}, plain: at(1)}, columnGarbage{plainBelow: 4000}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, n := rules{safePoint: 10_000, drained: 5000, plain: tt.plain}.column(&tt.has, store.Expiries{"f": tt.expiry}.ExpiredUpTo("f", 5000))
			if d := cmp.Diff(tt.goes, got, cmp.AllowUnexported(columnGarbage{}, span{})); d != "" {
				t.Errorf("garbage (-want +got):\n%s", d)
			}
			if n.Cells != tt.cells || n.Bytes != tt.cells || n.Cells != n.Versions+n.Data+n.Plain+n.Marks || n.Deletes != 0 {
				t.Errorf("%+v, want %d cells", n, tt.cells)
			}
		})
	}
}

// TestDamagedRowKeepsAll: if a lock, a write record or the name of a column is damaged,
// nothing of the row is garbage, because nobody knows which data they name.
func TestDamagedRowKeepsAll(t *testing.T) {
	cell := func(family, column string, ts tso.Timestamp, value []byte) bigtable.ReadItem {
		return bigtable.ReadItem{Row: "r", Column: family + ":" + column, Timestamp: ts.Cell(), Value: value}
	}
	at := format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	write := func(start, commit tso.Timestamp) bigtable.ReadItem {
		_, value := format.EncodeCommit(at, at, format.KindPut, start)
		return cell(format.WriteFamily, "f:q", commit, value)
	}
	const old, young = tso.Timestamp(1e14), tso.Timestamp(2e14)
	whole := bigtable.Row{
		format.WriteFamily: {write(young, young+1), write(old, old+1)},
		"f":                {cell("f", "q", young, []byte("new")), cell("f", "q", old, []byte("old"))},
	}
	r := rules{safePoint: 3e14, drained: 1}
	if g := r.row(&store.Table{Name: "t"}, whole); g.err != nil || g.counts.Cells != 2 {
		t.Fatalf("%+v, %v; want two cells of garbage", g.counts, g.err)
	}
	for name, damaged := range map[string]bigtable.ReadItem{
		"lock":   cell(format.LockFamily, "f:q", young+5, []byte("\xff")),
		"write":  cell(format.WriteFamily, "f:q", young+6, []byte("\xff")),
		"column": cell(format.MarkFamily, "nameless", young, []byte("\xff")),
	} {
		family, _, _ := strings.Cut(damaged.Column, ":")
		row := maps.Clone(whole)
		row[family] = append([]bigtable.ReadItem{damaged}, row[family]...)
		g := r.row(&store.Table{Name: "t"}, row)
		if !errors.Is(g.err, format.ErrCorrupt) && !errors.Is(g.err, format.ErrFormatVersion) || len(g.mutations("r")) > 0 || len(g.conditional()) > 0 {
			t.Errorf("damaged %s: %v, %d removals", name, g.err, len(g.mutations("r")))
		}
	}
}

// TestSeenByObservers: the observer that has seen least decides. An acknowledgment without a
// committed record, which a lock or a plain write leaves, says nothing.
func TestSeenByObservers(t *testing.T) {
	col := format.Column{Family: "f", Qualifier: "q"}
	acked := func(starts ...tso.Timestamp) *columnCells {
		h := &columnCells{}
		for _, ts := range starts {
			h.writes = append(h.writes, columnWrite{format.WriteRecord{StartTS: ts, CommitTS: ts + 1}, 1, false})
		}
		return h
	}
	for name, tt := range map[string]struct {
		acks map[string]*columnCells
		want tso.Timestamp
	}{
		"nobody":          {nil, 0},
		"one":             {map[string]*columnCells{"o": acked(10, 30, 20)}, 30},
		"two":             {map[string]*columnCells{"o": acked(30), "p": acked(10, 20)}, 20},
		"nothing written": {map[string]*columnCells{"o": {locked: []tso.Timestamp{40}}, "p": acked(20)}, 20},
		"only a lock":     {map[string]*columnCells{"o": {locked: []tso.Timestamp{40}}}, 0},
	} {
		for range 50 { // a map has no order
			columns := map[format.Column]*columnCells{col: acked(50), format.AckColumn(format.Column{Family: "f", Qualifier: "other"}, "o"): acked(5)}
			for id, h := range tt.acks {
				columns[format.AckColumn(col, id)] = h
			}
			setSeen(columns)
			if got := columns[col].seen; got != tt.want {
				t.Fatalf("%s: seen up to %d, want %d", name, got, tt.want)
			}
		}
	}
}
