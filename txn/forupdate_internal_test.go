package txn

import (
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/buffer"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// What was read beside the request for start_ts is used at most once, by the first thing that the
// transaction does. Only then its cell is the primary, and the prewrite relies on the version.
func TestFirstReadIsTaken(t *testing.T) {
	cell := Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	other := cell
	other.Qualifier = "other"
	row := &store.RowWrites{Table: &store.Table{Name: "t"}, Row: "r"}
	type result struct {
		value          string
		present, known bool
	}
	for name, tt := range map[string]struct {
		before  func(*firstRead, *buffer.Buffer)
		absent  bool
		asks    Cell
		want    result
		relies  bool // the prewrite, on the version
		settled bool
	}{
		"a value":         {asks: cell, want: result{"v", true, true}, relies: true},
		"no value":        {absent: true, asks: cell, want: result{"", false, true}, relies: true},
		"of another cell": {asks: other, settled: true},
		"a second time":   {before: func(f *firstRead, b *buffer.Buffer) { f.take(cell, b) }, asks: cell, relies: true},
		"after a read":    {before: func(f *firstRead, _ *buffer.Buffer) { f.settled() }, asks: cell, settled: true},
		"after a write":   {before: func(_ *firstRead, b *buffer.Buffer) { b.Set(other, format.KindPut, nil) }, asks: cell, settled: true},
		"after its read":  {before: func(f *firstRead, _ *buffer.Buffer) { f.verified = true }, asks: cell, want: result{"v", true, true}, relies: true, settled: true},
	} {
		var b buffer.Buffer
		f := &firstRead{cell: cell, present: !tt.absent, item: bigtable.ReadItem{Value: []byte("v")}, version: 7, asOf: 20}
		if version, relies := f.of(row); version != 7 || relies {
			t.Errorf("%s: at first, the prewrite relies on %d: %v", name, version, relies)
		}
		if tt.before != nil {
			tt.before(f, &b)
		}
		value, present, known := f.take(tt.asks, &b)
		if got := (result{string(value), present, known}); got != tt.want || (value != nil) != present {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
		if present {
			value[0] = 'x' // the caller owns it
		}
		if string(f.item.Value) != "v" {
			t.Errorf("%s: the caller changed the value", name)
		}
		if !tt.relies && b.WritesNothing() != (name != "after a write") || tt.relies && b.Primary() != cell {
			t.Errorf("%s: the transaction locks the cell", name)
		}
		if version, relies := f.of(row); version != 7 || relies != tt.relies {
			t.Errorf("%s: the prewrite relies on %d: %v", name, version, relies)
		}
		if version, relies := f.of(&store.RowWrites{Table: row.Table, Row: "another"}); version != 0 || relies {
			t.Errorf("%s: the prewrite of another row relies on %d: %v", name, version, relies)
		}
		if got := f.settled(); got != tt.settled || f.dropped == tt.relies {
			t.Errorf("%s: another read need not verify: %v", name, got)
		}
		if !tt.relies && f.checkWrite(t.Context(), nil, 30) != nil { // without a look at the safe point
			t.Errorf("%s: the commit needs it", name)
		}
	}
	f := &firstRead{asOf: 20}
	for startTS, want := range map[tso.Timestamp]tso.Timestamp{19: 19, 20: 20, 21: 20} {
		if got := f.oldest(startTS); got != want {
			t.Errorf("a transaction that started at %d keeps %d", startTS, got)
		}
	}
	var none *firstRead
	version, relies := none.of(row)
	if version != 0 || relies || none.oldest(9) != 9 || none.verify(t.Context(), nil, 9) != nil || none.checkWrite(t.Context(), nil, 9) != nil {
		t.Error("a transaction without ForUpdate relies on something")
	}
}
