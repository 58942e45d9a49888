package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestNormalize: a normalized selection contains what the selection did, and nothing twice.
func TestNormalize(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	qualifiers := []string{"", "a", "a\x00", "b", "c"}
	qualifier := func() string { return qualifiers[random.IntN(len(qualifiers))] }
	family := func() string { return []string{"f", "g"}[random.IntN(2)] }
	for range 5000 {
		var s Selection
		for range random.IntN(4) {
			s.Columns = append(s.Columns, format.Column{Family: family(), Qualifier: qualifier()})
		}
		for range random.IntN(4) {
			if r := (QualifierRange{family(), qualifier(), qualifier()}); r.End == "" || r.Start < r.End {
				s.Ranges = append(s.Ranges, r)
			}
		}
		before := Selection{Columns: slices.Clone(s.Columns), Ranges: slices.Clone(s.Ranges)}
		s.Normalize()
		for _, f := range []string{"f", "g", "h", format.AckFamily} {
			for _, q := range append(qualifiers, "bb", "z") {
				c := format.Column{Family: f, Qualifier: q}
				has := func(s Selection) int {
					n := 0
					for _, r := range s.Ranges {
						if r.Family == f && q >= r.Start && (r.End == "" || q < r.End) {
							n++
						}
					}
					for _, other := range s.Columns {
						if other == c {
							n++
						}
					}
					return n
				}
				all := len(before.Columns)+len(before.Ranges) == 0
				if want := all && f != format.AckFamily || has(before) > 0; s.Has(c) != want || before.Has(c) != want || has(s) > 1 {
					t.Fatalf("%+v became %+v: it has %v: %t, %d times", before, s, c, s.Has(c), has(s))
				}
			}
		}
	}
}

// TestKnownCells: an answer whose lists were cut decides the columns up to the first end of a
// list. The rest begins right after that, and asks for four times as many.
func TestKnownCells(t *testing.T) {
	items := func(family string, n, step int) (all []bigtable.ReadItem) {
		for i := range n {
			q := fmt.Sprintf("%04d", i*step)
			if format.IsMetadataFamily(family) {
				q = "f:" + q
			}
			all = append(all, bigtable.ReadItem{Row: "r", Column: family + ":" + q, Value: []byte(q)})
		}
		return all
	}
	row := func(locks, writes, data, step int) bigtable.Row {
		return bigtable.Row{format.LockFamily: items(format.LockFamily, locks, 3*step), format.WriteFamily: items(format.WriteFamily, writes, 2*step), "f": items("f", data, step)}
	}
	first := Selection{Ranges: []QualifierRange{{"f", "0", "9"}}, First: 5, KeysOnly: true}
	const n = 5 + columnsAhead
	rest := func(start, end string, ahead int) *Selection {
		return &Selection{Ranges: []QualifierRange{{"f", start, end}}, First: 5, KeysOnly: true, ahead: ahead}
	}
	ended, long, longest := first, first, first
	ended.Ranges = []QualifierRange{{"f", "0", fmt.Sprintf("%04d\x00", n-1)}}
	long.ahead, long.Ranges = 64, []QualifierRange{{"f", "0", ""}}
	longest.ahead = maxColumnsAhead
	two, one, whole := first, first, first
	two.Ranges = append(slices.Clone(first.Ranges), QualifierRange{"g", "", ""})
	one.Columns = []format.Column{{Family: "g", Qualifier: "q"}}
	whole.First = 0
	for name, tt := range map[string]struct {
		sel  Selection
		raw  bigtable.Row
		end  string // of what is known
		rest *Selection
	}{
		"not cut":                {first, row(n-1, n-1, n-1, 1), "9", nil},
		"empty":                  {first, bigtable.Row{}, "9", nil},
		"data cut":               {first, row(0, n-1, n, 1), fmt.Sprintf("%04d\x00", n-1), rest(fmt.Sprintf("%04d\x00", n-1), "9", 64)},
		"records cut":            {first, row(0, n, 0, 1), fmt.Sprintf("%04d\x00", 2*n-2), rest(fmt.Sprintf("%04d\x00", 2*n-2), "9", 64)},
		"locks cut":              {first, row(n, n-1, 0, 1), fmt.Sprintf("%04d\x00", 3*n-3), rest(fmt.Sprintf("%04d\x00", 3*n-3), "9", 64)},
		"locks cut first":        {first, bigtable.Row{format.LockFamily: items(format.LockFamily, n, 1), "f": items("f", n, 2)}, fmt.Sprintf("%04d\x00", n-1), rest(fmt.Sprintf("%04d\x00", n-1), "9", 64)},
		"all cut":                {first, row(n, n, n, 1), fmt.Sprintf("%04d\x00", n-1), rest(fmt.Sprintf("%04d\x00", n-1), "9", 64)},
		"cut at the end":         {ended, row(n, n, n, 1), ended.Ranges[0].End, nil},
		"the rest":               {long, row(0, 5+63, 5+64, 1), fmt.Sprintf("%04d\x00", 5+63), rest(fmt.Sprintf("%04d\x00", 5+63), "", 256)},
		"the rest, not cut":      {long, row(0, 5+63, 5+63, 1), "", nil},
		"a very long rest":       {longest, row(0, 0, 5+maxColumnsAhead, 1), "16388\x00", rest("16388\x00", "9", maxColumnsAhead)},
		"two ranges":             {two, row(n, n, n, 1), "9", nil},
		"a range and a column":   {one, row(n, n, n, 1), "9", nil},
		"everything of the rows": {whole, row(n, n, n, 1), "9", nil},
	} {
		known, left := Known(tt.sel, tt.raw)
		want := tt.sel
		want.Ranges = slices.Clone(tt.sel.Ranges)
		want.Ranges[0].End = tt.end
		if d := cmp.Diff(want, known, cmp.AllowUnexported(Selection{})); d != "" {
			t.Errorf("%s: known (-want +got):\n%s", name, d)
		}
		if d := cmp.Diff(tt.rest, left, cmp.AllowUnexported(Selection{})); d != "" {
			t.Errorf("%s: rest (-want +got):\n%s", name, d)
		}
	}
}

// TestFirstCells: the first cells of a row are those of the first families.
func TestFirstCells(t *testing.T) {
	item := func(c string) bigtable.ReadItem { return bigtable.ReadItem{Row: "r", Column: c} }
	row := bigtable.Row{"g": {item("g:1"), item("g:2")}, "f": {item("f:1"), item("f:2")}, "h": {item("h:1")}}
	for n, want := range map[int]string{0: "f:1 f:2 g:1 g:2 h:1", 1: "f:1", 2: "f:1 f:2", 3: "f:1 f:2 g:1", 4: "f:1 f:2 g:1 g:2", 5: "f:1 f:2 g:1 g:2 h:1", 6: "f:1 f:2 g:1 g:2 h:1"} {
		got, text := FirstCells(row, n), ""
		for _, f := range []string{"f", "g", "h"} {
			if items, ok := got[f]; ok && len(items) == 0 {
				t.Errorf("first %d: family %s without cells", n, f)
			}
			for _, i := range got[f] {
				text += " " + i.Column
			}
		}
		if text != " "+want || CountCells(got) != (len(want)+1)/4 {
			t.Errorf("first %d:%s, want %s", n, text, want)
		}
	}
	for _, n := range []int{0, 5, 6} {
		if allocs := testing.AllocsPerRun(10, func() { FirstCells(row, n) }); allocs != 0 {
			t.Errorf("the first %d of 5 cells are copied: %v allocations", n, allocs)
		}
	}
}

// TestNormalizeMerges: ranges that touch or overlap become one, and a range without an end contains
// those after it.
func TestNormalizeMerges(t *testing.T) {
	for _, tt := range []struct{ in, want []QualifierRange }{
		{[]QualifierRange{{"f", "b", "c"}, {"f", "a", "b"}}, []QualifierRange{{"f", "a", "c"}}},
		{[]QualifierRange{{"f", "a", "b"}, {"f", "b\x00", "c"}}, []QualifierRange{{"f", "a", "b"}, {"f", "b\x00", "c"}}},
		{[]QualifierRange{{"f", "a", "d"}, {"f", "b", "c"}}, []QualifierRange{{"f", "a", "d"}}},
		{[]QualifierRange{{"f", "a", "c"}, {"f", "b", ""}, {"f", "x", "y"}}, []QualifierRange{{"f", "a", ""}}},
		{[]QualifierRange{{"f", "a", ""}, {"g", "a", "b"}}, []QualifierRange{{"f", "a", ""}, {"g", "a", "b"}}},
	} {
		s := Selection{Ranges: slices.Clone(tt.in)}
		if s.Normalize(); !slices.Equal(s.Ranges, tt.want) {
			t.Errorf("%q became %q, want %q", tt.in, s.Ranges, tt.want)
		}
	}
}
