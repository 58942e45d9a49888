package buffer

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

func cell(row, qualifier string) format.Cell {
	return format.Cell{Table: "t", Row: row, Family: "f", Qualifier: qualifier}
}

// TestLastWriteCounts: of several writes of a cell the last one counts. A lock replaces no value,
// and a value replaces a lock.
func TestLastWriteCounts(t *testing.T) {
	put := func(v string) func(*Buffer) {
		return func(b *Buffer) { b.Set(cell("r", "q"), format.KindPut, []byte(v)) }
	}
	del := func(b *Buffer) { b.Set(cell("r", "q"), format.KindDelete, nil) }
	lock := func(b *Buffer) { b.Set(cell("r", "q"), format.KindLock, nil) }
	read := func(b *Buffer) { b.Promote(cell("r", "q")) }
	for name, tt := range map[string]struct {
		calls   []func(*Buffer)
		want    string // of Get
		nothing bool
		open    bool
	}{
		"nothing":            {nil, "- false", true, false},
		"put":                {[]func(*Buffer){put("1")}, "put 1 true", false, true},
		"twice":              {[]func(*Buffer){put("1"), put("2")}, "put 2 true", false, true},
		"put, delete":        {[]func(*Buffer){put("1"), del}, "delete  true", false, true},
		"delete, put":        {[]func(*Buffer){del, put("2")}, "put 2 true", false, true},
		"put, lock":          {[]func(*Buffer){put("1"), lock}, "put 1 true", false, true},
		"delete, lock":       {[]func(*Buffer){del, lock}, "delete  true", false, true},
		"lock":               {[]func(*Buffer){lock}, "- false", false, true},
		"lock, put":          {[]func(*Buffer){lock, put("1")}, "put 1 true", false, true},
		"read":               {[]func(*Buffer){read}, "- false", true, true},
		"put nothing":        {[]func(*Buffer){func(b *Buffer) { b.Set(cell("r", "q"), format.KindPut, nil) }}, "put  true", false, true},
		"read twice":         {[]func(*Buffer){read, read}, "- false", true, true},
		"read, put":          {[]func(*Buffer){read, put("1")}, "put 1 true", false, true},
		"read, lock":         {[]func(*Buffer){read, lock}, "- false", false, true},
		"lock, read":         {[]func(*Buffer){lock, read}, "- false", false, true},
		"put, read":          {[]func(*Buffer){put("1"), read}, "put 1 true", false, true},
		"put after the end":  {[]func(*Buffer){(*Buffer).Seal, put("1")}, "- false", true, false},
		"put before the end": {[]func(*Buffer){put("1"), (*Buffer).Seal, put("2")}, "put 1 true", false, false},
	} {
		b := &Buffer{}
		for _, call := range tt.calls {
			call(b)
		}
		kind, value, ok := b.Get(cell("r", "q"))
		got := fmt.Sprintf("-%s %t", strings.TrimPrefix(kind.String(), "kind(0)"), ok)
		if ok {
			got = fmt.Sprintf("%v %s %t", kind, value, ok)
		}
		if got != tt.want || b.Wrote(cell("r", "q")) != ok || b.WritesNothing() != tt.nothing || b.IsOpen() != tt.open || b.Err() != nil {
			t.Errorf("%s: %s, writes nothing: %t, open: %t; want %s", name, got, b.WritesNothing(), b.IsOpen(), tt.want)
		}
		writes := 0
		for c, v := range b.Writes {
			if writes++; c != cell("r", "q") || (v == nil) != (kind == format.KindDelete) || string(v) != string(value) {
				t.Errorf("%s: write of %v: %q", name, c, v)
			}
		}
		if writes != map[bool]int{true: 1}[ok] {
			t.Errorf("%s: %d writes", name, writes)
		}
	}
}

// TestFirstInvalidCall: it stays, and nothing that follows counts.
func TestFirstInvalidCall(t *testing.T) {
	for name, invalid := range map[string]func(*Buffer){
		"put":          func(b *Buffer) { b.Set(cell("", "q"), format.KindPut, nil) },
		"notification": func(b *Buffer) { b.AddNotification(cell("", "q")) },
		"large value":  func(b *Buffer) { b.Set(cell("r", "q"), format.KindPut, make([]byte, 100<<20+1)) },
	} {
		b := &Buffer{}
		b.Set(cell("a", "q"), format.KindPut, []byte("1"))
		invalid(b)
		first := b.Err()
		b.Set(format.Cell{}, format.KindPut, nil)
		b.AddNotification(format.Cell{})
		b.Set(cell("b", "q"), format.KindPut, []byte("1"))
		b.AddNotification(cell("b", "q"))
		if first == nil || !errors.Is(b.Err(), first) || b.IsOpen() || b.Wrote(cell("b", "q")) || len(b.rows["t"]) != 1 || len(b.notify) != 0 || b.Primary() != cell("a", "q") {
			t.Errorf("%s: %v, then %v; open: %t", name, first, b.Err(), b.IsOpen())
		}
	}
	b := &Buffer{}
	b.AddNotification(cell("a", "q"))
	b.AddNotification(cell("a", "other"))
	b.Seal()
	b.AddNotification(cell("b", "q"))
	b.Set(format.Cell{}, format.KindPut, nil)
	if _, ok := b.notify[cell("a", "q")]; !ok || len(b.notify) != 2 || b.Err() != nil {
		t.Errorf("after the end: %d notifications, %v", len(b.notify), b.Err())
	}
	n := 0
	b = &Buffer{}
	b.Set(cell("a", "q"), format.KindPut, nil)
	b.Set(cell("b", "q"), format.KindPut, nil)
	for range b.Writes {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d writes after the loop ended", n)
	}
}

// TestOverlay: reads of a transaction show what it has written, over what Bigtable returned.
func TestOverlay(t *testing.T) {
	item := func(row, column, value string) bigtable.ReadItem {
		return bigtable.ReadItem{Row: row, Column: column, Value: []byte(value)}
	}
	b := &Buffer{}
	for _, row := range []string{"a", "b", "c"} {
		b.Set(cell(row, "2"), format.KindPut, []byte("new"))
	}
	b.Set(cell("a", "1"), format.KindDelete, nil)
	b.Set(cell("a", "4"), format.KindDelete, nil)
	b.Set(cell("a", "9"), format.KindLock, nil)
	b.Set(cell("b", "1"), format.KindDelete, nil)
	b.Set(cell("d", "1"), format.KindDelete, nil)
	b.Set(cell("e", "1"), format.KindLock, nil)
	b.Set(format.Cell{Table: "t", Row: "a", Family: "g", Qualifier: "x"}, format.KindPut, []byte("other family"))
	b.Set(format.Cell{Table: "u", Row: "a", Family: "f", Qualifier: "x"}, format.KindPut, []byte("other table"))
	none := b.OverlayRow("t", "none", store.Selection{})
	if _, ok := none.Next(false); ok || none.Apply("a", nil) != nil {
		t.Error("a row without writes has some")
	}
	notC := func(row string) bool { return row != "c" }
	whole := b.Overlay("t", notC, store.Selection{})
	show := func(r bigtable.Row) (text string) {
		for _, f := range []string{"f", "g"} {
			if items, ok := r[f]; ok && len(items) == 0 {
				text += " empty family " + f
			}
			for _, i := range r[f] {
				text += fmt.Sprintf(" %s/%s=%s", i.Row, i.Column, i.Value)
			}
		}
		return text
	}
	for _, tt := range []struct {
		key   string
		found []bigtable.ReadItem
		want  string
	}{
		{"a", nil, " a/f:2=new a/g:x=other family"},
		{"a", []bigtable.ReadItem{item("a", "f:1", "old"), item("a", "f:2", "old"), item("a", "f:3", "old")}, " a/f:2=new a/f:3=old a/g:x=other family"},
		{"a", []bigtable.ReadItem{item("a", "f:3", "old"), item("a", "f:4", "old")}, " a/f:2=new a/f:3=old a/g:x=other family"},
		{"c", []bigtable.ReadItem{item("c", "f:1", "old")}, " c/f:1=old"},
		{"d", []bigtable.ReadItem{item("d", "f:1", "old")}, ""},
		{"d", nil, ""},
		{"e", []bigtable.ReadItem{item("e", "f:1", "old")}, " e/f:1=old"},
	} {
		row := bigtable.Row{}
		if tt.found != nil {
			row["f"] = slices.Clone(tt.found)
		}
		got := whole.Apply(tt.key, row)
		if own := b.OverlayRow("t", tt.key, store.Selection{}).Apply(tt.key, row); tt.key != "c" && show(own) != show(got) {
			t.Errorf("%s alone:%s", tt.key, show(own))
		}
		if show(got) != tt.want || got != nil && len(got) == 0 && tt.want != "" || tt.want == "" && got != nil {
			t.Errorf("%s over %v:%s, want%s", tt.key, tt.found, show(got), tt.want)
		}
		for i := range tt.found {
			if string(row["f"][i].Value) != string(tt.found[i].Value) {
				t.Errorf("%s: what was read changed to %v", tt.key, row["f"])
			}
		}
	}
	for _, first := range []int{1, 5} {
		if sel := whole.Widen(store.Selection{First: first}); sel.First != first+2 { // a has two deletes
			t.Errorf("the first %d cells need %d", first, sel.First)
		}
	}
	other := bigtable.Row{"f": {item("c", "f:1", "old")}}
	if n := testing.AllocsPerRun(10, func() { whole.Apply("c", other) }); n != 0 {
		t.Errorf("a row without writes takes %v allocations", n)
	}
	if sel := whole.Widen(store.Selection{}); sel.First != 0 {
		t.Errorf("all cells became the first %d", sel.First)
	}
	if sel := (*Overlay)(nil).Widen(store.Selection{First: 5}); sel.First != 5 {
		t.Errorf("without an overlay, the first 5 cells need %d", sel.First)
	}
	keys := b.Overlay("t", func(string) bool { return true }, store.Selection{Columns: []format.Column{{Family: "f", Qualifier: "2"}}, KeysOnly: true})
	if got := show(keys.Apply("a", bigtable.Row{})); got != " a/f:2=" {
		t.Errorf("keys of one column:%s", got)
	}
	var order []string
	for reverse := false; len(order) < 3; reverse = !reverse {
		key, ok := keys.Next(reverse)
		if !ok {
			t.Fatal("no key is left")
		}
		order = append(order, key)
		keys.DropNext(reverse)
	}
	if key, ok := keys.Next(false); ok || !slices.Equal(order, []string{"a", "c", "b"}) {
		t.Errorf("from both ends: %q, then %q, %t", order, key, ok)
	}
}

// TestOverlayIsSorted: a scan merges what was written in order, however many rows that is.
func TestOverlayIsSorted(t *testing.T) {
	b := &Buffer{}
	for i := range 100 {
		b.Set(cell(fmt.Sprintf("%02d", i), "q"), format.KindPut, nil)
	}
	o := b.Overlay("t", func(string) bool { return true }, store.Selection{})
	for i := range 100 {
		if key, ok := o.Next(false); !ok || key != fmt.Sprintf("%02d", i) {
			t.Errorf("row %d is %q, %t", i, key, ok)
		}
		o.DropNext(false)
	}
}

// A large transaction takes little memory for each row beside the row's key and value.
func TestMemoryOfManyRows(t *testing.T) {
	const rows = 20_000
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	b := &Buffer{}
	for i := range rows {
		b.Set(cell(fmt.Sprintf("%08x", i), "q"), format.KindPut, []byte("a value"))
	}
	each := float64(heap()-before) / rows
	runtime.KeepAlive(b)
	t.Logf("%.0f bytes a row", each)
	if each > 300 {
		t.Errorf("%.0f bytes a row", each)
	}
}
