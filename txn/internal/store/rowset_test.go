package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/txn/format"
)

var compareSets = cmp.AllowUnexported(RowSet{}, KeyRange{})

// TestRowRangeBounds covers every constructor of bigtable.RowRange. It fails if a version of
// the Bigtable client prints ranges differently.
func TestRowRangeBounds(t *testing.T) {
	odd := "a\"b\\c\x00\xff∞],)"
	for _, tt := range []struct {
		in   bigtable.RowRange
		want KeyRange
	}{
		{bigtable.NewRange("a", "b"), KeyRange{"a", "b"}},
		{bigtable.NewClosedOpenRange("a", "b"), KeyRange{"a", "b"}},
		{bigtable.NewOpenClosedRange("a", "b"), KeyRange{"a\x00", "b\x00"}},
		{bigtable.NewOpenRange("a", "b"), KeyRange{"a\x00", "b"}},
		{bigtable.NewClosedRange("a", "b"), KeyRange{"a", "b\x00"}},
		{bigtable.PrefixRange("a"), KeyRange{"a", "b"}},
		{bigtable.PrefixRange("a\xff"), KeyRange{"a\xff", "b"}},
		{bigtable.PrefixRange("\xff"), KeyRange{"\xff", ""}},
		{bigtable.PrefixRange(""), KeyRange{"", ""}},
		{bigtable.InfiniteRange("a"), KeyRange{"a", ""}},
		{bigtable.InfiniteRange(""), KeyRange{"", ""}},
		{bigtable.InfiniteReverseRange("b"), KeyRange{"", "b\x00"}},
		{bigtable.NewOpenRange("", "b"), KeyRange{"", "b"}},
		{bigtable.NewOpenRange("a", ""), KeyRange{"a\x00", ""}},
		{bigtable.NewClosedRange(odd, odd), KeyRange{odd, odd + "\x00"}},
		{bigtable.NewOpenRange(odd, odd+odd), KeyRange{odd + "\x00", odd + odd}},
	} {
		got, err := newKeyRange(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("%v: %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
	if got, err := newKeyRange(bigtable.RowRange{}); err != nil || got != (KeyRange{}) {
		t.Errorf("zero range: %q, %v", got, err)
	}
}

func TestRowSet(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   bigtable.RowSet
		want RowSet
	}{
		{"nil is everything", nil, RowSet{Ranges: []KeyRange{{}}}},
		{"list is sorted and without duplicates", bigtable.RowList{"b", "a", "b"}, RowSet{Keys: []string{"a", "b"}}},
		{"empty list is empty", bigtable.RowList{}, RowSet{Keys: []string{}}},
		{"nil list is empty", bigtable.RowList(nil), RowSet{Keys: []string{}}},
		{"single row", bigtable.SingleRow("a"), RowSet{Keys: []string{"a"}}},
		{
			"ranges are sorted and merged",
			bigtable.RowRangeList{bigtable.NewRange("m", "p"), bigtable.NewRange("a", "c"), bigtable.NewRange("b", "d"), bigtable.NewRange("d", "e"), bigtable.NewRange("z", "y"), bigtable.NewRange("z", "z")},
			RowSet{Ranges: []KeyRange{{"a", "e"}, {"m", "p"}}},
		},
		{"an endless range swallows", bigtable.RowRangeList{bigtable.InfiniteRange("b"), bigtable.NewRange("c", "d"), bigtable.NewRange("a", "b")}, RowSet{Ranges: []KeyRange{{"a", ""}}}},
		{"ranges that touch are one", bigtable.RowRangeList{bigtable.NewRange("a", "b"), bigtable.NewRange("b", "")}, RowSet{Ranges: []KeyRange{{"a", ""}}}},
		{"the same end", bigtable.RowRangeList{bigtable.NewRange("a", "c"), bigtable.NewRange("b", "c")}, RowSet{Ranges: []KeyRange{{"a", "c"}}}},
		{"a range inside another", bigtable.RowRangeList{bigtable.NewRange("a", "z"), bigtable.NewRange("b", "c")}, RowSet{Ranges: []KeyRange{{"a", "z"}}}},
	} {
		got, err := NewRowSet(tt.in)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if d := cmp.Diff(tt.want, got, compareSets); d != "" && (len(got.Ranges) > 0 || len(tt.want.Ranges) > 0 || d != "") {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
	if _, err := NewRowSet(bigtable.RowList{""}); !errors.Is(err, format.ErrInvalid) {
		t.Errorf("empty key: %v", err)
	}
}

func TestRowSetBeyond(t *testing.T) {
	ranges := RowSet{Ranges: []KeyRange{{"a", "e"}, {"m", ""}}}
	keys := RowSet{Keys: []string{"a", "b", "c"}}
	for _, tt := range []struct {
		set     RowSet
		key     string
		reverse bool
		want    RowSet
	}{
		{ranges, "b", false, RowSet{Ranges: []KeyRange{{"b\x00", "e"}, {"m", ""}}}},
		{ranges, "f", false, RowSet{Ranges: []KeyRange{{"m", ""}}}},
		{RowSet{Ranges: []KeyRange{{"a", "b\x00"}}}, "b", false, RowSet{}},
		{ranges, "n", true, RowSet{Ranges: []KeyRange{{"a", "e"}, {"m", "n"}}}},
		{ranges, "m", true, RowSet{Ranges: []KeyRange{{"a", "e"}}}},
		{ranges, "a", true, RowSet{}},
		{keys, "b", false, RowSet{Keys: []string{"c"}}},
		{keys, "b", true, RowSet{Keys: []string{"a"}}},
		{keys, "c", false, RowSet{Keys: []string{}}},
	} {
		got := tt.set.AfterKey(tt.key, tt.reverse)
		if d := cmp.Diff(tt.want, got, compareSets); d != "" {
			t.Errorf("beyond %q, reverse %v (-want +got):\n%s", tt.key, tt.reverse, d)
		}
		if got.Contains(tt.key) {
			t.Errorf("beyond %q still contains it", tt.key)
		}
	}
}

// TestKeyBefore: a collection stores a key below the rows that are left as its position. No row
// of them may be at or below it.
func TestKeyBefore(t *testing.T) {
	for first, want := range map[string]string{"": "", "a": "`\xff\xff\xff\xff", "ab": "aa\xff\xff\xff\xff", "a\x00": "a", "\x00": ""} {
		got := AllAfter(first).Before()
		if first != "" {
			got = RowSet{Ranges: []KeyRange{{Start: first}}}.Before()
		}
		if got != want || (first != "" && got >= first) {
			t.Errorf("before %q is %q, want %q", first, got, want)
		}
		if rest := AllAfter(got); !rest.Contains(max(first, "\x00")) {
			t.Errorf("%q is not after %q", first, got)
		}
	}
}

// TestScanOfASet reads random sets page by page, as scans do, and compares the rows with those
// that the set contains.
func TestScanOfASet(t *testing.T) {
	var all []string
	for _, a := range []string{"a", "b", "c"} {
		for _, b := range []string{"", "\x00", "a", "a\x00", "b"} {
			all = append(all, a+b)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	key := func() string { return all[random.IntN(len(all))] }
	for range 2000 {
		var in bigtable.RowSet = bigtable.RowList{key(), key(), key()}
		contains := func(k string) bool { return slices.Contains(in.(bigtable.RowList), k) }
		if random.IntN(3) > 0 {
			ranges := [][2]string{{key(), key()}, {key(), key()}, {key(), ""}}[:1+random.IntN(3)]
			var list bigtable.RowRangeList
			for _, r := range ranges {
				list = append(list, bigtable.NewRange(r[0], r[1]))
			}
			in = list
			contains = func(k string) bool {
				return slices.ContainsFunc(ranges, func(r [2]string) bool { return k >= r[0] && (k < r[1] || r[1] == "") })
			}
		}
		set, err := NewRowSet(in)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, k := range all {
			if contains(k) != set.Contains(k) {
				t.Errorf("%v contains %q: %t", in, k, !contains(k))
			}
			if contains(k) {
				want = append(want, k)
			}
		}
		for _, reverse := range []bool{false, true} {
			var got []string
			rows := slices.Clone(all)
			if reverse {
				slices.Reverse(rows)
			}
			rest := set
			for n := 0; !rest.Empty() && n < 100; n++ {
				request, err := NewRowSet(rest.Request(reverse))
				if err != nil {
					t.Fatal(err)
				}
				most, last := 1+random.IntN(3), "" // as many rows arrive
				for _, k := range rows {
					if most > 0 && request.Contains(k) {
						got, last = append(got, k), k
						most--
					}
				}
				if most > 0 {
					rest = rest.AfterRequest(rest.Request(reverse), reverse)
				} else {
					rest = rest.AfterKey(last, reverse)
				}
			}
			if reverse {
				slices.Reverse(got)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, reverse %t: read %q, want %q", in, reverse, got, want)
			}
		}
	}
}

// TestRequestOfASet: a request names at most a page of keys, and as many bytes of keys and ranges
// as Bigtable allows. The next one begins after it. Keys in reverse are ranges of one row, so that
// half as many long ones fit.
func TestRequestOfASet(t *testing.T) {
	keys := func(n, size int) (list bigtable.RowList) {
		for i := range n {
			list = append(list, fmt.Sprintf("%0*d", size, i))
		}
		return list
	}
	ranges := func(n, size int) (list bigtable.RowRangeList) {
		for i := range n {
			key := fmt.Sprintf("%0*d", size, i)
			list = append(list, bigtable.NewRange(key, key+"x"))
		}
		return list
	}
	for name, tt := range map[string]struct {
		in   bigtable.RowSet
		want int
	}{
		"a page of keys":        {keys(MaxPageRows, 5), MaxPageRows},
		"more than a page":      {keys(MaxPageRows+1, 5), MaxPageRows},
		"long keys":             {keys(200, 4080), format.MaxRowListBytes / 4096},
		"longer keys":           {keys(200, 4081), format.MaxRowListBytes/4097 + 1},
		"many ranges":           {ranges(MaxPageRows+1, 5), MaxPageRows + 1},
		"ranges of long keys":   {ranges(200, 2039), (format.MaxRowListBytes + 2039*2 + 16) / (2039*2 + 17)},
		"a range of everything": {nil, 1},
	} {
		set, err := NewRowSet(tt.in)
		if err != nil {
			t.Fatal(err)
		}
		for _, reverse := range []bool{false, true} {
			request := set.Request(reverse)
			rest := set.AfterRequest(request, reverse)
			var n int
			switch list := request.(type) {
			case bigtable.RowList:
				n = len(list)
				if list[0] != set.Keys[0] || reverse || len(rest.Keys) != len(set.Keys)-n {
					t.Errorf("%s, reverse %t: it begins with %.9q, and %d are left", name, reverse, list[0], len(rest.Keys))
				}
			case bigtable.RowRangeList:
				n = len(list)
				if all := len(set.Keys); len(rest.Ranges) != len(set.Ranges)-min(n, len(set.Ranges)) ||
					all > 0 && (!reverse || len(rest.Keys) != all-n || list[0].String() != bigtable.NewRange(set.Keys[all-1], set.Keys[all-1]+"\x00").String()) {
					t.Errorf("%s, reverse %t: it begins with %.30q, and %d and %d are left", name, reverse, list[0], len(rest.Keys), len(rest.Ranges))
				}
			}
			want := tt.want
			if reverse && len(set.Keys) > 0 && want < MaxPageRows {
				want = (tt.want + 1) / 2
			}
			if n != want || rest.Empty() != (n == len(set.Keys)+len(set.Ranges)) {
				t.Errorf("%s, reverse %t: a request of %d, want %d", name, reverse, n, want)
			}
		}
	}
}

// TestSmallerSet: which of two pieces of a scan that begin with the same row is smaller.
func TestSmallerSet(t *testing.T) {
	set := func(bounds string) (s RowSet) {
		for r := range strings.FieldsSeq(bounds) {
			start, end, _ := strings.Cut(r, "-")
			s.Ranges = append(s.Ranges, KeyRange{start, end})
		}
		return s
	}
	for _, tt := range []struct {
		a, b    string
		reverse bool
		want    bool
	}{
		{"a-b", "a-c", false, true},
		{"a-c", "a-b", false, false},
		{"a-b", "a-b", false, false},
		{"a-b", "a-", false, true},
		{"a-", "a-b", false, false},
		{"a-", "a-", false, false},
		{"a-b", "a-b d-e", false, true},
		{"a-b d-f", "a-b d-e", false, false},
		{"a-b d-e", "a-c", false, false},
		{"b-c", "a-c", true, true},
		{"a-c", "b-c", true, false},
		{"a-c", "a-c", true, false},
		{"a-b d-e", "a0-b d-e", true, false},
		{"a0-b d-e", "a-b d-e", true, true},
	} {
		if got := set(tt.a).less(set(tt.b), tt.reverse); got != tt.want {
			t.Errorf("%s is smaller than %s, reverse %t: %t", tt.a, tt.b, tt.reverse, got)
		}
	}
	for _, reverse := range []bool{false, true} {
		first, later := set("a-b"), set("c-d")
		if reverse {
			first, later = later, first
		}
		if got := first.join(later, reverse); !slices.Equal(got.Ranges, set("a-b c-d").Ranges) || !slices.Equal(first.join(RowSet{}, reverse).Ranges, first.Ranges) {
			t.Errorf("joined, reverse %t: %v", reverse, got)
		}
		if keys := (RowSet{Keys: []string{"a"}}); !slices.Equal(keys.join(RowSet{}, reverse).Keys, keys.Keys) {
			t.Errorf("keys joined with nothing, reverse %t", reverse)
		}
	}
}
